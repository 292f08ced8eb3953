"""Isolating one field means that nothing else changes: not in what was asked, in what the engine made of it."""

from search_spaces.isolation import Seen, leaks
from trials.result import Effective


def effective(size, **changes):
    knobs = {"kernel": "numba", "block_size": str(size), "prefix_caching": "True"} | changes.pop("knobs", {})
    return Effective(**{
        "block_size": size, "kernel_block_size": size, "num_blocks": 1000 // size, "reserve_blocks": 0,
        "pool_bytes": 10_000 - 400 // size, "bytes_per_token": 4, "reuse_quantum_tokens": size,
        "block_table_bytes": 400 // size, "knobs": knobs, **changes,
    })  # fmt: skip


def seen(*rows):
    return [Seen(number, row) for number, row in enumerate(rows)]


def test_what_follows_from_the_block_size_is_no_leak():
    assert leaks(seen(*(effective(size) for size in (1, 4, 16, 100))), "block_size") == {}


def test_a_kernel_that_was_swapped_at_one_block_size_is_named_there():
    rows = [effective(s) for s in (4, 8, 16)] + [effective(32, knobs={"kernel": "dense"})]
    assert leaks(seen(*rows), "block_size") == {3: "block_size is not isolated: kernel is dense, elsewhere numba"}


def test_a_pool_that_grew_with_the_block_is_a_leak():
    rows = [effective(4), effective(8), effective(16, pool_bytes=12_000)]
    assert list(leaks(seen(*rows), "block_size")) == [2]


def test_a_knob_that_is_there_at_one_block_size_only_is_a_leak():
    rows = [effective(4), effective(8), effective(16, knobs={"attention_backend": "FLEX"})]
    assert "attention_backend is FLEX, elsewhere absent" in leaks(seen(*rows), "block_size")[2]


def test_one_trial_alone_leaks_nothing():
    assert leaks(seen(effective(16)), "block_size") == {}
    assert leaks([], "block_size") == {}
