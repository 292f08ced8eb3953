"""The eight failures: each caught by its named check, at both scales, and by nothing once that check is off."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from orchestrator import controls
from orchestrator.cli import app
from orchestrator.control_scenes import SCALES, Swap, families, small_trace, swapped
from orchestrator.controls import CONTROLS, bound_lines, provoke

NAMES = (
    "allocator reserve counted as useful cache", "a static packed batch hiding churn pressure",
    "the smallest block winning memory and losing latency", "every non-contiguous block called wasted",
    "a boundary length allocating an extra empty block",
    "sharing that looks free until many children diverge together", "high occupancy producing slower streams",
    "an engine upgrade silently changing allocation",
)  # fmt: skip


def test_the_eight_failures_are_those_that_were_promised():
    assert sorted(c.name for c in CONTROLS) == sorted(NAMES)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: c.name)
@pytest.mark.parametrize("scale", SCALES)
def test_clean_passes_the_named_check_catches_the_mutant_and_without_it_the_mutant_passes(control, scale):
    found = provoke(control, scale)
    assert found.clean == ()
    assert found.caught, found.mutant
    assert found.check_off == ()
    assert found.holds


def test_a_failure_that_another_check_catches_does_not_hold():
    control = replace(CONTROLS[3], says="words that nobody says")
    found = provoke(control, "smallest")
    assert found.mutant
    assert not found.caught
    assert not found.holds


def test_the_bound_prints_its_own_line_for_each_length():
    lines = list(bound_lines())
    assert [line.split(": n = ")[0] for line in lines] == ["PASS: tail slack stays below one block"] * 5
    slacks = [(int(line.split("n = ")[1].split(",")[0]), int(line.rsplit(" ", 1)[1])) for line in lines]
    assert slacks == [(1, 15), (15, 1), (16, 0), (17, 15), (63, 1)]


def test_the_bound_fails_where_a_boundary_takes_an_extra_block():
    from orchestrator.control_faults import _one_more

    with swapped(_one_more()):
        lines = list(bound_lines())
    assert [line[:4] for line in lines] == ["PASS", "PASS", "FAIL", "PASS", "PASS"]


def test_a_swap_is_undone_whatever_happens():
    class Room:
        word = "kept"

    def fail():
        with swapped(Swap(Room, "word", lambda: "other")):
            return Room.word() + 1

    with pytest.raises(TypeError):
        fail()
    assert Room.word == "kept"


def test_families_are_roots_followed_by_their_forks():
    trace = families(small_trace([(0, 20, 4), (5, 30, 6)]), children=2)
    assert trace.parent.tolist() == [-1, 0, 0, -1, 3, 3]
    assert trace.num_prompt_tokens.tolist() == [20] * 3 + [30] * 3
    assert trace.inherited_tokens.tolist() == [0, 20, 20, 0, 30, 30]


def quick(monkeypatch, kept):
    monkeypatch.setattr(controls, "CONTROLS", kept)
    monkeypatch.setattr(controls, "SCALES", ("smallest",))


def test_the_verb_exits_0_only_if_all_hold(monkeypatch):
    quick(monkeypatch, CONTROLS[3:5])
    done = CliRunner().invoke(app, ["controls", "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == report["exit_code"] == 0
    assert [p["holds"] for p in report["provoked"]] == [True, True]
    quick(monkeypatch, (CONTROLS[4], replace(CONTROLS[3], says="words that nobody says")))
    done = CliRunner().invoke(app, ["controls", "--json"])
    assert done.exit_code == json.loads(done.stdout)["exit_code"] == 1


def test_the_table_names_failure_check_and_outcome(monkeypatch):
    quick(monkeypatch, CONTROLS[4:5])
    done = CliRunner().invoke(app, ["controls"])
    assert done.exit_code == 0
    assert "PASS: tail slack stays below one block" in done.stdout
    assert "1 of 1 hold" in done.stdout
