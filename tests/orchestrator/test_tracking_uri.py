"""A tracking URI is absolute, holds no password where it is kept, and is given it back from the environment."""

import sqlite3
from pathlib import Path

import pytest
import yaml
from fake_rooms import make_sweep

from orchestrator import cli_sweep
from orchestrator.cli_sweep import run_sweep
from orchestrator.config import TrackingSpec
from orchestrator.folder import SweepFolder
from orchestrator.opening import check_tracking, prepare_folder
from orchestrator.sweep_file import stored_sweep, sweep_yaml
from orchestrator.tracking_check import NotReachable, check_store
from orchestrator.tracking_uri import revealed, settled
from trials.units import SpecError

DSN, SHOWN = "postgresql://me:s3cret-pw@db:5432/runs", "postgresql://me:***@db:5432/runs"


def test_a_relative_database_is_made_absolute_under_the_sweeps_own_folder(tmp_path: Path) -> None:
    assert settled("sqlite:///runs/a.db", tmp_path) == f"sqlite:///{tmp_path}/runs/a.db"
    assert settled("sqlite:////srv/a.db", tmp_path) == "sqlite:////srv/a.db"
    for uri in ("http://host:5000", "https://host/mlflow", DSN, "env:WHERE", "databricks://profile"):
        assert settled(uri, tmp_path) == uri


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("mlruns", "no longer keeps runs in a folder"),
        ("file:///tmp/mlruns", r"sqlite:////tmp/mlruns/mlflow\.db"),
        ("sqlite:///:memory:", "a file is needed"),
        ("sqlite://", "a file is needed"),
        ("htp://host", "http"),
        ("http:///x", "no host"),
    ],
)
def test_what_mlflow_cannot_use_is_refused_with_what_it_can(uri: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=words):
        settled(uri, tmp_path)


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a folder"):
        settled(f"sqlite:///{tmp_path}", tmp_path)


def test_a_password_is_taken_from_the_environment_of_the_same_server_only() -> None:
    assert revealed(SHOWN, {"MLFLOW_TRACKING_URI": DSN}) == DSN
    for env in ({}, {"MLFLOW_TRACKING_URI": "postgresql://me:s3cret-pw@other/runs"}):
        with pytest.raises(SpecError, match="its password or token is not kept on disk"):
            revealed(SHOWN, env)
    assert revealed("env:WHERE", {"WHERE": DSN}) == DSN
    with pytest.raises(SpecError, match="WHERE is not set"):
        revealed("env:WHERE", {})


def test_a_token_in_the_users_place_is_not_kept_either_and_taken_from_the_environment() -> None:
    for whole, kept in (
        ("https://glpat-s3cret@host/mlflow", "https://***@host/mlflow"),
        ("https://ghp_s3cret:@host/mlflow", "https://***:@host/mlflow"),
    ):
        spec = TrackingSpec(uri=whole)
        assert spec.model_dump()["uri"] == kept
        assert revealed(kept, {"MLFLOW_TRACKING_URI": whole}) == whole
        with pytest.raises(SpecError, match="is not kept on disk"):
            revealed(kept, {})


def test_sweep_yaml_holds_the_uri_without_its_password_and_reads_back(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, f"tracking.uri={DSN}")
    assert sweep.config.tracking is not None
    assert sweep.config.tracking.uri == DSN
    text = sweep_yaml(sweep)
    assert "s3cret-pw" not in text + repr(sweep.config) + sweep.config.model_dump_json()
    assert yaml.safe_load(text)["tracking"] == {"uri": SHOWN}
    (tmp_path / "sweep.yaml").write_text(text)
    again = stored_sweep(tmp_path / "sweep.yaml")
    assert again.config.tracking is not None
    assert again.config.tracking.uri == SHOWN


def test_nobody_listening_is_said_before_the_first_trial_and_nothing_is_written(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "tracking.uri=http://me:s3cret-pw@127.0.0.1:9")
    with pytest.raises(NotReachable, match=r"http://me:\*\*\*@127\.0\.0\.1:9: no answer") as refused:
        run_sweep(tmp_path / "out", sweep, False, lambda _: None)
    assert "s3cret-pw" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_deleted_experiment_is_said_with_the_way_to_restore_it(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT)")
        database.execute("INSERT INTO experiments VALUES (7, 'gone', 'deleted'), (8, 'here', 'active')")
    check_store(f"sqlite:///{path}", "here")
    check_store(f"sqlite:///{path}", "new")
    with pytest.raises(SpecError, match="mlflow experiments restore -x 7"):
        check_store(f"sqlite:///{path}", "gone")


def test_a_damaged_database_is_said_with_the_way_to_rebuild_it(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(SpecError, match="--rebuild-tracking"):
        check_store(f"sqlite:///{path}", "any")


def test_a_file_where_a_folder_is_needed_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotReachable):
        check_store(f"sqlite:///{tmp_path}/file/m.db", "any")


class Slow:
    """A tracker with `left` entries, of which each wait sends `goes` until none goes any more."""

    def __init__(self, left: int, goes: list[int]) -> None:
        self.left, self.goes, self.waits = left, goes, 0

    def record(self, entry: object) -> None:
        raise AssertionError

    def close(self, timeout_s: float) -> int:
        self.waits += 1
        self.left -= self.goes.pop(0) if self.goes else 0
        return self.left


def test_a_long_queue_is_waited_for_while_it_moves_and_a_dead_server_is_not() -> None:
    moving, dead, none = Slow(10, [4, 4, 2]), Slow(10, [0]), Slow(0, [])
    assert (cli_sweep._sent(moving), moving.waits) == (0, 3)
    assert (cli_sweep._sent(dead), dead.waits) == (10, 2)
    assert (cli_sweep._sent(none), none.waits) == (0, 1)


def test_a_sweep_that_has_begun_goes_on_without_its_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep(tmp_path, "tracking.uri=http://me:s3cret-pw@127.0.0.1:9")
    folder = SweepFolder(tmp_path / "out")
    folder.trials.mkdir(parents=True)
    check_tracking(folder, sweep)
    said = capsys.readouterr().err
    assert "no answer" in said
    assert "/spool until it answers" in said
    assert "s3cret-pw" not in said


def test_a_folder_that_is_run_with_another_store_is_resumed_with_that_one(tmp_path: Path) -> None:
    """sweep.yaml kept the first: a run moved to a server after a typo was resumed without it."""
    for uri in ("sqlite:///first.db", "http://host:5000"):
        folder = prepare_folder(tmp_path / "out", make_sweep(tmp_path, f"tracking.uri={uri}"))
        stored = stored_sweep(folder.sweep_yaml).config.tracking
        assert stored is not None
        assert stored.uri == settled(uri, tmp_path)
