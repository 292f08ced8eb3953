"""Blocks: who holds them, which are free, which are still matchable, and in what order they are taken again.

The free queue is one queue with two ends of different kind (vLLM 0.32's order): first the blocks without
content, last freed first taken; then the blocks with content, in eviction order (idle_queue.py). A cached block
keeps its content until it is taken. New blocks are taken from the head:

    head  [ blank: a stack ][ idle: cached, nobody holds them ]  tail

Only blocks that someone else can ask for (indexed) or holds as well (forked) carry a reference count; every
other live block has exactly one holder, so such blocks move in bulk, as slices. In a table the counted ones lead:

    |-- counted: others may hold them --|-- full, its own --|-- tail --|-- reserved ahead --|
    0                         num_counted             tokens // B                     len(table)

A block that several hold is never written: `copy_on_write` comes first. The pool knows nothing of requests, time
or bytes. Source of the rules: vLLM v1's BlockPool; forks and copy-on-write, vLLM v0's block manager.
"""

from dataclasses import dataclass

from trials.idle_queue import EVICTION
from trials.ledger import Accounts
from trials.prefix_index import PrefixIndex


class PoolError(RuntimeError):
    """A law of the pool is broken; the message carries the state."""


@dataclass(frozen=True, slots=True)
class PoolRules:
    """How content is kept and given up; see PoolPolicy."""

    eviction: str = "lru"
    free_order: str = "tail_first"
    partial_match: bool = False


