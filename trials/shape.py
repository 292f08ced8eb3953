"""The shape of a workload, small enough to lie in a recipe and whole enough to tell another trace from it.

Lengths are kept as 101 quantiles by nearest rank, so that distributions can be compared to within 1 % of the rows.
The hit ratio of an infinite prefix cache grows with the rows that it has seen, so it is kept by number of rows.
"""

import numpy as np
from pydantic import BaseModel, ConfigDict

from trials.describe import Arrivals, describe, ideal_hits, nearest_rank
from trials.trace import STARTS, Ints, Trace

NUM_QUANTILES = 101
_FIRST_ROWS = 64  # of the hit curve, which then doubles


class HitRatio(BaseModel):
    """What an endless prefix cache would find of a trace, and over how much of it that was counted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int  # of the trace, from its first
    ratio: float  # prompt tokens that an infinite cache would hit, per prompt token


class WorkloadShape(BaseModel):
    """Shares are of all rows. `rate_rps`, `gap_cv` None: all rows arrive at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    rate_rps: float | None
    gap_cv: float | None
    prompt_quantiles: tuple[int, ...]  # [101] tokens, 0 % to 100 %
    output_quantiles: tuple[int, ...]
    tokens_per_id: int  # 0: the trace knows no prefixes
    hits: tuple[HitRatio, ...]
    fork_share: float
    turn_share: float
    cancel_share: float
    synthetic: tuple[str, ...] = ()


def shape_of(trace: Trace) -> WorkloadShape:
    """O(rows log rows + prefix ids)."""
    arrivals: Arrivals = describe(trace).arrivals
    cancels = (trace.cancel_after_ns >= 0) | (trace.cancel_after_tokens >= 0)
    return WorkloadShape(
        rows=len(trace), rate_rps=arrivals.rate_rps, gap_cv=arrivals.gap_cv,
        prompt_quantiles=_quantiles(trace.num_prompt_tokens), output_quantiles=_quantiles(trace.num_output_tokens),
        tokens_per_id=trace.meta.tokens_per_id, hits=_hits(trace),
        fork_share=float((trace.starts == STARTS["fork"]).mean()),
        turn_share=float((trace.starts == STARTS["think"]).mean()), cancel_share=float(cancels.mean()),
        synthetic=trace.meta.synthetic,
    )  # fmt: skip


def _quantiles(tokens: Ints) -> tuple[int, ...]:
    ascending = np.sort(tokens)
    return tuple(nearest_rank(ascending, p) for p in range(NUM_QUANTILES))


def _hits(trace: Trace) -> tuple[HitRatio, ...]:
    if trace.meta.tokens_per_id == 0:
        return ()
    hits = np.cumsum(ideal_hits(trace), dtype=np.int64)
    asked = np.cumsum(trace.num_prompt_tokens, dtype=np.int64)
    counts, rows = [], _FIRST_ROWS
    while rows < len(trace):
        counts.append(rows)
        rows *= 2
    return tuple(HitRatio(rows=n, ratio=int(hits[n - 1]) / int(asked[n - 1])) for n in [*counts, len(trace)])
