"""Laws of the study: what is asked does not depend on interruptions, and what is told stands once."""

import math

import optuna
import pytest
from fake_rooms import make_sweep

from orchestrator.samplers import seed_of
from orchestrator.study import SweepStudy
from search_spaces.objective import Score
from search_spaces.outcome import ClauseSeen
from trials.units import SpecError


def told(value=1.0, *constraints):
    clauses = tuple(ClauseSeen(text=n, observed=None, limit=1.0, over=None) for n, v in constraints if v > 0)
    return Score(value, constraints, clauses)


def trials_of(path):
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    return optuna.load_study(study_name="toy", storage=storage)


def drain(study):
    asked = []
    while (one := study.ask()) is not None:
        asked.append(one)
        study.tell(one.number, told(float(one.number)))
    return asked


WIDE = "{policy.block_size: {powers_of_two: [1, 256]}, policy.watermark: {range: [0, 0.2]}}"
TPE = ("sampler=tpe", "trials=30", "repeats=1", "controls=[contiguous]", f"space={{vary: {WIDE}}}")


def test_the_grid_is_asked_in_order_with_the_controls_behind_it(tmp_path):
    study = SweepStudy(tmp_path / "j", make_sweep(tmp_path, "controls=[contiguous]"))
    asked = drain(study)
    assert [(dict(a.point.params).get("block_size"), a.point.control, a.point.repeat) for a in asked] == [
        (8, None, 0), (16, None, 0), (32, None, 0), (8, None, 1), (16, None, 1), (32, None, 1),
        (None, "contiguous", 0), (None, "contiguous", 1),
    ]  # fmt: skip
    assert [a.number for a in asked] == list(range(8)) == list(range(study.planned()))


def test_a_search_resumed_at_every_ask_draws_what_an_unbroken_one_draws(tmp_path):
    sweep = make_sweep(tmp_path, *TPE)
    whole = drain(SweepStudy(tmp_path / "whole", sweep))
    broken = []
    while (one := (study := SweepStudy(tmp_path / "broken", sweep)).ask()) is not None:
        again = SweepStudy(tmp_path / "broken", sweep).ask()  # the first asker was killed before it told
        assert again == one
        broken.append(one)
        study.tell(one.number, told(float(one.number)))
    assert broken == whole
    assert len({a.point.params for a in whole}) > 10  # it does search


def test_the_first_searched_trial_is_the_default(tmp_path):
    asked = drain(SweepStudy(tmp_path / "j", make_sweep(tmp_path, *TPE)))
    assert dict(asked[1].point.params) == {"block_size": 16, "watermark": 0.0}


def test_repeats_of_a_searched_candidate_follow_one_another_on_further_windows(tmp_path):
    asked = drain(SweepStudy(tmp_path / "j", make_sweep(tmp_path, *TPE, "repeats=3", "trials=7", "controls=[]")))
    assert [a.point.repeat for a in asked] == [0, 1, 2, 0, 1, 2, 0]
    assert len({a.point.params for a in asked[:3]}) == len({a.point.params for a in asked[3:6]}) == 1


def test_values_and_constraints_reach_optuna_before_the_trial_is_finished(tmp_path):
    study = SweepStudy(tmp_path / "j", make_sweep(tmp_path, "controls=[]"))
    for score in (told(9.0, ("ttft", 0.5)), told(5.0, ("ttft", -0.5)), told(7.0, ("itl", math.inf)), told(None)):
        study.tell(study.ask().number, score)
    stored = trials_of(tmp_path / "j")
    assert stored.best_trial.number == 1
    assert [t.state.name for t in stored.trials[:4]] == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL"]
    assert stored.trials[0].constraints == {"ttft": 0.5}


def test_a_trial_killed_between_constraint_and_value_is_told_anew(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]", "trials=1")
    first = SweepStudy(tmp_path / "j", sweep)
    first._handles[first.ask().number].set_constraint("ttft", 0.5)
    drain(SweepStudy(tmp_path / "j", sweep))
    (trial,) = trials_of(tmp_path / "j").trials
    assert (trial.state.name, trial.value) == ("COMPLETE", 0.0)


def test_telling_twice_changes_nothing(tmp_path):
    study = SweepStudy(tmp_path / "j", make_sweep(tmp_path, "controls=[]"))
    number = study.ask().number
    study.tell(number, told(4.0))
    study.tell(number, told(8.0))
    assert trials_of(tmp_path / "j").trials[number].value == 4.0


def test_a_plan_cut_short_while_it_was_written_is_completed(tmp_path):
    sweep = make_sweep(tmp_path)
    study = SweepStudy(tmp_path / "j", sweep)
    lines = (tmp_path / "j").read_text().splitlines(keepends=True)
    (tmp_path / "cut").write_text("".join(lines[: len(lines) // 2]))
    asked = drain(SweepStudy(tmp_path / "cut", sweep))
    assert len(asked) == study.planned()
    assert {a.point for a in asked} == {*sweep.grid(), *sweep.control_points()}


def test_each_ask_has_a_seed_of_its_own():
    seeds = {seed_of(study, number) for study in range(20) for number in range(200)}
    assert len(seeds) == 4000


@pytest.mark.parametrize("lost", [1, 7, 60])
def test_a_last_line_that_was_cut_is_asked_anew_and_the_budget_stays(tmp_path, lost):
    sweep = make_sweep(tmp_path, *TPE)
    study = SweepStudy(tmp_path / "j", sweep)
    for _ in range(5):
        one = study.ask()
        study.tell(one.number, told(float(one.number)))
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole[:-lost])
    again = SweepStudy(tmp_path / "j", sweep)
    drain(again)
    assert (tmp_path / "j").read_bytes().startswith(whole[: whole[:-lost].rindex(b"\n") + 1])
    states = [trial.state for trial in trials_of(tmp_path / "j").trials]
    assert len(states) == 31
    assert states.count(optuna.trial.TrialState.COMPLETE) >= 30


@pytest.mark.parametrize("middle", [b'{"op_code"', b"\xff\x00", b"[]\n", b'{"op_code": 4}\n'])
def test_a_journal_that_is_damaged_in_its_middle_is_refused_with_the_way_out(tmp_path, middle):
    sweep = make_sweep(tmp_path, *TPE)
    drain(SweepStudy(tmp_path / "j", sweep))
    lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:9], middle, *lines[9:]])
    (tmp_path / "j").write_bytes(damaged)
    with pytest.raises(SpecError, match=r"is damaged; move the file away, and `kvknee resume"):
        SweepStudy(tmp_path / "j", sweep)
    assert (tmp_path / "j").read_bytes() == damaged
