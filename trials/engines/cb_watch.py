"""What happens in transformers' block pool, seen as it happens and booked in accounts: O(what changes).

The few methods through which blocks move are wrapped on the instance; transformers decides and does everything.
Who holds a block, whether it is cached and how full it is are read from its own ledger and requests.
"""

from typing import Any

from trials.ledger import Accounts


class CachePoolWatch:
    """`preempted`, `refused` (who found no room, and its blocks), `in_margin`: since `begin()`.

    `matched`: tokens that a request found in the cache, until it is in a batch and takes them out.
    `leaving`: states of requests that are taken out of the scheduler before their blocks are.
    """

    def __init__(self, processor: Any, allocator: Any) -> None:
        self.cache, self.scheduler, self.allocator = processor.cache, processor.scheduler, allocator
        self.block_size: int = allocator.tokens_per_page
        self.fresh()
        cache, ledger, pool = self.cache, allocator.ledger, self.cache.pool
        self._match, self._store = cache.search_prefix_match, cache.can_store_request_tokens
        self._take, self._acquire = pool.get_free_blocks, allocator.acquire_prefix_blocks
        self._let_go, self._register = allocator.free_blocks, ledger.register_new_hash
        self._evict, self._margin = ledger.evict_cached_blocks, self.scheduler._try_to_meet_safety_margin
        cache.search_prefix_match, cache.can_store_request_tokens = self.search_prefix_match, self.can_store
        pool.get_free_blocks, allocator.acquire_prefix_blocks = self.get_free_blocks, self.acquire_prefix_blocks
        allocator.free_blocks, ledger.register_new_hash = self.free_blocks, self.register_new_hash
        ledger.evict_cached_blocks, self.scheduler._try_to_meet_safety_margin = self.evict, self.keeps_margin

    def fresh(self) -> None:
        """Everything is free: the accounts begin again."""
        allocator = self.allocator
        reserve = allocator.blocks_per_sector * self.cache.pool.num_reserved_sectors
        self.accounts = Accounts(self.block_size, allocator.num_blocks, reserve)
        self.matched: dict[str, int] = {}
        self.leaving: dict[str, Any] = {}
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.preempted: list[tuple[str, int]] = []
        self.refused: tuple[str, int] | None = None
        self.in_margin = True

    # ---- wrapped
    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        """How much of a waiting request is cached; from then on it holds those blocks."""
        found = int(self._match(request_id, prompt_ids))
        if found:
            self.matched[request_id] = found
        return found

    def can_store(self, state: Any, request_len: int, dry_run: bool = False) -> bool:
        """The first that finds no room, and how many blocks it wanted."""
        fits = bool(self._store(state, request_len, dry_run))
        if not fits and not dry_run and self.refused is None:
            wanted = self.allocator.needs_new_blocks(state.request_id, state.current_len(), request_len)
            self.refused = state.request_id, int(wanted)
        return fits

    def keeps_margin(self) -> bool:
        """Whether enough is free for new prefills to be taken in."""
        self.in_margin = bool(self._margin())
        return self.in_margin

    def get_free_blocks(self, index: int, num_blocks: int) -> list[int]:
        """Blocks without content are handed out."""
        taken: list[int] = self._take(index, num_blocks)
        self.accounts.claim(len(taken), 0)
        return taken

    def acquire_prefix_blocks(self, request_id: str, prefix_len: int, block_ids: list[int]) -> None:
        """A hit: references to blocks that others hold, or that come back from the cache."""
        kept = block_ids[: prefix_len // self.block_size]
        cached = self.allocator.ledger.cached_blocks
        revived = sum(block in cached for block in kept)
        self._acquire(request_id, prefix_len, block_ids)
        self.accounts.share(len(kept) - revived, revived)

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        """A request lets go: it ended, was cancelled, or (`no_cache`) has to make room."""
        table = self.allocator.block_table.get(request_id)
        if table is None:
            self._let_go(request_id, no_cache)
            return
        ledger = self.allocator.ledger
        held = self.state_of(request_id).position_offset
        last = [block for block in table if block not in ledger.shared_ref_counts]
        cached = 0 if no_cache else sum(block in ledger.block_to_hash for block in last)
        slack = len(table) * self.block_size - held
        if no_cache:
            self.preempted.append((request_id, held))
        self._let_go(request_id, no_cache)
        self.accounts.release(held, (slack, 0), cached, len(last) - cached)

    def register_new_hash(self, block_id: int, block_hash: int) -> int | None:
        """A block is full and may be found; where another has the same content, that one is taken instead."""
        ledger = self.allocator.ledger
        same: int | None = self._register(block_id, block_hash)
        if same is not None:
            revived = int(same in ledger.cached_blocks)
            self.accounts.share(1 - revived, revived)
            self.accounts.release(self.block_size, (0, 0), 0, 1)
        return same

    def evict(self) -> list[int]:
        """Memory is short: all that is cached is given up at once."""
        gone: list[int] = self._evict()
        self.accounts.forget(len(gone))
        self.accounts.evicted_blocks += len(gone)
        return gone

    # ---- read
    def state_of(self, request_id: str) -> Any:
        """The request's own state, running or just taken out."""
        state = self.scheduler.active_requests.get(request_id)
        return state if state is not None else self.leaving[request_id]

    def num_free(self) -> int:
        """Blocks that transformers could hand out now."""
        pool, allocator = self.cache.pool, self.allocator
        whole: int = len(pool.free_sectors) * allocator.blocks_per_sector
        return whole + int(pool.count_free_blocks(allocator.index))

    def free_ids(self) -> list[int]:
        """Ids of blocks without content: those of whole free sectors, and leaves of sectors in use."""
        pool, each = self.cache.pool, self.allocator.blocks_per_sector
        out = [sector * each + i for sector in pool.free_sectors for i in range(each)]
        for leaves in pool._free_blocks[self.allocator.index].trees.values():
            out += leaves
        return out
