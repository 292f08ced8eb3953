"""Blocks: who holds them, which are free, which are still matchable, and in what order they are taken again.

The free queue is one queue with two ends of different kind (vLLM 0.32's order): first the blocks without
content, last freed first taken; then the blocks with content, least recently used first. A cached block keeps
its content until it is taken. New blocks are taken from the head:

    head  [ blank: a stack ][ idle: cached, least recently released first ]  tail

Only blocks whose content someone else can ask for stand in the index and carry a reference count; every other
live block has exactly one holder, so such blocks move in bulk, as slices. A cached block that is hit leaves its
entry in `idle` behind; the entry is noted as stale and skipped when it comes up. That is exact, because a
released block is always put behind its own stale entry.

The pool knows nothing of requests, time or bytes. Source of the rules: vLLM v1's BlockPool.
"""

from trials.ledger import Accounts


class PoolError(RuntimeError):
    """A law of the pool is broken; the message carries the state."""


class BlockPool:
    """`num_blocks` blocks with ids 0..N-1, of which the first `reserve_blocks` are never handed out."""

    def __init__(self, num_blocks: int, block_size: int, reserve_blocks: int = 0, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self.reserve_blocks = reserve_blocks
        self.accounts = Accounts(block_size, num_blocks - reserve_blocks, reserve_blocks)
        self.available = num_blocks - reserve_blocks  # blank + cached: what can be taken
        self.epoch = 0  # moves whenever a lookup could give another answer
        self._blank = list(range(num_blocks - 1, reserve_blocks - 1, -1))  # the end is the queue's head
        self._idle: list[int] = []
        self._head = 0  # entries of _idle in front of it are gone
        self._stale: dict[int, int] = {}  # block -> entries in _idle that no longer count
        self._index: dict[int, int] = {}  # content key -> oldest block that holds it
        self._younger: dict[int, list[int]] = {}  # content key -> further blocks, oldest first
        self._key_of: dict[int, int] = {}  # indexed block -> its key
        self._holders: dict[int, int] = {}  # indexed block -> reference count

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
            return taken
        taken = blank[::-1]
        blank.clear()
        evicted = count - len(taken)
        self.accounts.claim(len(taken), evicted)
        taken += self._evict(evicted)
        return taken

    def _evict(self, count: int) -> list[int]:
        """The `count` least recently used cached blocks; whoever looks for their content misses from now on."""
        idle = self._idle
        out: list[int] = []
        if not self._key_of:  # nothing is indexed, so nothing is stale either
            out = idle[self._head : self._head + count]
            self._head += len(out)
        while len(out) < count:
            some = idle[self._head : self._head + count - len(out)]
            if not some:
                raise PoolError(f"took {count} cached blocks, found {len(out)}; {self.available} available")
            self._head += len(some)
            if not self._key_of.keys().isdisjoint(some):
                some = [block for block in some if self._drop(block)]
            out += some
        if self._head > 4096 and self._head * 2 > len(idle):
            del idle[: self._head]
            self._head = 0
        return out

    def _drop(self, block: int) -> bool:
        """An entry came up: False if it is stale; else its content leaves the index."""
        stale = self._stale.get(block, 0)
        if stale:
            if stale == 1:
                del self._stale[block]
            else:
                self._stale[block] = stale - 1
            return False
        key = self._key_of.pop(block, None)
        if key is not None:
            self.epoch += 1
            del self._holders[block]
            self._unlist(key, block)
        return True

    def _unlist(self, key: int, block: int) -> None:
        younger = self._younger.get(key)
        if younger is None:
            del self._index[key]
            return
        if self._index[key] == block:
            self._index[key] = younger.pop(0)
        else:
            younger.remove(block)
        if not younger:
            del self._younger[key]

    # ---- sharing
    def match(self, keys: list[int], limit: int) -> list[int]:
        """Blocks of the longest run of leading keys that are known, at most `limit`; nothing is touched."""
        out = []
        index = self._index
        for key in keys if len(keys) <= limit else keys[:limit]:
            block = index.get(key)
            if block is None:
                break
            out.append(block)
        return out

    def num_idle(self, blocks: list[int]) -> int:
        """How many of the matched blocks nobody holds: taking them shrinks the free queue."""
        holders = self._holders
        return sum(not holders[block] for block in blocks)

    def share(self, blocks: list[int]) -> None:
        """Take a reference to each matched block; before anything is taken, so that a hit cannot be evicted."""
        revived = 0
        for block in blocks:
            if not self._holders[block]:
                self._stale[block] = self._stale.get(block, 0) + 1
                revived += 1
            self._holders[block] += 1
        self.available -= revived
        self.epoch += 1
        self.accounts.share(len(blocks) - revived, revived)

    def register(self, blocks: list[int], keys: list[int]) -> None:
        """From now on a lookup of these keys finds these blocks (or an older block of the same content)."""
        self.epoch += 1
        for block, key in zip(blocks, keys, strict=True):
            self._key_of[block] = key
            self._holders[block] = 1
            if key in self._index:
                self._younger.setdefault(key, []).append(block)
            else:
                self._index[key] = block

    # ---- letting go
    def release(self, table: list[int], tokens: int, num_indexed: int) -> None:
        """A sequence that held `tokens` in `table` lets go, last block first.

            |-- indexed: others may hold them --|-- full, its own --|-- tail --|
            0                          num_indexed        tokens // B    len(table)

        Full blocks keep their content and go to the tail of the queue, the rest to its head.
        """
        size = len(table)
        slack = size * self.block_size - tokens
        if not self.caching:
            self._blank += table
            self.available += size
            self.accounts.release(tokens, slack, 0, size)
            return
        full = tokens // self.block_size
        if size > full:
            self._blank += table[full:]
        cached = full - num_indexed
        if cached:
            self._idle += table[num_indexed:full][::-1]
        if num_indexed:
            cached += self._release_indexed(table, num_indexed)
        self.available += cached + size - full
        self.accounts.release(tokens, slack, cached, size - full)

    def _release_indexed(self, table: list[int], num_indexed: int) -> int:
        self.epoch += 1
        holders, idle, freed = self._holders, self._idle, 0
        for block in table[num_indexed - 1 :: -1] if num_indexed < len(table) else table[::-1]:
            holders[block] -= 1
            if not holders[block]:
                idle.append(block)
                freed += 1
        return freed

    def drop_cached(self) -> None:
        """Forget all cached content (a cold start); order of ids starts again. Only while nothing is live."""
        if self.available != self.num_blocks - self.reserve_blocks:
            live = self.num_blocks - self.reserve_blocks - self.available
            raise PoolError(f"cannot start cold: {live} blocks are still held")
        self.accounts.forget(self.accounts.cached_blocks)
        self._blank = list(range(self.num_blocks - 1, self.reserve_blocks - 1, -1))
        self._idle.clear()
        self._head = 0
        for table in (self._stale, self._index, self._younger, self._key_of, self._holders):
            table.clear()
        self.epoch += 1

    # ---- looking
    def free_ids(self) -> list[int]:
        """Blocks without content, head of the queue first."""
        return self._blank[::-1]

    def cached_ids(self) -> list[int]:
        """Blocks with content that nobody holds, least recently used first."""
        if not self._stale:
            return self._idle[self._head :]
        stale = dict(self._stale)
        out = []
        for block in self._idle[self._head :]:
            if stale.get(block, 0):
                stale[block] -= 1
            else:
                out.append(block)
        return out

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
        if lost := [b for b, n in counted.items() if n > 1 and b not in self._holders]:
            raise PoolError(f"blocks {lost} are shared without a reference count")
        listed = [*self._index.values(), *(b for more in self._younger.values() for b in more)]
        if sorted(listed) != sorted(self._key_of) or self._key_of.keys() != self._holders.keys():
            raise PoolError("the index and the indexed blocks disagree")
        if any(self._key_of[block] != key for key, block in self._index.items()):
            raise PoolError("the index leads to a block with another key")
