"""What a replay leaves behind, in columns: steps, ledger rows, requests, and runs of tokens.

A run says that a row got one token in each of `num_tokens` consecutive steps, so every token's time is kept
without loss in O(changes). All times are integer ns since the replay began.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trials.engine import GroupAudit

Ints = NDArray[np.int64]

STEP_COLUMNS = (
    "start_ns", "duration_ns", "attention_ns",  # attention_ns -1: not told apart
    "num_decodes", "decode_context", "decode_blocks",
    "num_chunks", "chunk_tokens", "chunk_context", "chunk_pairs", "num_sampled",
    "num_running", "num_waiting", "waiting_tokens",
    "refusal_cause", "refusal_row", "refusal_blocks", "burst_blocks", "bound_blocks",
    "idle",  # 1: nothing ran; the row covers the time until the next arrival
)  # fmt: skip
LEDGER_COLUMNS = (
    "group", "rank", "payload_tokens", "tail_slack_tokens", "reserved_ahead_tokens",
    "cached_blocks", "free_blocks", "reserve_blocks", "logical_tokens",
    "allocated_blocks", "released_blocks", "evicted_blocks", "copied_blocks",
)  # fmt: skip


@dataclass(slots=True)
class Requests:
    """One entry a request that was offered, in the order of `row`. -1 where a time does not exist."""

    row: Ints
    arrival_ns: Ints  # scheduled arrival
    met_step: Ints  # step before which the engine got it
    cancel_step: Ints  # step before which its cancel was carried out
    admitted_ns: Ints  # first admission
    first_token_ns: Ints
    last_token_ns: Ints
    end_ns: Ints
    outcome: Ints  # engine.Outcome
    num_prompt_tokens: Ints
    num_output_tokens: Ints  # asked
    num_delivered: Ints
    cached_tokens: Ints  # prefix tokens hit at first admission
    recomputed_tokens: Ints  # KV tokens dropped by preemptions
    preemptions: Ints
    counted: Ints  # 1: arrived inside the window


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Raw tables and queues at one moment, kept for `ownership.parquet`."""

    moment: str  # what made it worth keeping
    step: int  # steps and idle spans in front of it
    time_ns: int
    groups: list[GroupAudit]  # one a (group, rank)


@dataclass(slots=True)
class Replay:
    """One pass over the trace at one load."""

    phase: str
    load: str
    clock: str
    steps: dict[str, Ints]  # STEP_COLUMNS, one entry a step or idle span
    ledger: dict[str, Ints]  # LEDGER_COLUMNS, num_groups * num_ranks consecutive entries a step
    requests: Requests
    runs: tuple[Ints, Ints, Ints]  # row, first_step (index into steps), num_tokens; idle rows never carry tokens
    window_ns: tuple[int, int]  # engine time that counts
    drain_end_ns: int
    reasons: dict[int, str] = field(default_factory=dict)  # row -> why it was rejected or failed
    stopped_early: str | None = None
    failed: str | None = None
    audited_steps: int = 0
    broken_laws: list[str] = field(default_factory=list)
    device: dict[str, int] = field(default_factory=dict)  # engine.DeviceBytes at peak, and its residual
    rank_devices: list[dict[str, int]] = field(default_factory=list)  # the same of each rank at its own peak
    void_because: list[str] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)

    @property
    def end_ns(self) -> Ints:
        """End of each step, ns."""
        return self.steps["start_ns"] + self.steps["duration_ns"]
