"""Where every byte of the pool is: running accounts moved by events, and what they are in bytes.

Each event moves tokens or blocks from one account to another; the sum cannot change but by a mistake, and a
mistake shows, because no account is computed as a difference of others.

        free --claim--> tail slack --fill, copy--> payload --release--> cached | free
        cached --claim (evicts)--> tail slack      cached --share--> payload      tail slack <--> reserved ahead
"""

from dataclasses import dataclass

import numpy as np

from trials.engine import LedgerRow, PoolGeometry
from trials.recording import Ints

_new = tuple.__new__  # a named tuple in half the time of its own constructor: one is made every step
ACCOUNTS = ("payload", "tail_slack", "reserved_ahead", "cached", "free", "reserve", "padding", "remainder")


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


def lane_bytes(
    ledger: dict[str, Ints], groups: tuple[PoolGeometry, ...], ranks: int = 1, shared: bool = False
) -> list[dict[str, Ints]]:
    """Byte accounts a step, [S] int64, of every (group, rank) in the order of `ledger`.

    Of groups that share a pool (`shared`), a block that no group has is free or in reserve with all its bytes, and
    is booked in the first; padding comes with the group that takes a block, and goes with its content.
    """
    lanes = len(groups) * ranks
    out = []
    for lane in range(lanes):
        rows, geometry = {name: column[lane::lanes] for name, column in ledger.items()}, groups[lane // ranks]
        of_pool = shared and lane // ranks > 0  # the pool is booked in the first group
        ones = np.full(len(rows["payload_tokens"]), 0 if of_pool else 1, np.int64)
        size, block = geometry.bytes_per_token, geometry.slots * geometry.bytes_per_token
        held = rows["payload_tokens"] + rows["tail_slack_tokens"] + rows["reserved_ahead_tokens"]
        padded = held // geometry.slots + rows["cached_blocks"] if shared else ones * geometry.num_blocks
        blank = geometry.block_bytes if shared else block
        out.append({
            "payload": rows["payload_tokens"] * size,
            "tail_slack": rows["tail_slack_tokens"] * size,
            "reserved_ahead": rows["reserved_ahead_tokens"] * size,
            "cached": rows["cached_blocks"] * block,
            "free": rows["free_blocks"] * blank,
            "reserve": rows["reserve_blocks"] * blank,
            "padding": padded * geometry.padding_bytes_per_block,
            "remainder": ones * geometry.remainder_bytes,
            "pool_bytes": ones * geometry.pool_bytes,
        })  # fmt: skip
    return out


def account_bytes(
    ledger: dict[str, Ints], groups: tuple[PoolGeometry, ...], ranks: int = 1, shared: bool = False
) -> dict[str, Ints]:
    """Byte accounts a step, [S] int64, summed over groups and ranks; `ledger` has S * groups * ranks rows."""
    parts = lane_bytes(ledger, groups, ranks, shared)
    return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}


def unbalanced_rows(accounts: dict[str, Ints]) -> Ints:
    """Steps whose accounts do not add up to the pool exactly, [K] step indices."""
    parts = np.sum([accounts[name] for name in ACCOUNTS], axis=0)
    return np.flatnonzero(parts != accounts["pool_bytes"])
