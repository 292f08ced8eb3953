"""TrialResult: what one trial answers, written whole or not at all. The face that scripts read (result.json).

No wall time, host or path in it: those are in attempt.json.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trials.trace import write_whole


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hashes(_Model):
    spec: str
    trace: str
    engine: str


class Counts(_Model):
    """Requests by fate. `offered` leaves out only what the trace itself cancelled."""

    offered: int = 0
    completed: int = 0
    qualified: int = 0
    cancelled: int = 0
    rejected: int = 0
    failed: int = 0
    unfinished: int = 0


class Percentiles(_Model):
    """A population of times in ms; `n` beside every percentile. None where nothing was observed or it is inf."""

    n: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class Spread(_Model):
    """Time-weighted."""

    mean: float = 0.0
    p10: float = 0.0
    peak: float = 0.0


class MaxSlack(_Model):
    value: int = 0
    row: int = -1
    step: int = -1


class Metrics(_Model):
    """See docs/metrics.md. Throughputs in tokens or requests per second of window time."""

    ttft_ms: Percentiles = Percentiles()
    itl_ms: Percentiles = Percentiles()
    tpot_ms: Percentiles = Percentiles()
    e2el_ms: Percentiles = Percentiles()
    output_throughput: float = 0.0
    request_throughput: float = 0.0
    qualified_output_throughput: float = 0.0
    request_goodput: float = 0.0
    qualified_output_tokens: int = 0
    capacity_load: float | None = None
    admitted_concurrency: Spread = Spread()
    qualified_concurrency: Spread = Spread()
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    prefix_hit_rate: float = 0.0
    alloc_events: int = 0
    free_events: int = 0
    evict_events: int = 0
    copy_events: int = 0
    copied_bytes: int | None = None
    duplicated_tail_bytes: int | None = None
    net_shared_bytes_saved: int = 0
    divergence_burst_blocks: int = 0
    divergence_bound_blocks: int = 0
    failed_admissions: dict[str, int] = Field(default_factory=dict)  # by cause
    largest_admissible_tokens: dict[str, int] = Field(default_factory=dict)  # min and max over steps
    max_tail_slack_tokens: MaxSlack = MaxSlack()
    attention_share: float | None = None
    block_table_depth: Spread = Spread()  # blocks of a decoding sequence
    waste_byte_seconds: dict[str, float] = Field(default_factory=dict)  # by kind, and "total"
    slo_values_ms: dict[str, float | None] = Field(default_factory=dict)  # clause text -> observed; None = inf
    backlog_grew: bool = False


class Accounts(_Model):
    """Bytes of each pool account, summed over groups and ranks; they add up to pool_bytes exactly."""

    payload: int = 0
    tail_slack: int = 0
    reserved_ahead: int = 0
    cached: int = 0
    free: int = 0
    reserve: int = 0
    padding: int = 0
    remainder: int = 0
    pool_bytes: int = 0


class Ledger(_Model):
    """Pool accounts at their time mean (float bytes) and at the peak of payload + slack (exact), and the device."""

    time_mean: dict[str, float] = Field(default_factory=dict)
    peak: Accounts = Accounts()
    peak_step: int = -1
    unbalanced_rows: int = 0
    logical_live_tokens: Spread = Spread()
    physical_live_tokens: Spread = Spread()
    allocated_slots: Spread = Spread()
    pool_slots: int = 0
    slots_per_live_token: float = 0.0
    useful_pool_ratio: float = 0.0
    device: dict[str, int] = Field(default_factory=dict)
    residual_bytes: int = 0
    by_length: dict[str, dict[str, float]] = Field(default_factory=dict)
    rows_digest: str = ""  # of every account column of every step: byte-exactness is compared with this


class Observation(_Model):
    start_ns: int
    end_ns: int
    num_steps: int
    warmup: int  # requests that were replayed before the window and not counted
    drain_end_ns: int


class ReplayResult(_Model):
    phase: Literal["cold", "steady"]
    load: str
    clock: str
    stopped_early: str | None = None
    void_because: tuple[str, ...] = ()
    observation: Observation
    counts: Counts
    metrics: Metrics
    ledger: Ledger
    holds: bool = False  # SLO and attainment hold
    attainment: float = 0.0
    binding: str = ""  # the clause nearest to, or furthest beyond, its limit


class Effective(_Model):
    """Read back from the engine: what the trial is credited with."""

    block_size: int
    kernel_block_size: int
    num_blocks: int
    reserve_blocks: int
    pool_bytes: int
    bytes_per_token: int
    reuse_quantum_tokens: int
    block_table_bytes: int = 0
    layout: str = "paged"
    knobs: dict[str, str] = Field(default_factory=dict)
    not_applicable: tuple[str, ...] = ()


class TrialResult(_Model):
    status: Literal["complete", "refused", "failed"]
    reason: str = ""
    evidence: Literal["measured", "modelled"]
    eligible: bool = False
    ineligible_because: tuple[str, ...] = ()
    hashes: Hashes
    requested: dict[str, Any]
    effective: Effective | None = None
    replays: tuple[ReplayResult, ...] = ()
    decides: int | None = None
    counts: Counts = Counts()
    metrics: Metrics = Metrics()
    ledger: Ledger = Ledger()
    audited_steps: int = 0


def save_result(result: TrialResult, path: Path) -> None:
    """Write result.json whole or not at all; keys in a fixed order, so equal results are equal bytes."""
    text = json.dumps(result.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def load_result(path: Path) -> TrialResult:
    """Read a result; ValueError where the file is not a whole, valid result."""
    return TrialResult.model_validate_json(path.read_text(encoding="utf-8"))
