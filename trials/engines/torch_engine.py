"""torch_paged: our scheduler and pool, executed with real tensors on this machine."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trials.content import Content
from trials.engine import Engine, EngineFacts, Refused, Step
from trials.engines.builds import Builds
from trials.engines.identity import cuda_name, cuda_there, own_identity, processor_name
from trials.engines.kernels.choice import DENSE, KERNELS, choose
from trials.engines.kernels.config import TorchConfig, kernel_block_size
from trials.engines.kernels.threads import prepare_process
from trials.engines.own import PagedEngine, effective_knobs
from trials.fingerprint import engine_hash
from trials.geometry import pool_geometry
from trials.spec import TrialSpec
from trials.units import nearest

_HERE = Path(__file__).parent
FILES = (
    "engines/builds.py", "engines/torch_device.py", "engines/torch_engine.py", "engines/torch_model.py",
    "engines/torch_paged.py",
    *(f"engines/kernels/{path.name}" for path in sorted((_HERE / "kernels").glob("*.py"))),
)  # fmt: skip


def prepare(spec: TrialSpec) -> None:
    """Thread counts must be settled before torch and numba are imported."""
    prepare_process(spec.engine.threads)


def identity(spec: TrialSpec) -> Mapping[str, Any]:
    kernel, _ = kernel_of(spec)
    named = {"engine": spec.engine.model_copy(update={"args": {**spec.engine.args, "kernel": kernel}})}
    found = KERNELS[kernel].distributions if kernel in KERNELS else ("torch",)
    device = cuda_name() if spec.engine.device == "cuda" else processor_name()
    return own_identity(spec.model_copy(update=named), FILES, found, device)


def kernel_of(spec: TrialSpec) -> tuple[str, str | None]:
    """(the kernel that pages, None), or (its name, why it cannot be had). A candidate's layout is not asked."""
    unknown = sorted(set(spec.engine.args) - {"kernel"})
    if unknown:
        return "none", f"torch_paged has no argument {unknown[0]!r}; {nearest(unknown[0], ['kernel'])}"
    return choose(spec.engine.device, spec.engine.args.get("kernel"))


def open(spec: TrialSpec, content: Content) -> Engine | Refused:
    """Build pool, model and kernels and warm them; refused, in words, where this engine cannot run the spec."""
    from trials.engines.torch_paged import open_execution

    geometry = pool_geometry(spec)
    if isinstance(geometry, str):
        return Refused(geometry)
    device, policy, vocab = spec.engine.device, spec.policy, spec.model.vocab_size
    if device == "cuda" and not cuda_there():
        return Refused(
            "torch_paged: torch sees no CUDA device here; use engine.device: cpu, or a machine with a GPU"
        )
    kernel, why = kernel_of(spec)
    if why is not None:
        return Refused(f"torch_paged: {why}")
    if policy.layout == "virtual":
        return Refused(
            "torch_paged has no virtual memory to map pages in: layout virtual is geometry, for the simulator; "
            "use layout paged or contiguous here"
        )
    clock = spec.engine.clock or "wall"
    config = TorchConfig(
        model=spec.model, geometry=geometry, layout=policy.layout, max_num_seqs=policy.max_num_seqs,
        max_model_len=policy.max_model_len, max_num_batched_tokens=policy.max_num_batched_tokens,
        threads=spec.engine.threads, seed=spec.seed, clock=clock, device=device,
        kernel=DENSE[device] if policy.layout == "contiguous" else kernel,
    )  # fmt: skip

    def tokens_of(row: int) -> NDArray[np.int64]:
        return content.prompt_tokens(row, vocab)

    execution = open_execution(config, tokens_of, content.inherits)
    if isinstance(execution, Refused):
        return execution
    facts = EngineFacts(
        name="torch_paged", engine_hash=engine_hash(identity(spec)), evidence="measured", clock=clock,
        groups=(replace(geometry, kernel_block_size=kernel_block_size(config)),), ranks=1,
        effective=tuple(
            sorted((*effective_knobs(policy, geometry), ("kernel", config.kernel), ("outputs", "live")))
        ),
        # Its own answers stand, and who inherits one gets it as it was given; no time and no block depends on it.
        not_applicable=("outputs",), max_model_len=policy.max_model_len,
    )  # fmt: skip
    builds = Builds()
    if device == "cuda":
        builds.watch_device()
    return TorchEngine(builds, facts, policy, content, execution, execution.start_up)


class TorchEngine(PagedEngine):
    """PagedEngine on real tensors: says of a step what was compiled or captured in it. Own kernels never are: they
    are closed to new types before the first step."""

    def __init__(self, builds: Builds, *parts: Any) -> None:
        super().__init__(*parts)
        self._builds = builds

    def start(self, cold: bool) -> None:
        super().start(cold)
        self._builds.since()

    def step(self) -> Step | None:
        step = super().step()
        if step is not None:
            step.builds = self._builds.since()
        return step
