"""Where every byte of the pool is: running accounts moved by events, and the recount that shares no code with them.

Each event moves tokens or blocks from one account to another; the sum cannot change but by a mistake, and a
mistake shows, because no account is computed as a difference of others.

        free --claim--> tail slack --fill, copy--> payload --release--> cached | free
        cached --claim (evicts)--> tail slack      cached --share--> payload      tail slack <--> reserved ahead
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from trials.engine import GroupAudit, LedgerRow, PoolGeometry
from trials.recording import Ints

_new = tuple.__new__  # a named tuple in half the time of its own constructor: one is made every step
ACCOUNTS = ("payload", "tail_slack", "reserved_ahead", "cached", "free", "reserve", "padding", "remainder")


class LedgerError(RuntimeError):
    """Accounts and recount disagree, or do not add up to the pool; carries the row."""


@dataclass(slots=True)
class Accounts:
    """Running accounts of one (group, rank): tokens inside blocks, whole blocks outside."""

    block_size: int
    free_blocks: int
    reserve_blocks: int
    group: int = 0
    rank: int = 0
    payload_tokens: int = 0
    tail_slack_tokens: int = 0
    reserved_ahead_tokens: int = 0
    cached_blocks: int = 0
    logical_tokens: int = 0
    allocated_blocks: int = 0
    released_blocks: int = 0
    evicted_blocks: int = 0
    copied_blocks: int = 0

    def claim(self, blank: int, evicted: int) -> None:
        """Blocks are handed out empty: `blank` came from the free account, `evicted` gave up cached content."""
        self.free_blocks -= blank
        self.cached_blocks -= evicted
        self.tail_slack_tokens += (blank + evicted) * self.block_size
        self.allocated_blocks += blank + evicted
        self.evicted_blocks += evicted

    def fill(self, tokens: int) -> None:
        """Tokens are written (or scheduled to be, in this step) into claimed room."""
        self.tail_slack_tokens -= tokens
        self.payload_tokens += tokens
        self.logical_tokens += tokens

    def share(self, held: int, revived: int) -> None:
        """A sequence takes references to full blocks that others hold, or that were cached."""
        self.cached_blocks -= revived
        self.payload_tokens += revived * self.block_size
        self.logical_tokens += (held + revived) * self.block_size

    def reserve(self, tokens: int) -> None:
        """Claimed room lies beyond the tail block: it is held for tokens still to come."""
        self.tail_slack_tokens -= tokens
        self.reserved_ahead_tokens += tokens

    def reach(self, tokens: int) -> None:
        """Reserved room becomes the tail block of its sequence."""
        self.reserved_ahead_tokens -= tokens
        self.tail_slack_tokens += tokens

    def refer(self, tokens: int) -> None:
        """A sequence holds tokens that lie in blocks of another, or were just copied: nothing is written."""
        self.logical_tokens += tokens

    def copy(self, tokens: int) -> None:
        """The written part of a shared block is copied into claimed room."""
        self.tail_slack_tokens -= tokens
        self.payload_tokens += tokens
        self.copied_blocks += 1

    def release(self, tokens: int, room: tuple[int, int], cached: int, blank: int) -> None:
        """A sequence that held `tokens` lets go; `cached` full blocks and `blank` others have no holder now.

        `room`: what was not written in those, (tail slack, reserved ahead).
        """
        slack, ahead = room
        self.logical_tokens -= tokens
        self.tail_slack_tokens -= slack
        self.reserved_ahead_tokens -= ahead
        self.cached_blocks += cached
        self.free_blocks += blank
        self.payload_tokens -= (cached + blank) * self.block_size - slack - ahead
        self.released_blocks += cached + blank

    def forget(self, cached: int) -> None:
        """Cached content is dropped without being claimed (a cold start)."""
        self.cached_blocks -= cached
        self.free_blocks += cached

    def peek(self) -> LedgerRow:
        """The accounts now, and the events since the last `row()`."""
        return _new(LedgerRow, (
            self.group, self.rank, self.payload_tokens, self.tail_slack_tokens, self.reserved_ahead_tokens,
            self.cached_blocks, self.free_blocks, self.reserve_blocks, self.logical_tokens,
            self.allocated_blocks, self.released_blocks, self.evicted_blocks, self.copied_blocks,
        ))  # fmt: skip

    def row(self) -> LedgerRow:
        """The accounts now; event counts start again from zero."""
        row = self.peek()
        self.allocated_blocks = self.released_blocks = self.evicted_blocks = self.copied_blocks = 0
        return row


def recount(audit: GroupAudit, geometry: PoolGeometry) -> dict[str, int]:
    """The accounts counted from raw tables and queues alone. Raises LedgerError where a law of blocks is broken.

    Source of the method: count what each physical block holds at most once, whoever points at it.
    """
    size, blocks = geometry.block_size, geometry.num_blocks
    _check_tables(audit, size)
    ids = _ids(list(chain.from_iterable(audit.tables.values())), blocks)
    lengths = np.array([len(table) for table in audit.tables.values()], np.int64)
    held = np.array([audit.held_tokens[row] for row in audit.tables], np.int64)
    places = np.arange(len(ids), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    fill = np.zeros(blocks, np.int64)
    np.maximum.at(fill, ids, np.clip(np.repeat(held, lengths) - places * size, 0, size))
    owners = np.bincount(ids, minlength=blocks)
    states = np.bincount(_ids([*audit.free, *audit.cached, *audit.reserve], blocks), minlength=blocks)
    wrong = np.flatnonzero(states + (owners > 0) != 1)
    if len(wrong):
        block = int(wrong[0])
        raise LedgerError(
            f"block {block} ({len(wrong)} such) has {int(owners[block])} owners and is in "
            f"{int(states[block])} of the queues free, cached, reserve; exactly one state is lawful"
        )
    live, ahead = owners > 0, sum(audit.reserved_ahead.values())
    return {
        "payload_tokens": int(fill.sum()),
        "tail_slack_tokens": int((size - fill[live]).sum()) - ahead,
        "reserved_ahead_tokens": ahead,
        "cached_blocks": len(audit.cached),
        "free_blocks": len(audit.free),
        "reserve_blocks": len(audit.reserve),
        "logical_tokens": sum(audit.held_tokens.values()),
        "live_blocks": int(live.sum()),
    }


def _check_tables(audit: GroupAudit, size: int) -> None:
    """n tokens take as many blocks as hold them and what is reserved ahead, never one more."""
    for row, table in audit.tables.items():
        tokens, ahead = audit.held_tokens[row], audit.reserved_ahead.get(row, 0)
        need = -(-(tokens + ahead) // size)
        if len(table) != need:
            found = f"only {len(table)}" if len(table) < need else f"{len(table)}"
            raise LedgerError(
                f"row {row} holds {tokens} tokens, {ahead} more reserved, in {found} blocks of {size}; "
                f"it is to have {need}"
            )


def _ids(blocks: list[int], num_blocks: int) -> Ints:
    """Block ids as an array, every one of them a block of the pool."""
    ids = np.fromiter(blocks, np.int64, len(blocks))  # an eighth of the time of np.array, for a long list
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_blocks:
        raise LedgerError(f"blocks {int(ids.min())} .. {int(ids.max())} in a pool of {num_blocks}")
    return ids


def check_row(row: LedgerRow, audit: GroupAudit, geometry: PoolGeometry) -> list[str]:
    """What the running accounts say against the recount, as sentences; empty when they agree."""
    try:
        counted = recount(audit, geometry)
    except LedgerError as error:
        return [str(error)]
    out = []
    for name, value in counted.items():
        said = getattr(row, name, None)
        if said is not None and said != value:
            out.append(f"account {name}: running {said}, recounted {value}")
    return out


def account_bytes(ledger: dict[str, Ints], groups: tuple[PoolGeometry, ...], ranks: int = 1) -> dict[str, Ints]:
    """Byte accounts a step, [S] int64, summed over groups and ranks; `ledger` has S * groups * ranks rows."""
    per_step = len(groups) * ranks
    order = {(g, r): g * ranks + r for g in range(len(groups)) for r in range(ranks)}
    total: dict[str, Ints] = {}
    for (g, _), at in order.items():
        geometry = groups[g]
        rows = {name: column[at::per_step] for name, column in ledger.items()}
        size, block = geometry.bytes_per_token, geometry.block_size * geometry.bytes_per_token
        ones = np.ones(len(rows["payload_tokens"]), np.int64)
        part = {
            "payload": rows["payload_tokens"] * size,
            "tail_slack": rows["tail_slack_tokens"] * size,
            "reserved_ahead": rows["reserved_ahead_tokens"] * size,
            "cached": rows["cached_blocks"] * block,
            "free": rows["free_blocks"] * block,
            "reserve": rows["reserve_blocks"] * block,
            "padding": ones * (geometry.padding_bytes_per_block * geometry.num_blocks),
            "remainder": ones * geometry.remainder_bytes,
            "pool_bytes": ones * geometry.pool_bytes,
        }
        total = {name: total[name] + value if total else value for name, value in part.items()}
    return total


def unbalanced_rows(accounts: dict[str, Ints]) -> Ints:
    """Steps whose accounts do not add up to the pool exactly, [K] step indices."""
    parts = np.sum([accounts[name] for name in ACCOUNTS], axis=0)
    return np.flatnonzero(parts != accounts["pool_bytes"])
