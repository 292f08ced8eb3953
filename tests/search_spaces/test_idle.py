"""What a trial never came to: twins by hand, and by replays that turn out the same."""

import itertools

import numpy as np
import pytest
from made_results import make_result
from made_specs import make_spec

from orchestrator.expected import listing_of
from search_spaces.idle import Grid, Reached, reached, told_by
from search_spaces.neighbours import key_of
from search_spaces.space import build_space, space_spec
from tests.builders import MS, build_engine, build_trace
from trials.engine import StepShape
from trials.ladder import run
from trials.spec import PoolPolicy, trial_spec

SPACE = build_space(
    space_spec({
        "vary": {
            "policy.block_size": {"one_of": [8, 16]},
            "policy.max_num_seqs": {"powers_of_two": [2, 16]},
            "policy.victim": {"one_of": ["last_admitted", "fewest_outputs", "largest"]},
        }
    }),
    make_spec(),
)  # fmt: skip
LISTING = listing_of(SPACE)


def twins(seen: Reached, block_size: int = 8, slots: int = 8, victim: str = "largest") -> set[tuple[int, int, str]]:
    row = LISTING.rows[key_of({"block_size": block_size, "max_num_seqs": slots, "victim": victim})]
    return {tuple(LISTING.candidates[n].values()) for n in np.flatnonzero(LISTING.grid.twins(row, seen))}


def test_without_preemption_victims_are_one_and_so_are_limits_above_what_ran():
    assert twins(Reached(3, 0, 0)) == {
        (8, slots, victim) for slots in (4, 8, 16) for victim in ("last_admitted", "fewest_outputs", "largest")
    }


def test_a_limit_that_was_come_to_has_no_twin():
    assert twins(Reached(8, 1, 0)) == {(8, 8, "largest")}
    assert twins(Reached(4, 1, 0)) == {(8, 8, "largest"), (8, 16, "largest")}, "4 ran at once: a limit of 4 bound"


def test_the_further_of_two_windows_counts():
    assert Reached(3, 0, 5) | Reached(9, 2, 0) == Reached(9, 2, 5)


def test_what_says_nothing_of_itself_is_known_alone():
    known = told_by(LISTING.grid, [0, 5], [None, Reached(16, 1, 1)])
    assert np.flatnonzero(known).tolist() == [0, 5]


def test_an_eviction_order_is_idle_where_nothing_was_evicted():
    grid = Grid(np.array([[0, 0], [0, 1], [1, 0]]), ("block_size", "eviction"))
    assert grid.twins(0, Reached(1, 1, 0)).tolist() == [True, True, False]
    assert grid.twins(0, Reached(1, 1, 1)).tolist() == [True, False, False]


@pytest.mark.parametrize("blocks", [12, 20, 80])
def test_law_twins_replay_alike(blocks: int):
    """Each candidate of the grid is replayed; whoever one calls its twin has answered the same, time for time."""
    rng = np.random.default_rng(blocks)
    count = 30
    at = np.cumsum(rng.exponential(40.0, count)).tolist()
    trace = build_trace(rng.integers(8, 60, count).tolist(), rng.integers(2, 40, count).tolist(), arrivals_ms=at)
    answers, seen = [], []
    for params in LISTING.candidates:
        policy = PoolPolicy(
            block_size=8, max_num_seqs=int(params["max_num_seqs"]), victim=params["victim"], max_model_len=1024
        )
        if params["block_size"] != 8:
            answers.append(None)
            seen.append(None)
            continue
        spec = trial_spec({
            "engine": {"name": "simulator", "step_time": "constant:20000"}, "model": "llama-3.1-8b",
            "pool": {"blocks": blocks}, "trace": {"path": "t"}, "slo": "ttft:p99<5s",
            "measure": {"load": {"rate_scale": 1.0}}, "phases": ["cold"],
        })  # fmt: skip
        engine = build_engine(trace, policy, num_blocks=blocks, step_time=slow)
        replays = tuple(m.result for m in run(engine, trace, spec, lambda text: None).replays)
        answers.append(tuple(r.metrics.model_dump_json() for r in replays))
        seen.append(reached(make_result().model_copy(update={"replays": replays})))
    pairs = 0
    for row, one in enumerate(seen):
        if one is None:
            continue
        for twin in np.flatnonzero(LISTING.grid.twins(row, one)):
            pairs += twin != row
            assert answers[twin] == answers[row], (LISTING.candidates[row], LISTING.candidates[twin], one)
    assert pairs, "a pool of this size would have no twins at all, and nothing was tested"


def slow(shape: StepShape) -> tuple[int, int]:
    return 20 * MS, 0


def test_places_are_those_of_the_space():
    for params, places in zip(LISTING.candidates, LISTING.grid.places, strict=True):
        for d, place in zip(SPACE.dimensions, places, strict=True):
            assert d.values[place] == params[d.field]
    assert len(LISTING.candidates) == len(list(itertools.product((8, 16), (2, 4, 8, 16), "abc")))
