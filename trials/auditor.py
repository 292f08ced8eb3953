"""Which moments of a replay are recounted from raw tables, what the recount says, and which of them are kept.

A recount is O(pool), so its places are few: seeded steps, new peaks, the first request that the pool keeps out, a
moment that was asked for, and the end. All lie between two steps.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trials.engine import Audit, Cause, DeviceBytes, Engine, Step
from trials.ownership import ASKED, BROKEN, FIRST_REFUSAL, PEAK
from trials.recorder import Recorder
from trials.recording import Snapshot
from trials.recount import check_rows

MEAN_AUDIT_GAP = 1024  # steps between audits, seeded
PEAK_STEP = 32  # a new peak is audited when it has grown by this fraction of the pool
_T = TypeVar("_T")
KEPT_OUT = tuple(int(c) for c in (Cause.MEMORY, Cause.WATERMARK, Cause.SLOTS, Cause.HEAD_OF_LINE))


@dataclass(slots=True)
class Auditor:
    """Decides which steps are recounted from raw tables; keeps the tables of the moments that a reader asks for."""

    engine: Engine
    recorder: Recorder
    rng: random.Random
    next_step: int = 0  # the replay need not call `visit` before
    below: int = 1 << 62  # audit when fewer blocks than this are available
    peak_device: dict[str, int] = field(default_factory=dict)
    peak_ranks: list[dict[str, int]] = field(default_factory=list)  # each rank at its own peak
    unrefused: bool = True  # nobody has been kept out yet
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    _seeded: int = 0  # step after which the next seeded audit comes
    _ask_ns: int | None = None
    _peak: int = -1  # most live blocks of an audited moment

    def __post_init__(self) -> None:
        self._ask_ns = self.recorder.offer.look_ns

    def visit(self, step: Step, index: int, now: int) -> bool:
        """Between two steps: recount if this is a place to look at. True if it was."""
        available = sum(row.cached_blocks + row.free_blocks for row in self._of_pool(step.ledger))
        due = index > self._seeded or available < self.below
        moments = []
        if self.unrefused and step.refusal.cause in KEPT_OUT:
            self.unrefused = False
            moments.append(FIRST_REFUSAL)
        if self._ask_ns is not None and now >= self._ask_ns:
            self._ask_ns = None
            moments.append(ASKED)
        if not due and not moments:
            return False
        self.look(index, now, moments)
        if due:
            self.due(index, available)
        elif self._ask_ns is None:
            self.next_step = self._seeded
        return True

    def pass_idle(self, index: int, now: int, then: int) -> None:
        """Nothing runs until `then`: a moment that was asked for and lies in between shows the pool as it is."""
        if self._ask_ns is not None and now <= self._ask_ns < then:
            at, self._ask_ns = self._ask_ns, None
            self.look(index, at, [ASKED])

    def due(self, index: int, available: int) -> None:
        """The next places to look at, after an audit at step `index`."""
        self._seeded = index + self.rng.randint(1, 2 * MEAN_AUDIT_GAP - 1)
        self.next_step = self._seeded if self._ask_ns is None else -1
        pool = self.engine.facts.groups[0].num_blocks
        if available < self.below:
            self.below = available - max(1, pool // PEAK_STEP)

    def close(self, index: int, now: int) -> None:
        """The replay has drained: the last recount."""
        self.look(index, now, [ASKED] if self._ask_ns is not None else [])

    def look(self, index: int, now: int = -1, moments: list[str] | None = None) -> None:
        """Recount now, between two steps, and compare with the running accounts; keep the tables of `moments`."""
        audit, rows = self.engine.audit(), self.engine.ledger()
        kept = list(moments or [])
        self.recorder.audited_steps += 1
        said = check_rows(rows, audit.groups, self.engine.facts)
        self.recorder.broken_laws += [f"step {index}: {words}" for words in said]
        if said and BROKEN not in self.snapshots:
            kept.append(BROKEN)
        self._device(audit)
        if self._is_peak(audit):
            kept.append(PEAK)
        for moment in kept:
            self.snapshots[moment] = Snapshot(moment, index, now, audit.groups)

    def _of_pool(self, lanes: Sequence[_T]) -> Sequence[_T]:
        """Those of all (group, rank) pairs that are of the first rank's first pool."""
        facts = self.engine.facts
        return lanes[:: facts.ranks] if facts.shared_pool else lanes[:1]

    def _is_peak(self, audit: Audit) -> bool:
        """Whether more blocks are live than at any audited moment before."""
        groups = self._of_pool(audit.groups)
        idle = sum(len(group.free) + len(group.cached) + len(group.reserve) for group in groups)
        live = self.engine.facts.groups[0].num_blocks - idle
        if live <= self._peak:
            return False
        self._peak = live
        return True

    def _device(self, audit: Audit) -> None:
        if audit.device.observed >= self.peak_device.get("observed", -1):
            self.peak_device = _said(audit.device)
        self.peak_ranks += [{} for _ in audit.rank_devices[len(self.peak_ranks) :]]
        for rank, device in enumerate(audit.rank_devices):
            if device.observed >= self.peak_ranks[rank].get("observed", -1):
                self.peak_ranks[rank] = _said(device)


def _said(device: DeviceBytes) -> dict[str, int]:
    names = ("pool", "block_tables", "weights", "workspace", "allocator_reserve", "observed", "resident")
    return {**{name: int(getattr(device, name)) for name in names}, "residual": device.residual}
