"""Small traces, specs and engines with defaults, for tests."""

from collections.abc import Callable

import numpy as np

from trials.content import Content
from trials.engine import DeviceBytes, EngineFacts, PoolGeometry, StepShape
from trials.engines.own import PagedEngine, effective_knobs
from trials.engines.simulator import Modelled
from trials.spec import PoolPolicy
from trials.trace import Ragged, Trace, TraceMeta, make_trace

MS = 1_000_000


def build_trace(
    prompts: list[int],
    outputs: list[int],
    arrivals_ms: list[float] | None = None,
    ids: list[list[int]] | None = None,
    tokens_per_id: int = 16,
) -> Trace:
    """A trace from plain lists; prefix ids follow the ceil rule."""
    at = np.array([round(a * MS) for a in arrivals_ms]) if arrivals_ms else np.zeros(len(prompts), np.int64)
    meta = TraceMeta(tokens_per_id=tokens_per_id if ids else 0)
    ragged = Ragged.of(ids) if ids else None
    return make_trace(at, np.array(prompts), np.array(outputs), prefix_ids=ragged, meta=meta)


def token_time(shape: StepShape) -> tuple[int, int]:
    """1 ms a step and 10 us a token: deterministic, and different for different shapes."""
    tokens = shape.num_decodes + shape.chunk_tokens
    return MS + 10_000 * tokens + shape.decode_context, shape.decode_context + shape.chunk_pairs


def build_engine(
    trace: Trace,
    policy: PoolPolicy | None = None,
    num_blocks: int = 64,
    reserve_blocks: int = 0,
    bytes_per_token: int = 64,
    step_time: Callable[[StepShape], tuple[int, int]] = token_time,
) -> PagedEngine:
    """The simulator on a pool of `num_blocks` blocks."""
    policy = policy or PoolPolicy()
    size = policy.block_size
    pool = num_blocks * size * bytes_per_token
    geometry = PoolGeometry(size, num_blocks, reserve_blocks, bytes_per_token, 0, pool, size, size)
    facts = EngineFacts(
        "simulator", "0" * 64, "modelled", "virtual", (geometry,), 1, effective_knobs(policy, geometry),
        max_model_len=policy.max_model_len,
    )  # fmt: skip
    return PagedEngine(facts, policy, Content(trace), Modelled(step_time, DeviceBytes(pool=pool)))
