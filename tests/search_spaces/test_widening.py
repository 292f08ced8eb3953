"""A space still holds what was measured, or says what of it is lost."""

import pytest
from made_specs import make_spec

from search_spaces.space import build_space, space_spec
from search_spaces.widening import lost

OLD = {"policy.block_size": {"powers_of_two": [8, 32]}, "policy.queue": {"one_of": ["fcfs", "priority"]}}


def space(vary, **spec):
    return build_space(space_spec({"vary": vary}), make_spec(**spec))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"policy.block_size": {"powers_of_two": [4, 64]}},
        {"policy.block_size": {"one_of": [8, 16, 24, 32]}},
        {"policy.queue": {"one_of": ["priority", "shortest_job", "fcfs"]}},
        {"policy.watermark": {"one_of": [0.0, 0.1]}},
        {"policy.watermark": {"range": [0, 0.2]}},
    ],
)
def test_more_values_and_more_fields_lose_nothing(change):
    assert lost(space(OLD), space({**OLD, **change})) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy.block_size": {"powers_of_two": [16, 64]}}, "policy.block_size: 8 is no longer in it"),
        ({"policy.block_size": {"one_of": [8, 64]}}, "policy.block_size: 16, 32 are no longer in it"),
        (
            {"policy.watermark": {"one_of": [0.05, 0.1]}},
            "policy.watermark moves, and 0.0, with which all was measured",
        ),
        (
            {"policy.queue": {"one_of": ["fcfs", "priority"], "when": {"policy.block_size": 8}}},
            "policy.queue: it depends on something else now",
        ),
    ],
)
def test_what_is_lost_is_named(change, words):
    (said,) = lost(space(OLD), space({**OLD, **change}))
    assert words in said


def test_a_field_that_no_longer_moves_is_lost():
    assert lost(space(OLD), space({"policy.block_size": OLD["policy.block_size"]})) == [
        "policy.queue no longer moves"
    ]


def test_a_continuous_range_may_grow_and_may_not_shrink_or_break_into_steps():
    narrow, wide = ({"policy.watermark": {"range": [0, high]}} for high in (0.2, 0.4))
    assert lost(space(narrow), space(wide)) == []
    assert lost(space(wide), space(narrow)) == ["policy.watermark: no longer every value from 0 to 0.4"]
    assert lost(space(narrow), space({"policy.watermark": {"range": [0, 0.2], "step": 0.1}}))


def test_an_argument_that_was_never_asked_for_is_not_the_one_that_now_moves():
    old = space(OLD)
    new = space({**OLD, "engine.args.scheduler_type": {"one_of": ["fifo", "prefill_first"]}})
    assert "None, with which all was measured" in lost(old, new)[0]
