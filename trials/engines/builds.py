"""What a torch process compiled and captured so far, and how long it took: by the counters of torch and vLLM.

Nothing is imported for it: what was never imported has compiled nothing. Read once a step, so it has to be cheap.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trials.engine import EngineStart

# Of vLLM's own counter, beside the graphs that torch counts: compilations for a size that came up at run time.
_VLLM = ("num_backend_compilations", "num_inductor_compiles", "num_eager_compiles")
_COMPILING = ("_compile.compile_inner", "fullgraph_capture")  # torch's own names of the time that compiling takes


class Builds:
    """Counts from when it is made; `watch_device()` adds what only a GPU has: graphs captured, Triton's kernels."""

    def __init__(self) -> None:
        self.captured = self.kernels = 0
        self.capture_s = 0.0
        self._seen = self.total()

    def total(self) -> int:
        """Compilations and captures so far in this process."""
        found = self.captured + self.kernels
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None:
            found += int(dynamo.counters["stats"]["unique_graphs"])
        counted: Any = sys.modules.get("vllm.compilation.counter")
        if counted is not None:
            found += sum(int(getattr(counted.compilation_counter, name, 0)) for name in _VLLM)
        return found

    def since(self) -> int:
        """Those since it was asked last."""
        total, seen = self.total(), self._seen
        self._seen = total
        return max(0, total - seen)

    def watch_device(self) -> None:
        """From now on CUDA graphs are counted as they are captured, and kernels as Triton compiles them."""
        import torch

        self.watch_graphs(torch.cuda.CUDAGraph)
        knobs: Any = sys.modules.get("triton.knobs")
        if knobs is None:
            return
        before = knobs.runtime.jit_post_compile_hook

        def compiled(**told: Any) -> Any:
            self.kernels += 1
            return before(**told) if before is not None else None

        knobs.runtime.jit_post_compile_hook = compiled

    def watch_graphs(self, kind: Any) -> None:
        """Stand around `capture_begin` and `capture_end` of a graph's class."""
        begin, end = kind.capture_begin, kind.capture_end
        began: list[float] = []

        def capture_begin(graph: Any, *arguments: Any, **named: Any) -> Any:
            began.append(time.perf_counter())
            return begin(graph, *arguments, **named)

        def capture_end(graph: Any, *arguments: Any, **named: Any) -> Any:
            found = end(graph, *arguments, **named)
            self.captured += 1
            self.capture_s += time.perf_counter() - began.pop() if began else 0.0
            return found

        kind.capture_begin, kind.capture_end = capture_begin, capture_end


def compile_seconds() -> float:
    """Time that torch has spent compiling in this process so far."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0.0
    return float(sum(sum(dynamo.compilation_time_metrics.get(name, ())) for name in _COMPILING))


class StartUp:
    """The seconds before the first request, told apart: a phase's own are those without compiling and capturing."""

    def __init__(self, builds: Builds, compiled_s: Callable[[], float] = compile_seconds) -> None:
        self._builds, self._compiled_s = builds, compiled_s
        self._spent = {"load_s": 0.0, "warmup_s": 0.0}
        self._began = compiled_s(), builds.capture_s

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Imports, weights, pool."""
        with self._phase("load_s"):
            yield

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Steps that are run before any counts."""
        with self._phase("warmup_s"):
            yield

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began, built = time.perf_counter(), self._compiled_s() + self._builds.capture_s
        yield
        built = self._compiled_s() + self._builds.capture_s - built
        self._spent[name] += max(0.0, time.perf_counter() - began - built)

    def told(self) -> EngineStart:
        """All of it so far."""
        compiled, captured = self._began
        return EngineStart(
            compile_s=self._compiled_s() - compiled, capture_s=self._builds.capture_s - captured, **self._spent
        )
