"""A table of measured step times: read strictly, interpolated between its points, never falling beyond them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trials.engine import StepShape
from trials.model import PRESETS
from trials.roofline import step_time
from trials.step_tables import StepTable, load_table, table_time
from trials.units import SpecError

POINTS = {
    "format": "kvknee step times 1",
    "step_ns": 1000,
    "layers": {"tokens": [1, 101, 201], "ns": [100, 200, 1200]},
    "head": {"rows": [1, 11], "ns": [50, 60]},
    "decode_attention": {"num_decodes": [1, 11], "mean_context": [0, 100], "ns": [[0, 100], [0, 1100]]},
    "prefill_attention": {"chunk_tokens": [1, 101], "mean_before": [0, 1000], "ns": [[10, 20], [110, 520]]},
}
TABLE = StepTable.model_validate(POINTS)
ASK = table_time(TABLE, 300)


def test_a_measured_point_is_given_back():
    assert ASK(StepShape(0, 0, 0, 1, 101, 1000, 0, 1)) == (1000 + 200 + 50 + 520, 520)
    assert ASK(StepShape(11, 1100, 0, 0, 0, 0, 0, 11)) == (1000 + 110 + 60 + 1100, 1100)


def test_between_points_both_axes_are_linear():
    # 6 decodes lie halfway between 1 and 11, a context of 50 halfway between 0 and 100: (50 + 550) / 2.
    assert ASK(StepShape(6, 300, 0, 0, 0, 0, 0, 6)) == (1000 + 105 + 55 + 300, 300)


def test_beyond_the_last_point_the_last_slope_goes_on_and_below_the_first_nothing_shrinks():
    assert ASK(StepShape(0, 0, 0, 1, 251, 0, 0, 0))[0] - ASK(StepShape(0, 0, 0, 1, 201, 0, 0, 0))[0] == 500 + 50
    flat = {**POINTS, "layers": {"tokens": [10, 20], "ns": [300, 200]}}
    falling = table_time(StepTable.model_validate(flat), 100)
    costs = [
        falling(StepShape(0, 0, 0, 1, n, 0, 0, 0))[0] - falling(StepShape(0, 0, 0, 1, n, 0, 0, 0))[1]
        for n in (1, 10, 20, 90)
    ]
    assert costs == [1300, 1300, 1200, 1200]


def test_several_chunks_are_each_their_mean():
    one, two = ASK(StepShape(0, 0, 0, 1, 51, 500, 0, 0)), ASK(StepShape(0, 0, 0, 2, 102, 1000, 0, 0))
    assert two[1] == pytest.approx(2 * one[1], abs=1)


def test_a_step_of_nothing_takes_no_time():
    assert ASK(StepShape(0, 0, 0, 0, 0, 0, 0, 0)) == (0, 0)


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(0, 60_000), st.integers(0, 900), st.integers(0, 5000))
def test_steps_beyond_the_look_up_cost_what_the_points_say(decodes, context, tokens, before):
    shape = StepShape(decodes, context, 0, min(tokens, 1), tokens, before, 0, decodes)
    assert ASK(shape) == table_time(TABLE, 5000)(shape)
    assert ASK(shape)[0] >= ASK(shape)[1] >= 0


def test_a_table_is_named_by_its_file(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(POINTS))
    shape = StepShape(6, 300, 20, 1, 40, 0, 0, 7)
    assert step_time(f"table:{path}", PRESETS["llama-3.1-8b"], 16)(shape) == ASK(shape)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "format"),
        ({"layers": {"tokens": [1, 1], "ns": [1, 2]}}, "tokens must ascend"),
        ({"layers": {"tokens": [1, 2], "ns": [1]}}, "2 points and 1 times"),
        ({"layers": {"tokens": [], "ns": []}}, "layers.tokens"),
        ({"head": {"rows": [1, 0], "ns": [1, 2]}}, "rows must ascend"),
        ({"step_ns": -1}, "step_ns"),
        ({"decode_attention": {**POINTS["decode_attention"], "ns": [[0, 1]]}}, "2 points and 1 times"),
        ({"decode_attention": {**POINTS["decode_attention"], "ns": [[0, 1], [0]]}}, "2 points and 1 times"),
        ({"decode_attention": {**POINTS["decode_attention"], "ns": [[0, 1], [0, -1]]}}, "decode_attention"),
        ({"speed": 3}, "speed"),
    ],
)
def test_a_damaged_table_is_refused_with_the_place(tmp_path, change, words):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**POINTS, **change}))
    with pytest.raises(SpecError, match="step_time table") as caught:
        load_table(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]"])
def test_what_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match="step_time table"):
        load_table(path)


def test_an_absent_table_says_how_to_make_one(tmp_path):
    with pytest.raises(SpecError, match="no such file; make one"):
        load_table(tmp_path / "none.json")
