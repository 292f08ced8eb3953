"""Running a recipe again: what holds, and what is named when something moved."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from made_sweep import build

import trials
from orchestrator.folder import SweepFolder
from orchestrator.recipe import load_recipe, write_recipe
from orchestrator.reproduce import reproduce, run_package
from trials.result import load_result, save_result
from trials.spec import TrialSpec
from trials.tables import read_locks
from trials.trace import load_trace, save_trace
from trials.units import SpecError
from trials.worker import run_trial


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    sweep = build(tmp_path_factory.mktemp("reproduce") / "sweep")
    write_recipe(sweep.path)
    return sweep


@pytest.fixture
def sweep(made: SweepFolder, tmp_path: Path) -> SweepFolder:
    """A copy with the trace where the recipe looks first."""
    shutil.copytree(made.path, tmp_path / "sweep")
    shutil.copy(made.path.parent / "made.parquet", tmp_path)
    return SweepFolder(tmp_path / "sweep")


def again(spec: TrialSpec, out: Path, lock: Path | None) -> str:
    """The trial in this process: quick, and honest where a new process is not the point."""
    out.mkdir(parents=True, exist_ok=True)
    run_trial(spec, out, read_locks(lock) if lock is not None else None)
    return ""


def edit_ledger(spec: TrialSpec, out: Path, lock: Path | None) -> str:
    """A build whose tail slack differs by a block's worth from step 17 of the steady replay on."""
    again(spec, out, lock)
    table = pq.read_table(out / "ledger.parquet")
    later = (np.asarray(table["step"]) >= 17) & (np.asarray(table["phase"].to_pylist()) == "steady")
    at = table.column_names.index("tail_slack")
    pq.write_table(
        table.set_column(at, "tail_slack", pa.array(np.asarray(table["tail_slack"]) + 256 * later)),
        out / "ledger.parquet",
    )
    return ""


def slower(spec: TrialSpec, out: Path, lock: Path | None) -> str:
    """The clocked run's TTFT is 10 % longer."""
    again(spec, out, lock)
    result = load_result(out / "result.json")
    if lock is None and result.metrics.ttft_ms.p99 is not None:
        times = result.metrics.ttft_ms.model_copy(update={"p99": result.metrics.ttft_ms.p99 * 1.1})
        metrics = result.metrics.model_copy(update={"ttft_ms": times})
        save_result(result.model_copy(update={"metrics": metrics}), out / "result.json")
    return ""


def test_a_recipe_reproduces_in_new_processes(sweep: SweepFolder, tmp_path: Path) -> None:
    report = reproduce(sweep.recipe_yaml, tmp_path / "out")
    assert report.exit_code == 0, report.lines
    assert report.ledger_equal
    assert report.lines[-1] == "reproduced"
    locked = load_result(tmp_path / "out" / "locked" / "result.json")
    assert {r.clock for r in locked.replays} == {"steps"}
    assert all(c.inside and c.found == c.expected for c in report.latency)


def test_nothing_is_left_where_no_folder_was_asked_for(sweep: SweepFolder) -> None:
    before = sorted(sweep.path.rglob("*"))
    assert reproduce(sweep.recipe_yaml, None, again).exit_code == 0
    assert sorted(sweep.path.rglob("*")) == before


def test_one_microsecond_in_the_trace_is_named_and_the_run_happens_all_the_same(sweep: SweepFolder) -> None:
    path = sweep.path.parent / "made.parquet"
    trace = load_trace(path)
    save_trace(replace(trace, arrival_ns=trace.arrival_ns + 1000 * (np.arange(len(trace)) == 7)), path)
    report = reproduce(sweep.recipe_yaml, None, again)
    assert report.exit_code == 4
    (part,) = report.parts
    assert part.startswith("trace: arrival_ns (row timestamps) differs: ")
    assert report.ledger_equal
    assert report.latency


