"""Laws of a screened sweep: the list is measured and no more; where it proves wrong, the rest of the space is."""

import json

import pytest
from fake_rooms import drive, drive_and_die, make_sweep, write_trace
from made_results import make_result

from orchestrator.conclude import conclude
from orchestrator.folder import SweepFolder
from orchestrator.page_screen import screened as panel
from orchestrator.screened import (
    ScreenReport,
    ScreenRow,
    compared,
    followed,
    load_screen,
    question_of,
    save_screen,
    with_screen,
)
from orchestrator.screening import screen_first, shortened
from orchestrator.shown import read_sweep
from orchestrator.study import SweepStudy
from orchestrator.sweep_file import sweep_yaml
from search_spaces.neighbours import key_of
from search_spaces.objective import Score, raced_out
from trials.trace import load_trace
from trials.units import SpecError

SCREEN = "screen={step_time: roofline:a100-80gb-sxm, keep: 0.3, checks: 2}"
WIDE = "space={vary: {policy.block_size: {powers_of_two: [1, 128]}, policy.queue: {one_of: [fcfs, shortest_job]}}}"
BASE = (SCREEN, WIDE, "repeats=1", "controls=[contiguous]")


def report(sweep, value, listed, checks=()):
    """A screen made by hand: `value(params)`, what it lists in order, and which of these are checks."""
    rows = [
        ScreenRow(
            params=params, label=str(params), value=value(params), over=0.0,
            role=("check" if params in checks else "promising") if params in listed else None,
        )
        for params in sorted(sweep.space.candidates(), key=lambda p: listed.index(p) if p in listed else 99)
    ]  # fmt: skip
    return ScreenReport(
        asks=question_of(sweep), words="made by hand", step_time="roofline:a100-80gb-sxm", candidates=len(rows),
        simulated=len(rows), requests=60, window_s=(0.0, 1.0), seconds=1.0, keep=0.3, rows=tuple(rows),
    )  # fmt: skip


def at(size, queue="fcfs"):
    return {"block_size": size, "queue": queue}


LISTED = [at(s) for s in (64, 128, 32, 1, 16, 8, 2)]
CHECKS = [at(1), at(2)]


def value_of(params):
    return 100.0 + params["block_size"] + (params["queue"] == "fcfs")


def answer(job):
    policy = job.spec.policy
    value = value_of({"block_size": policy.block_size, "queue": policy.queue})
    return make_result(value, block_size=policy.block_size)


def backwards(job):
    policy = job.spec.policy
    return make_result(500.0 - policy.block_size, block_size=policy.block_size)


def screened(tmp_path, *sets, folders=("out",)):
    """The sweep with its screen, which stands in these folders."""
    sweep = make_sweep(tmp_path, *BASE, *sets)
    made = report(sweep, value_of, LISTED, CHECKS)
    for name in folders:
        (tmp_path / name).mkdir()
        save_screen(SweepFolder(tmp_path / name), made)
    return followed(sweep, made)


def first_backwards(job):
    """The first six that are listed come in the screen's order turned around; all others come in its order."""
    policy = job.spec.policy
    if policy.queue == "fcfs" and at(policy.block_size) in LISTED[:6]:
        return backwards(job)
    return make_result(300.0 + 10 * policy.block_size, block_size=policy.block_size)


def page_of(ran, sweep):
    """The report's panel of the screen."""
    ran.folder.sweep_yaml.write_text(sweep_yaml(sweep))
    return panel(read_sweep(ran.folder))


def searched(ran):
    return [r for r in ran.records if r.card.control is None and r.card.role is None]


def test_what_is_listed_is_measured_in_its_order_and_nothing_else(tmp_path):
    ran = drive(tmp_path / "out", screened(tmp_path), answer=answer)
    assert [r.params for r in searched(ran)] == LISTED
    assert sum(r.card.control is not None for r in ran.records) == 1


def test_repeats_of_a_listed_candidate_follow_one_another(tmp_path):
    ran = drive(tmp_path / "out", screened(tmp_path, "repeats=2"), answer=answer)
    assert [(r.params, r.repeat) for r in searched(ran)] == [(p, k) for p in LISTED for k in (0, 1)]


def test_a_screen_that_is_wrong_is_dropped_out_loud_and_the_rest_of_the_space_is_run(tmp_path):
    sweep = screened(tmp_path)
    ran = drive(tmp_path / "out", sweep, answer=backwards)
    got = [r.params for r in searched(ran)]
    assert sorted(map(key_of, got)) == sorted(map(key_of, sweep.space.candidates()))
    assert got[:6] == LISTED[:6]  # six have to be measured before a screen can be called wrong
    assert any("the screen is dropped" in said for said in ran.viewer.said)
    assert ran.viewer.pictures[-1].planned == 17


