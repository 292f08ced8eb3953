"""Groups that draw from one pool: their accounts add up to it, whoever takes which block."""

import random

import pytest

from trials.engine import PoolGeometry
from trials.ledger import account_bytes, lane_bytes, unbalanced_rows
from trials.recording import LEDGER_COLUMNS, Ints
from trials.shared_pool import SharedPool

BLOCK_BYTES = 4 * 100 + 3
EXTRA = 11


def groups(blocks: int = 40) -> tuple[PoolGeometry, ...]:
    """Full attention of 4 tokens a block, a window of 6 tokens in half as many layers, and states of 380 bytes."""
    pool = blocks * BLOCK_BYTES + EXTRA
    return (
        PoolGeometry(4, blocks, 1, 100, 3, pool, 4, 4, num_layers=2),
        PoolGeometry(4, blocks, 1, 50, 203, pool, 4, 4, "sliding_window", 1, window=6, most_blocks=3),
        PoolGeometry(4, blocks, 1, 380, 23, pool, 4, 4, "mamba", 1, most_blocks=2),
    )


def columns(rows: list[tuple[int, ...]]) -> dict[str, Ints]:
    import numpy as np

    return {name: np.array([row[i] for row in rows], np.int64) for i, name in enumerate(LEDGER_COLUMNS)}


def total(books: SharedPool) -> dict[str, int]:
    accounts = account_bytes(columns(list(books.peek())), groups(), shared=True)
    assert not len(unbalanced_rows(accounts))
    return {name: int(values[0]) for name, values in accounts.items()}


def test_geometry_of_all_groups_is_one_block_of_one_pool() -> None:
    assert {group.block_bytes for group in groups()} == {BLOCK_BYTES}
    assert {group.remainder_bytes for group in groups()} == {EXTRA}


def test_an_empty_pool_is_free_and_reserve_with_all_its_bytes_and_no_padding() -> None:
    found = total(SharedPool(groups()))
    assert (found["free"], found["reserve"]) == (39 * BLOCK_BYTES, BLOCK_BYTES)
    assert (found["padding"], found["remainder"], found["pool_bytes"]) == (0, EXTRA, 40 * BLOCK_BYTES + EXTRA)


def test_padding_comes_with_the_group_that_takes_a_block_and_goes_with_its_content() -> None:
    books = SharedPool(groups())
    books.claim(1, 2, {})
    assert total(books)["padding"] == 2 * 203
    books.fill(5)
    books.release(1, 5, 3, 1, 1)  # a full block stays cached, the other is blank
    assert total(books)["padding"] == 203
    assert total(books)["cached"] == 4 * 50
    books.claim(0, 0, {1: 1})
    assert total(books)["padding"] == 3
    assert [row.evicted_blocks for row in books.peek()] == [0, 1, 0], "the group that loses content counts it"
    assert [row.allocated_blocks for row in books.peek()] == [1, 2, 0]


def test_a_state_is_payload_as_soon_as_its_block_is_claimed() -> None:
    books = SharedPool(groups())
    books.claim(2, 3, {})
    found = total(books)
    assert (found["payload"], found["tail_slack"], found["padding"]) == (3 * 380, 0, 3 * 23)
    books.fill(100)  # tokens go to groups that keep them
    assert books.peek()[2].payload_tokens == 3


def test_free_blocks_of_a_shared_pool_are_counted_once() -> None:
    books = SharedPool(groups())
    books.claim(1, 4, {})
    rows = books.peek()
    assert [row.free_blocks for row in rows] == [35, 0, 0]
    assert [row.reserve_blocks for row in rows] == [1, 0, 0]
    parts = lane_bytes(columns(list(rows)), groups(), shared=True)
    assert [int(part["pool_bytes"][0]) for part in parts] == [40 * BLOCK_BYTES + EXTRA, 0, 0]


@pytest.mark.parametrize("seed", range(8))
def test_accounts_add_up_after_every_event_in_any_order(seed: int) -> None:
    """Sequences that come, grow, slide and go at random, in three groups, against a plain count."""
    rng = random.Random(seed)
    books = SharedPool(groups())
    live = [0, 0, 0]  # blocks
    written = [0, 0, 0]  # tokens in them; states
    cached = [0, 0, 0]
    for _ in range(400):
        g = rng.randrange(3)
        free = 39 - sum(live) - sum(cached)
        if rng.random() < 0.5 and (free or any(cached)):
            victim = rng.choice([h for h in range(3) if cached[h]] or [None])
            if victim is not None and (rng.random() < 0.5 or not free):
                books.claim(g, 0, {victim: 1})
                cached[victim] -= 1
            else:
                books.claim(g, 1, {})
            live[g] += 1
            written[g] += g == 2
        elif live[g] > written[g] // groups()[g].slots and g < 2:
            books.groups[g].fill(1)
            written[g] += 1
        elif written[g] >= groups()[g].slots and live[g]:
            keeps = rng.random() < 0.5
            books.release(g, groups()[g].slots, 0, int(keeps), int(not keeps))
            live[g] -= 1
            written[g] -= groups()[g].slots
            cached[g] += keeps
        elif rng.random() < 0.3 and cached[g]:
            books.share(g, 0, 1)
            cached[g], live[g], written[g] = cached[g] - 1, live[g] + 1, written[g] + groups()[g].slots
        found = total(books)
        assert found["payload"] == sum(
            n * group.bytes_per_token for n, group in zip(written, groups(), strict=True)
        )
        assert books.available_blocks == 39 - sum(live)
        assert [row.cached_blocks for row in books.peek()] == cached
    books.forget()
    assert not any(row.cached_blocks for row in books.peek())
    total(books)