def test_one_byte_of_a_deciding_source_is_named_by_file(sweep: SweepFolder, tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(Path(trials.__file__).parent, package / "trials", ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "trials" / "scheduler.py").open("a") as source:
        source.write("#")
    report = reproduce(sweep.recipe_yaml, None, partial(run_package, package))
    assert report.exit_code == 4
    (part,) = report.parts
    assert part.startswith("trials/scheduler.py: ")
    assert " -> " in part
    assert report.ledger_equal
    assert "reproduced" not in report.lines


def test_a_ledger_that_differs_is_named_by_account_and_step(sweep: SweepFolder) -> None:
    report = reproduce(sweep.recipe_yaml, None, edit_ledger)
    assert (report.exit_code, report.ledger_equal) == (4, False)
    assert any(
        x.startswith("ledger: tail_slack differs first at step 17 of steady rate_scale=1") for x in report.lines
    )


def test_a_modelled_latency_must_be_equal(sweep: SweepFolder) -> None:
    report = reproduce(sweep.recipe_yaml, None, slower)
    assert (report.exit_code, report.ledger_equal, report.latency_inside) == (4, True, False)
    assert any("(+10.00%), NOT EQUAL" in line for line in report.lines)


def _promise(sweep: SweepFolder, tolerance: float | None) -> None:
    data = yaml.safe_load(sweep.recipe_yaml.read_text())
    for metric in data["metrics"]:
        metric["tolerance"] = tolerance
    sweep.recipe_yaml.write_text(yaml.safe_dump(data))


@pytest.mark.parametrize(("tolerance", "code"), [(0.05, 4), (0.12, 0), (None, 0)])
def test_a_measured_latency_must_be_inside_what_was_promised(
    sweep: SweepFolder, tolerance: float | None, code: int
) -> None:
    _promise(sweep, tolerance)
    assert reproduce(sweep.recipe_yaml, None, slower).exit_code == code


def test_a_worker_that_dies_is_told_in_its_own_words(sweep: SweepFolder) -> None:
    report = reproduce(sweep.recipe_yaml, None, lambda spec, out, lock: "killed by signal 9")
    assert (report.exit_code, report.ledger_equal) == (4, False)
    assert "step-locked replay: no result: killed by signal 9" in report.lines


def test_an_edited_spec_is_named(sweep: SweepFolder) -> None:
    data = yaml.safe_load(sweep.recipe_yaml.read_text())
    data["spec"]["policy"]["block_size"] = 16
    sweep.recipe_yaml.write_text(yaml.safe_dump(data))
    report = reproduce(sweep.recipe_yaml, None, again)
    assert report.exit_code == 4
    assert report.parts[0].startswith("spec (edited since the recipe was written): ")
    assert not report.ledger_equal


def test_another_environment_is_printed_and_no_failure(sweep: SweepFolder) -> None:
    data = yaml.safe_load(sweep.recipe_yaml.read_text())
    data["environment"]["numpy"] = "1.0"
    sweep.recipe_yaml.write_text(yaml.safe_dump(data))
    report = reproduce(sweep.recipe_yaml, None, again)
    assert report.exit_code == 0
    assert any(x.startswith("environment (no failure by itself): numpy: 1.0 -> ") for x in report.lines)


def test_a_foreign_or_missing_lock_is_refused(sweep: SweepFolder) -> None:
    lock = sweep.path / load_recipe(sweep.recipe_yaml).schedule.file
    lock.write_bytes(lock.read_bytes() + b" ")
    with pytest.raises(SpecError, match="copy the file that belongs to this recipe"):
        reproduce(sweep.recipe_yaml, None, again)
    lock.unlink()
    with pytest.raises(SpecError, match="belongs beside the recipe"):
        reproduce(sweep.recipe_yaml, None, again)


@pytest.mark.parametrize(("probe_s", "exit_code"), [(0.31, 4), (0.40, 0)])
def test_a_machine_that_is_not_as_fast_as_it_was_is_not_blamed_on_the_recipe(
    sweep: SweepFolder, probe_s: float, exit_code: int
) -> None:
    written = yaml.safe_load(sweep.recipe_yaml.read_text())
    written |= {"evidence": "measured", "calibration": {"probe_s": 0.30}}
    sweep.recipe_yaml.write_text(yaml.safe_dump(written))

    def on_another(spec: TrialSpec, out: Path, lock: Path | None) -> str:
        slower(spec, out, lock)
        noted = json.loads((out / "attempt.json").read_text())
        (out / "attempt.json").write_text(json.dumps(noted | {"probe_s": probe_s}))
        return ""

    report = reproduce(sweep.recipe_yaml, None, on_another)
    assert report.exit_code == exit_code, report.lines
    assert report.ledger_equal
    said = [line for line in report.lines if line.endswith("not judged: this machine's speed probe took +33%")]
    assert bool(said) is (exit_code == 0)
