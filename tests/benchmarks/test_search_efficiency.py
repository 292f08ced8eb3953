"""The stored answers of the search benchmark are whole, and what is read off them is what a replay says."""

import numpy as np
import pytest

from benchmarks.search_efficiency import default_of, ground, met, random_needs, reached_at
from benchmarks.search_efficiency_space import SCENES, Landscape
from search_spaces.idle import Reached


@pytest.mark.parametrize("name", SCENES)
def test_every_candidate_has_an_answer_and_every_wrong_table_tells_candidates_apart(name: str) -> None:
    where = ground(SCENES[name])
    assert where.space.num_candidates == len(where.rows) == len(where.found.values) >= 5000
    assert where.found.good.mean() <= 0.01
    assert all(np.isfinite(answer).all() for answer in (where.found.qualified, where.found.output))
    assert len(where.found.screens) == SCENES[name].screens
    assert min(len(np.unique(table)) for table in where.found.screens) > 100
    assert len({table.tobytes() for table in where.found.screens}) == SCENES[name].screens


def test_what_never_bound_is_read_off_equal_answers() -> None:
    """On Azure's trace the default's 256 slots are never filled; 8 of them always are."""
    where = ground(SCENES["azure"])
    usual = default_of(where)
    assert usual["max_num_seqs"] == 256
    assert reached_at(where, usual).most_running < 256
    few = {**usual, "max_num_seqs": 8}
    assert reached_at(where, few).most_running == 8
    assert isinstance(reached_at(where, few), Reached)


def test_draws_at_random_are_the_hypergeometric_law_s() -> None:
    """1 good one of 10: nine draws of ten hold it once 9 are drawn."""
    where = ground(SCENES["azure"])
    ones = np.zeros((10, 3))
    ones[0] = 100.0
    found = Landscape(ones, ones, ones, ones, ones[None, :, 0], "")
    few = type(where)(where.scene, where.space, found, {(("n", n),): n for n in range(10)})
    assert random_needs(few) == 9


def test_aims_are_judged_by_the_best_of_ours() -> None:
    needs = {"random": 500, "plain TPE": 60, "tpe": 90, "gp": 21, "screened": 20}
    document = {"searches": {k: {"points_9_of_10": v} for k, v in needs.items()}, "share_within": 0.004}
    assert all(met(document).values())
    document["searches"]["screened"]["points_9_of_10"] = document["searches"]["gp"]["points_9_of_10"] = 21
    assert not met(document)["a third of plain TPE"]
