"""Whatever goes wrong between us and a store: one run an attempt, limits kept, no secret, the champion true."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_rooms import write_trace
from test_tracking import Seen, entry_of, result_of, spec_of

from orchestrator import tracking_send
from orchestrator.entries import Content, SweepEntry, TrialEntry
from orchestrator.tracking import Logged, MlflowTracker
from orchestrator.tracking_registry import ALIAS, RECIPE_SHA
from orchestrator.tracking_rows import rows_of
from orchestrator.tracking_runs import connected, files_of, new_files_of
from trials.fingerprint import trace_hash
from trials.trace import load_trace


class AnswerLost(ConnectionError):
    """The store did it; nobody heard."""


class Flaky:
    """A client of which the n-th change is carried out and then not answered; every later call goes well."""

    def __init__(self, client: Any, fails_at: list[int]) -> None:
        self._client, self._fails_at = client, fails_at

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method

        def call(*args: Any, **more: Any) -> Any:
            answer = method(*args, **more)
            if name.startswith(("create", "log", "set", "update", "delete", "put")):
                self._fails_at[0] -= 1
                if self._fails_at[0] == 0:
                    raise AnswerLost(name)
            return answer

        return call


def recipe_in(folder: Path, text: str = "first") -> Path:
    """What the registry needs of a recipe: the names of the files beside it."""
    for name in ("recipe.lock.parquet", "recipe.ledger.parquet"):
        (folder / name).write_bytes(text.encode())
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"name: {text}\nschedule: {{file: recipe.lock.parquet}}\nledger_rows: {{file: recipe.ledger.parquet}}\n"
    )
    return recipe


def content_of(folder: Path) -> Content:
    path = folder / "made.parquet"
    write_trace(path)
    return Content("trace", trace_hash(load_trace(path)), path)


def whole(folder: Path, name: str) -> list[SweepEntry | TrialEntry]:
    begun = SweepEntry(name, params=(("seed", "0"),), content=(content_of(folder),))
    ended = replace(begun, status="FINISHED", recipe=recipe_in(folder), metrics=(("best", 7.0),))
    return [begun, entry_of(folder, 1, 1, result_of()), entry_of(folder, 2, 1, None), ended]


def as_told(seen: Seen) -> dict[str, Any]:
    """All that must not depend on what went wrong."""
    runs = {run.info.run_name: run for run in (seen.parent, *seen.children)}
    return {
        name: (
            run.info.status, run.data.params, run.data.metrics,
            {k: v for k, v in run.data.tags.items() if k.startswith("kvknee.") and k != "kvknee.sweep"},
            sorted(f.path for f in seen.client.list_artifacts(run.info.run_id)),
            [d.dataset.digest for d in run.inputs.dataset_inputs],
        )
        for name, run in runs.items()
    }  # fmt: skip


@pytest.fixture
def lost_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[n]: the n-th change from now on is carried out, and its answer lost."""
    fails_at = [0]
    monkeypatch.setattr(tracking_send, "connected", lambda uri: Flaky(connected(uri), fails_at))
    monkeypatch.setattr(tracking_send, "files_of", lambda *where: Flaky(files_of(*where), fails_at))
    monkeypatch.setattr(tracking_send, "new_files_of", lambda *where: Flaky(new_files_of(*where), fails_at))
    monkeypatch.setattr(tracking_send, "rows_of", lambda client: Flaky(rows_of(client), fails_at))
    return fails_at


