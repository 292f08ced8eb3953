"""A small engine of its own that keeps the contract, and the ways in which an engine can break it.

It shares nothing with our scheduler: whole prompts, first come first served, no sharing, one pool a rank. Each
fault is one subclass, and changes what the engine DOES; its books go on saying what an honest engine's would,
unless the fault is in the books.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trials.engine import (
    Audit,
    Cause,
    DeviceBytes,
    EngineFacts,
    EngineStart,
    GroupAudit,
    LedgerRow,
    Outcome,
    PoolGeometry,
    Refusal,
    Step,
    StepShape,
    Work,
)

MIB = 1 << 20
BYTES_PER_TOKEN = 1024
STEP_NS = 5_000_000


@dataclass
class Served:
    """A request that runs. `held`: tokens whose KV stands; `tables`: block ids, one list a rank."""

    work: Work
    tables: list[list[int]]
    held: int = 0
    sampled: int = 0


@dataclass
class Asked:
    """What the trial asks; what the engine does is `Honest.knobs`."""

    block_size: int = 16
    num_blocks: int = 60
    ranks: int = 1
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_model_len: int = 512
    more: dict[str, str] = field(default_factory=dict)


class Honest:
    """Keeps every law. Faults override one method each."""

    name = "honest"

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.size, self.num_blocks, self.ranks = asked.block_size, asked.num_blocks, asked.ranks
        self.max_num_seqs = asked.max_num_seqs
        self.facts = self.said()
        self.start_up = EngineStart()
        self.waiting: list[Work] = []
        self.running: list[Served] = []
        self.flowing: set[int] = set()
        self.finished = self.steps = 0
        self.free = [list(range(self.num_blocks)) for _ in range(self.ranks)]
        self.events = [[0, 0] for _ in range(self.ranks)]

    def said(self) -> EngineFacts:
        """What the engine says of itself when it is opened."""
        pool = self.num_blocks * self.size * BYTES_PER_TOKEN
        group = PoolGeometry(self.size, self.num_blocks, 0, BYTES_PER_TOKEN, 0, pool, self.size, self.size)
        knobs = {
            "block_size": str(self.size), "prefix_caching": "False", "sharing": "prefix", "watermark": "0.0",
            "max_num_seqs": str(self.asked.max_num_seqs), "max_model_len": str(self.asked.max_model_len),
            "max_num_batched_tokens": str(self.asked.max_num_batched_tokens), **self.asked.more,
        }  # fmt: skip
        return EngineFacts(
            "simulator", "5" * 64, "modelled", "virtual", (group,), self.ranks, tuple(sorted(knobs.items())),
            max_model_len=self.asked.max_model_len,
        )  # fmt: skip

    # ---- what faults change
    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def let_go(self, rank: int, table: Sequence[int]) -> list[int]:
        """Blocks that go back into the queue when a request is over."""
        return list(table)

    def length_of(self, work: Work) -> int:
        """Tokens after which a request is over."""
        return work.num_output_tokens

    def may_enter(self, work: Work) -> bool:
        return len(self.running) < self.max_num_seqs and all(
            self.blocks_for(work.num_prompt_tokens + work.num_output_tokens) <= len(free) for free in self.free
        )

    def extra(self) -> list[tuple[int, int]]:
        return []

    def device(self) -> DeviceBytes:
        pool = self.num_blocks * self.size * BYTES_PER_TOKEN * self.ranks
        return DeviceBytes(pool=pool, weights=64 * MIB, workspace=32 * MIB, observed=pool + 96 * MIB)

    def rank_devices(self) -> tuple[DeviceBytes, ...]:
        """Of each rank; they add up to `device`."""
        if self.ranks == 1:
            return ()
        whole = self.device()
        names = ("pool", "weights", "workspace", "observed")
        return (DeviceBytes(**{name: getattr(whole, name) // self.ranks for name in names}),) * self.ranks

    # ---- the contract
    def start(self, cold: bool) -> None:
        assert not self.running
        assert not self.waiting

    def add(self, work: Work) -> str | None:
        self.waiting.append(work)
        return None

    def cancel(self, row: int) -> bool:
        before = len(self.waiting) + len(self.running)
        self.waiting = [work for work in self.waiting if work.row != row]
        for served in [s for s in self.running if s.work.row == row]:
            self._release(served)
        self.flowing.discard(row)
        return len(self.waiting) + len(self.running) < before

    def _release(self, served: Served) -> None:
        self.running.remove(served)
        for rank, table in enumerate(served.tables):
            self.events[rank][1] += len(table)
            self.free[rank] += self.let_go(rank, table)

    def _grow(self, served: Served, held: int) -> None:
        served.held = held
        for rank, table in enumerate(served.tables):
            more = self.blocks_for(held) - len(table)
            table += [self.free[rank].pop(0) for _ in range(more)]
            self.events[rank][0] += max(more, 0)

    def step(self) -> Step | None:
        if not self.running and not self.waiting:
            return None
        decoding = list(self.running)
        for served in decoding:
            self._grow(served, served.held + 1)
        admitted: list[tuple[int, int]] = []
        left = self.asked.max_num_batched_tokens - len(decoding)
        while self.waiting and self.waiting[0].num_prompt_tokens <= left and self.may_enter(self.waiting[0]):
            work = self.waiting.pop(0)
            served = Served(work, [[] for _ in range(self.ranks)])
            self._grow(served, work.num_prompt_tokens)
            self.running.append(served)
            admitted.append((work.row, 0))
            left -= work.num_prompt_tokens
        chunks = [served.work.num_prompt_tokens for served in self.running[len(decoding) :]]
        context = sum(served.held for served in decoding)
        shape = StepShape(
            len(decoding), context, sum(len(s.tables[0]) for s in decoding), len(chunks), sum(chunks), 0,
            sum(c * (c + 1) // 2 for c in chunks), len(self.running),
        )  # fmt: skip
        rows, num_running = self._rows(events=True), len(self.running)
        began = [s.work.row for s in self.running if s.work.row not in self.flowing]
        self.flowing |= set(began)
        ended = self._end()
        self.steps += 1
        refusal = Refusal(Cause.MEMORY, self.waiting[0].row, 1) if self.waiting else Refusal(Cause.NONE, -1, 0)
        return Step(
            STEP_NS, STEP_NS // 4, shape, rows, num_running, len(self.waiting),
            sum(w.num_prompt_tokens for w in self.waiting), refusal, began=began, ended=ended, admitted=admitted,
            extra=self.extra(),
        )  # fmt: skip

    def _end(self) -> list[tuple[int, Outcome]]:
        out = []
        for served in list(self.running):
            served.sampled += 1
            if served.sampled >= self.length_of(served.work):
                self._release(served)
                self.flowing.discard(served.work.row)
                self.finished += 1
                out.append((served.work.row, Outcome.COMPLETED))
        return out

    def _rows(self, events: bool) -> tuple[LedgerRow, ...]:
        rows = []
        for rank in range(self.ranks):
            held = sum(served.held for served in self.running)
            blocks = sum(len(served.tables[rank]) for served in self.running)
            taken, gone = self.events[rank]
            rows.append(LedgerRow(0, rank, held, blocks * self.size - held, 0, 0, len(self.free[rank]), 0, held,
                                  taken, gone, 0, 0))  # fmt: skip
            if events:
                self.events[rank] = [0, 0]
        return tuple(rows)

    def ledger(self) -> tuple[LedgerRow, ...]:
        return self._rows(events=False)

    def audit(self) -> Audit:
        groups = [
            GroupAudit(
                {s.work.row: list(s.tables[rank]) for s in self.running},
                {s.work.row: s.held for s in self.running}, list(self.free[rank]), [], [],
            )
            for rank in range(self.ranks)
        ]  # fmt: skip
        return Audit(groups, self.device(), self.rank_devices())

    def close(self) -> None:
        """Nothing to give back."""


class BlockTooMany(Honest):
    """One block more than its tokens need, where they fill their blocks exactly."""

    def blocks_for(self, tokens: int) -> int:
        return tokens // self.size + 1


class LosesBlocks(Honest):
    """Each fiftieth request keeps one of its blocks for ever."""

    def let_go(self, rank: int, table: Sequence[int]) -> list[int]:
        return list(table)[1:] if self.finished % 50 == 49 else list(table)


class LosesBlocksSilently(LosesBlocks):
    """The same, and its books count the lost ones as free."""

    def _rows(self, events: bool) -> tuple[LedgerRow, ...]:
        rows = []
        for row in super()._rows(events):
            live = (row.payload_tokens + row.tail_slack_tokens) // self.size
            rows.append(row._replace(free_blocks=self.num_blocks - live))
        return tuple(rows)


class SecondRankLeaks(Honest):
    """Rank 0 is in order; rank 1 loses a block with each tenth request."""

    def let_go(self, rank: int, table: Sequence[int]) -> list[int]:
        return list(table)[1:] if rank == 1 and self.finished % 10 == 9 else list(table)


class SecondRankClaimsTwice(Honest):
    """Rank 1 goes on booking what its requests had when they ended: it says that it holds more than its pool."""

    def _rows(self, events: bool) -> tuple[LedgerRow, ...]:
        first, second = super()._rows(events)
        return first, second._replace(payload_tokens=second.payload_tokens + self.finished)


class SecondRankGrows(Honest):
    """Three GiB of weights a rank; 65 MiB more on rank 1 from step 30 on, which is 1 % of what all ranks hold."""

    def rank_devices(self) -> tuple[DeviceBytes, ...]:
        pool = self.num_blocks * self.size * BYTES_PER_TOKEN
        grown = 65 * MIB if self.steps > 30 else 0
        return tuple(
            DeviceBytes(pool=pool, weights=3 << 30, observed=pool + (3 << 30) + grown * rank) for rank in (0, 1)
        )

    def device(self) -> DeviceBytes:
        ranks = self.rank_devices()
        return DeviceBytes(**{n: sum(getattr(r, n) for r in ranks) for n in ("pool", "weights", "observed")})


class PoolGrows(Honest):
    """Takes eight blocks more from the device once it is busy."""

    def step(self) -> Step | None:
        if self.steps == 20:
            for free in self.free:
                free += range(self.num_blocks, self.num_blocks + 8)
            self.num_blocks += 8
        return super().step()


class PoolGrowsSilently(PoolGrows):
    """The same, and its books and queues show the old pool; only the device knows."""

    def _rows(self, events: bool) -> tuple[LedgerRow, ...]:
        more = self.num_blocks - self.asked.num_blocks
        return tuple(row._replace(free_blocks=row.free_blocks - more) for row in super()._rows(events))

    def audit(self) -> Audit:
        audit = super().audit()
        for group in audit.groups:
            group.free = [block for block in group.free if block < self.asked.num_blocks]
        return audit


class WorkspaceGrows(Honest):
    """What was measured at the start is said for ever; the device holds 200 MiB more from step 30 on."""

    def device(self) -> DeviceBytes:
        honest = super().device()
        grown = 200 * MIB if self.steps > 30 else 0
        return DeviceBytes(honest.pool, 0, honest.weights, honest.workspace, 0, honest.observed + grown)


class ClaimsTooMuch(Honest):
    """Names 200 MiB of workspace that the device does not hold."""

    def device(self) -> DeviceBytes:
        honest = super().device()
        return DeviceBytes(honest.pool, 0, honest.weights, honest.workspace + 200 * MIB, 0, honest.observed)


class IgnoresSlots(Honest):
    """Says max_num_seqs as asked and lets in whoever fits."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self.max_num_seqs = 1000


