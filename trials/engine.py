"""The contract between an engine and the replay that drives it (DESIGN of the house: contracts).

An engine is driven one step at a time. What it reports of a step is proportional to what CHANGED in it,
never to the batch. All times are integer nanoseconds, all memory counts are tokens or blocks; bytes follow
from `PoolGeometry`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import lcm
from typing import Literal, NamedTuple, Protocol

from trials.model import LayerKind

Evidence = Literal["measured", "modelled"]
Clock = Literal["virtual", "wall", "cpu", "steps"]


class Outcome(IntEnum):
    """How a request ended. UNFINISHED is the replay's word for one that was still alive when it stopped."""

    COMPLETED = 0
    CANCELLED = 1
    REJECTED = 2
    FAILED = 3
    UNFINISHED = 4


class Cause(IntEnum):
    """Why the first waiting request could not be admitted in a step, although something waits."""

    NONE = 0
    MEMORY = 1  # free + reclaimable blocks are fewer than it needs
    WATERMARK = 2  # the blocks are there, but the watermark keeps them
    SLOTS = 3  # max_num_seqs requests run already
    BUDGET = 4  # the step's token budget was used up
    PREEMPTED = 5  # a step that preempted admits nobody
    HEAD_OF_LINE = 6  # the first does not fit, one behind it would


class StepShape(NamedTuple):
    """Aggregates of one step, kept in O(1) while decodes advance; all a step-time model may look at."""

    num_decodes: int  # sequences that compute one token
    decode_context: int  # KV tokens that those read, this step's own included
    decode_blocks: int  # blocks that those tokens lie in
    num_chunks: int  # prefill chunks in the step
    chunk_tokens: int  # prompt (or recomputed) tokens computed
    chunk_context: int  # KV tokens that stood before each chunk, summed
    chunk_pairs: int  # (query, key) pairs of the chunks under the causal mask
    num_sampled: int  # rows that need logits


class LedgerRow(NamedTuple):
    """Accounts of one (KV group, rank) after schedule(), before anything finished is released.

    Tokens for what is written or claimed inside blocks (states where a group keeps states), blocks for the rest.
    `padding` and `remainder` follow from `PoolGeometry`. Event counts are those since the row before. Where groups
    share a pool, its free and reserve blocks are in the row of its first group and 0 in the others.
    """

    group: int
    rank: int
    payload_tokens: int  # physical: a shared block counts once
    tail_slack_tokens: int  # claimed for the tail of a live sequence, not written
    reserved_ahead_tokens: int  # claimed beyond the tail block
    cached_blocks: int  # nobody holds them, still matchable
    free_blocks: int
    reserve_blocks: int  # never handed out
    logical_tokens: int  # tokens held, summed over sequences: a shared block counts once a holder
    allocated_blocks: int  # events from here on
    released_blocks: int
    evicted_blocks: int
    copied_blocks: int


class Refusal(NamedTuple):
    """What kept the head of the queue out in this step; row -1 where nothing waits."""

    cause: Cause
    row: int
    wanted_blocks: int


NO_REFUSAL = Refusal(Cause.NONE, -1, 0)
NO_BLOCK = -1  # in a block table: the block left the window, or never was


@dataclass(slots=True)
class Step:
    """One engine iteration. The lists name only what changed. Valid until the next `step()`.

    A row in `began` delivers one token in this step and in every later one until it is in `paused` (no token
    in that step) or in `ended` (COMPLETED: its last token came in this step; otherwise none did).
    """

    duration_ns: int
    attention_ns: int | None
    shape: StepShape
    ledger: tuple[LedgerRow, ...]
    num_running: int
    num_waiting: int
    waiting_tokens: int  # known tokens of all that wait: the backlog
    refusal: Refusal = NO_REFUSAL
    began: Sequence[int] = ()
    paused: Sequence[int] = ()
    ended: Sequence[tuple[int, Outcome]] = ()
    admitted: Sequence[tuple[int, int]] = ()  # (row, prefix tokens hit), counted when they commit
    preempted: Sequence[tuple[int, int]] = ()  # (row, tokens whose KV was dropped)
    started: Sequence[int] = ()  # forks whose parent came to hold the inherited tokens in this step
    burst_blocks: int = 0  # copies made, and blocks that forked sequences opened
    bound_blocks: int = 0  # the most that could come to, were every live child to write in the next step
    extra: Sequence[tuple[int, int]] = ()  # (row, tokens) where more than one token came at once
    builds: int = 0  # compilations and graph captures that fell into this step


StepTime = Callable[[StepShape], tuple[int, int]]  # pure: (step ns, attention ns)