@pytest.mark.parametrize("apart", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("at_once", [True, False], ids=["rows", "calls"])
def test_a_request_of_which_the_answer_was_lost_leaves_no_second_run(
    mlflow_uri: str,
    tmp_path: Path,
    lost_answers: list[int],
    apart: int,
    at_once: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not at_once:  # as with a server between
        monkeypatch.setattr(tracking_send, "rows_of", lambda client: None)

    def told(name: str, fails_at: int) -> dict[str, Any]:
        folder = tmp_path / name
        folder.mkdir()
        lost_answers[0] = fails_at
        tracker = MlflowTracker(folder, uri=mlflow_uri)
        for entry in whole(folder, "sweep"):
            tracker.record(entry)
        assert tracker.close(60) == 0, tracker.trouble
        assert ("AnswerLost" in tracker.trouble) == (fails_at > 0 >= lost_answers[0])
        return as_told(Seen(mlflow_uri, folder))

    expected = told("undisturbed", 0)
    changes = -lost_answers[0]
    assert changes > (15 if at_once else 20)
    for at in range(1, changes + 1, apart):
        assert told(f"lost-{at}", at) == expected


def test_the_trace_is_a_dataset_of_every_run_and_its_file_an_artifact_once(mlflow_uri: str, tmp_path: Path) -> None:
    entries = whole(tmp_path, "sweep")
    tracker = MlflowTracker(tmp_path, uri=mlflow_uri)
    for entry in entries:
        tracker.record(entry)
    assert tracker.close(60) == 0, tracker.trouble
    seen = Seen(mlflow_uri, tmp_path)
    digest = content_of(tmp_path).digest
    for run in (seen.parent, *seen.children):
        (used,) = run.inputs.dataset_inputs
        assert (used.dataset.name, used.dataset.digest) == ("made", digest[:32])
        assert {tag.key: tag.value for tag in used.tags}["kvknee.trace_hash"] == digest
    (kept,) = seen.client.list_artifacts(seen.parent.info.run_id, "content")
    assert kept.path == f"content/trace-{digest}.parquet"
    got = seen.client.download_artifacts(seen.parent.info.run_id, kept.path, str(tmp_path))
    assert trace_hash(load_trace(Path(got))) == digest


def test_a_trace_that_changed_is_not_kept_under_the_old_digest(mlflow_uri: str, tmp_path: Path) -> None:
    content = content_of(tmp_path)
    write_trace(content.path, rows=7)
    tracker = MlflowTracker(tmp_path, uri=mlflow_uri)
    tracker.record(SweepEntry("sweep", content=(content,)))
    assert tracker.close(60) == 0, tracker.trouble
    seen = Seen(mlflow_uri, tmp_path)
    assert "changed since the sweep began" in seen.parent.data.tags["kvknee.missing.trace"]
    assert seen.client.list_artifacts(seen.parent.info.run_id, "content") == []


def versions(seen: Seen, name: str) -> dict[str, str]:
    found = seen.client.search_model_versions(f"name = '{name}'")
    return {str(v.version): v.tags[RECIPE_SHA][:12] for v in found}


def test_the_winner_is_champion_once_a_recipe_and_withdrawn_when_there_is_none(
    mlflow_uri: str, tmp_path: Path
) -> None:
    def end(recipe: Path | None) -> Seen:
        tracker = MlflowTracker(tmp_path, uri=mlflow_uri)
        tracker.record(SweepEntry("crowned", status="FINISHED", recipe=recipe))
        assert tracker.close(60) == 0, tracker.trouble
        return Seen(mlflow_uri, tmp_path)

    def champion(seen: Seen) -> str | None:
        return seen.client.get_registered_model("crowned").aliases.get(ALIAS)

    for _ in range(2):  # told twice, registered once
        seen = end(recipe_in(tmp_path))
        assert len(versions(seen, "crowned")) == 1
        assert str(champion(seen)) == "1"
    seen = end(recipe_in(tmp_path, "second"))
    assert str(champion(seen)) == "2"
    first, second = (seen.client.get_model_version("crowned", n).source for n in ("1", "2"))
    assert first != second, "a version that was registered never changes"
    assert champion(end(None)) is None


def test_no_batch_is_larger_than_a_store_takes_and_no_number_is_infinite(
    mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[int, int, int]] = []

    class Watched(Flaky):
        def __getattr__(self, name: str) -> Any:
            if name != "log_batch":
                return getattr(self._client, name)

            def log_batch(run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
                assert all(np.isfinite(m.value) for m in metrics)
                assert all(len(p.value) <= 6000 for p in params)
                size = sum(len(p.key) + len(p.value) for p in params)
                batches.append((len(metrics), len(params) + len(tags), size))
                self._client.log_batch(run_id, metrics=metrics, params=params, tags=tags)

            return log_batch

    monkeypatch.setattr(tracking_send, "connected", lambda uri: Watched(connected(uri), [0]))
    entry = entry_of(tmp_path, 1, 1, result_of())
    table = {name: np.arange(3000.0) for name in ("payload", "tail_slack", "cached", "free")}
    table["cached"][::2] = np.inf
    pq.write_table(pa.table({"step": np.arange(3000), **table}), entry.folder / "ledger.parquet")
    many = spec_of(**{f"arg{n}": "x" * 9000 for n in range(250)})
    tracker = MlflowTracker(tmp_path, uri=mlflow_uri)
    tracker.record(replace(entry, spec=many))
    tracker.record(SweepEntry("sweep", metrics=(("bad", float("inf")), ("worse", float("nan")), ("good", 1.0))))
    assert tracker.close(60) == 0, tracker.trouble
    assert all(m <= 1000 and p <= 100 and m + p <= 1000 and size < 900_000 for m, p, size in batches)
    seen = Seen(mlflow_uri, tmp_path)
    (child,) = seen.children
    assert len(child.data.params) > 250
    assert len(seen.client.get_metric_history(child.info.run_id, "series/payload")) == 200
    assert seen.parent.data.metrics == {"good": 1.0}


def test_a_table_too_large_is_named_and_a_secret_in_a_log_is_not_sent(
    mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    entry = entry_of(tmp_path, 1, 1, result_of())
    (entry.folder / "ledger.parquet").write_bytes(b"x" * 100)
    (entry.folder / "log.txt").write_text("loading with hf_abcdefgh from postgresql://me:pw-of-mine@db/x\n")
    labels = (("kvknee.reason", "401 for hf_abcdefgh"),)
    tracker = MlflowTracker(tmp_path, uri=mlflow_uri, logged=Logged(series_points=0, table_bytes=50))
    tracker.record(replace(entry, labels=labels))
    assert tracker.close(60) == 0, tracker.trouble
    seen = Seen(mlflow_uri, tmp_path)
    (child,) = seen.children
    assert child.data.tags["kvknee.left_out"] == "ledger.parquet (100 bytes)"
    assert child.data.tags["kvknee.reason"] == "401 for ***"
    assert seen.artifact(child, "log.txt", tmp_path) == "loading with *** from postgresql://me:***@db/x\n"


KILLED_WRITING = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("CREATE TABLE experiments (experiment_id, name, lifecycle_stage, text)")
connection.execute("INSERT INTO experiments VALUES (1, 'kept', 'active', '')")
connection.execute("PRAGMA cache_size = 2")
connection.execute("BEGIN")
for i in range(500):  # more than the cache holds: pages go to the file before the commit
    connection.execute("INSERT INTO experiments VALUES (?, 'lost', 'active', ?)", (i, "x" * 500))
os._exit(9)
"""


def test_a_database_that_a_killed_driver_left_half_written_is_rolled_back_and_used(tmp_path):
    """A resume was refused here: the file was opened read-only, and a rollback writes."""
    import subprocess
    import sys

    from orchestrator.tracking_check import check_store

    path = tmp_path / "mlflow.db"
    subprocess.run([sys.executable, "-c", KILLED_WRITING, str(path)], check=False, timeout=60)
    assert (tmp_path / "mlflow.db-journal").stat().st_size > 0
    check_store(f"sqlite:///{path}", "kept")
