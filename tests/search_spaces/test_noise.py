"""Laws of paired differences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.noise import paired_interval

VALUES = st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000)), min_size=2, max_size=8)


def test_one_shared_window_gives_no_interval():
    assert paired_interval({0: 5.0, 1: 6.0}, {1: 4.0, 2: 3.0}, 0) is None


def test_windows_that_differ_cancel_out_of_a_paired_difference():
    interval = paired_interval({0: 10.0, 1: 1000.0, 2: 500.0}, {0: 9.0, 1: 999.0, 2: 499.0}, 0)
    assert interval is not None
    assert (interval.mean, interval.low, interval.high) == (1.0, 1.0, 1.0)


def test_three_windows_claim_no_more_than_their_full_range():
    interval = paired_interval({0: 10.0, 1: 12.0, 2: 9.0}, {0: 9.0, 1: 9.0, 2: 10.0}, 0)
    assert interval is not None
    assert (interval.low, interval.high) == (-1.0, 3.0)


@given(VALUES)
def test_the_interval_lies_inside_the_differences_and_around_their_mean(pairs):
    interval = paired_interval(dict(enumerate(a for a, _ in pairs)), dict(enumerate(b for _, b in pairs)), 1)
    differences = [a - b for a, b in pairs]
    assert interval is not None
    assert min(differences) - 1e-9 <= interval.low <= interval.mean + 1e-9
    assert interval.mean - 1e-9 <= interval.high <= max(differences) + 1e-9


@given(VALUES, st.integers(0, 5))
def test_the_same_seed_gives_the_same_interval(pairs, seed):
    best, other = dict(enumerate(a for a, _ in pairs)), dict(enumerate(b for _, b in pairs))
    assert paired_interval(best, other, seed) == paired_interval(best, other, seed)


def test_swapping_sides_turns_the_interval_around():
    best, other = {0: 10.0, 1: 12.0, 2: 9.0}, {0: 9.0, 1: 9.0, 2: 10.0}
    there, back = paired_interval(best, other, 0), paired_interval(other, best, 0)
    assert there is not None
    assert back is not None
    assert there.mean == pytest.approx(-back.mean)