class RoundsUp(Honest):
    """Works with twice the block size that it is asked, and says so."""

    def __init__(self, asked: Asked) -> None:
        more = {**asked.more, "requested_block_size": str(asked.block_size)}
        super().__init__(Asked(**{**vars(asked), "block_size": 2 * asked.block_size, "num_blocks":
                                  asked.num_blocks // 2, "more": more}))  # fmt: skip


class RoundsUpSilently(Honest):
    """Works with twice the block size, and says what it was asked."""

    def blocks_for(self, tokens: int) -> int:
        return 2 * -(-tokens // (2 * self.size))


class DeliversTwice(Honest):
    """One token of each seventh row comes out twice in one step."""

    def extra(self) -> list[tuple[int, int]]:
        return [(s.work.row, 2) for s in self.running if s.work.row % 7 == 3 and s.sampled == 2]


class DeliversOneMore(Honest):
    """Each seventh row goes on for a token that nobody asked for."""

    def length_of(self, work: Work) -> int:
        return work.num_output_tokens + (work.row % 7 == 3)


class BuildsLate(Honest):
    """Compiles for a second when eight requests first run at once, in the midst of what is measured; says so."""

    def step(self) -> Step | None:
        step = super().step()
        if step is not None and self.compiles_in() == self.steps:
            step.duration_ns += 1_000_000_000
            step.builds = 2
        return step

    def compiles_in(self) -> int:
        return 40


class BuildsEarly(BuildsLate):
    """The same before the window, where nothing is counted."""

    def compiles_in(self) -> int:
        return 3


class CutsShort(Honest):
    """Each seventh row ends a token early, and is called complete."""

    def length_of(self, work: Work) -> int:
        return max(1, work.num_output_tokens - (work.row % 7 == 3))


def opened(kind: type[Honest], asked: Asked) -> Any:
    """The engine, as a module's `open` would return it."""
    return kind(asked)
