"""Laws of what is measured again after a search: held-out windows, survival, and what they make of the winner."""

import numpy as np
import pytest
from fake_rooms import by_block_size, drive, drive_and_die, make_sweep
from made_results import make_result

from orchestrator.conclude import outcome_of
from orchestrator.survival import SurvivalSpec, bursts_on
from orchestrator.windows import window_of
from trials.fingerprint import trace_hash
from trials.load import offer
from trials.load import window_of as counted_window
from trials.spec import Load
from trials.trace import STARTS, load_trace
from trials.units import SpecError

S = 10**9
WINDOW = "trace.window={start: 0s, duration: 10s}"
HELD_OUT = [WINDOW, "controls=[]", "held_out=2"]
SURVIVAL = [WINDOW, "controls=[]", "held_out=1", "survival={forks: 0.2, cancels: 0.4, bursts: 2}"]


def roles(ran, role):
    return [r for r in ran.records if r.card.role == role]


def sizes(records):
    return [r.spec.policy.block_size for r in records]


def best_at(size, **worse):
    """100 at this block size, 60 elsewhere; {role of the window: value} by block size."""

    def answer(job):
        own = 100.0 if job.spec.policy.block_size == size else 60.0
        return make_result(own + job.spec.repeat, block_size=job.spec.policy.block_size)

    return answer


