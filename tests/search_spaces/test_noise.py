"""Laws of paired differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.noise import paired_interval, pilot_spread, visible_effect

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


@settings(deadline=None)
@given(VALUES)
def test_the_interval_lies_inside_the_differences_and_around_their_mean(pairs):
    interval = paired_interval(dict(enumerate(a for a, _ in pairs)), dict(enumerate(b for _, b in pairs)), 1)
    differences = [a - b for a, b in pairs]
    assert interval is not None
    assert min(differences) - 1e-9 <= interval.low <= interval.mean + 1e-9
    assert interval.mean - 1e-9 <= interval.high <= max(differences) + 1e-9


@settings(deadline=None)
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


def test_more_windows_and_less_spread_see_smaller_differences_and_never_less_than_min_gain():
    assert visible_effect(1, 0.5, 0.02) == 0.02
    seen = [visible_effect(n, 0.05, 0.0) for n in (3, 4, 6, 10, 100)]
    assert seen[1:] == sorted(seen[1:], reverse=True)
    assert visible_effect(3, 0.05, 0.0) == pytest.approx(0.0423, abs=1e-4)
    assert visible_effect(100, 0.05, 0.02) == 0.02


@pytest.mark.parametrize("windows", [2, 3, 6])
def test_the_planned_effect_is_half_of_the_interval_that_normal_differences_give(windows):
    rng, halves = np.random.default_rng(3), []
    for _ in range(400):
        found = paired_interval(dict(enumerate(rng.normal(100, 2, windows))), dict.fromkeys(range(windows), 0.0), 0)
        halves.append((found.high - found.low) / 2)
    assert np.mean(halves) == pytest.approx(100 * visible_effect(windows, 0.02, 0.0), rel=0.2)


def test_a_pilot_s_spread_is_that_of_paired_differences_and_not_of_windows():
    windows = {0: 100.0, 1: 200.0, 2: 300.0}
    steady = {r: v * 0.6 for r, v in windows.items()}
    assert pilot_spread([windows, steady]) == pytest.approx(0)
    shaky = {0: 50.0, 1: 105.0, 2: 142.5}
    assert pilot_spread([windows, shaky]) == pytest.approx(0.05)
    assert pilot_spread([windows]) is None
    assert pilot_spread([windows, {0: 3.0}]) is None
    assert pilot_spread([]) is None
