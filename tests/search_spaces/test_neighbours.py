"""Laws of proposals: what is known already is not proposed while something near it is new; the start is spread."""

import pytest
from made_specs import make_spec

from search_spaces.design import spread
from search_spaces.neighbours import key_of, unasked_near
from search_spaces.space import build_space, space_spec

SPACE = build_space(
    space_spec({
        "vary": {
            "policy.block_size": {"powers_of_two": [1, 256]},
            "policy.queue": {"one_of": ["fcfs", "shortest_job", "priority"]},
            "policy.reserve_output": {"one_of": ["none", "full"]},
            "policy.victim": {"one_of": ["last_admitted", "largest"], "when": {"policy.reserve_output": "none"}},
        }
    }),
    make_spec(),
)  # fmt: skip
ALL = list(SPACE.candidates())


def test_a_new_candidate_stays_as_it_is():
    assert unasked_near(SPACE, ALL[3], set(), seed=0) == ALL[3]


@pytest.mark.parametrize("seed", range(5))
def test_a_known_one_moves_one_step_along_one_field(seed):
    here = {"block_size": 16, "queue": "fcfs", "reserve_output": "full"}
    near = unasked_near(SPACE, here, {key_of(here)}, seed)
    start, end = SPACE.place_of(here), SPACE.place_of(near)
    moved = [axis for axis in range(4) if start[axis] != end[axis]]
    assert moved in ([0], [1], [2, 3])  # what comes to matter comes with its condition
    assert abs(start[0] - end[0]) <= 1


def test_the_last_new_candidate_is_found_however_far_it_is():
    left = ALL[-1]
    asked = {key_of(c) for c in ALL} - {key_of(left)}
    assert unasked_near(SPACE, ALL[0], asked, seed=0) == left


def test_where_all_is_known_there_is_nothing_new():
    assert unasked_near(SPACE, ALL[0], {key_of(c) for c in ALL}, seed=0) is None


def test_the_seed_alone_settles_between_equals():
    here = ALL[5]
    found = {key_of(unasked_near(SPACE, here, {key_of(here)}, seed)) for seed in range(20)}
    assert len(found) > 1
    again = [unasked_near(SPACE, here, {key_of(here)}, 7) for _ in range(2)]
    assert again[0] == again[1]


def test_a_continuous_field_is_drawn_anew():
    space = build_space(space_spec({"vary": {"policy.watermark": {"range": [0, 0.5]}}}), make_spec())
    here = {"watermark": 0.25}
    near = unasked_near(space, here, {key_of(here)}, 0)
    assert near != here
    assert 0 <= near["watermark"] <= 0.5


def test_a_start_has_every_value_of_a_field_as_often_as_any_other():
    start = spread(SPACE, 9, seed=3)
    assert sorted(c["block_size"] for c in start) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    queues = [c["queue"] for c in start]
    assert [queues.count(q) for q in ("fcfs", "shortest_job", "priority")] == [3, 3, 3]


def test_of_more_values_than_candidates_there_is_one_of_each_stretch():
    sizes = sorted(c["block_size"].bit_length() - 1 for c in spread(SPACE, 3, seed=1))
    assert [exponent // 3 for exponent in sizes] == [0, 1, 2]


def test_a_start_follows_its_seed():
    assert spread(SPACE, 6, 1) == spread(SPACE, 6, 1)
    assert spread(SPACE, 6, 1) != spread(SPACE, 6, 2)


def test_a_start_over_a_continuous_field_has_one_of_each_stretch():
    space = build_space(space_spec({"vary": {"policy.watermark": {"range": [0, 0.5]}}}), make_spec())
    found = sorted(c["watermark"] for c in spread(space, 5, 0))
    assert [int(w / 0.1) for w in found] == [0, 1, 2, 3, 4]
