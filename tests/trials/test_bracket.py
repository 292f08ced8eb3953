"""A search on rungs: what it returns was tried, its neighbours were tried, and it costs a logarithm."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trials.bracket import rungs, search
from trials.spec import Ladder


@given(st.integers(1, 300), st.integers(-1, 299), st.none() | st.integers(-5, 320))
def test_on_a_monotone_ladder_the_highest_that_holds_is_found_whatever_the_hint(count, highest, hint):
    highest = min(highest, count - 1)
    found = search(lambda rung: rung <= highest, count, hint)
    assert found.best == (highest if highest >= 0 else None)
    assert found.beyond == (highest + 1 if highest + 1 < count else None)
    assert found.below == (highest - 1 if highest > 0 else None)
    assert len(found.tried) <= 2 * math.log2(count) + 6
    assert len(dict(found.tried)) == len(found.tried)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.none() | st.integers(0, 59))
def test_what_is_returned_and_its_neighbours_were_tried_even_where_holding_is_not_monotone(ladder, hint):
    found = search(lambda rung: ladder[rung], len(ladder), hint)
    tried = dict(found.tried)
    if found.best is None:
        assert not any(tried.values()) or not ladder[0]
        return
    assert tried[found.best]
    assert found.beyond is None or not tried.get(found.beyond, True) or found.best + 1 != found.beyond
    if found.best:
        assert found.below == found.best - 1
        assert tried[found.below]


def test_a_rung_that_holds_above_one_that_does_not_is_passed_over():
    holds = [True, True, True, False, True, False, False, False]
    assert search(lambda rung: holds[rung], 8, hint=4).best == 2


def test_a_hint_that_is_right_costs_three_replays():
    assert len(search(lambda rung: rung <= 70, 144, hint=70).tried) == 3


@pytest.mark.parametrize("within", [0.5, 0.05, 0.003])
def test_rungs_reach_both_ends_and_lie_no_further_apart_than_asked(within):
    values = rungs(Ladder(low=0.25, high=8, within=within))
    assert (values[0], values[-1]) == (0.25, 8)
    ratios = [b / a for a, b in pairwise(values)]
    assert max(ratios) <= (1 + within) * (1 + 1e-5)
    assert min(ratios) > 1


def test_rungs_of_whole_things_are_whole_and_each_stands_once():
    values = rungs(Ladder(over="concurrency", low=1, high=9, within=0.01))
    assert values == tuple(range(1, 10))


def test_a_ladder_of_one_rung():
    assert rungs(Ladder(low=2, high=2)) == (2,)
