"""Laws of screening: it orders the space and never decides; where it is contradicted it is dropped."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_specs import make_spec

from search_spaces.neighbours import key_of
from search_spaces.screen import Screened, agreement, kendall, shortlist
from search_spaces.space import build_space, space_spec

SPACE = build_space(
    space_spec({
        "vary": {
            "policy.block_size": {"powers_of_two": [1, 256]},
            "policy.queue": {"one_of": ["fcfs", "shortest_job"]},
        }
    }),
    make_spec(),
)  # fmt: skip
ALL = list(SPACE.candidates())


def said(value, over=lambda params: 0.0):
    return [Screened(params, value(params), over(params)) for params in ALL]


def keyed(screened):
    return {key_of(s.params): s for s in screened}


def by_size(params):
    return float(params["block_size"])


def test_the_promising_share_is_listed_with_default_neighbours_and_checks_and_nobody_twice():
    listed = shortlist(SPACE, said(by_size), keep=0.2, checks=3, seed=1)
    roles = [one.role for one in listed]
    assert roles[0] == "default"
    assert listed[0].params == {"block_size": 16, "queue": "fcfs"}
    assert roles.count("promising") == 4  # a fifth of 18, rounded up
    assert roles.count("check") == 3
    assert len({key_of(one.params) for one in listed}) == len(listed)
    promising = [one.params["block_size"] for one in listed if one.role == "promising"]
    assert promising == [256, 256, 128, 128]


def test_checks_are_unpromising_and_stand_among_the_first():
    listed = shortlist(SPACE, said(by_size), keep=0.2, checks=3, seed=1)
    places = [n for n, one in enumerate(listed) if one.role == "check"]
    assert places == [4, 6, 7], "one after three promising, of which there are four; the others behind"
    assert all(listed[n].params["block_size"] < 128 for n in places)


def test_neighbours_of_the_first_choice_are_measured_beside_it():
    listed = shortlist(SPACE, said(lambda p: -abs(p["block_size"] - 64.0)), keep=0.05, checks=0, seed=0)
    around = {(one.params["block_size"], one.params["queue"]) for one in listed}
    assert {(32, "fcfs"), (128, "fcfs"), (64, "shortest_job")} <= around


def test_what_keeps_its_bounds_comes_before_what_misses_them_however_much_that_is_worth():
    listed = shortlist(SPACE, said(by_size, lambda p: 0.5 if p["block_size"] > 8 else 0.0), 0.1, 0, 0)
    assert [one.params["block_size"] for one in listed if one.role == "promising"] == [8, 8]


def test_a_value_that_is_none_is_last():
    screened = [Screened(p, None if p["block_size"] == 256 else by_size(p)) for p in ALL]
    listed = shortlist(SPACE, screened, 0.1, 0, 0)
    assert 256 not in [one.params["block_size"] for one in listed if one.role == "promising"]


def test_checks_follow_the_seed_and_nothing_else():
    one, two = (shortlist(SPACE, said(by_size), 0.2, 3, 5) for _ in range(2))
    assert one == two
    assert one != shortlist(SPACE, said(by_size), 0.2, 3, 6)


@pytest.mark.parametrize(
    ("a", "b", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6),  # one of six pairs is turned around
        ([1, 1, 2, 3], [1, 2, 3, 4], 5 / (5 * 6) ** 0.5),  # tau-b: one tied pair on one side
        ([1, 1, 1], [1, 2, 3], None),
    ],
)
def test_rank_correlation_is_kendalls_tau_b(a, b, tau):
    assert kendall(a, b) == (None if tau is None else pytest.approx(tau))


def pair_by_pair(a, b):
    """Kendall's tau-b as it is defined: over all pairs."""
    same = opposite = only_a = only_b = 0
    for i in range(len(a)):
        for j in range(i):
            da, db = ((x[i] > x[j]) - (x[i] < x[j]) for x in (a, b))
            same, opposite = same + (da * db > 0), opposite + (da * db < 0)
            only_a, only_b = only_a + (da != 0), only_b + (db != 0)
    return (same - opposite) / math.sqrt(only_a * only_b) if only_a and only_b else None


MERITS = st.tuples(st.sampled_from([-math.inf, -0.5, -0.1, math.inf]), st.integers(-2, 2))


@settings(deadline=None)
@given(st.lists(st.tuples(MERITS, MERITS), max_size=25))
def test_by_sorting_it_is_what_it_is_pair_by_pair(both):
    a, b = [x for x, _ in both], [y for _, y in both]
    assert kendall(a, b) == pair_by_pair(a, b)


class Told(float):
    """A number that counts how often it is held against another."""

    compared = 0

    def __lt__(self, other):
        Told.compared += 1
        return float.__lt__(self, other)

    def __gt__(self, other):
        Told.compared += 1
        return float.__gt__(self, other)


def test_what_an_ask_has_to_compare_does_not_grow_with_all_pairs():
    """What went wrong: a search of 2,000 trials held each of them against each other at every ask."""
    count = 2000
    values = [Told(17 * n % count) for n in range(count)]
    assert kendall(values, values[::-1]) is not None
    assert Told.compared < 40 * count


def test_a_screen_that_orders_as_the_engine_does_is_followed():
    found = agreement(keyed(said(by_size)), keyed(said(lambda p: 3 * by_size(p))), [], 0.02)
    assert (found.tau, found.regret, found.misled) == (pytest.approx(1.0), 0.0, "")


def test_regret_is_what_its_first_choice_lacks_of_the_measured_best():
    measured = keyed(said(lambda p: 90.0 if p["block_size"] == 256 else 100.0 if p["block_size"] == 64 else 50.0))
    assert agreement(keyed(said(by_size)), measured, [], 0.02).regret == pytest.approx(0.1)


def test_a_screen_that_orders_backwards_is_dropped_once_enough_is_measured():
    screen = keyed(said(by_size))
    measured = keyed(said(lambda p: -by_size(p) + 1000))
    few = dict(list(measured.items())[:5])
    assert agreement(screen, few, [], 0.02).misled == ""
    assert "no better than chance" in agreement(screen, measured, [], 0.02).misled


def test_a_check_that_beats_all_that_was_kept_drops_the_screen_whatever_the_order():
    measured = keyed(said(by_size))
    check = key_of({"block_size": 1, "queue": "fcfs"})
    measured[check] = Screened({"block_size": 1, "queue": "fcfs"}, 300.0)
    assert agreement(keyed(said(by_size)), measured, [], 0.02).misled == ""
    assert "better than all it kept, by 14.7%" in agreement(keyed(said(by_size)), measured, [check], 0.02).misled


def test_a_check_that_is_better_by_less_than_min_gain_drops_nothing():
    measured = keyed(said(by_size))
    check = key_of({"block_size": 1, "queue": "fcfs"})
    measured[check] = Screened({"block_size": 1, "queue": "fcfs"}, 257.0)
    assert agreement(keyed(said(by_size)), measured, [check], 0.02).misled == ""


def test_a_check_that_keeps_its_bounds_where_nothing_kept_does_drops_the_screen():
    measured = keyed(said(by_size, lambda p: 0.5))
    check = key_of({"block_size": 1, "queue": "fcfs"})
    measured[check] = Screened({"block_size": 1, "queue": "fcfs"}, 1.0)
    assert "better than all it kept" in agreement(keyed(said(by_size)), measured, [check], 0.02).misled
