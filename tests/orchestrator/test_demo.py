"""The demo: its train and windows, its calibration, its checks, and (slow) the whole of it in small."""

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_sweep import build

from orchestrator import demo, demo_calibration
from orchestrator.demo_calibration import calibrate, limits, repeats
from orchestrator.demo_checks import FEWEST_BLOCK_SIZES, checks, largest_residual
from orchestrator.demo_plan import DemoPlan, load_plan
from orchestrator.entries import SweepEntry, TrialEntry
from orchestrator.folder import SweepFolder, read_attempt
from orchestrator.tracking import open_mlflow
from orchestrator.windows import repeat_windows, rows_in
from trials.load import offer
from trials.slo import parse_slo
from trials.units import SpecError

GAPS_NS = (20_000_001, 105_000_000, 999_999_999)


@pytest.fixture
def plan() -> DemoPlan:
    return load_plan()


# the train


@pytest.mark.parametrize("gap_ns", GAPS_NS)
def test_the_same_requests_stand_in_the_same_windows_at_any_rate(plan: DemoPlan, gap_ns: int) -> None:
    trace = plan.train.trace(gap_ns)
    spec = plan.trial({"path": "/t.parquet"} | plan.train.first_window(gap_ns), "ttft:p90<1s")
    windows = repeat_windows(trace, spec.trace.window, plan.train.windows)
    first, size = plan.train.warmup, sum(plan.train.window)
    for number, window in enumerate(windows):
        assert rows_in(trace, window).tolist() == list(range(first + number * size, first + (number + 1) * size))
    assert np.array_equal(trace.num_prompt_tokens, plan.train.trace(GAPS_NS[0]).num_prompt_tokens)


@pytest.mark.parametrize("number", [0, 1])
def test_a_burst_that_is_not_counted_warms_each_window_up(plan: DemoPlan, number: int) -> None:
    gap_ns = 50_000_000
    trace = plan.train.trace(gap_ns)
    spec = plan.trial({"path": "/t.parquet"} | plan.train.first_window(gap_ns), "ttft:p90<1s").trace
    window = repeat_windows(trace, spec.window, plan.train.windows)[number]
    asked = offer(trace, spec.model_copy(update={"window": window}), plan.trial({"path": "/t"}, "ttft:p90<1s").measure.load, "steady")  # noqa: E501  # fmt: skip
    assert asked.counted.sum() == sum(plan.train.window)
    assert plan.train.warmup <= asked.num_warmup <= plan.train.warmup + max(plan.train.window)


def test_the_largest_burst_alone_is_that_of_the_train(plan: DemoPlan) -> None:
    assert len(plan.train.largest_burst(1_000_000)) == max(plan.train.sizes)


def test_the_demo_measures_enough_block_sizes_and_both_controls(plan: DemoPlan) -> None:
    sizes = plan.sweep["space"]["vary"]["policy.block_size"]["one_of"]
    assert len(sizes) >= FEWEST_BLOCK_SIZES
    assert {"contiguous", "one_block"} <= set(plan.sweep["controls"])
    assert plan.num_points == len(sizes) + 2
    assert sum(plan.calibration.utilisation) == pytest.approx(3 * plan.calibration.utilisation[1])


# the calibration, on a made-up machine


class Machine:
    """Serves a request in `service_ms`; its trials are read as the demo reads real ones."""

    def __init__(self, service_ms: float, probes: tuple[float, ...] = (0.3,)) -> None:
        self.service_ms, self.probes, self.runs = service_ms, list(probes), 0
        self.gap_ms = 0.0

    def run(self, plan: DemoPlan, trace: dict, out: Path) -> demo_calibration.Seen:
        self.runs += 1
        probe = self.probes.pop(0) if len(self.probes) > 1 else self.probes[0]
        attempt = SimpleNamespace(probe_s=probe, info={"wall_s": 7.0}, folder=out)
        metrics = SimpleNamespace(ttft_ms=SimpleNamespace(p90=200.0), tpot_ms=SimpleNamespace(p90=10.0))
        replay = SimpleNamespace(metrics=metrics, clock="cpu")
        if "window" not in trace:
            size = max(plan.train.sizes)
            return demo_calibration.Seen(attempt, replay, size * self.service_ms / 1e3 * 0.8, 0.0, 1.0)
        size = sum(plan.train.window)
        window_s = int(trace["window"]["duration"].removesuffix("ns")) / 1e9
        self.gap_ms = window_s / size * 1e3
        busy = size * self.service_ms / 1e3
        return demo_calibration.Seen(attempt, replay, busy, busy, window_s)


