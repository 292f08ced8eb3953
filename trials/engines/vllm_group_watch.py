"""The block pool of a model whose layers keep KV of different shapes, watched: vLLM's groups draw from one pool.

Which group a block is taken for, or given back by, is known from the manager under which it moves; whose cached
content it loses, from the group that its hash names. A block that left a window, or a state that was superseded, is
released in the moment in which vLLM puts its null block in its place.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vllm.v1.core.kv_cache_utils import get_group_id

from trials.engine import NO_BLOCK, EngineFacts, GroupAudit, LedgerRow, PoolGeometry
from trials.engines.vllm_watch import PoolWatch
from trials.shared_pool import SharedPool

_MOVES = ("add_local_computed_blocks", "allocate_new_blocks", "remove_skipped_blocks")


class GroupWatch(PoolWatch):
    """As PoolWatch, with one account a group. `geometries` are in the order of vLLM's groups."""

    def __init__(self, manager: Any, geometries: Sequence[PoolGeometry], token_group: int) -> None:
        super().__init__(manager, geometries[token_group])
        self.geometries = tuple(geometries)
        self.books = SharedPool(geometries)
        self.managers = manager.coordinator.single_type_managers
        self.tables = self.managers[token_group].req_to_blocks
        self._group = 0
        self._leaving = False
        self._scheduled: Mapping[str, int] = {}
        self._put_back = self.pool.free_blocks
        self.pool.free_blocks = self.free_blocks
        for number, one in enumerate(self.managers):
            for name in _MOVES:
                setattr(one, name, self._under(number, getattr(one, name)))

    def _under(self, group: int, move: Callable[..., Any]) -> Callable[..., Any]:
        """The same move; blocks that it takes or gives are of this group."""

        def moved(*arguments: Any, **named: Any) -> Any:
            self._group = group
            return move(*arguments, **named)

        return moved

    # ---- the accounts
    def fill(self, scheduled: Mapping[str, int], total: int) -> None:
        self._scheduled = scheduled
        self.books.fill(total)

    def rows(self) -> tuple[LedgerRow, ...]:
        return self.books.rows()

    def peek(self) -> tuple[LedgerRow, ...]:
        return self.books.peek()

    def forget(self) -> None:
        self.books.forget()

    @property
    def available_blocks(self) -> int:
        return self.books.available_blocks

    def blocks_for(self, tokens: int) -> int:
        return sum(geometry.blocks_for(tokens) for geometry in self.geometries)

    # ---- wrapped
    def postponed(self, hits: Sequence[Sequence[Any]]) -> bool:
        """A state that another request computes in this very step cannot be read before the next."""
        return any(
            hit and hit[-1].block_hash in getattr(one, "cached_blocks_this_step", ())
            for hit, one in zip(hits, self.managers, strict=False)
        )

    def get_new_blocks(self, num_blocks: int) -> Any:
        evicted: Counter[int] = Counter()
        for place, block in enumerate(self.queue()):
            if place == num_blocks:
                break
            if block.block_hash is not None:
                evicted[get_group_id(block.block_hash)] += 1
        taken = self._take(num_blocks)
        self.books.claim(self._group, num_blocks - evicted.total(), evicted)
        return taken

    def touch(self, blocks: Sequence[Any]) -> None:
        revived = sum(block.ref_cnt == 0 and not block.is_null for block in blocks)
        real = sum(not block.is_null for block in blocks)
        self._touch(blocks)
        self.books.share(self._group, real - revived, revived)

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Blocks go back while their request goes on: what they held lies behind what it still looks at."""
        blocks = list(ordered_blocks)
        if not self._leaving:
            real = [block for block in blocks if not block.is_null]
            self._release(self._group, real, len(real) * self.geometries[self._group].slots, 0)
        self._put_back(blocks)

    def free(self, request: Any) -> None:
        name = request.request_id
        tables = [one.req_to_blocks.get(name, ()) for one in self.managers]
        held = self.leaves(request, any(tables))
        for group, table in enumerate(tables):
            real = [block for block in table if not block.is_null]
            logical, slack = self._contents(group, table, held)
            self._release(group, real, logical, slack)
        self._leaving = True
        try:
            self._free(request)
        finally:
            self._leaving = False

    def _contents(self, group: int, table: Sequence[Any], held: int) -> tuple[int, int]:
        """(tokens or states of a sequence in its blocks of a group, slots that are empty in them)."""
        geometry = self.geometries[group]
        count = sum(not block.is_null for block in table)
        if geometry.keeps_states:
            return count, 0
        size = geometry.block_size
        tokens = sum(
            min(max(held - place * size, 0), size) for place, block in enumerate(table) if not block.is_null
        )
        return tokens, count * size - tokens

    def _release(self, group: int, real: Sequence[Any], held: int, slack: int) -> None:
        last = [block for block in real if block.ref_cnt == 1]
        cached = sum(block.block_hash is not None for block in last)
        self.books.release(group, held, slack, cached, len(last) - cached)

    # ---- looked at
    def audit(self, running: Iterable[Any]) -> list[GroupAudit]:
        requests = list(running)
        held = {int(r.request_id): r.num_computed_tokens for r in requests}
        before = {
            int(r.request_id): r.num_computed_tokens - self._scheduled[r.request_id]
            for r in requests if r.request_id in self._scheduled
        }  # fmt: skip
        groups = [
            GroupAudit(
                {int(r.request_id): [NO_BLOCK if b.is_null else b.block_id for b in one.req_to_blocks[r.request_id]]
                 for r in requests},
                dict(held), [], [], [], held_before=before,
            ) for one in self.managers
        ]  # fmt: skip
        for block in self.queue():
            known = block.block_hash
            (groups[0].free if known is None else groups[get_group_id(known)].cached).append(block.block_id)
        groups[0].reserve += [block.block_id for block in self.pool.blocks if block.is_null]
        return groups


def watch_pool(manager: Any, facts: EngineFacts) -> PoolWatch:
    """The watch that suits the groups of vLLM's KVCacheManager: the plain one wherever it is enough."""
    (first, *others) = facts.groups
    if others or first.window or first.keeps_states:
        return GroupWatch(manager, facts.groups, facts.token_group)
    return PoolWatch(manager, first)
