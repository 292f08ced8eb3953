"""What a trace is like: rate, burstiness, lengths, sharing, and the tail slack that a block size must cost.

Pure arithmetic on the columns; no engine and no load. Lengths are given by nearest rank (the smallest value that
at least p % of the rows do not exceed), so that every number shown is a length that occurs.
"""

import numpy as np
from pydantic import BaseModel, ConfigDict

from trials.fingerprint import trace_hash
from trials.trace import Ints, Trace

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MINUTE_NS = 60 * 10**9


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Arrivals(_Part):
    """None where the trace has no span: all rows arrive at once, which suits a closed load only."""

    span_s: float  # first to last arrival
    rate_rps: float | None  # rows / span
    gap_cv: float | None  # standard deviation of the gaps over their mean; 1 for Poisson
    longest_gap_s: float
    busiest_minute: int  # rows in the fullest whole minute counted from the first arrival
    mean_minute: float | None
    distinct_stamps: int


class Lengths(_Part):
    """Tokens, nearest rank."""

    min: int
    p1: int
    p10: int
    p50: int
    p90: int
    p99: int
    max: int
    mean: float


class Sharing(_Part):
    """What an infinite prefix cache would hit, in arrival order: leading run only, full ids only.

    Rows see all rows before them, as if each prompt were computed at once. Nothing finer than `tokens_per_id` can
    be seen, so for smaller blocks the ratio is a lower bound.
    """

    tokens_per_id: int  # 0: the trace knows no prefixes
    share_of_rows_with_ids: float
    share_of_rows_that_hit: float
    hit_tokens: int
    ideal_hit_ratio: float  # hit tokens / prompt tokens


class Slack(_Part):
    """Unused part of the last block at a sequence's final length, as a share of all tokens, without sharing."""

    block_size: int
    percent: float


class Description(_Part):
    """What `trace describe` shows."""

    name: str
    source: str
    trace_hash: str
    rows: int
    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    sharing: Sharing
    static_tail_slack: tuple[Slack, ...]
    synthetic: tuple[str, ...]
    notes: tuple[str, ...]


def describe(trace: Trace) -> Description:
    """All of it; O(rows + prefix ids)."""
    final = trace.num_prompt_tokens + trace.num_output_tokens
    return Description(
        name=trace.meta.name,
        source=trace.meta.source,
        trace_hash=trace_hash(trace),
        rows=len(trace),
        arrivals=_arrivals(trace.arrival_ns),
        prompt=_lengths(trace.num_prompt_tokens),
        output=_lengths(trace.num_output_tokens),
        sharing=_sharing(trace),
        static_tail_slack=tuple(Slack(block_size=b, percent=tail_slack_percent(final, b)) for b in BLOCK_SIZES),
        synthetic=trace.meta.synthetic,
        notes=trace.meta.notes,
    )


def _arrivals(arrival_ns: Ints) -> Arrivals:
    since = arrival_ns - arrival_ns[0]
    span_s = float(since[-1]) / 1e9
    gaps = np.diff(since)
    return Arrivals(
        span_s=span_s,
        rate_rps=len(since) / span_s if span_s else None,
        gap_cv=float(gaps.std() / gaps.mean()) if span_s else None,
        longest_gap_s=float(gaps.max()) / 1e9 if len(gaps) else 0.0,
        busiest_minute=int(np.unique(since // _MINUTE_NS, return_counts=True)[1].max()),
        mean_minute=len(since) * 60 / span_s if span_s else None,
        distinct_stamps=len(np.unique(since)),
    )


def nearest_rank(ascending: Ints, percent: float) -> int:
    """The smallest value that at least `percent` % of the entries do not exceed."""
    return int(ascending[max(0, -int(-percent * len(ascending) // 100) - 1)])


def _lengths(tokens: Ints) -> Lengths:
    ascending = np.sort(tokens)
    ranks = {f"p{p}": nearest_rank(ascending, p) for p in (1, 10, 50, 90, 99)}
    return Lengths(min=int(ascending[0]), max=int(ascending[-1]), mean=float(tokens.mean()), **ranks)


def tail_slack_percent(final_tokens: Ints, block_size: int) -> float:
    """100 * sum(ceil(n / b) * b - n) / sum(n) over final lengths n."""
    return 100 * int((-final_tokens % block_size).sum()) / int(final_tokens.sum())


def _sharing(trace: Trace) -> Sharing:
    hits = ideal_hits(trace)
    return Sharing(
        tokens_per_id=trace.meta.tokens_per_id,
        share_of_rows_with_ids=float((trace.prefix_ids.lengths > 0).mean()),
        share_of_rows_that_hit=float((hits > 0).mean()),
        hit_tokens=int(hits.sum()),
        ideal_hit_ratio=int(hits.sum()) / int(trace.num_prompt_tokens.sum()),
    )


def ideal_hits(trace: Trace) -> Ints:
    """Prompt tokens of each row [R] that an infinite cache holds already: the leading run of full ids seen before.

    An id is a node under the id in front of it: the same number behind another predecessor is another node. A last
    id that covers a partial block is never a hit and is never remembered.
    """
    per = trace.meta.tokens_per_id
    hits = np.zeros(len(trace), np.int64)
    if per == 0:
        return hits
    full = np.minimum(trace.prefix_ids.lengths, trace.num_prompt_tokens // per).tolist()
    starts, ids = trace.prefix_ids.offsets.tolist(), trace.prefix_ids.values.tolist()
    nodes: dict[tuple[int, int], int] = {}
    for row, count in enumerate(full):
        node, run = 0, 0
        for key in ids[starts[row] : starts[row] + count]:
            known = len(nodes) + 1
            node = nodes.setdefault((node, key), known)
            run += node != known
        hits[row] = run * per
    return hits