def test_a_budget_below_the_list_ends_it(tmp_path):
    ran = drive(tmp_path / "out", screened(tmp_path, "trials=3", "sampler=exhaustive"), answer=answer)
    assert [r.params for r in searched(ran)] == LISTED[:3]


def test_a_search_goes_on_from_the_list_with_what_its_sampler_proposes(tmp_path):
    ran = drive(tmp_path / "out", screened(tmp_path, "sampler=tpe", "trials=12"), answer=answer)
    got = [r.params for r in searched(ran)]
    assert got[:7] == LISTED
    assert len({key_of(p) for p in got}) == len(got) == 12


def test_a_search_leaves_a_list_that_is_wrong(tmp_path):
    ran = drive(tmp_path / "out", screened(tmp_path, "sampler=tpe", "trials=12"), answer=backwards)
    got = [r.params for r in searched(ran)]
    assert got[:6] == LISTED[:6]
    assert len(got) == 12
    assert any("the screen is dropped" in said for said in ran.viewer.said)


def test_a_screen_that_was_dropped_is_said_to_be_on_every_surface_whatever_was_measured_after_it(tmp_path):
    """What went wrong: the end guessed anew, and by all that was measured the screen orders well again."""
    sweep = screened(tmp_path)
    ran = drive(tmp_path / "out", sweep, answer=first_backwards)
    (why,) = [said.partition("dropped: ")[2] for said in ran.viewer.said if "the screen is dropped" in said]
    outcome = conclude(ran.folder, sweep).outcome
    found = load_screen(ran.folder)
    assert (found.dropped, found.misled) == (why, "")
    assert found.tau > 0.2
    assert any(note.endswith(f"dropped: {why}") for note in outcome.notes)
    assert f"It was dropped: {why}.".replace("'", "&#x27;") in page_of(ran, sweep)
    assert with_screen(ran.folder, sweep).screen.dropped == why


def test_a_screen_that_was_followed_to_the_end_was_not_dropped_however_wrong_it_was(tmp_path):
    """What went wrong: it was said to be dropped, and each of its list was measured, and nothing else."""
    sweep = screened(tmp_path, "trials=6", "sampler=tpe")
    ran = drive(tmp_path / "out", sweep, answer=backwards)
    assert [r.params for r in searched(ran)] == LISTED[:6]
    outcome = conclude(ran.folder, sweep).outcome
    found = load_screen(ran.folder)
    assert found.dropped == ""
    assert "no better than chance" in found.misled
    assert any(f"; followed, though {found.misled}" in note for note in outcome.notes)
    assert f"It was followed, though {found.misled}.".replace("'", "&#x27;") in page_of(ran, sweep)


def test_what_lost_a_race_says_nothing_of_a_screen(tmp_path):
    """What went wrong: bounds were held against the screen as values, and rise with the leader in any order."""
    race = "measure={ladder: {low: 1, high: 64, within: 0.1}}"
    sweep = screened(tmp_path, "objective=capacity_load", race, "trials=7")
    study = SweepStudy(tmp_path / "out" / "study.journal", sweep)
    while (asked := study.ask()) is not None:
        params = dict(asked.point.params)
        whole = not params or params["block_size"] in (64, 128)
        study.tell(asked.number, value(200.0) if whole else raced_out(10.0 + asked.number, "lost"))
        assert "dropped" not in asked.note
    assert [p["block_size"] for p in map(dict, study._answered())] == [64, 128]


def value(of):
    return Score(of, (), ())


@pytest.mark.parametrize("how", [answer, backwards, first_backwards])
def test_a_screened_sweep_killed_anywhere_ends_with_the_same_trials(tmp_path, how):
    sweep = screened(tmp_path, folders=("whole", "broken"))
    whole = [(r.number, r.params, r.repeat) for r in drive(tmp_path / "whole", sweep, answer=how).records]
    after, broken = 0, SweepFolder(tmp_path / "broken")
    while not drive_and_die(broken.path, with_screen(broken, sweep), after, answer=how):
        after += 7
    records = broken.load_trials()
    assert [(r.number, r.params, r.repeat) for r in records] == whole


def test_the_screen_of_a_folder_is_followed_again_and_that_of_another_question_is_not(tmp_path):
    sweep, folder = make_sweep(tmp_path, *BASE), SweepFolder(tmp_path / "out")
    folder.path.mkdir()
    path = folder.path / "screen.json"
    path.write_text(report(sweep, value_of, LISTED, CHECKS).model_dump_json())
    assert with_screen(folder, sweep).budget == len(LISTED)
    assert with_screen(folder, make_sweep(tmp_path, *BASE, "policy.watermark=0.1")).screen is None
    path.write_text(path.read_text()[:100])
    assert with_screen(folder, sweep).screen is None


