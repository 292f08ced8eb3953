"""Laws of the driver: an exact budget under kills, no work done twice, faults told apart, one at a time."""

from dataclasses import replace

import optuna
import pytest
from fake_rooms import by_block_size, drive, drive_and_die, make_sweep
from made_results import make_result

from orchestrator.conclude import conclude, outcome_of
from orchestrator.config import Sweep
from orchestrator.entries import encode
from orchestrator.study import SweepStudy
from trials.result import load_result

CONTROLS = ["controls=[contiguous, vendor_default]"]
TWO_DIMENSIONS = "{policy.block_size: {powers_of_two: [8, 32]}, policy.watermark: {range: [0, 0.2]}}"
TPE = [*CONTROLS, "sampler=tpe", "trials=7", f"space={{vary: {TWO_DIMENSIONS}}}"]


def journal(folder, name="toy"):
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder.journal)))
    return optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)


def check_exact(ran, sweep):
    """Law 16 for a sweep that came to its end."""
    trials = journal(ran.folder)
    searched = [t for t in trials if "kvknee.control" not in t.user_attrs]
    assert len(searched) == sweep.budget
    assert len(trials) == sweep.budget + len(sweep.controls) * sweep.config.repeats
    assert {t.state.name for t in trials} <= {"COMPLETE", "FAIL"}
    records = ran.records
    assert [r.number for r in records] == [t.number for t in trials]
    assert all(r.state != "running" for r in records)
    answered = {}
    for record in records:
        if record.card.reused_from is not None:
            assert not record.attempts
            assert record.result is not None
            continue
        answered.setdefault(record.card.spec_hash, []).extend(a for a in record.attempts if a.result is not None)
    assert all(len(attempts) == 1 for attempts in answered.values())


def test_an_unbroken_sweep_ends_with_its_budget_and_its_controls_beside_it(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    ran = drive(tmp_path / "out", sweep)
    check_exact(ran, sweep)
    assert sweep.budget == 6
    assert len(ran.executor.ran) == 8  # 3 sizes and contiguous on two windows; block 16 is reused as a control


@pytest.mark.parametrize("sets", [CONTROLS, TPE], ids=["grid", "tpe"])
@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 30, 44])
def test_killed_anywhere_and_resumed_the_budget_is_exact_and_nothing_runs_twice(tmp_path, sets, after):
    sweep = make_sweep(tmp_path, *sets)
    drive_and_die(tmp_path / "out", sweep, after)
    ran = drive(tmp_path / "out", sweep)
    check_exact(ran, sweep)


def test_killed_again_and_again_the_end_is_that_of_an_unbroken_sweep(tmp_path):
    sweep = make_sweep(tmp_path, *TPE)
    whole = drive(tmp_path / "whole", sweep)
    for _ in range(60):
        if drive_and_die(tmp_path / "out", sweep, 11):
            break
    broken = drive(tmp_path / "out", sweep)
    check_exact(broken, sweep)
    assert [(r.number, r.params, r.control, r.repeat) for r in broken.records] == [
        (r.number, r.params, r.control, r.repeat) for r in whole.records
    ]
    assert outcome_of(broken.records, sweep) == outcome_of(whole.records, sweep)


