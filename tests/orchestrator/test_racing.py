"""Laws of a race run by the driver: what a trial is asked, what is never run, and that the winner is the same."""

import pytest
from fake_rooms import drive, drive_and_die, make_sweep
from made_results import make_replay, make_result

from orchestrator.conclude import judged, outcome_of
from orchestrator.folder import SweepFolder
from orchestrator.survival import bursts_on
from trials.bracket import rung_from, rungs
from trials.result import Capacity, CapacityPart
from trials.slo import parse_slo
from trials.spec import Ladder

RACE = [
    "objective=capacity_load", "measure={ladder: {low: 1, high: 64, within: 0.05}}",
    "space={vary: {policy.block_size: {powers_of_two: [4, 64]}}}", "controls=[]",
]  # fmt: skip
PEAK = {4: 10.0, 8: 20.0, 16: 24.0, 32: 30.0, 64: 15.0}
VALUES = rungs(Ladder(low=1, high=64, within=0.05))


def capacity_of(truth):
    """An engine whose capacity follows from the block size alone: {size: load}, a window adds a rung."""

    def answer(job):
        ladder, spec = job.spec.measure.ladder, job.spec
        held = [v for v in VALUES if v <= truth[spec.policy.block_size] * 1.06**spec.repeat]
        value = held[-1] if held else None
        lost = ladder.beat is not None and (value is None or value < ladder.beat)
        below = VALUES[rung_from(VALUES, ladder.beat)] if lost else None
        part = CapacityPart(start_ns=0, end_ns=1, requests=99, value=None if lost else value, beyond=None,
                            below=None, binding="ttft", replays=1 if lost else 8, stopped_early=0,
                            engine_s=1.0 if lost else 10.0)  # fmt: skip
        found = Capacity(over="rate_scale", last=64, value=None if lost else value, low=None, high=None,
                         at_least=not lost and value == VALUES[-1], less_than=below, parts=(part,),
                         words=f"< {below:g} x" if lost else "")  # fmt: skip
        result = make_result(100.0, block_size=spec.policy.block_size, holds=value is not None)
        metrics = result.metrics.model_copy(update={"capacity_load": found.value})
        replays = (make_replay(100.0, holds=value is not None).model_copy(update={"metrics": metrics}),)
        return result.model_copy(update={"capacity": found, "metrics": metrics, "replays": replays, "decides": 0})

    return answer


def searched(ran):
    return [r for r in ran.records if r.card.role is None]


def engine_s(ran):
    return sum(p.engine_s for r in ran.records for a in r.attempts if a.result for p in a.result.capacity.parts)


def asked(ran):
    """(block size, repeat) -> (load to beat, hint), of trials that ran."""
    return {
        (r.spec.policy.block_size, r.repeat): (r.spec.measure.ladder.beat, r.spec.measure.ladder.near)
        for r in searched(ran) if r.attempts
    }  # fmt: skip


def test_the_default_is_searched_first_and_each_challenger_has_to_beat_the_best_so_far(tmp_path):
    ran = drive(tmp_path / "out", make_sweep(tmp_path, *RACE), answer=capacity_of(PEAK))
    (first, *_) = ran.records
    assert (first.spec.policy.block_size, first.spec.measure.ladder.beat) == (16, None)
    loads = asked(ran)
    lead = 24.0 * 1.02 * 0.95
    assert all(lead < loads[size, 0][0] < 27 for size in (4, 8, 32))
    assert 30 * 1.02 * 0.95 < loads[64, 0][0] < 33


def test_later_windows_are_run_for_survivors_only_and_the_rest_are_told_as_pruned(tmp_path):
    sweep = make_sweep(tmp_path, *RACE)
    ran = drive(tmp_path / "out", sweep, answer=capacity_of(PEAK))
    assert sorted(k for k in asked(ran) if k[1] == 1) == [(16, 1), (32, 1)]
    raced = [r for r in ran.records if r.state == "raced"]
    assert sorted(r.spec.policy.block_size for r in raced) == [4, 8, 64]
    assert all(not r.attempts and "first window" in r.card.reason for r in raced)
    assert len(searched(ran)) == sweep.budget == 10
    assert ran.viewer.pictures[-1].states["raced"] == 3