def test_what_was_measured_stands_beside_what_was_screened(tmp_path):
    sweep = screened(tmp_path)
    ran = drive(tmp_path / "out", sweep, answer=answer)
    outcome = conclude(ran.folder, sweep).outcome
    found = load_screen(ran.folder)
    assert (found.measured, found.tau, found.regret, found.dropped) == (7, pytest.approx(1.0), 0.0, "")
    assert {row.measured for row in found.rows if row.role is None} == {None}
    assert all(row.measured == row.value for row in found.rows if row.role is not None)
    assert any("Kendall's tau 1.00 over 7 measured candidates" in note for note in outcome.notes)


def test_candidates_that_all_came_to_the_same_are_said_to_be_alike_and_not_few(tmp_path):
    """What went wrong: seven that were equal were `too few to compare`."""
    sweep = screened(tmp_path)
    ran = drive(tmp_path / "out", sweep, answer=lambda job: make_result(100.0))
    notes = conclude(ran.folder, sweep).outcome.notes
    assert any("7 candidates measured: all came to the same, so there is no order" in note for note in notes)


def test_nothing_is_compared_where_nothing_was_screened(tmp_path):
    sweep = make_sweep(tmp_path)
    assert compared(SweepFolder(tmp_path), sweep, []) == ""


def test_a_real_screen_sees_every_candidate_on_the_simulator_and_leaves_only_its_answer(tmp_path, capsys):
    sweep, folder = make_sweep(tmp_path, *BASE), SweepFolder(tmp_path / "out")
    folder.path.mkdir()
    standing = screen_first(folder, sweep)
    assert len(standing.screen.said) == 16
    assert [p.name for p in folder.path.iterdir()] == ["screen.json"]
    said = capsys.readouterr().err
    assert "16 replays of about" in said
    assert "16 of 16 candidates simulated" in said
    seconds = json.loads((folder.path / "screen.json").read_text())["seconds"]
    assert screen_first(folder, sweep) == standing  # read, not run again
    assert json.loads((folder.path / "screen.json").read_text())["seconds"] == seconds


def test_a_window_is_shortened_to_a_share_of_its_requests_but_never_below_fifty(tmp_path):
    write_trace(tmp_path / "t.parquet", rows=200)
    trace, base = load_trace(tmp_path / "t.parquet"), make_sweep(tmp_path).space.base
    window, requests, share = shortened(trace, base, None, 0.4)
    assert (requests, share, window.start) == (80, 0.4, 0)
    at = trace.arrival_ns - trace.arrival_ns[0]
    assert int((at < window.start + window.duration).sum()) == 80
    assert shortened(trace, base, None, 0.01)[1:] == (50, 0.25)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["screen={step_time: roofline:h1000}"], "h1000"),
        (["screen={step_time: table:nowhere.json}"], "screen.step_time"),
        (["screen={step_time: roofline:b200, keep: 0}"], "keep"),
        (["screen={step_time: roofline:b200, budget: 0s}"], "budget"),
        (["screen={step_time: roofline:b200, keeps: 0.1}"], "keeps"),
        (
            [
                "screen={step_time: roofline:b200}",
                "space={vary: {policy.watermark: {range: [0, 0.2]}}}",
                "trials=9",
            ],
            "a continuous range",
        ),
    ],
)
def test_a_screen_that_cannot_be_is_refused_before_anything_runs(tmp_path, sets, words):
    with pytest.raises(SpecError, match=words):
        make_sweep(tmp_path, *sets)


TABLE = {
    "format": "kvknee step times 1", "engine_hash": "f" * 64, "step_ns": 1000,
    "layers": {"tokens": [1, 101], "ns": [100, 200]}, "head": {"rows": [1, 11], "ns": [50, 60]},
    "decode_attention": {"num_decodes": [1, 11], "mean_context": [0, 100], "ns": [[0, 100], [0, 1100]]},
    "prefill_attention": {"chunk_tokens": [1, 101], "mean_before": [0, 1000], "ns": [[10, 20], [110, 520]]},
}  # fmt: skip


def test_a_table_of_another_engine_is_refused(tmp_path):
    (tmp_path / "table.json").write_text(json.dumps(TABLE))
    own = ("screen.step_time=table:table.json", "engine={name: torch_paged}", "model=qwen3-0.6b")
    sweep = make_sweep(tmp_path, *BASE, *own)
    assert sweep.config.screen.step_time == f"table:{tmp_path / 'table.json'}"
    with pytest.raises(SpecError, match="measured on ffffffffffff"):
        screen_first(SweepFolder(tmp_path / "out"), sweep)
