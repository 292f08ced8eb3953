"""What happens in vLLM's block pool, seen as it happens and booked in accounts: O(what changes).

The few methods of vLLM through which blocks move are wrapped on the instance; vLLM itself decides and does
everything. Which block is cached, who holds it and how full it is are read from vLLM's own blocks and requests.
Here for a model of one group that keeps every token; `vllm_group_watch.py` has the others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vllm.v1.request import RequestStatus

from trials.engine import GroupAudit, LedgerRow, PoolGeometry
from trials.ledger import Accounts


class PoolWatch:
    """`admitted`, `preempted`, `ended`: since `begin()`. `refused`: who did not fit, and the blocks it wanted."""

    def __init__(self, manager: Any, geometry: PoolGeometry) -> None:
        self.manager, self.pool = manager, manager.block_pool
        self.tables: dict[str, list[Any]] = manager.coordinator.single_type_managers[0].req_to_blocks
        usable = geometry.num_blocks - geometry.reserve_blocks
        self.accounts = Accounts(geometry.block_size, usable, geometry.reserve_blocks)
        self.block_size = geometry.block_size
        self.waiting_tokens = 0
        self.begin()
        self._allocate, self._free = manager.allocate_slots, manager.free
        self._take, self._touch = self.pool.get_new_blocks, self.pool.touch
        manager.allocate_slots, manager.free = self.allocate_slots, self.free
        self.pool.get_new_blocks, self.pool.touch = self.get_new_blocks, self.touch

    def begin(self) -> None:
        """A step begins."""
        self.admitted: list[tuple[int, int]] = []
        self.preempted: list[tuple[int, int]] = []
        self.ended: list[int] = []
        self.refused: tuple[int, int] | None = None

    # ---- the accounts
    def fill(self, scheduled: Mapping[str, int], total: int) -> None:
        """Blocks are granted for `total` tokens of this step, so many of each request."""
        self.accounts.fill(total)

    def rows(self) -> tuple[LedgerRow, ...]:
        """The accounts now; event counts start again from zero."""
        return (self.accounts.row(),)

    def peek(self) -> tuple[LedgerRow, ...]:
        """The accounts now."""
        return (self.accounts.peek(),)

    def forget(self) -> None:
        """vLLM dropped all that was cached."""
        self.accounts.forget(self.accounts.cached_blocks)

    @property
    def available_blocks(self) -> int:
        """Free or cached, as booked."""
        return self.accounts.free_blocks + self.accounts.cached_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a request of so many tokens is granted, nothing of it cached."""
        return -(-tokens // self.block_size)

    # ---- wrapped
    def queue(self) -> Iterator[Any]:
        """vLLM's free queue, head first."""
        blocks = self.pool.free_block_queue
        block, end = blocks.fake_free_list_head.next_free_block, blocks.fake_free_list_tail
        while block is not end:
            yield block
            block = block.next_free_block

    def allocate_slots(
        self, request: Any, num_new_tokens: int, num_new_computed_tokens: int = 0, new_computed_blocks: Any = None,
        **more: Any,
    ) -> Any:  # fmt: skip
        """Admissions are counted where they commit; the one that is turned away with what it wanted."""
        waits = request.status is not RequestStatus.RUNNING
        hits = new_computed_blocks.blocks if waits and new_computed_blocks is not None else ()
        found = sum(block.ref_cnt > 0 and not block.is_null for hit in hits for block in hit)
        given = self._allocate(request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, **more)
        if not waits:
            return given
        row = int(request.request_id)
        if given is not None:
            self.admitted.append((row, num_new_computed_tokens))
            self.waiting_tokens -= request.num_tokens
        elif not self.postponed(hits):
            whole = (
                request.num_tokens if more["full_sequence_must_fit"] else num_new_computed_tokens + num_new_tokens
            )
            self.refused = row, self.blocks_for(whole) - found
        return given

    def postponed(self, hits: Sequence[Sequence[Any]]) -> bool:
        """Whether a request was turned away for what it hit, and not for want of blocks."""
        return False

    def get_new_blocks(self, num_blocks: int) -> Any:
        """Blocks leave the head of the queue; those with content lose it now."""
        evicted = 0
        for place, block in enumerate(self.queue()):
            if place == num_blocks:
                break
            evicted += block.block_hash is not None
        taken = self._take(num_blocks)
        self.accounts.claim(num_blocks - evicted, evicted)
        return taken

    def touch(self, blocks: Sequence[Any]) -> None:
        """A hit: references to blocks that others hold, or that come back from the cache."""
        revived = sum(block.ref_cnt == 0 for block in blocks)
        self._touch(blocks)
        self.accounts.share(len(blocks) - revived, revived)

    def free(self, request: Any) -> None:
        """A request lets go: it ended, was cancelled, or (still RUNNING) is preempted."""
        table = self.tables.get(request.request_id, ())
        held = self.leaves(request, bool(table))
        last = [block for block in table if block.ref_cnt == 1]
        cached = sum(block.block_hash is not None for block in last)
        slack = len(table) * self.block_size - held
        self._free(request)
        self.accounts.release(held, (slack, 0), cached, len(last) - cached)

    def leaves(self, request: Any, holds: bool) -> int:
        """Note how it ends; the tokens that it held, 0 where it `holds` no block."""
        held = request.num_computed_tokens if holds else 0
        row = int(request.request_id)
        if request.status is RequestStatus.RUNNING:
            self.preempted.append((row, held))
            self.waiting_tokens += request.num_tokens
        elif request.status is not RequestStatus.FINISHED_ABORTED:
            self.ended.append(row)
        return held

    # ---- looked at
    def audit(self, running: Iterable[Any]) -> list[GroupAudit]:
        """Raw tables and queues, copied."""
        tables = {int(r.request_id): [b.block_id for b in self.tables[r.request_id]] for r in running}
        held = {int(r.request_id): r.num_computed_tokens for r in running}
        blank: list[int] = []
        cached: list[int] = []
        for block in self.queue():
            (blank if block.block_hash is None else cached).append(block.block_id)
        reserve = [block.block_id for block in self.pool.blocks if block.is_null]
        return [GroupAudit(tables, held, blank, cached, reserve)]
