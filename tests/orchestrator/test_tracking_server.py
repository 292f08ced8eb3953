"""A real MLflow server, killed and started again in the middle of a sweep, ends with the runs that sqlite has."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_rooms import SWEEP, write_trace
from mlflow_store import Server, runs_of

from orchestrator.cli_sweep import run_sweep
from orchestrator.config import Sweep
from orchestrator.folder import SweepFolder
from orchestrator.reproduce import at_hand, reproduce
from orchestrator.resolve import load_sweep


def sweep_in(folder: Path, *sets: str) -> Sweep:
    write_trace(folder / "t.parquet", rows=60, gap_s=1.0)
    (folder / "s.yaml").write_text(SWEEP.replace("tracking: null\n", ""))
    return load_sweep(folder / "s.yaml", ["controls=[contiguous]", "executor.slots=2", *sets])


def sweep_id(folder: Path) -> str:
    return (folder / "spool" / "sweep_id").read_text().strip()


@pytest.fixture
def database(mlflow_uri: str) -> Path:
    """One that has its tables: making them takes seconds."""
    from mlflow import MlflowClient

    MlflowClient(mlflow_uri).search_experiments()
    return Path(mlflow_uri.removeprefix("sqlite:///"))


@pytest.fixture
def server(tmp_path: Path, database: Path) -> Iterator[Server]:
    server = Server(tmp_path / "server")
    shutil.copy(database, server.folder / "server.db")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def outage(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The server dies when two trials are done and is back when five are; what happened, in words."""
    happened: list[str] = []
    done: set[int] = set()
    before = SweepFolder.save_card

    def save_card(self: SweepFolder, card) -> None:
        before(self, card)
        if card.state != "running":
            done.add(card.number)
        if len(done) == 2 and not happened:
            server.kill()
            happened.append("killed")
        if len(done) == 5 and happened == ["killed"]:
            server.start()
            happened.append("started")

    monkeypatch.setattr(SweepFolder, "save_card", save_card)
    return happened


@pytest.mark.slow  # two starts of a server and two sweeps: a minute on two quiet cores
def test_a_server_killed_and_started_again_ends_with_the_runs_of_sqlite_and_its_champion_reproduces(
    server: Server, outage: list[str], database: Path, tmp_path: Path
) -> None:
    served = sweep_in(tmp_path, f"tracking.uri={server.uri}")
    assert run_sweep(tmp_path / "served", served, True, lambda _: None) == 0
    assert outage == ["killed", "started"]

    (tmp_path / "plain").mkdir()
    shutil.copy(database, tmp_path / "plain" / "mlflow.db")
    assert run_sweep(tmp_path / "plain", sweep_in(tmp_path), True, lambda _: None) == 0
    expected = runs_of(f"sqlite:///{tmp_path}/plain/mlflow.db", "toy", sweep_id(tmp_path / "plain"))
    found = runs_of(server.uri, "toy", sweep_id(tmp_path / "served"))
    assert len(expected) == 1 + 6 + 2
    assert found.keys() == expected.keys()
    for name, run in expected.items():
        assert found[name] == run
    assert {run.status for run in found.values()} == {"FINISHED"}

    shutil.rmtree(tmp_path / "served")  # a node that has nothing but the package and the server's address
    (tmp_path / "t.parquet").unlink()
    with at_hand("models:/toy@champion", server.uri) as recipe:
        again = reproduce(recipe, None)
    assert again.exit_code == 0, again.lines
