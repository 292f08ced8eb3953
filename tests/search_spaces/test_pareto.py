"""Laws of the front: nobody on it is beaten in both, and everybody off it is."""

from hypothesis import given, settings
from hypothesis import strategies as st
from made_results import make_result
from made_specs import make_spec

from search_spaces.candidates import Measured, group
from search_spaces.knee import Rules, decide
from search_spaces.objective import score
from search_spaces.pareto import front
from search_spaces.space import build_space, load_space_spec, with_policy
from search_spaces.verdicts import describe
from trials.slo import parse_slo

SPACE = build_space(load_space_spec("block_size"), make_spec())
SIZES = (1, 2, 4, 8, 16, 32, 64)


def trials(*seen):
    """(block size, window, value, waste per token, keeps its SLO) -> measured trials."""
    out = []
    for number, (size, repeat, value, waste, holds) in enumerate(seen):
        result = make_result(value, waste=waste * 1000, ttft=100.0 if holds else 900.0)
        judged = score(result, parse_slo("ttft:p99<500ms;itl:p99<50ms"), "pareto")
        out.append(Measured(number, repeat, with_policy(SPACE.base, block_size=size).policy, judged))
    return out


def labels(*seen):
    return [p.label for p in front(group(trials(*seen), SPACE), SPACE)]


def test_what_is_beaten_in_both_is_not_on_the_front_and_what_wastes_less_for_less_is():
    seen = ((8, 0, 100.0, 5.0, True), (16, 0, 90.0, 2.0, True), (32, 0, 80.0, 3.0, True), (64, 0, 70.0, 1.0, True))
    assert labels(*seen) == ["block_size=8", "block_size=16", "block_size=64"]


def test_nobody_is_on_it_who_may_not_win():
    assert labels((8, 0, 100.0, 1.0, False), (16, 0, 50.0, 9.0, True)) == ["block_size=16"]
    assert labels((8, 0, 100.0, 1.0, False)) == []


def test_equals_are_both_on_it():
    assert labels((8, 0, 100.0, 1.0, True), (16, 0, 100.0, 1.0, True)) == ["block_size=8", "block_size=16"]


def test_one_that_met_fewer_windows_is_not_compared_by_its_mean():
    """The second window gives twice as much to everybody."""
    seen = ((8, 0, 100.0, 1.0, True), (8, 1, 200.0, 1.0, True), (16, 0, 90.0, 2.0, True), (16, 1, 190.0, 2.0, True),
            (32, 1, 180.0, 2.0, True))  # fmt: skip
    assert labels(*seen) == ["block_size=8"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=len(SIZES)))
def test_each_is_either_on_the_front_or_beaten_by_one_that_is(pairs):
    seen = [(size, 0, float(v), float(w), True) for size, (v, w) in zip(SIZES, pairs, strict=False)]
    points = front(group(trials(*seen), SPACE), SPACE)
    on = {p.label: (p.value, p.waste_byte_seconds_per_token) for p in points}
    for size, _, value, waste, _ in seen:
        beaten = any(v >= value and w <= waste and (v, w) != (value, waste) for v, w in on.values())
        assert (f"block_size={size}" in on) != beaten


def test_the_front_is_in_the_outcome_of_a_search_for_both_and_of_no_other():
    seen = trials((8, 0, 100.0, 5.0, True), (16, 0, 90.0, 2.0, True))
    found = describe(decide(seen, SPACE, both := Rules("pareto", 0.02, 1)), SPACE, both)
    assert [(p.label, p.value, p.waste_byte_seconds_per_token) for p in found.front] == [
        ("block_size=8", 100.0, 5.0), ("block_size=16", 90.0, 2.0),
    ]  # fmt: skip
    one = Rules("qualified_output_throughput", 0.02, 1)
    assert describe(decide(seen, SPACE, one), SPACE, one).front == ()