def test_a_survivor_begins_where_it_stood_on_the_first_window(tmp_path):
    loads = asked(drive(tmp_path / "out", make_sweep(tmp_path, *RACE), answer=capacity_of(PEAK)))
    assert loads[32, 1][0] is None
    assert loads[32, 1][1] == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize("truth", [
    PEAK, {4: 30.0, 8: 20.0, 16: 24.0, 32: 10.0, 64: 15.0}, dict.fromkeys(PEAK, 24.0),
    {4: 1.0, 8: 2.0, 16: 24.0, 32: 2.0, 64: 1.0}, {4: 64.0, 8: 64.0, 16: 64.0, 32: 9.0, 64: 9.0},
    {4: 0.5, 8: 0.5, 16: 0.5, 32: 9.0, 64: 12.0},
], ids=["beyond", "before", "flat", "default", "top", "default fails"])  # fmt: skip
def test_the_winner_is_that_of_a_sweep_without_a_race(tmp_path, truth):
    answers = capacity_of(truth)
    plain_sweep, sweep = make_sweep(tmp_path, *RACE, "race=false"), make_sweep(tmp_path, *RACE)
    plain = drive(tmp_path / "plain", plain_sweep, answer=answers)
    raced = drive(tmp_path / "raced", sweep, answer=answers)
    assert all(r.state != "raced" for r in plain.records)
    assert outcome_of(raced.records, sweep).winner == outcome_of(plain.records, plain_sweep).winner
    assert engine_s(raced) < engine_s(plain)


def test_a_control_is_asked_for_its_whole_capacity_and_answers_the_point_that_it_is(tmp_path):
    sweep = make_sweep(tmp_path, *RACE[:3], "controls=[vendor_default, largest]")
    ran = drive(tmp_path / "out", sweep, answer=capacity_of(PEAK))
    controls = [r for r in ran.records if r.control]
    assert all(r.spec.measure.ladder.beat is None and r.result.capacity.value for r in controls)
    reused = {(r.spec.policy.block_size, r.repeat) for r in ran.records if r.card.reused_from is not None}
    assert reused == {(16, 0), (16, 1), (64, 0), (64, 1)}


def test_the_optimiser_is_told_the_bound_as_a_value_that_is_not_feasible(tmp_path):
    from test_sweep import journal

    ran = drive(tmp_path / "out", make_sweep(tmp_path, *RACE), answer=capacity_of(PEAK))
    told = {t.number: t for t in journal(ran.folder)}
    for record in searched(ran):
        trial = told[record.number]
        if record.state == "raced":
            assert trial.state.name == "PRUNED"
        elif record.result.capacity.less_than is not None:
            assert trial.value == record.result.capacity.less_than
            assert trial.constraints == {"raced_out": 1.0}
        else:
            assert trial.value == record.result.capacity.value
    assert all(not judged(r, make_sweep(tmp_path, *RACE), parse_slo("ttft:p99<500ms")).feasible
               for r in ran.records if r.state == "raced")  # fmt: skip


@pytest.mark.parametrize("sets", [[], ["sampler=tpe", "trials=9"]], ids=["grid", "tpe"])
def test_killed_again_and_again_a_race_asks_and_answers_the_same(tmp_path, sets):
    sweep, answers = make_sweep(tmp_path, *RACE, *sets), capacity_of(PEAK)
    whole = drive(tmp_path / "whole", sweep, answer=answers)
    assert sets or any(r.card.role == "neighbour" for r in whole.records)
    for after in (7, 13, 19, 25, 31, 40):
        drive_and_die(tmp_path / "out", sweep, after, answer=answers)
    broken = drive(tmp_path / "out", sweep, answer=answers)
    assert [(r.card.params, r.repeat, r.state, r.spec) for r in SweepFolder(broken.folder.path).load_trials()] == [
        (r.card.params, r.repeat, r.state, r.spec) for r in whole.records
    ]
    assert outcome_of(broken.records, sweep) == outcome_of(whole.records, sweep)


@pytest.mark.parametrize("slots", [2, 8])
def test_with_several_at_once_no_window_is_run_before_the_first_one_of_its_candidate_is_over(tmp_path, slots):
    sweep = make_sweep(tmp_path, *RACE)
    ran = drive(tmp_path / "out", sweep, answer=capacity_of(PEAK), num_slots=slots)
    order = [(j.spec.policy.block_size, j.spec.repeat) for j in ran.executor.ran]
    assert all(order.index((size, 0)) < k for k, (size, repeat) in enumerate(order) if repeat)
    assert len(searched(ran)) == sweep.budget
    assert outcome_of(ran.records, sweep).winner == "block_size=32"


