"""Who holds which block at one moment, and how full it is: raw tables and queues turned into a row a block.

Knows audits, nothing of engines or replays. Blocks are looked at between steps, so what ended in the step in front
has been given back already.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from trials.engine import GroupAudit
from trials.recording import Ints

PEAK, FIRST_REFUSAL, ASKED, BROKEN = "peak", "first_failed_admission", "asked", "broken_law"
# What a block can be. `tail` is the last, partly filled block of its only holder; `ahead` is claimed and empty.
STATES = ("free", "cached", "reserve", "full", "tail", "ahead", "shared", "unlawful")


@dataclass(frozen=True, slots=True)
class Ownership:
    """One row a block, in the order of ids. Shapes [N]; owners of block b: owners[offsets[b]:offsets[b + 1]]."""

    offsets: Ints  # [N + 1]
    owners: Ints  # rows of the trace, an entry a table that holds the block
    fill: Ints  # tokens written, or scheduled to be
    state: NDArray[np.int8]  # index into STATES

    def of(self, blocks: Ints) -> "Ownership":
        """The same of some blocks only, in this order."""
        lengths = np.diff(self.offsets)[blocks]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        place = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1] - self.offsets[blocks], lengths)
        return Ownership(offsets, self.owners[place], self.fill[blocks], self.state[blocks])

    @property
    def ref_count(self) -> Ints:
        """Block tables that hold the block."""
        return np.diff(self.offsets)


def ownership(audit: GroupAudit, num_blocks: int, block_size: int, keeps_states: bool = False) -> Ownership:
    """Every block's owners, fill and state. Never raises: where a law is broken, the block says `unlawful`.

    A shared block counts the most that any of its holders has written in it, a state counts 1; ids outside the pool
    are left out, and so are places of a table in which no block is held any more.
    """
    tables, size = audit.tables, block_size
    ids = np.array(list(chain.from_iterable(tables.values())), np.int64)
    lengths = np.array([len(table) for table in tables.values()], np.int64)
    held = np.repeat(np.array([audit.held_tokens.get(row, 0) for row in tables], np.int64), lengths)
    rows = np.repeat(np.array(list(tables), np.int64), lengths)
    place = np.arange(len(ids), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    known = (ids >= 0) & (ids < num_blocks)
    ids, held, rows, place = ids[known], held[known], rows[known], place[known]
    filled = np.clip(held - place * size, 0, size)
    if keeps_states:
        filled = np.ones(len(ids), np.int64)
    fill = np.zeros(num_blocks, np.int64)
    np.maximum.at(fill, ids, filled)
    counts = np.bincount(ids, minlength=num_blocks)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    owners = rows[np.argsort(ids, kind="stable")]
    return Ownership(offsets, owners, fill, _states(audit, counts, fill, 1 if keeps_states else size))


def mentioned(audit: GroupAudit, num_blocks: int) -> NDArray[np.bool_]:
    """Which blocks stand in a table or a queue of this group, [N]."""
    there = np.zeros(num_blocks, np.bool_)
    every = chain(chain.from_iterable(audit.tables.values()), audit.free, audit.cached, audit.reserve)
    there[[block for block in every if 0 <= block < num_blocks]] = True
    return there


def _states(audit: GroupAudit, counts: Ints, fill: Ints, block_size: int) -> NDArray[np.int8]:
    num_blocks = len(counts)
    queued, state = np.zeros(num_blocks, np.int64), np.full(num_blocks, STATES.index("unlawful"), np.int8)
    for name, blocks in (("free", audit.free), ("cached", audit.cached), ("reserve", audit.reserve)):
        ids = np.array([b for b in blocks if 0 <= b < num_blocks], np.int64)
        np.add.at(queued, ids, 1)
        state[ids] = STATES.index(name)
    live = counts > 0
    state[live] = STATES.index("full")
    state[live & (fill < block_size)] = STATES.index("tail")
    state[live & (fill == 0)] = STATES.index("ahead")
    state[counts > 1] = STATES.index("shared")
    state[queued + live != 1] = STATES.index("unlawful")
    return state
