"""A store that was deleted or damaged is made anew from result files: the same runs, none lost, none twice."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fake_rooms import SWEEP, FakeExecutor, by_block_size, make_sweep
from mlflow_store import Run, runs_of

from orchestrator.conclude import Conclusion, conclude
from orchestrator.config import Sweep
from orchestrator.executors import Job
from orchestrator.folder import SweepFolder
from orchestrator.opening import check_tracking, prepare_folder
from orchestrator.progress import Silent
from orchestrator.rebuild import rebuild_tracking, send_waiting
from orchestrator.remembered import begun_entry, ended_entry
from orchestrator.sweep import Driver, Rooms
from orchestrator.tracking import MlflowTracker
from trials.units import SpecError


def unlucky(job: Job) -> object:
    """Block size 8 breaks the engine, 32 is lost once by the machine; the rest answers."""
    if job.spec.policy.block_size == 8:
        return "ended with exit code 1: see log.txt", False
    if job.spec.policy.block_size == 32 and job.attempt == 1:
        return "its node died", True
    return by_block_size(job)


@dataclass
class Ran:
    folder: SweepFolder
    sweep: Sweep
    found: Conclusion

    def elsewhere(self, name: str) -> "Ran":
        """The folder under another name: in one process, MLflow keeps a database open that it has met."""
        moved = SweepFolder(self.folder.path.rename(self.folder.path.with_name(name)))
        return Ran(moved, self.sweep, self.found)

    def runs(self, uri: str | None = None) -> dict[str, Run]:
        mark = (self.folder.path / "spool" / "sweep_id").read_text().strip()
        return runs_of(uri or f"sqlite:///{self.folder.mlflow_db}", "toy", mark)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, which take seconds to make, and nothing in them: another test's experiment would say where artifacts
    go."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def ran(tmp_path: Path, database: Path) -> Ran:
    """A sweep with a failed, a lost and good attempts, remembered while it ran."""
    sweep = make_sweep(tmp_path, text=SWEEP.replace("tracking: null\n", ""))
    (tmp_path / "out").mkdir()
    shutil.copy(database, tmp_path / "out" / "mlflow.db")
    folder = prepare_folder(tmp_path / "out", sweep)
    tracker = MlflowTracker(folder.path, experiment="toy")
    tracker.record(begun_entry(folder, sweep))
    Driver(sweep, Rooms(folder, FakeExecutor(sweep, answer=unlucky), tracker, Silent(), "b1")).run()
    found = conclude(folder, sweep)
    tracker.record(ended_entry(folder, sweep, found.outcome, None))
    assert tracker.close(120) == 0, tracker.trouble
    return Ran(folder, sweep, found)


@pytest.mark.slow  # beside the next: making a database's tables takes seconds
def test_a_deleted_store_comes_back_with_the_same_runs(ran: Ran) -> None:
    before = ran.runs()
    statuses = {name: (run.status, run.tags["kvknee.status"]) for name, run in before.items() if name != "toy"}
    assert sorted(set(statuses.values())) == [("FAILED", "failed"), ("FINISHED", "complete"), ("KILLED", "lost")]
    assert any("its node died" in run.tags.get("kvknee.reason", "") for run in before.values())
    assert all(run.tags["kvknee.spec_hash"] for name, run in before.items() if name != "toy")
    ran = ran.elsewhere("deleted")
    ran.folder.mlflow_db.unlink()
    shutil.rmtree(ran.folder.path / "artifacts")
    rebuilt = rebuild_tracking(ran.folder, ran.sweep, ran.found)
    assert (rebuilt.runs, rebuilt.unsent, rebuilt.aside) == (len(before) - 1, 0, None)
    assert ran.runs() == before


def test_a_damaged_store_is_moved_aside_not_deleted(ran: Ran) -> None:
    before = ran.runs()
    ran = ran.elsewhere("damaged")
    ran.folder.mlflow_db.write_bytes(b"damaged")
    with pytest.raises(SpecError, match="--rebuild-tracking"):
        check_tracking(ran.folder, ran.sweep)
    rebuilt = rebuild_tracking(ran.folder, ran.sweep, ran.found)
    assert rebuilt.aside is not None
    assert (rebuilt.aside / "mlflow.db").read_bytes() == b"damaged"
    assert list((rebuilt.aside / "artifacts").rglob("result.json"))
    assert ran.runs() == before
    check_tracking(ran.folder, ran.sweep)


def test_runs_that_another_store_lacks_are_made_and_the_others_stay_one(ran: Ran, mlflow_uri: str) -> None:
    from mlflow import MlflowClient

    before = ran.runs()
    tracking = ran.sweep.config.tracking
    assert tracking is not None
    config = ran.sweep.config.model_copy(update={"tracking": tracking.model_copy(update={"uri": mlflow_uri})})
    sweep = replace(ran.sweep, config=config)
    rebuild_tracking(ran.folder, sweep, ran.found)
    client = MlflowClient(mlflow_uri)
    number = client.get_experiment_by_name("toy").experiment_id
    (first, *_) = client.search_runs([number], "tags.`kvknee.trial` = '0'")
    client.delete_run(first.info.run_id)
    again = rebuild_tracking(ran.folder, sweep, ran.found)
    assert again.unsent == 0
    found = ran.runs(mlflow_uri)
    assert found.keys() == before.keys()
    assert {n: r.metrics for n, r in found.items()} == {n: r.metrics for n, r in before.items()}


def test_a_sweep_without_tracking_has_nothing_to_rebuild(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    folder = prepare_folder(tmp_path / "out", sweep)
    with pytest.raises(SpecError, match="tracking: null"):
        rebuild_tracking(folder, sweep, conclude(folder, sweep))


def test_report_sends_what_an_unreachable_store_missed(ran: Ran) -> None:
    before = ran.runs()
    (ran.folder.path / "spool" / "sent.log").write_bytes(b"")
    done = send_waiting(ran.folder, ran.sweep)
    assert done is not None
    assert (done.unsent, done.trouble) == (0, "")
    assert ran.runs() == before
    assert send_waiting(ran.folder, ran.sweep) is None
