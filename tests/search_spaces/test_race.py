"""A race comes to the winner that measuring everything comes to, at a replay for each that is no better."""

import random
from statistics import median_low

import pytest

from search_spaces.race import lead_rungs, race


class Field:
    """Candidates with a known highest rung on each window; counts what is asked of them."""

    def __init__(self, *best):
        self.best = [b if isinstance(b, tuple) else (b,) for b in best]
        self.asked = []

    def holds(self, number, window, rung):
        self.asked.append((number, window, rung))
        return rung <= self.best[number][window]


@pytest.mark.parametrize("seed", range(20))
def test_the_winner_is_the_best_of_all_and_the_first_of_equals(seed):
    rng = random.Random(seed)
    best = [rng.randint(-1, 30) for _ in range(rng.randint(1, 40))]
    field = Field(*best)
    raced = race(len(best), field.holds, 40)
    if max(best) < 0:
        assert raced.winner is None
        return
    assert raced.winner == best.index(max(best))
    assert raced.rungs == (max(best),)
    assert set(raced.rejected) | {number for number, _ in raced.brackets} == set(range(len(best)))


def test_one_that_is_no_better_costs_one_replay():
    field = Field(20, *[20 - k % 3 for k in range(30)])
    race(31, field.holds, 40)
    assert all(sum(number == k for number, _, _ in field.asked) == 1 for k in range(1, 31))


def test_a_lead_has_to_be_worth_having():
    assert race(2, Field(20, 22).holds, 40, lead=3).winner == 0
    assert race(2, Field(20, 23).holds, 40, lead=3).winner == 1


def test_the_top_rung_cannot_be_beaten():
    field = Field(39, 39, 39)
    assert race(3, field.holds, 40).winner == 0
    assert not [k for k, _, _ in field.asked if k > 0]


def test_further_windows_are_for_survivors_and_the_median_decides():
    """The last one leads on the first window alone; the one it beat holds more on the other two."""
    field = Field((10, 10, 10), (5, 30, 30), (14, 12, 13), (20, 2, 3))
    raced = race(4, field.holds, 40, windows=3)
    assert raced.winner == 2
    assert raced.rungs == (14, 12, 13)
    assert raced.dropped == (3,)
    assert raced.rejected == (1,)
    assert not [w for k, w, _ in field.asked if k == 1 and w > 0]


@pytest.mark.parametrize("seed", range(30))
def test_who_wins_over_several_windows_is_beaten_by_no_incumbent_in_the_median(seed):
    rng = random.Random(seed)
    field = Field(*[tuple(rng.randint(0, 30) for _ in range(3)) for _ in range(12)])
    raced = race(12, field.holds, 40, windows=3)
    assert raced.rungs == field.best[raced.winner]
    beaten = [median_low(field.best[k]) for k in raced.dropped]
    assert all(m < median_low(raced.rungs) + 1 for m in beaten)


def test_lead_is_as_many_rungs_as_the_gain_takes():
    assert [lead_rungs(g, 1.02) for g in (0.0, 0.02, 0.021, 0.05)] == [1, 1, 2, 3]
