"""torch_paged: our scheduler and pool, executed with real tensors on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trials.content import Content
from trials.engine import Engine, EngineFacts, Refused
from trials.engines.identity import own_identity, processor_name
from trials.engines.kernels.config import TorchConfig
from trials.engines.kernels.threads import prepare_process
from trials.engines.own import PagedEngine, effective_knobs
from trials.fingerprint import engine_hash
from trials.geometry import pool_geometry
from trials.spec import TrialSpec

_HERE = Path(__file__).parent
FILES = (
    "engines/torch_engine.py", "engines/torch_model.py", "engines/torch_paged.py",
    *(f"engines/kernels/{path.name}" for path in sorted((_HERE / "kernels").glob("*.py"))),
)  # fmt: skip


def prepare(spec: TrialSpec) -> None:
    """Thread counts must be settled before torch and numba are imported."""
    prepare_process(spec.engine.threads)


def identity(spec: TrialSpec) -> Mapping[str, Any]:
    return own_identity(spec, FILES, ["torch", "numba", "numpy"], processor_name())


def open(spec: TrialSpec, content: Content) -> Engine | Refused:
    """Build pool, model and kernels and warm them; refused, in words, where this engine cannot run the spec."""
    from trials.engines.torch_paged import open_execution

    geometry = pool_geometry(spec)
    if isinstance(geometry, str):
        return Refused(geometry)
    if spec.engine.device != "cpu":
        return Refused(f"torch_paged runs on cpu here, not on {spec.engine.device}")
    policy, vocab = spec.policy, spec.model.vocab_size
    if policy.layout == "virtual":
        return Refused(
            "torch_paged has no virtual memory to map pages in: layout virtual is geometry, for the simulator; "
            "use layout paged or contiguous here"
        )
    clock = spec.engine.clock or "wall"
    config = TorchConfig(
        model=spec.model, geometry=geometry, layout=policy.layout, max_num_seqs=policy.max_num_seqs,
        max_model_len=policy.max_model_len, max_num_batched_tokens=policy.max_num_batched_tokens,
        threads=spec.engine.threads, seed=spec.seed, clock=clock,
    )  # fmt: skip

    def tokens_of(row: int) -> NDArray[np.int64]:
        return content.prompt_tokens(row, vocab)

    execution = open_execution(config, tokens_of, content.inherits)
    if isinstance(execution, Refused):
        return execution
    facts = EngineFacts(
        name="torch_paged", engine_hash=engine_hash(identity(spec)), evidence="measured", clock=clock,
        groups=(geometry,), ranks=1, effective=effective_knobs(policy, geometry),
        max_model_len=policy.max_model_len,
    )  # fmt: skip
    return PagedEngine(facts, policy, content, execution, execution.start_up)