class BlockPool:
    """`num_blocks` blocks with ids 0..N-1, of which the first `reserve_blocks` are never handed out."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        reserve_blocks: int = 0,
        caching: bool = True,
        rules: PoolRules | None = None,
    ) -> None:
        rules = rules or PoolRules()
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self.reserve_blocks = reserve_blocks
        self.accounts = Accounts(block_size, num_blocks - reserve_blocks, reserve_blocks)
        self.available = num_blocks - reserve_blocks  # blank + cached: what can be taken
        self.epoch = 0  # moves whenever a lookup could give another answer
        self.tail_copies = 0  # copies that would be made if every holder of a shared tail wrote next
        self.index = PrefixIndex(rules.partial_match)
        self._tail_first = rules.free_order == "tail_first"
        self._blank = list(range(num_blocks - 1, reserve_blocks - 1, -1))  # the end is the queue's head
        self._idle = EVICTION[rules.eviction]()
        self._ranked = rules.eviction != "lru"
        self._holders: dict[int, int] = {}  # counted block -> reference count

    # ---- taking
    def take(self, count: int) -> list[int]:
        """`count` blocks from the head of the free queue, in order. The caller has checked `available`."""
        if count == 0:
            return []
        self.available -= count
        blank = self._blank
        if count <= len(blank):
            taken = blank[-count:]
            del blank[-count:]
            taken.reverse()
            self.accounts.claim(count, 0)
        else:
            evicted = count - len(blank)
            self.accounts.claim(len(blank), evicted)
            taken = self._evict(evicted)
            if blank:
                taken = blank[::-1] + taken
                blank.clear()
        if self._ranked:
            self._idle.handed_out(taken)
        return taken

    def _evict(self, count: int) -> list[int]:
        """The next `count` cached blocks; whoever looks for their content misses from now on."""
        out = self._idle.pop(count)
        if len(out) < count:
            raise PoolError(f"took {count} cached blocks, found {len(out)}; {self.available} available")
        if self._holders and (known := self.index.known(out)):
            self.epoch += 1
            for block in known:
                self.index.drop(block)
                del self._holders[block]
        return out

    # ---- sharing
    def num_idle(self, blocks: list[int]) -> int:
        """How many of the matched blocks nobody holds: taking them shrinks the free queue."""
        return [self._holders[block] for block in blocks].count(0)

    def share(self, blocks: list[int]) -> None:
        """Take a reference to each matched block; before anything is taken, so that a hit cannot be evicted."""
        holders, revived = self._holders, 0
        for block in blocks:
            held = holders[block]
            if not held:
                self._idle.hit(block)
                revived += 1
            holders[block] = held + 1
            if self._ranked:
                self._idle.used(block)
        self.available -= revived
        self.epoch += 1
        self.accounts.share(len(blocks) - revived, revived)

    def register(self, blocks: list[int], keys: list[int], parent: int, row: int) -> None:
        """From now on a lookup of these keys finds these blocks (or an older block of the same content).

        `parent` is the key in front of the first; `row` is whose content it is (both for partial matches).
        """
        self.epoch += 1
        for block, key in zip(blocks, keys, strict=True):
            self.index.add(block, key, parent, row)
            self._holders.setdefault(block, 1)
            parent = key

    def retract(self, blocks: list[int]) -> None:
        """Content that was registered for a step and will not be computed: nobody may find it."""
        self.epoch += 1
        for block in blocks:
            if self.index.drop(block) and self._holders[block] == 1:
                del self._holders[block]

    def fork(self, table: list[int], tokens: int) -> None:
        """Another sequence holds the same `tokens` in the same blocks: a reference to each, nothing copied."""
        for block in table:
            self._holders[block] = self._holders.get(block, 1) + 1
        self.epoch += 1
        self.accounts.refer(tokens)
        if tokens % self.block_size:
            self.tail_copies += 1

    def must_copy(self, block: int) -> bool:
        """Whether writing into the block needs a copy first: somebody else holds it too."""
        return self._holders.get(block, 1) > 1

    def own(self, block: int) -> None:
        """Its only holder is about to write into a block that was shared: it is private again."""
        if self._holders.get(block) != 1 or self.index.key_of(block) is not None:
            raise PoolError(f"block {block} has {self._holders.get(block)} references: it cannot be written")
        del self._holders[block]

    def copy_on_write(self, block: int, tokens: int) -> int:
        """A private copy of a shared tail with `tokens` written; the caller has checked `available`."""
        (copy,) = self.take(1)
        self._holders[block] -= 1
        self.tail_copies -= 1
        self.accounts.copy(tokens)
        return copy

    # ---- letting go
    def release(self, table: list[int], tokens: int, num_counted: int, ahead: int = 0) -> None:
        """A sequence that held `tokens` in `table` lets go, last block first or first block first (free_order).

        Full blocks keep their content and go to the tail of the queue in that order. The others go to its head
        and stand there in that order. `ahead`: tokens reserved beyond the tail block.
        """
        size, block_size = len(table), self.block_size
        full = tokens // block_size if self.caching else 0
        first_blank = full if full > num_counted else num_counted
        blank = table[first_blank:]
        cached = first_blank - num_counted
        inside = tokens - num_counted * block_size
        slack = (size - num_counted) * block_size - (inside if inside > 0 else 0) - ahead
        if self._tail_first and cached:
            self._idle.put(table[num_counted:full][::-1], full - 1, -1)
        if num_counted:
            kept, emptied, left = self._let_go(table, tokens, num_counted)
            cached, blank, slack = cached + kept, emptied + blank, slack + left
        if self._tail_first:
            self._blank += blank
        else:
            self._blank += blank[::-1]
            if full > num_counted:
                self._idle.put(table[num_counted:full], num_counted, 1)
        self.available += cached + len(blank)
        self.accounts.release(tokens, (slack, ahead), cached, len(blank))

    def _let_go(self, table: list[int], tokens: int, num_counted: int) -> tuple[int, list[int], int]:
        """Drop one reference to each counted block -> (now cached, those now blank in token order, their slack)."""
        self.epoch += 1
        holders, size, full = self._holders, self.block_size, tokens // self.block_size
        kept = slack = 0
        emptied: list[int] = []
        order = range(num_counted - 1, -1, -1) if self._tail_first else range(num_counted)
        for place in order:
            block = table[place]
            held = holders[block] - 1
            holders[block] = held
            if held:
                if place >= full:
                    self.tail_copies -= 1
                continue
            if self.index.key_of(block) is None:
                del holders[block]
            if place < full and self.caching:
                self._idle.put([block], place, 0)
                kept += 1
            else:
                emptied.append(block)
                slack += 0 if place < full else (place + 1) * size - tokens
        return kept, emptied[::-1] if self._tail_first else emptied, slack

    def give_back(self, block: int, depth: int) -> None:
        """A reference to a full, matched block, `depth` blocks deep in its sequence, that was held to copy it."""
        self.epoch += 1
        self._holders[block] -= 1
        cached = not self._holders[block]
        if cached:
            self._idle.put([block], depth, 0)
            self.available += 1
        self.accounts.release(self.block_size, (0, 0), int(cached), 0)

    def drop_cached(self) -> None:
        """Forget all cached content (a cold start); order of ids starts again. Only while nothing is live."""
        if self.available != self.num_blocks - self.reserve_blocks:
            live = self.num_blocks - self.reserve_blocks - self.available
            raise PoolError(f"cannot start cold: {live} blocks are still held")
        self.accounts.forget(self.accounts.cached_blocks)
        self._blank = list(range(self.num_blocks - 1, self.reserve_blocks - 1, -1))
        self._idle.clear()
        self.index.clear()
        self._holders.clear()
        self.epoch += 1

    # ---- looking
    def free_ids(self) -> list[int]:
        """Blocks without content, head of the queue first."""
        return self._blank[::-1]

    def cached_ids(self) -> list[int]:
        """Blocks with content that nobody holds, in eviction order."""
        return list(self._idle)

    def ref_count(self, block: int, tables: list[list[int]]) -> int:
        """Holders of a block as the pool believes; `tables` are those of all live sequences."""
        if block in self._holders:
            return self._holders[block]
        return sum(table.count(block) for table in tables)

    def check_invariants(self, tables: list[list[int]]) -> None:
        """Raise PoolError unless the pool's laws hold against the block tables of all live sequences."""
        counted: dict[int, int] = {}
        for table in tables:
            for block in table:
                counted[block] = counted.get(block, 0) + 1
        free, cached = self.free_ids(), self.cached_ids()
        queue = [*free, *cached]
        if len(set(queue)) != len(queue):
            raise PoolError(f"a block stands twice in the free queue: {sorted(queue)}")
        if len(queue) != self.available:
            raise PoolError(f"{len(queue)} blocks in the free queue, {self.available} counted")
        if both := set(queue) & counted.keys():
            raise PoolError(f"blocks {sorted(both)} are free and held")
        if len(queue) + len(counted) + self.reserve_blocks != self.num_blocks:
            raise PoolError(f"{len(free)} free + {len(cached)} cached + {len(counted)} live != {self.num_blocks}")
        for block, holders in self._holders.items():
            if holders != counted.get(block, 0):
                raise PoolError(f"block {block}: {holders} references counted, {counted.get(block, 0)} tables")
            if not holders and self.index.key_of(block) is None:
                raise PoolError(f"block {block} is counted, but nobody holds it and nobody can find it")
        if lost := [b for b, n in counted.items() if n > 1 and b not in self._holders]:
            raise PoolError(f"blocks {lost} are shared without a reference count")
        if wrong := self.index.contradiction():
            raise PoolError(wrong)
        if stray := [b for b in self.index.blocks() if b not in self._holders]:
            raise PoolError(f"blocks {stray} can be found, but are not counted")
