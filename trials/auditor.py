"""Which moments of a replay are recounted from raw tables, and what the recount says."""

import random
from dataclasses import dataclass, field

from trials.engine import Audit, Engine
from trials.ledger import check_row
from trials.recorder import Recorder

MEAN_AUDIT_GAP = 1024  # steps between audits, seeded
PEAK_STEP = 32  # a new peak is audited when it has grown by this fraction of the pool


@dataclass(slots=True)
class Auditor:
    """Decides which steps are recounted from raw tables: seeded ones, new peaks, and the end."""

    engine: Engine
    recorder: Recorder
    rng: random.Random
    next_step: int = 0
    below: int = 1 << 62  # audit when fewer blocks than this are available
    peak_device: dict[str, int] = field(default_factory=dict)

    def due(self, index: int, available: int) -> None:
        """The next places to look at, after an audit at step `index`."""
        self.next_step = index + self.rng.randint(1, 2 * MEAN_AUDIT_GAP - 1)
        pool = self.engine.facts.groups[0].num_blocks
        if available < self.below:
            self.below = available - max(1, pool // PEAK_STEP)

    def look(self, index: int) -> None:
        """Recount now, between two steps, and compare with the running accounts."""
        audit, rows = self.engine.audit(), self.engine.ledger()
        facts = self.engine.facts
        self.recorder.audited_steps += 1
        for number, (row, group) in enumerate(zip(rows, audit.groups, strict=True)):
            geometry = facts.groups[number // facts.ranks]
            said = check_row(row, group, geometry)
            self.recorder.broken_laws += [f"step {index}: group {row.group} rank {row.rank}: {x}" for x in said]
        self._device(audit)

    def _device(self, audit: Audit) -> None:
        device = audit.device
        if device.observed >= self.peak_device.get("observed", -1):
            names = ("pool", "block_tables", "weights", "workspace", "allocator_reserve", "observed", "resident")
            self.peak_device = {name: int(getattr(device, name)) for name in names}
            self.peak_device["residual"] = device.residual