def test_two_at_once_the_budget_is_exact_and_a_running_twin_is_waited_for(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    ran = drive(tmp_path / "out", sweep, num_slots=8)
    check_exact(ran, sweep)
    assert ran.executor.most_at_once == 8
    assert len(ran.executor.ran) == 8


@pytest.mark.parametrize("after", [3, 9, 12, 20, 33])
def test_killed_with_several_running_the_budget_is_exact(tmp_path, after):
    sweep = make_sweep(tmp_path, *CONTROLS)
    drive_and_die(tmp_path / "out", sweep, after, num_slots=4)
    check_exact(drive(tmp_path / "out", sweep, num_slots=4), sweep)


def test_a_finished_sweep_run_again_runs_nothing(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    first = drive(tmp_path / "out", sweep)
    again = drive(tmp_path / "out", sweep)
    assert not again.executor.ran
    # What went wrong: entries that were not sent, and that a power cut took, were never told again.
    assert sorted(map(encode, again.tracker.entries)) == sorted(map(encode, first.tracker.entries)) != []


def test_a_budget_below_the_grid_covers_every_candidate_before_a_second_window(tmp_path):
    sweep = make_sweep(tmp_path, "trials=4", "controls=[]")
    ran = drive(tmp_path / "out", sweep)
    assert [(r.params["block_size"], r.repeat) for r in ran.records] == [(8, 0), (16, 0), (32, 0), (8, 1)]


def test_a_control_that_is_a_grid_point_is_reused_and_said_so(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    ran = drive(tmp_path / "out", sweep)
    reused = [r for r in ran.records if r.card.reused_from is not None]
    assert [r.control for r in reused] == ["vendor_default"] * 2
    assert any("reused" in said for said in ran.viewer.said)


def test_infrastructure_faults_are_attempted_again_up_to_three_times(tmp_path):
    faults = iter([("node died", True), ("node died", True)])
    sweep = make_sweep(tmp_path, "controls=[]", "trials=1")
    ran = drive(tmp_path / "out", sweep, answer=lambda job: next(faults, None) or by_block_size(job))
    (record,) = ran.records
    assert [a.lost for a in record.attempts] == ["node died", "node died", None]
    assert (record.state, record.card.decides) == ("complete", 3)
    assert [e.attempt for e in ran.tracker.entries] == [1, 2, 3]


def test_a_trial_lost_three_times_fails_and_the_sweep_goes_on(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]")
    ran = drive(tmp_path / "out", sweep, answer=lambda job: ("node died", True) if job.number == 0
                else by_block_size(job))  # fmt: skip
    assert [len(r.attempts) for r in ran.records] == [3, 1, 1, 1, 1, 1]
    assert ran.records[0].state == "failed"
    assert "node died" in ran.records[0].card.reason
    assert len(journal(ran.folder)) == 6


def test_an_engine_failure_is_a_failed_trial_and_is_not_tried_again(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]")
    ran = drive(tmp_path / "out", sweep, answer=lambda job: ("segfault", False) if job.number == 1
                else by_block_size(job))  # fmt: skip
    assert [len(r.attempts) for r in ran.records] == [1] * 6
    assert [t.state.name for t in journal(ran.folder)] == ["COMPLETE", "FAIL", *["COMPLETE"] * 4]


def test_a_result_of_another_spec_is_never_credited(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]", "trials=1")
    other = replace(sweep, trace_digest="0" * 64)
    (record,) = drive(tmp_path / "out", sweep, answers_for=other).records
    assert record.state == "failed"
    assert "spec hash" in record.card.reason


def test_a_result_of_another_build_is_not_reused(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    drive_and_die(tmp_path / "out", sweep, 40, build="b1")
    ran = drive(tmp_path / "out", sweep, build="b2")
    builds = {r.number: r.card.build for r in ran.records}
    assert set(builds.values()) == {"b1", "b2"}
    assert all(builds[r.card.reused_from] == r.card.build for r in ran.records if r.card.reused_from is not None)
    assert any("2 builds" in note for note in outcome_of(ran.records, sweep).notes)


def test_an_answer_whose_file_cannot_be_read_counts_as_lost(tmp_path):
    def torn(job):
        (job.folder / "result.json").mkdir(parents=True)
        raise KeyboardInterrupt

    sweep = make_sweep(tmp_path, "controls=[]", "trials=1")
    with pytest.raises(KeyboardInterrupt):
        drive(tmp_path / "out", sweep, answer=torn)
    check_exact(drive(tmp_path / "out", sweep), sweep)


def test_a_driver_killed_before_it_wrote_the_spec_leaves_an_attempt_that_is_counted_as_lost(tmp_path):
    """Resuming once failed on the empty folder."""
    sweep = make_sweep(tmp_path, "controls=[]", "trials=1")
    drive_and_die(tmp_path / "out", sweep, 3)
    (tmp_path / "out" / "trials" / "0000" / "attempt-1" / "spec.json").unlink()
    ran = drive(tmp_path / "out", sweep)
    check_exact(ran, sweep)
    assert ran.records[0].attempts[0].lost == "the driver ended while it ran"
    assert ran.records[0].card.decides == 2


def test_what_an_attempt_left_is_read_once(tmp_path, monkeypatch):
    """Reading it four times was a twentieth of what a trial cost."""
    read, before = [], []
    monkeypatch.setattr("orchestrator.folder.load_result", lambda path: read.append(path) or load_result(path))

    def answer(job):
        before.append(len(read))
        return by_block_size(job)

    drive(tmp_path / "out", make_sweep(tmp_path, "controls=[]"), answer=answer)
    assert before == list(range(6))


def test_what_a_trial_asks_is_hashed_once_however_many_run_beside_it(tmp_path, monkeypatch):
    """All that run are held against each that is placed: with 64 slots, 64 hashes a trial."""
    hashed = []
    hash_of = Sweep.hash
    monkeypatch.setattr(Sweep, "hash", lambda *asked: hashed.append(1) or hash_of(*asked))
    sweep = make_sweep(tmp_path, *TPE[1:2], "trials=40", "controls=[]", "repeats=1", TPE[3])
    ran = drive(tmp_path / "out", sweep, num_slots=10)
    by_the_executor = len(ran.executor.ran)
    assert len(hashed) - by_the_executor <= 40 + 2


def test_a_spec_that_a_power_cut_emptied_is_written_anew(tmp_path):
    """Nothing waits for it to be on the disk: the card has it too."""
    sweep = make_sweep(tmp_path, "controls=[]", "trials=2")
    drive(tmp_path / "out", sweep)
    spec = tmp_path / "out" / "trials" / "0001" / "attempt-1" / "spec.json"
    asked = spec.read_text()
    spec.write_text("")
    assert not drive(tmp_path / "out", sweep).executor.ran
    assert spec.read_text() == asked


def measured(tmp_path, *sets):
    return make_sweep(tmp_path, "engine={name: torch_paged, clock: cpu}", "controls=[]", *sets)


def test_measured_cpu_trials_never_run_beside_one_another(tmp_path):
    ran = drive(tmp_path / "out", measured(tmp_path), num_slots=4)
    assert ran.executor.most_at_once == 1


def test_a_trial_measured_while_the_machine_was_slow_is_measured_again_and_both_are_kept(tmp_path):
    slow = {(3, 1): 1.3}
    sweep = measured(tmp_path)
    ran = drive(tmp_path / "out", sweep, probe_s=lambda job: slow.get((job.number, job.attempt), 1.0))
    assert [len(r.attempts) for r in ran.records] == [1, 1, 1, 2, 1, 1]
    assert ran.records[3].card.decides == 2
    assert all(a.result for a in ran.records[3].attempts)
    assert len(ran.tracker.entries) == 7


def test_a_machine_that_stays_slow_is_measured_twice_more_at_most_and_noted(tmp_path):
    ran = drive(tmp_path / "out", measured(tmp_path), probe_s=lambda job: 1.5 if job.number == 4 else 1.0)
    assert len(ran.records[4].attempts) == 3
    assert "+50%" in ran.records[4].card.notes[0]


def test_a_speed_within_15_percent_is_left_alone(tmp_path):
    ran = drive(tmp_path / "out", measured(tmp_path), probe_s=lambda job: 1.14 if job.number == 3 else 1.0)
    assert [len(r.attempts) for r in ran.records] == [1] * 6


def test_interrupted_in_order_what_ran_is_cancelled_and_resume_goes_on(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)

    def stop_at_the_third(job):
        if job.number == 2:
            raise KeyboardInterrupt
        return by_block_size(job)

    with pytest.raises(KeyboardInterrupt):
        drive(tmp_path / "out", sweep, answer=stop_at_the_third)
    ran = drive(tmp_path / "out", sweep)
    check_exact(ran, sweep)
    assert ran.records[2].attempts[0].lost == "the sweep was stopped"
    assert ran.records[2].card.decides == 2


@pytest.mark.parametrize(
    "rival",
    [
        make_result(100.0, ttft=600.0),
        ("engine died", False),
        make_result(100.0, status="failed"),
        make_result(float("nan")),
        make_result(100.0, tokens=0),
        make_result(100.0, unbalanced=1),
        make_result(100.0, status="refused"),
        make_result(100.0, eligible=False),
    ],
    ids=["infeasible", "died", "failed", "nan", "zero tokens", "unbalanced", "refused", "ineligible"],
)
def test_sixty_wins_over_a_hundred_that_may_not_on_every_surface(tmp_path, rival):
    sweep = make_sweep(tmp_path, "controls=[]", "repeats=1")
    ran = drive(tmp_path / "out", sweep, answer=lambda job: make_result(60.0) if job.number == 1 else rival)
    found = conclude(ran.folder, sweep)
    assert (found.outcome.winner, found.outcome.winner_trial) == ("block_size=16", 1)
    assert ran.viewer.pictures[-1].best == ("block_size=16", 60.0)
    study = optuna.load_study(study_name="toy", storage=optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(ran.folder.journal))))  # fmt: skip
    assert study.best_trial.number == 1
    assert found.exit_code == (5 if getattr(rival, "ledger", None) and rival.ledger.unbalanced_rows else 0)


def test_nothing_feasible_ends_with_exit_code_3_and_the_nearest_miss(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]")
    ran = drive(
        tmp_path / "out", sweep, answer=lambda job: make_result(100.0, ttft=500.0 + job.spec.policy.block_size)
    )
    found = conclude(ran.folder, sweep)
    assert found.exit_code == 3
    assert found.outcome.nearest_miss.label == "block_size=8"
    assert found.outcome.nearest_miss.over == pytest.approx(8 / 500)


def test_the_tracker_gets_one_entry_an_attempt_with_the_controls_it_stands_for(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    ran = drive(tmp_path / "out", sweep)
    assert len(ran.tracker.entries) == 8
    controls = {(e.number, dict(e.labels)["kvknee.control"]) for e in ran.tracker.entries if e.labels}
    assert controls == {(1, "vendor_default"), (4, "vendor_default"), (6, "contiguous"), (8, "contiguous")}


def test_the_picture_counts_trials_by_state_and_ends_with_nothing_left(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    ran = drive(tmp_path / "out", sweep)
    last = ran.viewer.pictures[-1]
    assert last.planned == 10
    assert last.states == {"waiting": 0, "running": 0, "complete": 8, "reused": 2}
    assert last.eta_s == 0


def test_summary_has_a_line_a_trial_in_order(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    ran = drive(tmp_path / "out", sweep)
    conclude(ran.folder, sweep)
    lines = ran.folder.summary_csv.read_text().splitlines()
    assert len(lines) == 11
    assert [line.split(",")[0] for line in lines[1:]] == [str(i) for i in range(10)]


def test_concluding_twice_writes_the_same_files(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    ran = drive(tmp_path / "out", sweep)
    conclude(ran.folder, sweep)
    first = ran.folder.knee_json.read_bytes(), ran.folder.summary_csv.read_bytes()
    conclude(ran.folder, make_sweep(tmp_path, *CONTROLS))
    assert (ran.folder.knee_json.read_bytes(), ran.folder.summary_csv.read_bytes()) == first


def test_the_winner_is_named_in_the_study_too(tmp_path):
    sweep = make_sweep(tmp_path, *CONTROLS)
    ran = drive(tmp_path / "out", sweep)
    SweepStudy(ran.folder.journal, sweep).name_winner("block_size=16", 1)
    study = optuna.load_study(study_name="toy", storage=optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(ran.folder.journal))))  # fmt: skip
    assert study.user_attrs == {"kvknee.winner": "block_size=16", "kvknee.winner_trial": 1}


def test_what_the_plan_can_see_is_said_before_the_first_trial_and_again_when_controls_measured_it(tmp_path):
    def answer(job):
        return make_result(100.0 * (1 + job.spec.repeat) * (0.9 if job.spec.policy.layout == "contiguous" else 1.0))

    ran = drive(tmp_path / "out", make_sweep(tmp_path, *CONTROLS), answer=answer)
    first, *later = [text for text in ran.viewer.said if "this plan sees" in text]
    assert ran.viewer.said[0] == first
    assert "assumed" in first
    assert "2.0% on: 2 windows" in first
    (measured,) = later
    assert "spread by 0.0% (as the controls measured so far do)" in measured
