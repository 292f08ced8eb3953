"""Laws of a sweep's ends: what is held is counted, nothing is begun that would pass the limit, nothing is lost."""

import datetime

import pytest
from fake_rooms import FakeExecutor, Fuse, FusedFolder, FusedTracker, FusedViewer, drive, make_sweep

from orchestrator.conclude import outcome_of
from orchestrator.folder import write_text
from orchestrator.limits import Limits, parse_until, read_limits, rules, slot_seconds
from orchestrator.stopping import Standing
from orchestrator.sweep import Driver, Rooms
from trials.units import SpecError

NOW = datetime.datetime(2026, 11, 30, 22, 15)


def at(now_s=0.0, slot_s=0.0, mean_s=None):
    return Standing(now_s, 0, 0, slot_s, mean_s)


def test_gpu_hours_count_every_gpu_of_a_slot_and_slot_hours_where_there_is_none():
    assert Limits(gpu_hours=1.0, devices=4).over(at(slot_s=899)) is None
    assert Limits(gpu_hours=1.0, devices=4).over(at(slot_s=900)) == "1 GPU-hours are used"
    assert Limits(gpu_hours=1.0).over(at(slot_s=3600)) == "1 slot-hours are used"


def test_what_earlier_drivers_held_counts():
    assert Limits(gpu_hours=1.0, spent_s=3000).over(at(slot_s=600)) is not None
    assert Limits(gpu_hours=1.0, spent_s=3000).over(at(slot_s=599)) is None


def test_a_trial_that_would_end_past_the_limit_is_not_begun():
    limits = Limits(until_s=1000.0)
    assert limits.no_more(at(now_s=800, mean_s=150)) is None
    assert "another trial would pass it" in (limits.no_more(at(now_s=900, mean_s=150)) or "")
    assert limits.over(at(now_s=900, mean_s=150)) is None
    assert limits.over(at(now_s=1000)) is not None


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("07:30", datetime.datetime(2026, 12, 1, 7, 30)),
        ("23:00", datetime.datetime(2026, 11, 30, 23, 0)),
        ("2026-12-02T06:00", datetime.datetime(2026, 12, 2, 6, 0)),
        ("90min", datetime.datetime(2026, 11, 30, 23, 45)),
    ],
)
def test_a_time_of_day_is_the_next_one(text, when):
    assert parse_until(text, NOW) == when.timestamp()


@pytest.mark.parametrize("text", ["tomorrow", "25:00", "2026-11-30T20:00", "8", ""])
def test_a_time_that_is_none_or_has_passed_is_refused(text):
    with pytest.raises(SpecError, match="--until"):
        parse_until(text, NOW)


@pytest.mark.parametrize("hours", [0.0, -1.0, float("inf"), float("nan")])
def test_hours_are_a_number_above_zero(hours):
    with pytest.raises(SpecError, match="--gpu-hours"):
        read_limits(hours, None)


def drive_within(path, sweep, limits, clock):
    """A driver under limits, with its clock."""
    fuse = Fuse()
    path.mkdir(parents=True, exist_ok=True)
    executor = FakeExecutor(sweep, fuse=fuse)
    rooms = Rooms(FusedFolder(path, fuse), executor, FusedTracker(fuse), FusedViewer(fuse), "b1", clock)
    driver = Driver(sweep, rooms, *rules(limits, sweep, rooms.folder))
    driver.run()
    return driver, rooms


def test_a_sweep_that_is_ended_has_an_answer_and_goes_on_later_to_exactly_its_budget(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]")
    ticks = iter(range(10_000))
    driver, rooms = drive_within(tmp_path / "out", sweep, Limits(until_s=12.0), lambda: float(next(ticks)))
    assert driver.stopped is not None
    early = rooms.folder.load_trials()
    done = [r for r in early if r.state == "complete"]
    assert 0 < len(done) < sweep.budget
    assert outcome_of(early, sweep).candidates
    drive(tmp_path / "out", sweep)
    records = rooms.folder.load_trials()
    assert [r.state for r in records] == ["complete"] * sweep.budget
    assert [r.attempts[0].result for r in records[: len(done)]] == [r.attempts[0].result for r in done]


def test_slot_seconds_are_those_of_every_attempt_that_stands(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]", "trials=2")
    faults = iter([("node died", True)])
    from fake_rooms import by_block_size

    ran = drive(tmp_path / "out", sweep, answer=lambda job: next(faults, None) or by_block_size(job))
    for record in ran.records:
        for attempt in record.attempts:
            name = "lost.json" if attempt.result is None else "attempt.json"
            key = "wall_s" if attempt.result is None else "held_s"
            write_text(attempt.folder / name, f'{{"reason": "x", "{key}": 5.0}}')
    assert slot_seconds(ran.folder.load_trials()) == 15.0


def test_a_sweep_that_used_its_hours_says_so_and_how_to_go_on(tmp_path):
    from fake_rooms import SWEEP, write_trace
    from typer.testing import CliRunner

    from orchestrator.cli import app

    write_trace(tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text(SWEEP + "controls: []\n")
    out = str(tmp_path / "out")
    ended = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "--gpu-hours", "0.000001", "-o", out])
    assert ended.exit_code in (0, 3), ended.output
    assert f"1e-06 slot-hours are used; go on with: kvknee resume {out}" in " ".join(ended.stderr.split())
    early = [r.state for r in FusedFolder(tmp_path / "out", Fuse()).load_trials()]
    assert early.count("complete") < 6
    assert CliRunner().invoke(app, ["resume", out]).exit_code == 0
    assert [r.state for r in FusedFolder(tmp_path / "out", Fuse()).load_trials()] == ["complete"] * 6