def _calibrated(machine: Machine, plan: DemoPlan, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo_calibration, "run_seen", machine.run)
    said: list[str] = []
    found, trace = calibrate(plan, folder / "calibration", said.append)
    return found, trace, said


@pytest.mark.parametrize("service_ms", [5.0, 45.0, 300.0])
def test_any_machine_comes_to_the_utilisation_that_was_asked_for(
    plan: DemoPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service_ms: float
) -> None:
    found, trace, _ = _calibrated(Machine(service_ms), plan, tmp_path, monkeypatch)
    assert 0.75 <= found.utilisation <= 0.85
    assert service_ms / found.gap_ms_per_request == pytest.approx(0.80, abs=0.05)
    assert trace == tmp_path / "trace.parquet"
    assert parse_slo(found.slo).ttft_ns == 400_000_000
    assert parse_slo(found.slo).attainment == 0.9


def test_a_reference_at_another_speed_is_measured_again(
    plan: DemoPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(45.0, probes=(0.30, 0.30, 0.36, 0.30))
    found, _, said = _calibrated(machine, plan, tmp_path, monkeypatch)
    assert any("off by +20%" in line for line in said)
    assert machine.runs == 4
    assert found.calibration_probes_s == (0.30, 0.30, 0.36, 0.30)


def test_a_machine_that_never_settles_is_refused_in_words(
    plan: DemoPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match="too busy to measure on"):
        _calibrated(Machine(45.0, probes=(0.3, 0.5, 0.9, 1.6, 3.0)), plan, tmp_path, monkeypatch)


def test_where_only_the_speed_is_unusual_the_load_is_taken_and_that_is_said(
    plan: DemoPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(45.0, probes=(0.3, 0.3, 0.5, 0.9, 1.6))
    found, _, said = _calibrated(machine, plan, tmp_path, monkeypatch)
    assert "no steady speed was found" in said[-1]
    assert 0.75 <= found.utilisation <= 0.85


def test_two_windows_are_measured_only_where_they_fit_into_the_time(plan: DemoPlan) -> None:
    fits = plan.calibration.sweep_seconds / (plan.num_points * plan.train.windows)
    assert repeats(plan, fits * 0.99) == plan.train.windows
    assert repeats(plan, fits * 1.01) == 1


def test_limits_are_what_was_seen_with_slack(plan: DemoPlan) -> None:
    slo = parse_slo(limits(plan.calibration, 193.7, 9.61))
    assert (slo.ttft_ns, slo.mean_gap_ns) == (390_000_000, 14_000_000)


def test_what_was_found_is_kept_in_the_sweep(
    plan: DemoPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_calibration, "run_seen", Machine(45.0).run)
    sweep = demo._calibrated(tmp_path, plan)
    assert sweep.config.calibration["utilisation"] == pytest.approx(0.8, abs=0.05)
    assert sweep.config.slo == sweep.config.calibration["slo"]
    assert sweep.config.engine.clock == "cpu"
    assert sweep.budget == 7 * sweep.config.repeats


# the checks


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """A sweep's folder with its MLflow database."""
    sweep = build(tmp_path_factory.mktemp("demo") / "sweep")
    tracker = open_mlflow(sweep.path, "demo")
    tracker.record(SweepEntry("demo"))
    for record in sweep.load_trials():
        for attempt in record.attempts:
            tracker.record(
                TrialEntry(record.number, attempt.number, record.spec, attempt.result, attempt.folder, 0, 1)
            )
    tracker.record(SweepEntry("demo", status="FINISHED"))
    assert tracker.close(60.0) == 0
    return sweep


def _holds(folder: SweepFolder) -> dict[str, bool]:
    return {c.name: c.holds for c in checks(folder)}


def test_ledgers_and_memory_of_an_untouched_folder_hold_and_labels_are_read(remembered: SweepFolder) -> None:
    found = _holds(remembered)
    assert found["ledger"]
    assert found["device"]
    assert found["mlflow"]
    assert not found["labels"]  # it was made by the simulator: nothing in it was measured
    assert not found["trials"]  # three block sizes, one control


def test_one_byte_that_no_account_holds_breaks_the_ledger(remembered: SweepFolder) -> None:
    path = remembered.attempt(0, 1) / "ledger.parquet"
    whole = path.read_bytes()
    table = pq.read_table(path)
    free = table["free"].to_numpy().copy()
    free[-1] -= 1
    place = table.column_names.index("free")
    pq.write_table(table.set_column(place, "free", pa.array(free)), path)
    try:
        assert largest_residual(read_attempt(path.parent, 1))[0] == 1
        assert not _holds(remembered)["ledger"]
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "damage",
    [
        "delete from tags where key = 'kvknee.engine_hash' and run_uuid in "
        "(select run_uuid from tags where key = 'kvknee.trial' and value = '3')",
        "update runs set lifecycle_stage = 'deleted' where run_uuid in "
        "(select run_uuid from tags where key = 'kvknee.trial' and value = '3')",
        "delete from tags where key = 'mlflow.parentRunId' and run_uuid in "
        "(select run_uuid from tags where key = 'kvknee.trial' and value = '3')",
    ],
    ids=["a hash tag is gone", "a child is gone", "a child has no parent"],
)
def test_memory_that_lost_anything_is_noticed(remembered: SweepFolder, damage: str) -> None:
    whole = remembered.mlflow_db.read_bytes()
    with closing(sqlite3.connect(remembered.mlflow_db)) as connection, connection:
        assert connection.execute(damage).rowcount == 1
    try:
        assert not _holds(remembered)["mlflow"]
    finally:
        remembered.mlflow_db.write_bytes(whole)


# where it runs


def test_a_finished_demo_is_left_alone_and_an_interrupted_one_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "demo"
    assert demo._continued(out) == (out, None)
    SweepFolder(out).sweep_yaml.parent.mkdir()
    SweepFolder(out).sweep_yaml.write_text("name: demo\n")
    monkeypatch.setattr(demo, "stored", lambda path: f"the sweep in {path.name}")
    monkeypatch.setattr(demo, "_finished", lambda folder, sweep: False)
    assert demo._continued(out) == (out, "the sweep in demo")
    monkeypatch.setattr(demo, "_finished", lambda folder, sweep: True)
    assert demo._continued(out) == (tmp_path / "demo-2", None)


# the whole


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_the_whole_demo_in_small_ends_with_ledgers_that_balance(
    plan: DemoPlan, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train = plan.train.model_copy(update={"warmup": 6, "window": (8, 12, 6), "windows": 1})
    aims = plan.calibration.model_copy(update={"utilisation": (0.5, 0.8, 0.95)})
    space = plan.sweep["space"] | {"vary": {"policy.block_size": {"one_of": [1, 4, 8, 16, 64, 256]}}}
    small = replace_plan(plan, train, aims, space)
    code = demo.demo(tmp_path / "demo", small)
    said = capfd.readouterr().out
    assert code in (0, 3), said
    assert "BROKEN" not in said
    assert all(_holds(SweepFolder(tmp_path / "demo")).values())


def replace_plan(plan: DemoPlan, train: object, aims: object, space: dict) -> DemoPlan:
    """The plan with a smaller train; the pool shrinks with it, so that it still fills."""
    sweep = plan.sweep | {"space": space, "pool": {"bytes": "13MiB"}}
    return plan.model_copy(update={"train": train, "calibration": aims, "sweep": sweep})