def test_a_neighbour_of_the_winner_that_is_only_not_better_is_tried_at_the_winner_s_own_load(tmp_path):
    """16 holds 27.0, so 32 is not ahead by min_gain of it, and one replay says that it is worse."""
    sweep = make_sweep(tmp_path, *RACE)
    truth = {4: 10.0, 8: 20.0, 16: 27.0, 32: 20.0, 64: 15.0}
    ran = drive(tmp_path / "out", sweep, answer=capacity_of(truth))
    tried = [r for r in ran.records if r.card.role == "neighbour"]
    assert [r.spec.policy.block_size for r in tried] == [8, 32]
    assert all(r.result.capacity.less_than is not None for r in tried)
    winner = next(r for r in ran.records if r.spec.policy.block_size == 16 and r.repeat == 0)
    assert all(r.spec.measure.ladder.beat <= winner.result.capacity.value for r in tried)
    found = outcome_of(ran.records, sweep)
    assert (found.kind, found.winner) == ("knee", "block_size=16")
    assert found.candidate("block_size=32").less_than <= 27.0


def test_a_flat_race_ends_flat_with_the_default(tmp_path):
    sweep = make_sweep(tmp_path, *RACE)
    ran = drive(tmp_path / "out", sweep, answer=capacity_of(dict.fromkeys(PEAK, 24.0)))
    found = outcome_of(ran.records, sweep)
    assert (found.kind, found.winner) == ("flat", "block_size=16")
    assert len(found.tied) == 5


@pytest.mark.parametrize("sets", [[], ["sampler=tpe", "trials=20"]], ids=["grid", "tpe"])
@pytest.mark.parametrize("falls", [{32}, {32, 16}, {32, 16, 8}])
def test_where_the_leader_fails_on_a_later_window_those_it_beat_are_asked_again(tmp_path, falls, sets):
    """As a sweep without a race would have it: the best of those that hold on every window."""
    truth = {4: 10.0, 8: 20.0, 16: 24.0, 32: 30.0, 64: 15.0}

    def answer(job):
        if job.spec.repeat == 1 and job.spec.policy.block_size in falls:
            return make_result(1.0, ttft=900.0)
        return capacity_of(truth)(job)

    sweep = make_sweep(tmp_path, *RACE, *sets)
    ran = drive(tmp_path / "out", sweep, answer=answer)
    found = outcome_of(ran.records, sweep)
    best = max(truth.keys() - falls, key=lambda size: truth[size])
    asked_for = {r.spec.policy.block_size for r in ran.records}
    assert best in asked_for
    assert found.winner == f"block_size={best}"
    assert len(found.candidate(found.winner).trials) == 2
    assert len(searched(ran)) == sweep.budget
    again = drive(tmp_path / "out", sweep, answer=answer)
    assert not again.executor.ran


@pytest.mark.parametrize(
    ("sets", "others", "verdict"),
    [
        (["race=false"], 20.0, "ship"),
        (["race=false"], 100.0, "inspect"),
        ([], 20.0, "inspect"),
        ([], 100.0, "inspect"),
    ],
    ids=["alone", "with all", "raced, alone", "raced, with all"],
)
def test_a_capacity_at_the_ladder_s_end_is_a_bound_and_tells_nobody_apart_who_holds_it_too(
    tmp_path, sets, others, verdict
):
    """What went wrong: `64 load` where no load had failed; and the best of those that all held 64 was shipped.

    In a race there is no load to beat it with, so the others were never asked.
    """
    sweep = make_sweep(tmp_path, *RACE, *sets)
    ran = drive(tmp_path / "out", sweep, answer=capacity_of({**dict.fromkeys(PEAK, others), 16: 100.0}))
    found = outcome_of(ran.records, sweep)
    assert found.winner == "block_size=16"
    assert found.candidate("block_size=16").at_least
    assert "block_size=16: >= 64 load" in found.sentence or "block_size=16 (>= 64 load)" in found.sentence
    row = next(v for v in found.verdicts if v.option == "block_size=16")
    assert row.signal.startswith(">= 64 load")
    assert row.verdict == verdict
    assert ("raise measure.ladder.high" in row.reason) == (verdict == "inspect")


