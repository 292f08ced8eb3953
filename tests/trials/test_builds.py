"""What is compiled and captured is counted and timed, and its time is in no other phase of the start."""

import sys
import time
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from trials.engines.builds import Builds, StartUp, compile_seconds


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch's and vLLM's own counters, as they keep them."""
    dynamo = SimpleNamespace(counters=defaultdict(Counter), compilation_time_metrics=defaultdict(list))
    vllm = SimpleNamespace(compilation_counter=SimpleNamespace(num_inductor_compiles=0, num_eager_compiles=0))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
    monkeypatch.setitem(sys.modules, "vllm.compilation.counter", vllm)
    return SimpleNamespace(dynamo=dynamo, vllm=vllm.compilation_counter)


def test_what_was_never_imported_has_compiled_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch._dynamo.utils", "vllm.compilation.counter"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert Builds().since() == 0
    assert compile_seconds() == 0.0


def test_each_build_is_counted_once_and_those_before_are_not(counters: Any) -> None:
    counters.dynamo.counters["stats"]["unique_graphs"] = 3
    builds = Builds()
    assert builds.since() == 0
    counters.dynamo.counters["stats"]["unique_graphs"] += 1
    counters.vllm.num_inductor_compiles += 2
    assert builds.since() == 3
    assert builds.since() == 0
    counters.dynamo.counters.clear()
    assert builds.since() == 0, "counters that were cleared unbuild nothing"


def test_captured_graphs_are_counted_and_timed() -> None:
    class Graph:
        def capture_begin(self, pool: int = 0) -> int:
            return pool

        def capture_end(self) -> str:
            return "captured"

    builds = Builds()
    builds.watch_graphs(Graph)
    graph = Graph()
    assert graph.capture_begin(pool=7) == 7
    time.sleep(0.01)
    assert graph.capture_end() == "captured"
    assert builds.since() == 1
    assert 0.01 <= builds.capture_s < 1.0


def test_the_start_is_told_apart(counters: Any) -> None:
    starting = StartUp(builds := Builds())
    with starting.loading():
        time.sleep(0.03)
        counters.dynamo.compilation_time_metrics["fullgraph_capture"].append(0.01)
        builds.capture_s += 0.01
    with starting.warming_up():
        time.sleep(0.02)
    with starting.loading():
        time.sleep(0.01)
    told = starting.told()
    assert (told.compile_s, told.capture_s) == (0.01, 0.01)
    assert told.load_s >= 0.02
    assert told.warmup_s >= 0.02
    assert told.load_s + told.warmup_s < 10


def test_a_phase_that_fails_hides_nothing() -> None:
    starting = StartUp(Builds())
    with pytest.raises(RuntimeError, match="its own words"), starting.loading():
        raise RuntimeError("its own words")
