"""The allocator's rules, one a test: in what order blocks are taken, kept, found, shared, written and given up."""

import pytest

from trials.block_pool import BlockPool, PoolError
from trials.prefix_index import ROOT


def pool_of(num_blocks: int = 8, size: int = 4, reserve: int = 0, caching: bool = True) -> BlockPool:
    return BlockPool(num_blocks, size, reserve, caching)


def sequence(pool: BlockPool, tokens: int, keys: list[int] | None = None) -> list[int]:
    """A table for `tokens`; the leading blocks in `keys` can be found."""
    table = pool.take(-(-tokens // pool.block_size))
    pool.accounts.fill(tokens)
    if keys:
        pool.register(table[: len(keys)], keys, ROOT, 0)
    return table


# ---- taking
def test_blocks_are_first_handed_out_in_ascending_order_behind_the_reserve() -> None:
    pool = pool_of(6, reserve=2)
    assert pool.available == 4
    assert pool.take(3) == [2, 3, 4]
    assert pool.take(1) == [5]
    assert pool.available == 0


def test_taking_none_is_free() -> None:
    pool = pool_of()
    assert pool.take(0) == []
    assert pool.accounts.peek().allocated_blocks == 0


def test_partial_tail_goes_to_the_head_of_the_queue_and_full_blocks_to_its_end() -> None:
    pool = pool_of()
    table = sequence(pool, 10)  # blocks 0, 1 full, 2 holds 2 tokens
    pool.release(table, 10, 0)
    assert pool.free_ids() == [2, 3, 4, 5, 6, 7]
    assert pool.cached_ids() == [1, 0]
    assert pool.take(7) == [2, 3, 4, 5, 6, 7, 1]


def test_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    pool = pool_of(4)
    pool.release(sequence(pool, 16, keys=[10, 11, 12, 13]), 16, 4)
    assert pool.cached_ids() == [3, 2, 1, 0]
    assert pool.take(2) == [3, 2]
    assert pool.index.match([10, 11, 12, 13], 4) == [0, 1]


def test_least_recently_released_sequence_is_evicted_first() -> None:
    pool = pool_of(4)
    first, second = sequence(pool, 8, keys=[1, 2]), sequence(pool, 8, keys=[3, 4])
    pool.release(second, 8, 2)
    pool.release(first, 8, 2)
    assert pool.take(4) == [3, 2, 1, 0]


def test_hit_makes_a_block_recent_again() -> None:
    pool = pool_of(4)
    pool.release(sequence(pool, 8, keys=[1, 2]), 8, 2)
    pool.release(sequence(pool, 8, keys=[3, 4]), 8, 2)
    pool.share([0, 1])
    pool.release([0, 1], 8, 2)
    assert pool.cached_ids() == [3, 2, 1, 0]


def test_without_caching_the_pool_is_a_stack() -> None:
    pool = pool_of(6, caching=False)
    pool.release(sequence(pool, 12), 12, 0)
    assert pool.cached_ids() == []
    assert pool.free_ids() == [2, 1, 0, 3, 4, 5]


def test_block_that_nobody_looks_for_keeps_its_content_until_it_is_taken_all_the_same() -> None:
    pool = pool_of(4)
    pool.release(sequence(pool, 16), 16, 0)
    assert (len(pool.cached_ids()), pool.accounts.peek().cached_blocks) == (4, 4)
    assert pool.take(1) == [3]
    assert pool.accounts.peek().evicted_blocks == 1


# ---- finding
def test_match_stops_at_the_first_unknown_key_and_at_the_limit() -> None:
    pool = pool_of()
    table = sequence(pool, 16, keys=[1, 2, 3])
    assert pool.index.match([1, 2, 3, 4], 4) == table[:3]
    assert pool.index.match([1, 2, 3], 2) == table[:2]
    assert pool.index.match([2, 1], 2) == table[1:2] + table[:1]
    assert pool.index.match([9, 1], 2) == []


def test_match_touches_nothing() -> None:
    pool = pool_of(4)
    pool.release(sequence(pool, 8, keys=[1, 2]), 8, 2)
    before = (pool.epoch, pool.available, pool.cached_ids())
    pool.index.match([1, 2], 2)
    assert (pool.epoch, pool.available, pool.cached_ids()) == before


def test_oldest_of_equal_blocks_is_found_and_the_next_when_it_is_gone() -> None:
    pool = pool_of(3, size=2)
    tables = [sequence(pool, 2, keys=[5]) for _ in range(3)]
    assert pool.index.match([5], 1) == [0]
    for table in tables:
        pool.release(table, 2, 1)
    for found in ([1], [2], []):
        pool.take(1)
        assert pool.index.match([5], 1) == found


def test_hit_counts_as_taken_only_where_nobody_holds_it() -> None:
    pool = pool_of(4)
    table = sequence(pool, 8, keys=[1, 2])
    assert pool.num_idle(table) == 0
    pool.release(table, 8, 2)
    assert pool.num_idle(table) == 2
    pool.share(table)
    assert pool.available == 2
    pool.share(table)
    assert pool.available == 2
    assert pool.ref_count(0, [table, table]) == 2


def test_hit_block_cannot_be_evicted_by_its_own_admission() -> None:
    pool = pool_of(4)
    pool.release(sequence(pool, 16, keys=[1, 2, 3, 4]), 16, 4)
    hit = pool.index.match([1, 2, 3], 3)
    pool.share(hit)
    assert pool.take(1) == [3]
    with pytest.raises(PoolError, match="took 1 cached blocks, found 0"):
        pool.take(1)


def test_epoch_moves_whenever_a_lookup_could_answer_otherwise() -> None:
    pool = pool_of(2)
    seen = [pool.epoch]

    def moved() -> bool:
        seen.append(pool.epoch)
        return seen[-1] != seen[-2]

    table = sequence(pool, 8, keys=[1, 2])
    assert moved()
    pool.release(table, 8, 2)
    assert moved()
    pool.share(table)
    assert moved()
    pool.release(table, 8, 2)
    moved()
    pool.take(1)
    assert moved()


def test_eviction_of_blocks_that_nobody_can_find_leaves_a_lookup_standing() -> None:
    pool = pool_of(4)
    pool.release(sequence(pool, 16), 16, 0)
    before = pool.epoch
    pool.take(2)
    assert pool.epoch == before


# ---- sharing and writing
def test_shared_block_is_copied_before_it_is_written_and_the_last_holder_writes_in_place() -> None:
    pool = pool_of()
    table = sequence(pool, 6)
    pool.fork(table, 6)
    assert [pool.ref_count(block, []) for block in table] == [2, 2]
    assert pool.must_copy(table[1])
    assert pool.copy_on_write(table[1], 2) == 2
    assert pool.accounts.peek().copied_blocks == 1
    assert not pool.must_copy(table[1])
    pool.own(table[1])
    with pytest.raises(PoolError, match="cannot be written"):
        pool.own(table[0])


def test_forked_blocks_are_payload_once_and_logical_once_a_holder() -> None:
    pool = pool_of()
    table = sequence(pool, 6)
    pool.fork(table, 6)
    row = pool.accounts.peek()
    assert (row.payload_tokens, row.logical_tokens, row.tail_slack_tokens) == (6, 12, 2)
    pool.release(table, 6, 2)
    row = pool.accounts.peek()
    assert (row.payload_tokens, row.logical_tokens, row.released_blocks) == (6, 6, 0)
    pool.release(table, 6, 2)
    row = pool.accounts.peek()
    assert (row.payload_tokens, row.tail_slack_tokens, row.cached_blocks, row.free_blocks) == (0, 0, 1, 7)


# ---- cold start, memory, laws
def test_cold_start_forgets_all_content_and_starts_the_order_again() -> None:
    pool = pool_of(4, reserve=1)
    pool.release(sequence(pool, 12, keys=[1, 2]), 12, 2)
    pool.drop_cached()
    assert pool.index.match([1], 1) == []
    assert (pool.free_ids(), pool.cached_ids()) == ([1, 2, 3], [])
    assert (pool.accounts.peek().free_blocks, pool.accounts.peek().cached_blocks) == (3, 0)


def test_cold_start_is_refused_while_blocks_are_held() -> None:
    pool = pool_of()
    sequence(pool, 12)
    with pytest.raises(PoolError, match="3 blocks are still held"):
        pool.drop_cached()


def test_queue_does_not_grow_with_hits() -> None:
    """Every hit left an entry behind, and a pool that never had to evict never came past them: at block 1 a
    trace of 10,000 shared prefixes of 320 tokens kept 3 million of them."""
    pool = pool_of(16)
    pool.release(sequence(pool, 16, keys=[1, 2, 3, 4]), 16, 4)
    for _ in range(5000):
        pool.share([0, 1, 2, 3])
        pool.release([0, 1, 2, 3], 16, 4)
    assert len(pool._idle._blocks) < 10_000  # type: ignore[attr-defined]
    assert pool.cached_ids() == [3, 2, 1, 0]
    pool.check_invariants([])
    assert pool.take(16)[-4:] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda pool: pool._blank.append(0), "twice|held|counted"),
        (lambda pool: pool._blank.pop(), "counted"),
        (lambda pool: pool._holders.update({0: 3}), "references counted"),
        (lambda pool: pool.index.drop(0), "nobody|disagree|counted"),
    ],
    ids=["a block in two places", "a lost block", "a wrong count", "a lost key"],
)
def test_broken_pool_is_noticed(spoil: object, words: str) -> None:
    pool = pool_of()
    table = sequence(pool, 8, keys=[1, 2])
    pool.release(table, 8, 2)
    pool.check_invariants([])
    spoil(pool)  # type: ignore[operator]
    with pytest.raises(PoolError, match=words):
        pool.check_invariants([])


def test_held_block_in_the_queue_and_shared_block_without_a_count_are_noticed() -> None:
    pool = pool_of()
    table = sequence(pool, 6)
    with pytest.raises(PoolError, match="shared without a reference count"):
        pool.check_invariants([table, [table[1]]])
    with pytest.raises(PoolError, match="are free and held"):
        pool.check_invariants([table, [7]])
    with pytest.raises(PoolError, match="live != 8"):
        pool.check_invariants([table[:1]])