def test_winner_default_and_best_fixed_block_are_measured_on_windows_that_the_search_never_saw(tmp_path):
    sweep = make_sweep(tmp_path, *HELD_OUT)
    assert [w.start // S for w in sweep.held_out] == [40, 50]
    ran = drive(tmp_path / "out", sweep, answer=best_at(8))
    again = roles(ran, "confirm")
    assert sorted((r.spec.policy.block_size, r.spec.trace.window.start // S) for r in again) == [
        (8, 40), (8, 50), (16, 40), (16, 50),
    ]  # fmt: skip
    assert len(ran.records) == sweep.budget + 4
    found = outcome_of(ran.records, sweep)
    assert [(c.label, c.parts) for c in found.confirmed] == [
        ("block_size=8", ("winner", "best_fixed_block")), ("block_size=16", ("default",)),
    ]  # fmt: skip
    assert found.confirmed[1].behind_winner.low == 40.0
    assert next(v for v in found.verdicts if v.option == "block_size=8").verdict == "ship"


def test_what_is_measured_again_counts_neither_as_a_repeat_nor_as_the_best_so_far(tmp_path):
    def answer(job):
        return make_result(
            900.0 if job.spec.repeat >= 2 else by_block_size(job).metrics.qualified_output_throughput
        )

    sweep = make_sweep(tmp_path, *HELD_OUT)
    ran = drive(tmp_path / "out", sweep, answer=answer)
    found = outcome_of(ran.records, sweep)
    assert found.candidate("block_size=16").values == (100.0, 101.0)
    assert ran.viewer.pictures[-1].best[1] == 101.0


@pytest.mark.parametrize(
    ("on_held_out", "why"),
    [
        (lambda size: make_result(50.0 if size == 8 else 60.0), "loses on held-out windows: 50 against 60"),
        (lambda size: make_result(90.0, ttft=600.0 if size == 8 else 1.0), "on a held-out window: ttft:p99<500ms"),
    ],
    ids=["loses", "fails"],
)
def test_a_winner_that_loses_or_fails_on_held_out_windows_is_inspected_with_the_reason(tmp_path, on_held_out, why):
    def answer(job):
        held_out = job.spec.repeat >= 2
        return on_held_out(job.spec.policy.block_size) if held_out else best_at(8)(job)

    sweep = make_sweep(tmp_path, *HELD_OUT)
    found = outcome_of(drive(tmp_path / "out", sweep, answer=answer).records, sweep)
    verdict = next(v for v in found.verdicts if v.option == "block_size=8")
    assert (found.winner, verdict.verdict) == ("block_size=8", "inspect")
    assert why in verdict.reason


def survives(*those, best=8):
    """100 at `best`, less the further away; under bursts only these keep the SLO."""

    def answer(job):
        size = job.spec.policy.block_size
        value = 100.0 - 10 * abs(np.log2(size) - np.log2(best))
        under = "survival" in job.spec.trace.path
        return make_result(value, block_size=size, ttft=900.0 if under and size not in those else 100.0)

    return answer


def test_the_winner_is_put_under_bursts_before_a_recipe_is_written(tmp_path):
    sweep = make_sweep(tmp_path, *SURVIVAL)
    ran = drive(tmp_path / "out", sweep, answer=survives(8))
    (tried,) = roles(ran, "survival")
    assert tried.spec.policy.block_size == 8
    trace = load_trace(ran.folder.path / "survival" / tried.spec.trace.path.rpartition("/")[2])
    assert trace_hash(trace) == tried.card.trace_hash == tried.result.hashes.trace
    assert (trace.cancel_after_ns >= 0).any()
    assert (trace.starts == STARTS["fork"]).any()
    found = outcome_of(ran.records, sweep)
    assert [(s.label, s.survived) for s in found.survival] == [("block_size=8", True)]
    assert next(v for v in found.verdicts if v.option == "block_size=8").verdict == "ship"


def test_where_the_winner_does_not_survive_the_next_candidate_is_tried_and_wins(tmp_path):
    sweep = make_sweep(tmp_path, *SURVIVAL)
    ran = drive(tmp_path / "out", sweep, answer=survives(16))
    assert sizes(roles(ran, "survival")) == [8, 16]
    found = outcome_of(ran.records, sweep)
    assert found.winner == "block_size=16"
    verdict = next(v for v in found.verdicts if v.option == "block_size=8")
    assert verdict.verdict == "inspect"
    assert "does not survive" in verdict.reason
    winner = next(v for v in found.verdicts if v.option == "block_size=16")
    assert winner.verdict == "ship", f"held against one that did not survive: {winner.reason}"
    assert "ttft:p99<500ms missed: 900 ms" in verdict.reason
    assert {r.spec.policy.block_size for r in roles(ran, "confirm")} == {8, 16}


def test_where_nobody_survives_the_first_winner_stays_and_is_inspected(tmp_path):
    sweep = make_sweep(tmp_path, *SURVIVAL)
    ran = drive(tmp_path / "out", sweep, answer=survives())
    assert sizes(roles(ran, "survival")) == [8, 16, 32]
    found = outcome_of(ran.records, sweep)
    verdict = next(v for v in found.verdicts if v.option == "block_size=8")
    assert (found.winner, verdict.verdict) == ("block_size=8", "inspect")


def test_with_nothing_feasible_nothing_is_measured_again(tmp_path):
    ran = drive(tmp_path / "out", make_sweep(tmp_path, *SURVIVAL), answer=lambda job: make_result(1.0, ttft=900.0))
    assert {r.card.role for r in ran.records} == {None}


@pytest.mark.parametrize("after", [24, 40, 49, 53, 57, 61, 65, 69, 74])
def test_killed_while_it_measures_again_and_resumed_it_ends_the_same(tmp_path, after):
    sweep, answer = make_sweep(tmp_path, *SURVIVAL), survives(16)
    whole = drive(tmp_path / "whole", sweep, answer=answer)
    drive_and_die(tmp_path / "out", sweep, after, answer=answer)
    broken = drive(tmp_path / "out", sweep, answer=answer)
    assert [(r.card.role, r.card.of, r.repeat, r.card.spec_hash, r.state) for r in broken.records] == [
        (r.card.role, r.card.of, r.repeat, r.card.spec_hash, r.state) for r in whole.records
    ]
    assert outcome_of(broken.records, sweep) == outcome_of(whole.records, sweep)
    again = drive(tmp_path / "out", sweep, answer=answer)
    assert not again.executor.ran


def test_bursts_lie_on_the_window_and_what_warms_it_up_and_the_same_requests_count(tmp_path):
    sweep = make_sweep(tmp_path)
    base = sweep.space.base
    spec = base.model_copy(update={"trace": base.trace.model_copy(update={"warmup": 5 * S})})
    window = window_of(30 * S, 20 * S)
    asked = SurvivalSpec(forks=0.2, width=3, cancels=0.2, bursts=2)
    found = bursts_on(asked, spec, window, tmp_path / "survival")
    trace_spec = found.trace
    trace = load_trace(tmp_path / "survival" / trace_spec.path.rpartition("/")[2])
    rows = int((trace.starts == STARTS["arrival"]).sum())
    assert rows == 25
    assert len(trace) == 25 + round(0.2 * 25) * 2
    assert (trace.cancel_after_ns >= 0).sum() == pytest.approx(0.2 * len(trace), abs=2)
    assert counted_window(trace, trace_spec) == (0, 5 * S, 25 * S)
    assert bursts_on(asked, spec, window, tmp_path / "survival") == found
    other = bursts_on(asked.model_copy(update={"seed": 1}), spec, window, tmp_path / "survival")
    assert other.trace.path != trace_spec.path


def test_as_many_requests_come_a_second_with_forks_as_without(tmp_path):
    spec = make_sweep(tmp_path).space.base
    found = bursts_on(SurvivalSpec(forks=0.5, width=3, cancels=0.2), spec, None, tmp_path / "survival")
    trace = load_trace(tmp_path / "survival" / found.trace.path.rpartition("/")[2])
    assert found.thinner == 60 / len(trace) == 0.5
    offered = offer(trace, found.trace, found.load(Load(rate_scale=2.0)), "cold")
    seconds = (offered.window_ns[1] - offered.window_ns[0]) / 1e9
    assert len(offered.rows) / seconds == pytest.approx(2.0, rel=0.05)
    assert found.load(Load(rps=3.0)) == Load(rps=3.0)
    assert found.load(Load(concurrency=7)) == Load(concurrency=7)


def test_answers_of_forks_never_exceed_what_the_model_holds(tmp_path):
    sweep = make_sweep(tmp_path, "policy.max_model_len=160")
    asked = SurvivalSpec(forks=1.0, width=4, cancels=0.2)
    found = bursts_on(asked, sweep.space.base, None, tmp_path / "survival")
    trace = load_trace(tmp_path / "survival" / found.trace.path.rpartition("/")[2])
    assert int((trace.num_prompt_tokens + trace.num_output_tokens).max()) <= 160


def test_too_few_requests_for_any_burst_is_a_failed_trial_with_words(tmp_path):
    sweep = make_sweep(tmp_path, *SURVIVAL[:3], "survival={cancels: 0.01, forks: 0.01}")
    ran = drive(tmp_path / "out", sweep, answer=survives(8))
    (tried,) = roles(ran, "survival")[:1]
    assert (tried.state, tried.spec.policy.block_size) == ("failed", 8)
    assert "too few" in tried.card.reason


SLOTS = [WINDOW, "held_out=0", "survival=null", "controls=[contiguous, vendor_default]",
         "engine={name: torch_paged, device: cuda}"]  # fmt: skip


def test_where_slots_are_timed_every_control_runs_on_every_slot_that_was_measured_on(tmp_path):
    sweep = make_sweep(tmp_path, *SLOTS)
    ran = drive(tmp_path / "out", sweep, num_slots=3)
    again = roles(ran, "slot")
    assert {r.card.slot for r in again} <= {"fake-0", "fake-1", "fake-2"}
    assert all(r.card.slot == r.slot and r.repeat == 0 for r in again)
    for size in (16, 1024):
        on = {r.slot for r in ran.records if r.spec.policy.block_size == size and r.repeat == 0}
        assert on == {"fake-0", "fake-1", "fake-2"}
    assert len(ran.records) == sweep.budget + len(sweep.controls) * 2 + len(again)
    assert outcome_of(ran.records, sweep).slot_effects.keys() == {"fake-0", "fake-1", "fake-2"}


def test_a_winner_is_shipped_whatever_slots_it_and_its_rivals_were_measured_on(tmp_path):
    """What went wrong: on held-out windows values were read as they were measured, a slot's gift included."""
    gives = {"fake-0": 0.7, "fake-1": 1.3}

    def answer(job):
        size, slot = job.spec.policy.block_size, job.slot or f"fake-{job.number % 2}"
        return make_result({8: 100.0, 16: 90.0}.get(size, 50.0) * gives[slot], block_size=size)

    sweep = make_sweep(tmp_path, *SLOTS, "held_out=2")
    ran = drive(tmp_path / "out", sweep, num_slots=2, answer=answer)
    again = {(r.spec.policy.block_size, r.slot) for r in roles(ran, "confirm")}
    assert again >= {(8, "fake-0"), (16, "fake-1")}, "made up so that the winner stands on the slow slot"
    found = outcome_of(ran.records, sweep)
    assert found.slot_effects == {name: pytest.approx(share) for name, share in gives.items()}
    verdict = next(v for v in found.verdicts if v.option == "block_size=8")
    assert (found.winner, verdict.verdict, verdict.reason) == (
        "block_size=8", "ship", "most qualified tokens among the feasible",
    )  # fmt: skip
    assert {c.label: pytest.approx(c.share_of_winner) for c in found.confirmed} == {
        "block_size=8": 1.0, "block_size=16": 0.9,
    }  # fmt: skip


@pytest.mark.parametrize("sets", [["engine={name: simulator, step_time: 'roofline:h100-sxm'}"], ["controls=[]"]])
def test_a_modelled_engine_needs_one_slot_and_no_control_nothing(tmp_path, sets):
    ran = drive(tmp_path / "out", make_sweep(tmp_path, *SLOTS, *sets), num_slots=3)
    assert not roles(ran, "slot")


def test_a_slot_that_is_gone_on_resume_is_said_and_does_not_stop_the_sweep(tmp_path):
    sweep = make_sweep(tmp_path, *SLOTS)
    whole = drive(tmp_path / "whole", sweep, num_slots=3)
    total = len(whole.records)
    for after in (64, 76):
        folder = tmp_path / f"out-{after}"
        drive_and_die(folder, sweep, after, num_slots=3)
        ran = drive(folder, sweep, num_slots=2)
        assert len(ran.records) <= total
        gone = [r for r in roles(ran, "slot") if r.state == "failed"]
        assert all(r.card.reason == "slot fake-2 is gone" for r in gone)
        assert outcome_of(ran.records, sweep).winner is not None


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("survival={cancels: 0, forks: 0}", "nothing to survive"), ("survival={cancel: 0.1}", "cancels"),
        ("held_out=-1", "held_out"), ("survival={of_capacity: 1.5}", "of_capacity"), ("race=true", "capacity_load"),
        ("measure={ladder: {low: 1, high: 2, beat: 1.5}}", "set by the race"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_in_words(tmp_path, asked, words):
    with pytest.raises(SpecError, match=words):
        make_sweep(tmp_path, asked)


def test_a_trace_without_room_for_held_out_windows_is_said_and_the_winner_survives_the_last_one_searched(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]", "repeats=3", "held_out=2", "survival={cancels: 0.4, forks: 0.2}")
    assert sweep.held_out == ()
    assert any("held out: 0 of 2 windows; the trace has room for 3 of 20 s" in note for note in sweep.notes)
    ran = drive(tmp_path / "out", sweep, answer=best_at(8))
    (tried,) = roles(ran, "survival")
    trace = load_trace(tmp_path / "out" / "survival" / tried.spec.trace.path.rpartition("/")[2])
    assert not roles(ran, "confirm")
    assert trace.arrival_ns[0] == 40 * S
