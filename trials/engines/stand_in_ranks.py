"""What each rank of a tensor-parallel stand-in knows of blocks: what its worker was told, and nothing else.

A rank has block tables of its own, kept as vLLM's workers keep them: from every step's message. They are laid
beside the scheduler's in each audit, so that a rank that forgets to let go, or was told something else, shows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trials.engine import NO_BLOCK, GroupAudit, LedgerRow, PoolGeometry

_NULL = 0  # the id of vLLM's null block


@dataclass(slots=True)
class Rank:
    """Block tables by request, one list a group, and the tokens that each holds."""

    tables: dict[str, list[list[int]]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def hear(self, message: Any) -> None:
        """A step's SchedulerOutput: who is gone, who came, which blocks were added."""
        for name in (*message.finished_req_ids, *(message.preempted_req_ids or ())):
            self.let_go(name)
        scheduled = message.num_scheduled_tokens
        for new in message.scheduled_new_reqs:
            self.tables[new.req_id] = [list(ids) for ids in new.block_ids]
            self.held[new.req_id] = new.num_computed_tokens + scheduled[new.req_id]
        known = message.scheduled_cached_reqs
        told = zip(known.req_ids, known.new_block_ids, known.num_computed_tokens, strict=True)
        for name, blocks, computed in told:
            self.held[name] = computed + scheduled[name]
            if name in known.resumed_req_ids:
                self.tables[name] = [list(ids) for ids in blocks]
            elif blocks is not None:
                for table, ids in zip(self.tables[name], blocks, strict=True):
                    table += ids

    def let_go(self, name: str) -> None:
        """A request is over or preempted: its blocks are others' now."""
        self.tables.pop(name, None)
        self.held.pop(name, None)

    def stale(self, alive: Iterable[str]) -> list[str]:
        """Requests that it still holds blocks of, though they are over."""
        return sorted(self.tables.keys() - set(alive))


def spread_rows(
    rows: Sequence[LedgerRow], ranks: Sequence[Rank], geometries: Sequence[PoolGeometry], alive: Iterable[str]
) -> tuple[LedgerRow, ...]:
    """The scheduler's rows, one a group, as each rank has them: with what it did not let go of."""
    alive = set(alive)
    out = []
    for row, geometry in zip(rows, geometries, strict=True):
        for number, rank in enumerate(ranks):
            own = row._replace(rank=number)
            stale = rank.stale(alive)
            out.append(_beside(own, rank, stale, geometry) if stale else own)
    return tuple(out)


def _beside(row: LedgerRow, rank: Rank, stale: Iterable[str], geometry: PoolGeometry) -> LedgerRow:
    tokens = slots = 0
    for name in stale:
        table = [block for block in rank.tables[name][row.group] if block != _NULL]
        slots += len(table) * geometry.slots
        tokens += len(table) if geometry.keeps_states else min(rank.held[name], len(table) * geometry.slots)
    return row._replace(
        payload_tokens=row.payload_tokens + tokens, logical_tokens=row.logical_tokens + tokens,
        tail_slack_tokens=row.tail_slack_tokens + slots - tokens,
    )  # fmt: skip


def spread_audits(groups: Sequence[GroupAudit], ranks: Sequence[Rank], alive: Iterable[str]) -> list[GroupAudit]:
    """The scheduler's raw state, one a group, as each rank has it: common queues, tables of its own."""
    alive = set(alive)
    out = []
    for number, group in enumerate(groups):
        for rank in ranks:
            names = {int(name): name for name in rank.tables}
            tables = {
                row: _seen(table, rank.tables[names[row]][number])
                for row, table in group.tables.items()
                if row in names
            }
            held = {row: rank.held[names[row]] for row in tables}
            for name in rank.stale(alive):
                tables[int(name)] = [NO_BLOCK if b == _NULL else b for b in rank.tables[name][number]]
                held[int(name)] = rank.held[name]
            out.append(replace(group, tables=tables, held_tokens=held))
    return out


def _seen(scheduled: Sequence[int], told: Sequence[int]) -> list[int]:
    """A rank's table; workers are not told which blocks left the window, and do not look at them."""
    if len(scheduled) != len(told):
        return list(told)
    return [NO_BLOCK if block == NO_BLOCK else own for block, own in zip(scheduled, told, strict=True)]
