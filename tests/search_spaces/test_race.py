"""A race comes to the winner that measuring everything comes to, at a replay for each that is no better."""

import random

import pytest

from search_spaces.race import race


class Field:
    """Candidates with a known highest rung; counts what is asked of them."""

    def __init__(self, *best):
        self.best = best
        self.asked = []

    def holds(self, number, rung):
        self.asked.append((number, rung))
        return rung <= self.best[number]


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
    assert raced.rung == max(best)
    assert raced.winner not in raced.rejected


def test_one_that_is_no_better_costs_one_replay():
    field = Field(20, *[20 - k % 3 for k in range(30)])
    race(31, field.holds, 40)
    assert all(sum(number == k for number, _ in field.asked) == 1 for k in range(1, 31))


def test_the_top_rung_cannot_be_beaten():
    field = Field(39, 39, 39)
    assert race(3, field.holds, 40).winner == 0
    assert not [k for k, _ in field.asked if k > 0]
