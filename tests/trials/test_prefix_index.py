"""Keys to blocks: oldest first, promotion, and the beginnings that partial matching may copy."""

import random

import pytest

from trials.prefix_index import ROOT, PrefixIndex


@pytest.mark.parametrize("seed", range(20))
def test_lookup_is_that_of_a_list_in_order_of_registration(seed: int) -> None:
    rng = random.Random(seed)
    index = PrefixIndex(partial=seed % 2 == 0)
    listed: list[tuple[int, int, int, int]] = []  # (block, key, parent, row), oldest first
    for _ in range(600):
        known = [entry[0] for entry in listed]
        free = [block for block in range(30) if block not in known]
        if free and rng.random() < 0.6:
            block, key = rng.choice(free), rng.randint(0, 9)
            parent = key - 1 if key else ROOT
            index.add(block, key, parent, row := rng.randint(0, 5))
            listed.append((block, key, parent, row))
        else:
            block = rng.randint(0, 29)
            assert index.drop(block) == (block in known)
            listed = [entry for entry in listed if entry[0] != block]
        keys = list(range(rng.randint(0, 10)))
        limit = rng.randint(0, 12)
        expected = []
        for key in keys[:limit]:
            found = [b for b, k, _, _ in listed if k == key]
            if not found:
                break
            expected.append(found[0])
        assert index.match(keys, limit) == expected
        index.settle()
        for parent in (ROOT, *range(9)):
            following = [(b, r) for b, _, p, r in listed if p == parent]
            assert index.followers(parent) == (following if seed % 2 == 0 else [])
        assert sorted(index.blocks()) == sorted(entry[0] for entry in listed)
        assert bool(index.known([block])) == (block in {entry[0] for entry in listed})
        assert index.contradiction() is None


def test_block_registered_for_this_step_can_be_hit_but_not_copied_from() -> None:
    index = PrefixIndex(partial=True)
    index.add(4, key=7, parent=ROOT, row=0)
    assert index.match([7], 1) == [4]
    assert index.followers(ROOT) == []
    index.settle()
    assert index.followers(ROOT) == [(4, 0)]
    index.add(5, key=7, parent=ROOT, row=1)
    assert index.followers(ROOT) == [(4, 0)]


def test_block_that_is_registered_again_in_a_step_is_unwritten_again() -> None:
    index = PrefixIndex(partial=True)
    index.add(4, key=7, parent=ROOT, row=0)
    index.settle()
    index.drop(4)
    index.add(4, key=8, parent=ROOT, row=2)
    assert index.followers(ROOT) == []
    index.settle()
    assert index.followers(ROOT) == [(4, 2)]


def test_cleared_index_knows_nothing() -> None:
    index = PrefixIndex(partial=True)
    for block in range(3):
        index.add(block, key=1, parent=ROOT, row=block)
    index.clear()
    index.settle()
    assert (index.match([1], 1), index.followers(ROOT), index.blocks()) == ([], [], [])
    assert index.known([0, 1, 2]) == []
    assert index.key_of(0) is None


def test_contradiction_inside_the_index_is_put_in_words() -> None:
    index = PrefixIndex()
    index.add(1, key=5, parent=ROOT, row=0)
    index._key_of[2] = 6
    assert "disagree" in str(index.contradiction())
    del index._key_of[2]
    index._key_of[1] = 9
    assert "another key" in str(index.contradiction())