@pytest.mark.parametrize("held_out", [0, 1])
def test_a_winner_has_to_survive_at_a_share_of_what_it_held_on_the_very_window_of_the_bursts(tmp_path, held_out):
    """What went wrong: at a share of what it held on the first window, which may hold twice the load."""
    holds = {0: 30.0, 1: 24.0, 2: 12.0}  # by repeat, 2 the held-out one

    def answer(job):
        if "survival" in job.spec.trace.path:
            return make_result(100.0, block_size=job.spec.policy.block_size)
        own = holds[job.spec.repeat] / 1.06**job.spec.repeat
        return capacity_of({size: own if size == 16 else own / 2 for size in PEAK})(job)

    sets = (
        "trace.window={start: 0s, duration: 10s}",
        f"held_out={held_out}",
        "survival={cancels: 0.4, forks: 0.4}",
    )
    sweep = make_sweep(tmp_path, *RACE, *sets)
    ran = drive(tmp_path / "out", sweep, answer=answer)
    (tried,) = [r for r in ran.records if r.card.role == "survival"]
    source = next(r for r in ran.records if r.number == tried.card.of)
    assert (source.spec.policy.block_size, source.repeat) == (16, 1 + held_out)
    bursts = bursts_on(sweep.config.survival, source.spec, source.spec.trace.window, tmp_path / "again")
    share = tried.spec.measure.load.rate_scale / bursts.thinner / source.result.metrics.capacity_load
    assert share == pytest.approx(sweep.config.survival.of_capacity)
    assert source.result.metrics.capacity_load == pytest.approx(holds[1 + held_out], rel=0.06)


def test_a_neighbour_is_tried_on_the_winner_s_slot_at_the_load_that_the_winner_held_there(tmp_path):
    """What went wrong, once values are the mean slot's: no rung of the ladder lies so near under one of them."""
    gives = {"fake-0": 0.8, "fake-1": 1.2}
    truth = {4: 10.0, 8: 12.0, 16: 20.0, 32: 27.0, 64: 15.0}

    def answer(job):
        slot = gives[job.slot or f"fake-{job.number % 2}"]
        return capacity_of({size: slot * load for size, load in truth.items()})(job)

    cuda = ("engine={name: torch_paged, device: cuda}", "controls=[vendor_default, smallest]", "repeats=1")
    sweep = make_sweep(tmp_path, *RACE, *cuda)
    ran = drive(tmp_path / "out", sweep, answer=answer, num_slots=2)
    found = outcome_of(ran.records, sweep)
    winner = next(r for r in ran.records if r.number == found.winner_trial)
    tried = [r for r in ran.records if r.card.role == "neighbour"]
    assert tried
    assert {r.slot for r in tried} == {winner.slot}
    held = winner.result.metrics.capacity_load
    assert all(held / 1.02 < r.card.beat <= held for r in tried)
    assert (found.kind, found.winner) == ("knee", "block_size=32")


def test_where_every_candidate_fails_on_a_later_window_each_was_asked(tmp_path):
    def answer(job):
        return make_result(1.0, ttft=900.0) if job.spec.repeat else capacity_of(PEAK)(job)

    sweep = make_sweep(tmp_path, *RACE)
    ran = drive(tmp_path / "out", sweep, answer=answer)
    assert outcome_of(ran.records, sweep).kind == "infeasible"
    whole = {r.spec.policy.block_size for r in ran.records if r.result and r.result.metrics.capacity_load}
    assert whole == PEAK.keys()


def test_a_reprieve_whose_engine_failed_is_an_answer_and_what_comes_after_it_is_measured(tmp_path):
    """What went wrong: the same question came again, was found to be asked, and all behind it was left out."""
    truth = {4: 10.0, 8: 20.0, 16: 24.0, 32: 30.0, 64: 15.0}

    def answer(job):
        size, repeat = job.spec.policy.block_size, job.spec.repeat
        if size == 32 and repeat == 1:
            return make_result(1.0, ttft=900.0)  # the leader falls
        if size == 64 and (job.spec.measure.ladder.beat or 64) < truth[32]:
            return "the engine crashed", False
        return capacity_of(truth)(job)

    window = "trace={path: t.parquet, window: {start: 0s, duration: 15s}}"
    sweep = make_sweep(tmp_path, *RACE, "held_out=1", window)
    ran = drive(tmp_path / "out", sweep, answer=answer)
    failed = [r for r in ran.records if r.state == "failed"]
    assert [(r.card.role, r.spec.policy.block_size) for r in failed] == [("reprieve", 64)]
    assert "confirm" in [r.card.role for r in ran.records]
    assert outcome_of(ran.records, sweep).winner == "block_size=16"
    assert not drive(tmp_path / "out", sweep, answer=answer).executor.ran
