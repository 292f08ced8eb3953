"""TrialResult: what one trial answers, written whole or not at all. The face that scripts read (result.json).

No wall time, host or path in it: those are in attempt.json.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trials.group_result import EffectiveGroup, GroupLedger
from trials.trace import write_whole


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hashes(_Model):
    """sha256 of what was asked, of the trace's content and of the engine."""

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
    """The emptiest tail block of one sequence: its row of the trace, and the step."""

    value: int = 0
    row: int = -1
    step: int = -1


class FailedAdmission(_Model):
    """Who was kept out, what it wanted, and what there was."""

    row: int
    step: int
    cause: str
    wanted_blocks: int  # 0 where memory was not what it lacked
    free_blocks: int
    cached_blocks: int


class PressureBin(_Model):
    """Steps with low_bytes .. high_bytes free + cached. The same bins for every pool: powers of two."""

    low_bytes: int
    high_bytes: int
    steps: int
    failed: dict[str, int]  # steps that kept the head of the queue out, by cause
    share: float  # of the bin's steps
    stranded_byte_seconds: dict[str, float]  # free + cached while something waited that might not take them


class ChurnStretch(_Model):
    """A sixteenth of the window: what happened to blocks beside how long steps took."""

    start_ns: int
    steps: int
    step_ms: Percentiles
    allocated_blocks: int
    released_blocks: int
    evicted_blocks: int
    copied_blocks: int
    occupancy: float  # time mean of live / (blocks that can be handed out)
    table_depth: float  # blocks of a decoding sequence, time mean


class Churn(_Model):
    """The life of blocks, over the whole replay. Means are exact: an integral over a count."""

    lives: int = 0  # times that a block was handed out, or found again
    block_lifetime_ms: float | None = None  # mean, handed out -> nobody holds it
    revived_blocks: int = 0  # found again while nobody held them
    cached_ms: float | None = None  # mean, let go with content -> found again, evicted, or the end
    held_ms: Percentiles = Percentiles()  # one entry a block of a request: taken -> its request let go
    reuse_gap_ms: Percentiles = Percentiles()  # one entry a hit: its content let go by its last holder -> the hit
    stretches: tuple[ChurnStretch, ...] = ()


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
    divergence_short_blocks: int = 0  # most that the bound exceeded free + cached; above 0 does not hold
    failed_admissions: dict[str, int] = Field(default_factory=dict)  # by cause
    failed_admissions_by_free_bytes: tuple[PressureBin, ...] = ()
    first_failed_admission: FailedAdmission | None = None
    largest_admissible_tokens: dict[str, int] = Field(default_factory=dict)  # min and max over steps
    max_tail_slack_tokens: MaxSlack = MaxSlack()
    attention_share: float | None = None
    block_table_depth: Spread = Spread()  # blocks of a decoding sequence
    occupancy: Spread = Spread()  # live blocks per block that can be handed out
    map_calls: int | None = None  # layout virtual: physical pages mapped
    churn: Churn = Churn()
    waste_byte_seconds: dict[str, float] = Field(default_factory=dict)  # by kind, and "total"
    slo_values_ms: dict[str, float | None] = Field(default_factory=dict)  # clause text -> observed; None = inf
    backlog_grew: bool = False

    @property
    def waste_per_qualified_token(self) -> float | None:
        """Byte-seconds; None where no token qualified."""
        tokens = self.qualified_output_tokens
        return self.waste_byte_seconds.get("total", 0.0) / tokens if tokens else None


class CapacityPart(_Model):
    """What a search came to on one window: a rung that was measured to hold, and its measured neighbours."""

    start_ns: int  # of the window, in the trace's time
    end_ns: int
    requests: int  # counted
    value: float | None  # None: no rung holds, or none was searched
    beyond: float | None  # measured not to hold; None: the last rung holds
    below: float | None  # measured to hold; None: the first rung holds, or none does
    binding: str  # of the replay beyond, or of the best one where there is none
    needs_requests: int = 0  # more than there were: too few to judge by; 0: enough
    replays: int
    stopped_early: int
    engine_s: float  # engine time of all its replays


class Capacity(_Model):
    """The largest load that holds (over pool_bytes: the smallest pool), by window; the median decides."""

    over: str
    last: float  # the rung beyond which nothing was tried
    value: float | None
    low: float | None  # of the windows; None where on one of them nothing holds
    high: float | None
    at_least: bool = False  # nothing failed up to `last`
    less_than: float | None = None  # the load that it had to beat and did not hold: nothing else was searched
    needs_requests: int = 0
    superposed: int = 1  # copies of the trace that were laid over one another
    decides: int = 0  # which of `parts` the trial's replays are of
    parts: tuple[CapacityPart, ...] = ()
    words: str = ""


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
    rank_devices: tuple[dict[str, int], ...] = ()  # each rank at its own peak, where they can be asked
    by_length: dict[str, dict[str, float]] = Field(default_factory=dict)
    by_state: dict[str, float] = Field(default_factory=dict)  # byte-seconds
    broken_laws: tuple[str, ...] = ()  # laws that the columns of the replay break
    rows_digest: str = ""  # of every account column of every step: byte-exactness is compared with this
    groups: tuple[GroupLedger, ...] = ()  # every (group, rank), where there are several; they add up to the above
    pool_residuals: dict[str, int] = Field(default_factory=dict)  # pool -> largest, signed; of those that have one


class Observation(_Model):
    """What the replay covered: engine ns, steps, and requests replayed in front of the window; and how far it went
    into its limits, in front of the window and behind it too."""

    start_ns: int
    end_ns: int
    num_steps: int
    warmup: int  # requests that were replayed before the window and not counted
    drain_end_ns: int
    most_running: int = 0  # requests in a step
    preemptions: int = 0


class ReplayResult(_Model):
    """One pass over the trace at one load, measured."""

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
    ranks: int = 1
    groups: tuple[EffectiveGroup, ...] = ()  # where there are several
    knobs: dict[str, str] = Field(default_factory=dict)
    not_applicable: tuple[str, ...] = ()


class TrialResult(_Model):
    """The whole answer; top-level counts, metrics and ledger are those of the replay that decides."""

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
    capacity: Capacity | None = None  # where a ladder was asked for
    warnings: tuple[str, ...] = ()  # what does not speak against the trial, but has to be known


def save_result(result: TrialResult, path: Path) -> None:
    """Write result.json whole or not at all; keys in a fixed order, so equal results are equal bytes."""
    text = json.dumps(result.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def load_result(path: Path) -> TrialResult:
    """Read a result; ValueError where the file is not a whole, valid result."""
    return TrialResult.model_validate_json(path.read_text(encoding="utf-8"))
