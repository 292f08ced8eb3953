"""Cached blocks that nobody holds, in the order in which they are given up.

`lru` needs no look at single blocks: what is released last stands last, so blocks move as slices, and a block
that is hit leaves its entry behind, noted as stale and skipped when it comes up (exact, because a released block
is always put behind its own stale entry). Any other order ranks each block when it becomes idle.

Sources of the orders: lru, vLLM v1 and SGLang; lfu, SGLang's radix cache; length_aware, Mooncake's store (the
deeper a block lies in its sequence, the fewer requests can reach it); fifo, the textbook.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

_MANY = 4096  # entries that no longer count, and how many of them are worth a clean-up


class IdleQueue(Protocol):
    """Idle blocks in eviction order. The pool says when a block becomes idle, is hit, or is handed out."""

    def put(self, blocks: list[int], depth: int, step: int) -> None:
        """Blocks become idle, in this order; the first lies `depth` blocks deep in its sequence, the next +step."""

    def hit(self, block: int) -> None:
        """An idle block is held again."""

    def used(self, block: int) -> None:
        """A block, idle or held, was found by a request."""

    def handed_out(self, blocks: list[int]) -> None:
        """Blocks start a new life with new content."""

    def pop(self, count: int) -> list[int]:
        """The next `count` idle blocks; fewer only where there are fewer."""

    def clear(self) -> None: ...

    def __iter__(self) -> Iterator[int]: ...


@dataclass(slots=True)
class LeastRecentlyUsed:
    """Moves blocks in bulk; O(1) a block only where blocks were hit while idle."""

    _blocks: list[int] = field(default_factory=list)
    _head: int = 0  # entries in front of it are gone
    _stale: dict[int, int] = field(default_factory=dict)  # block -> entries that no longer count
    _num_stale: int = 0

    def put(self, blocks: list[int], depth: int, step: int) -> None:
        self._blocks += blocks

    def hit(self, block: int) -> None:
        self._stale[block] = self._stale.get(block, 0) + 1
        self._num_stale += 1
        if self._num_stale > _MANY and self._num_stale * 2 > len(self._blocks) - self._head:
            self._blocks = list(self)
            self._stale.clear()
            self._head = self._num_stale = 0

    def used(self, block: int) -> None:
        """Release order alone decides."""

    def handed_out(self, blocks: list[int]) -> None:
        """Release order alone decides."""

    def pop(self, count: int) -> list[int]:
        stale = self._stale
        out = self._blocks[self._head : self._head + count]
        self._head += len(out)
        if stale and not stale.keys().isdisjoint(out):
            out = [block for block in out if block not in stale or not self._skip(block)]
            while len(out) < count and self._head < len(self._blocks):
                block = self._blocks[self._head]
                self._head += 1
                if not self._skip(block):
                    out.append(block)
        if self._head > _MANY and self._head * 2 > len(self._blocks):
            del self._blocks[: self._head]
            self._head = 0
        return out

    def _skip(self, block: int) -> bool:
        left = self._stale.get(block, 0)
        if left > 1:
            self._stale[block] = left - 1
        elif left == 1:
            del self._stale[block]
        self._num_stale -= left > 0
        return left > 0

    def clear(self) -> None:
        self._blocks.clear()
        self._stale.clear()
        self._head = self._num_stale = 0

    def __iter__(self) -> Iterator[int]:
        if not self._stale:
            return iter(self._blocks[self._head :])
        return self._without_stale()

    def _without_stale(self) -> Iterator[int]:
        left = dict(self._stale)
        for block in self._blocks[self._head :]:
            if block not in left:
                yield block
            elif left[block] > 1:
                left[block] -= 1
            else:
                del left[block]


@dataclass(slots=True)
class Life:
    """What a rank may look at."""

    born: int = 0  # number of its handing out
    uses: int = 0  # times that it was found since
    depth: int = 0  # blocks in front of it in its sequence


Rank = Callable[[Life], int]  # the lowest goes first; among equals, the one idle longest


@dataclass(slots=True)
class Ranked:
    """A heap of (rank, turn, block); an entry counts only while it is its block's latest."""

    rank: Rank
    _lives: dict[int, Life] = field(default_factory=dict)
    _turn_of: dict[int, int] = field(default_factory=dict)  # idle block -> turn of its entry
    _heap: list[tuple[int, int, int]] = field(default_factory=list)
    _turn: int = 0
    _births: int = 0

    def put(self, blocks: list[int], depth: int, step: int) -> None:
        for number, block in enumerate(blocks):
            life = self._lives.setdefault(block, Life())
            life.depth = depth + step * number
            self._turn += 1
            self._turn_of[block] = self._turn
            heapq.heappush(self._heap, (self.rank(life), self._turn, block))

    def hit(self, block: int) -> None:
        del self._turn_of[block]

    def used(self, block: int) -> None:
        self._lives[block].uses += 1

    def handed_out(self, blocks: list[int]) -> None:
        for block in blocks:
            self._births += 1
            self._lives[block] = Life(born=self._births)

    def pop(self, count: int) -> list[int]:
        out: list[int] = []
        while len(out) < count and self._heap:
            _, turn, block = heapq.heappop(self._heap)
            if self._turn_of.get(block) == turn:
                del self._turn_of[block]
                out.append(block)
        return out

    def clear(self) -> None:
        for table in (self._lives, self._turn_of, self._heap):
            table.clear()

    def __iter__(self) -> Iterator[int]:
        for _, turn, block in sorted(self._heap):
            if self._turn_of.get(block) == turn:
                yield block


EVICTION: dict[str, Callable[[], IdleQueue]] = {
    "lru": LeastRecentlyUsed,
    "fifo": lambda: Ranked(lambda life: life.born),
    "lfu": lambda: Ranked(lambda life: life.uses),
    "length_aware": lambda: Ranked(lambda life: -life.depth),
}