class Work(NamedTuple):
    """One request as the engine sees it. Token counts are the trace's; the output length is forced.

    With a parent and inherited tokens it is a fork: the engine starts it in the step in which the parent, which
    was added before, comes to hold that many tokens, and says so in `Step.started`.
    """

    row: int
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_ns: int = 0
    priority: int = 0
    parent: int = -1
    inherited_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """How the bytes of one KV group's pool divide. All sizes in bytes unless named otherwise."""

    block_size: int  # tokens
    num_blocks: int  # reserve included
    reserve_blocks: int
    bytes_per_token: int
    padding_bytes_per_block: int  # page rounding inside a block
    pool_bytes: int
    kernel_block_size: int  # what the attention kernel walks
    reuse_quantum_tokens: int  # prefix hits are multiples of this
    kind: LayerKind = "full"
    num_layers: int = 0  # that the group's block tables serve; 0: all of the model
    window: int = 0  # tokens, of the kinds that look back on so many
    most_blocks: int = 0  # that a sequence is granted at once; 0: as many as its tokens need

    @property
    def keeps_states(self) -> bool:
        """Whether a block holds one state, whatever its tokens."""
        return self.kind == "mamba"

    @property
    def slots(self) -> int:
        """What is counted as tokens in a block: its tokens, or its one state."""
        return 1 if self.keeps_states else self.block_size

    @property
    def block_bytes(self) -> int:
        return self.slots * self.bytes_per_token + self.padding_bytes_per_block

    def passed(self, tokens: int) -> int:
        """Of `tokens` held from the start, those that the next token does not look at."""
        if self.kind == "sliding_window":
            return max(0, tokens - self.window + 1)
        return tokens // self.window * self.window if self.kind == "chunked_local" else 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens is granted at admission; a state is then alone."""
        need = -(-tokens // self.block_size)
        return min(need, self.most_blocks if not self.keeps_states else 1) if self.most_blocks else need

    @property
    def remainder_bytes(self) -> int:
        """Pool bytes that make no whole block."""
        return self.pool_bytes - self.num_blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the opened engine really is: read back, never assumed."""

    name: str
    engine_hash: str
    evidence: Evidence
    clock: Clock
    groups: tuple[PoolGeometry, ...]
    ranks: int
    effective: tuple[tuple[str, str], ...]  # every knob's effective value, as text
    not_applicable: tuple[str, ...] = ()  # knobs that this engine does not have
    unknown_columns: tuple[str, ...] = ()  # ledger columns that it cannot know
    max_model_len: int = 0
    shared_pool: bool = False  # the groups of a rank draw their blocks from one pool; its geometry is in each

    @property
    def pools(self) -> tuple[PoolGeometry, ...]:
        """The pools of one rank: one a group, or the one that all of them share."""
        return self.groups[:1] if self.shared_pool else self.groups

    @property
    def pool_bytes(self) -> int:
        """Of all ranks."""
        return sum(pool.pool_bytes for pool in self.pools) * self.ranks

    @property
    def token_group(self) -> int:
        """Number of the group whose rows count tokens as computed: one that keeps them all, if there is one."""
        kept = [number for number, group in enumerate(self.groups) if group.kind in ("full", "mla")]
        counted = [number for number, group in enumerate(self.groups) if not group.keeps_states]
        return (kept or counted or [0])[0]

    @property
    def reuse_quantum_tokens(self) -> int:
        """Prefix hits of the whole model are multiples of this: what is a multiple for every group. 0: none."""
        quanta = [group.reuse_quantum_tokens for group in self.groups if group.reuse_quantum_tokens]
        return lcm(*quanta) if quanta else 0


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """Device side of the ledger, in bytes. `observed` is what the machine itself reports (0: nothing to see)."""

    pool: int = 0
    block_tables: int = 0
    weights: int = 0
    workspace: int = 0
    allocator_reserve: int = 0
    observed: int = 0
    resident: int = 0

    @property
    def residual(self) -> int:
        """What no account explains; signed, never folded into one. 0 where nothing can be observed."""
        named = self.pool + self.block_tables + self.weights + self.workspace + self.allocator_reserve
        return self.observed - named if self.observed else 0


@dataclass(slots=True)
class GroupAudit:
    """RAW state of one (group, rank): the recount is made from these and shares no code with `Step`.

    Of a pool that groups share, its free blocks and reserve are listed in the first group.
    """

    tables: dict[int, list[int]]  # live row -> block ids in token order, NO_BLOCK where none is held any more
    held_tokens: dict[int, int]  # live row -> tokens whose KV was put into those blocks
    free: list[int]
    cached: list[int]
    reserve: list[int]
    reserved_ahead: dict[int, int] = field(default_factory=dict)  # live row -> tokens claimed beyond its tail
    held_before: dict[int, int] = field(default_factory=dict)  # row -> tokens, when it was last granted blocks


@dataclass(slots=True)
class Audit:
    """Raw state of everything, at one moment between two steps."""

    groups: list[GroupAudit]  # one a (group, rank), in the order of `Step.ledger`
    device: DeviceBytes  # of all ranks
    rank_devices: tuple[DeviceBytes, ...] = ()  # of each, where there are several and they can be asked


@dataclass(frozen=True, slots=True)
class EngineStart:
    """Seconds spent before the first request, told apart."""

    load_s: float = 0.0
    compile_s: float = 0.0
    capture_s: float = 0.0
    warmup_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine would not open with this spec; in its own words."""

    words: str


class EngineDied(RuntimeError):
    """The engine failed inside a step; carries its own traceback."""


class Engine(Protocol):
    """What replay.py drives. Single-threaded; every method returns only when its effect is complete."""

    facts: EngineFacts
    start_up: EngineStart

    def start(self, cold: bool) -> None:
        """Begin a replay. Only when drained. `cold` drops cached blocks and proves that nothing is held."""

    def add(self, work: Work) -> str | None:
        """Queue a request now. A returned text says why it can never fit; then it was not queued."""

    def cancel(self, row: int) -> bool:
        """End a request between steps: it is over now, and no step names it again.

        False if it was over already; may be called any number of times.
        """

    def step(self) -> Step | None:
        """One iteration, or None when nothing is runnable. Raises EngineDied."""

    def ledger(self) -> tuple[LedgerRow, ...]:
        """The accounts now, outside a step (for idle spans and audits); event counts since the last step's row."""

    def audit(self) -> Audit:
        """Raw tables and queues, copied."""

    def close(self) -> None:
        """Give everything back. May be called twice."""
