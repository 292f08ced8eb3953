"""Laws of what a sampler is shown: a short past whole, a bounded part of a long one, in order, with the best."""

import random

from orchestrator.past import Past, answered_before, shown


def made(n, seed=0, running=()):
    r = random.Random(seed)
    values = {i: (r.random(),) for i in range(n)}
    return [
        Past({"x": i}, None if i in running else values[i], {"ttft": r.random() - 0.5}, i in running)
        for i in range(n)
    ]


def test_a_short_past_is_shown_whole_and_how_many_answered_before_each_is_known():
    past = [*made(5, running={1}), Past({"x": 9}, None)]  # the last gave no answer
    assert [p.params["x"] for p in shown(past, ["maximize"])] == [0, 1, 2, 3, 4]
    assert answered_before(past) == [0, 1, 1, 2, 3, 4]


def test_of_a_long_past_as_many_are_shown_as_of_one_ten_times_as_long():
    assert len(shown(made(300), ["maximize"])) == len(shown(made(3000), ["maximize"])) == 128


def test_whatever_runs_and_the_newest_and_the_best_are_always_shown_in_order():
    past = made(1000, running={3, 500})
    found = [p.params["x"] for p in shown(past, ["maximize"])]
    assert found == sorted(found)
    assert {3, 500, *range(950, 1000)} <= set(found)
    holds = [p for p in past if p.values is not None and p.constraints["ttft"] <= 0]
    best = sorted(holds, key=lambda p: -p.values[0])[:32]
    assert {p.params["x"] for p in best} <= set(found)


def test_with_two_directions_the_best_of_each_are_shown():
    r = random.Random(1)
    past = [Past({"x": i}, (r.random(), r.random())) for i in range(1000)]
    found = {p.params["x"] for p in shown(past, ["maximize", "minimize"])}
    for place, sign in ((0, -1), (1, 1)):
        best = sorted(past, key=lambda p: sign * p.values[place])[:16]
        assert {p.params["x"] for p in best} <= found
