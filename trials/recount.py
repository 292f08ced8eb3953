"""The ledger counted again from raw tables and queues, by code that shares nothing with the running accounts.

O(pool): a replay does it at few moments (`trials/auditor.py`). A block that nobody accounts for, one that two have,
and one that a sequence holds beside what its tokens need are found here, whatever the running accounts say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from trials.engine import NO_BLOCK, EngineFacts, GroupAudit, LedgerRow, PoolGeometry
from trials.recording import Ints


class LedgerError(RuntimeError):
    """Accounts and recount disagree, or do not add up to the pool; carries the row."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """One (group, rank), counted from its raw state. `owners`, `queued`: of every block of the pool, [N]."""

    accounts: dict[str, int]
    owners: Ints  # entries of tables
    queued: Ints  # times that it is in the queues free, cached, reserve


def recount(audit: GroupAudit, geometry: PoolGeometry) -> dict[str, int]:
    """The accounts counted from raw tables and queues alone. Raises LedgerError where a law of blocks is broken.

    Source of the method: count what each physical block holds at most once, whoever points at it.
    """
    counted = _count(audit, geometry)
    _one_state([counted])
    return counted.accounts


def _count(audit: GroupAudit, geometry: PoolGeometry) -> _Counted:
    size, blocks = geometry.block_size, geometry.num_blocks
    _check_tables(audit, geometry)
    lengths = np.array([len(table) for table in audit.tables.values()], np.int64)
    ids = np.fromiter(chain.from_iterable(audit.tables.values()), np.int64, int(lengths.sum()))
    held = np.array([audit.held_tokens[row] for row in audit.tables], np.int64)
    places = np.arange(len(ids), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    filled = np.clip(np.repeat(held, lengths) - places * size, 0, size)
    if geometry.keeps_states:
        filled = np.ones(len(ids), np.int64)
    there = ids != NO_BLOCK
    if not there.all():
        ids, filled = ids[there], filled[there]
    fill = np.zeros(blocks, np.int64)
    np.maximum.at(fill, _of_pool(ids, blocks), filled)
    owners = np.bincount(ids, minlength=blocks)
    queues = [*audit.free, *audit.cached, *audit.reserve]
    queued = np.bincount(_of_pool(np.fromiter(queues, np.int64, len(queues)), blocks), minlength=blocks)
    live, ahead = owners > 0, sum(audit.reserved_ahead.values())
    accounts = {
        "payload_tokens": int(fill.sum()),
        "tail_slack_tokens": int((geometry.slots - fill[live]).sum()) - ahead,
        "reserved_ahead_tokens": ahead,
        "cached_blocks": len(audit.cached),
        "free_blocks": len(audit.free),
        "reserve_blocks": len(audit.reserve),
        "logical_tokens": int(filled.sum()),
        "live_blocks": int(live.sum()),
    }
    return _Counted(accounts, owners, queued)


def _one_state(groups: list[_Counted]) -> None:
    """Every block of the pool is held by sequences of one of its groups, or in one queue of one of them."""
    live = np.sum([part.owners > 0 for part in groups], axis=0)
    queued = np.sum([part.queued for part in groups], axis=0)
    wrong = np.flatnonzero(live + queued != 1)
    if len(wrong):
        block = int(wrong[0])
        owners = sum(int(part.owners[block]) for part in groups)
        among = f" over {len(groups)} groups" if len(groups) > 1 else ""
        raise LedgerError(
            f"block {block} ({len(wrong)} such) has {owners} owners and is in {int(queued[block])} of the queues "
            f"free, cached, reserve{among}; exactly one state is lawful"
        )


def _check_tables(audit: GroupAudit, geometry: PoolGeometry) -> None:
    """n tokens take as many blocks as hold them and what is reserved ahead, never one more."""
    size = geometry.block_size
    loses = geometry.window or geometry.keeps_states
    for row, table in audit.tables.items():
        tokens, ahead = audit.held_tokens[row], audit.reserved_ahead.get(row, 0)
        need = -(-(tokens + ahead) // size)
        if len(table) != need:
            found = f"only {len(table)}" if len(table) < need else f"{len(table)}"
            raise LedgerError(
                f"row {row} holds {tokens} tokens, {ahead} more reserved, in {found} blocks of {size}; "
                f"it is to have {need}"
            )
        if loses and (said := _kept_wrongly(table, tokens, audit.held_before.get(row, 0), geometry)):
            raise LedgerError(f"row {row} holds {tokens} tokens of {geometry.kind}: {said}")


def _kept_wrongly(table: list[int], tokens: int, before: int, geometry: PoolGeometry) -> str:
    """What a group that lets go of what lies behind has let go of too early, or not at all; empty where neither.

    It lets go when a sequence is granted blocks, of what the tokens in front of that grant (`before`) had passed.
    """
    absent = table.count(NO_BLOCK)
    held, most = len(table) - absent, geometry.most_blocks
    if table and table[-1] == NO_BLOCK:
        return "the last block is not held"
    if geometry.keeps_states:
        return f"{held} states are held, it needs {most} at most" if most and held > most else ""
    least, upto = geometry.passed(before) // geometry.block_size, geometry.passed(tokens) // geometry.block_size
    if not least <= absent <= upto:
        return f"{absent} blocks behind the window were let go, {least} to {upto} are to be"
    return "a block inside the window is not held" if NO_BLOCK in table[absent:] else ""


def _of_pool(ids: Ints, num_blocks: int) -> Ints:
    """Block ids, every one of them a block of the pool."""
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_blocks:
        raise LedgerError(f"blocks {int(ids.min())} .. {int(ids.max())} in a pool of {num_blocks}")
    return ids


def _differences(row: LedgerRow, counted: dict[str, int]) -> list[str]:
    out = []
    for name, value in counted.items():
        said = getattr(row, name, None)
        if said is not None and said != value:
            out.append(f"account {name}: running {said}, recounted {value}")
    return out


def check_row(row: LedgerRow, audit: GroupAudit, geometry: PoolGeometry) -> list[str]:
    """What the running accounts say against the recount, as sentences; empty when they agree."""
    try:
        return _differences(row, recount(audit, geometry))
    except LedgerError as error:
        return [str(error)]


def check_rows(rows: Sequence[LedgerRow], audits: Sequence[GroupAudit], facts: EngineFacts) -> list[str]:
    """All groups and ranks at one moment: what is wrong, each sentence with the group and rank that it is of."""
    if not facts.shared_pool:
        geometries = [group for group in facts.groups for _ in range(facts.ranks)]
        found = zip(rows, map(check_row, rows, audits, geometries), strict=True)
        return [f"group {row.group} rank {row.rank}: {words}" for row, said in found for words in said]
    out = []
    for rank in range(facts.ranks):
        lanes = range(rank, len(rows), facts.ranks)
        out += _check_shared([(rows[i], audits[i], facts.groups[i // facts.ranks]) for i in lanes], rank)
    return out


def _check_shared(lanes: list[tuple[LedgerRow, GroupAudit, PoolGeometry]], rank: int) -> list[str]:
    """The groups of one rank, which draw from one pool."""
    out, counted = [], []
    for row, audit, geometry in lanes:
        try:
            counted.append(_count(audit, geometry))
            said = _differences(row, counted[-1].accounts)
        except LedgerError as error:
            said = [str(error)]
        out += [f"group {row.group} rank {rank}: {words}" for words in said]
    if len(counted) == len(lanes):
        try:
            _one_state(counted)
        except LedgerError as error:
            out.append(f"rank {rank}: {error}")
    return out
