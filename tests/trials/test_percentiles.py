"""The one percentile equals numpy's on the expanded population, to the bit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trials.percentiles import integral, percentile, percentiles_ms, population, spread

PAIRS = st.lists(st.tuples(st.integers(-(1 << 40), 1 << 40), st.integers(0, 7)), min_size=1, max_size=30)
SHARES = st.one_of(st.sampled_from([0, 10, 50, 90, 95, 99, 99.9, 100]), st.floats(0, 100))


def columns(pairs):
    return np.array([v for v, _ in pairs], np.int64), np.array([w for _, w in pairs], np.int64)


@settings(deadline=None)
@given(PAIRS, SHARES)
def test_weighted_percentile_is_that_of_the_expanded_population(pairs, q):
    values, weights = columns(pairs)
    whole = np.repeat(values, weights)
    found = percentile(population(values, weights), q)
    if len(whole) == 0:
        assert math.isnan(found)
    else:
        assert found == np.percentile(whole, q)
        assert population(values, weights).n == len(whole)


@settings(deadline=None)
@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=40), SHARES)
def test_percentile_of_floats_is_that_of_numpy(values, q):
    assert percentile(population(np.array(values)), q) == np.percentile(np.array(values), q)


@settings(deadline=None)
@given(PAIRS, st.integers(1, 20), st.floats(0, 100))
def test_infinite_entries_lie_above_all_others(pairs, infinite, q):
    values, weights = columns(pairs)
    whole = np.sort(np.concatenate([np.repeat(values, weights).astype(float), np.full(infinite, np.inf)]))
    found = percentile(population(values, weights, infinite), q)
    position = (len(whole) - 1) * (q / 100)
    below, above = whole[math.floor(position)], whole[math.ceil(position)]
    assert found == math.inf if math.isinf(above) else below <= found <= above


def test_infinite_entries_by_hand():
    three = population(np.array([10, 20, 30]), infinite=1)
    assert [percentile(three, q) for q in (0, 50, 66, 67, 100)] == [10, 25, 29.8, math.inf, math.inf]
    assert three.n == 4


def test_a_percentile_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile(population(np.array([1])), 101)


def test_n_stands_beside_and_none_means_infinite_or_unobserved():
    seen = percentiles_ms(population(np.array([20_000_000] * 9), infinite=1))
    assert (seen.n, seen.p50, seen.p90, seen.p99, seen.max, seen.mean) == (10, 20.0, None, None, None, None)
    empty = percentiles_ms(population(np.array([], np.int64)))
    assert (empty.n, empty.p50, empty.mean) == (0, None, None)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), min_size=1, max_size=20))
def test_a_spread_weighs_by_time(pairs):
    values, lasted = columns(pairs)
    whole = np.repeat(values, lasted)
    seen = spread(values, lasted)
    if len(whole):
        assert seen.mean == pytest.approx(whole.mean())
        assert (seen.p10, seen.peak) == (np.percentile(whole, 10), whole.max())
    else:
        assert (seen.mean, seen.p10, seen.peak) == (0, 0, 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-(1 << 45), 1 << 45), st.integers(0, 1 << 50)), max_size=20))
def test_an_integral_is_exact_beyond_what_int64_holds(pairs):
    values, weights = columns(pairs)
    assert integral(values, weights) == sum(v * w for v, w in pairs)


def test_an_integral_over_negative_weights_is_refused():
    with pytest.raises(ValueError, match="not negative"):
        integral(np.array([1, 1]), np.array([-1, 5]))


def test_the_time_mean_of_a_constant_is_the_constant():
    lasted = np.arange(1, 1000) * 7919
    assert spread(np.full(999, (1 << 40) + 1), lasted).mean == (1 << 40) + 1
