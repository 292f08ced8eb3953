"""A run that is put into the tables at once is the run that MLflow's own client would have left, row by row."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_tracking import entry_of, result_of

from orchestrator import tracking_rows, tracking_send
from orchestrator.entries import Content, SweepEntry, TrialEntry, encode, params_of
from orchestrator.tracking import MlflowTracker
from orchestrator.tracking_apart import ApartSender
from orchestrator.tracking_rows import Rows, WholeRun, id_of, rows_of
from orchestrator.tracking_runs import connected
from orchestrator.tracking_send import Logged, Sender, Target
from trials.fingerprint import trace_hash
from trials.trace import load_trace, make_trace, save_trace

ROOT = Path(__file__).parents[2]
TABLES = ("runs", "tags", "params", "metrics", "latest_metrics", "datasets", "inputs", "input_tags")


def entries_of(folder: Path) -> list[SweepEntry | TrialEntry]:
    """A sweep with its trace, and attempts that were lost, refused, and measured with a ledger."""
    trace = folder / "t.parquet"
    one = np.zeros(1, np.int64)
    save_trace(make_trace(one, one + 100, one + 50), trace)
    content = Content("trace", trace_hash(load_trace(trace)), trace)
    measured = entry_of(folder, 2, 3, result_of())
    steps = {name: np.arange(50) for name in ("payload", "tail_slack", "free", "step")}
    shared = {"phase": ["steady"] * 50, "load": ["rate_scale=1"] * 50}
    pq.write_table(pa.table({**shared, **steps}), measured.folder / "ledger.parquet")
    (measured.folder / "log.txt").write_text("said\n")
    return [
        SweepEntry("sweep", content=(content,)), entry_of(folder, 1, 1, None),
        entry_of(folder, 2, 1, result_of("refused")), measured,
    ]  # fmt: skip


def children_in(database: Path) -> dict[str, dict[str, list[tuple[object, ...]]]]:
    """Name of a child -> its rows, table by table, without the ids that are drawn."""
    found = {}
    with sqlite3.connect(database) as connection:
        connection.row_factory = sqlite3.Row
        all_rows = {table: [dict(row) for row in connection.execute(f"select * from {table}")] for table in TABLES}
    parent = next(row["run_uuid"] for row in all_rows["runs"] if not row["name"].startswith("trial"))
    datasets = {row["dataset_uuid"]: row["name"] for row in all_rows["datasets"]}
    for run in all_rows["runs"]:
        run_id = run["run_uuid"]
        edges = [row for row in all_rows["inputs"] if row["destination_id"] == run_id]
        names = {run_id: "THIS", parent: "PARENT", **datasets, **{edge["input_uuid"]: "EDGE" for edge in edges}}
        mine = {
            table: [row for row in all_rows[table] if row["run_uuid"] == run_id]
            for table in ("runs", "tags", "params", "metrics", "latest_metrics")
        }
        mine |= {"inputs": edges, "input_tags": [r for r in all_rows["input_tags"] if r["input_uuid"] in names]}
        found[run["name"]] = {table: sorted(_told(row, names) for row in rows) for table, rows in mine.items()}
    return {name: rows for name, rows in found.items() if name.startswith("trial")}


def _told(row: dict[str, Any], names: dict[str, str]) -> tuple[str, ...]:
    """Values in the order of their columns' names; of an artifact folder what follows the database's."""
    texts = []
    for column, value in sorted(row.items()):
        text = repr(value)
        for drawn, name in names.items():
            text = text.replace(drawn, name)
        texts.append(f"{column}={text.rpartition('/kept/')[2]}")
    return tuple(texts)


def send_all(sent: list[SweepEntry | TrialEntry], database: Path) -> Sender:
    database.parent.mkdir(exist_ok=True)
    kept = (database.parent / "kept").as_uri()
    sender = Sender(Target(f"sqlite:///{database}", "kvknee", kept, "s", database.parent), Logged())
    for key, entry in enumerate(sent):
        sender.send(encode(entry), key)
    return sender


def files_below(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((path.name, path.read_bytes()) for path in folder.rglob("artifacts/*") if path.is_file())


def test_rows_and_files_are_those_that_the_client_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = entries_of(tmp_path)
    put = []
    monkeypatch.setattr(Rows, "put", lambda rows, run, put_it=Rows.put: put.append(run) or put_it(rows, run))
    send_all(sent, tmp_path / "rows" / "mlflow.db")
    assert len(put) == 3
    monkeypatch.setattr(tracking_send, "rows_of", lambda client: None)
    send_all(sent, tmp_path / "calls" / "mlflow.db")
    assert len(put) == 3
    ours, theirs = (children_in(tmp_path / name / "mlflow.db") for name in ("rows", "calls"))
    assert ours == theirs
    assert len(ours["trial 0002 attempt 3"]["metrics"]) > 3 * 50
    assert len(ours["trial 0002 attempt 3"]["input_tags"]) == 2
    assert files_below(tmp_path / "rows") == files_below(tmp_path / "calls") != []


def test_a_run_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, first, *_ = sent = entries_of(tmp_path)
    sender = send_all([sweep], tmp_path / "db" / "mlflow.db")
    good = tracking_rows._rows

    def torn(run: WholeRun) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        yield from list(good(run))[:-1]
        raise OSError("the disk is full")

    monkeypatch.setattr(tracking_rows, "_rows", torn)
    with pytest.raises(Exception, match="the disk is full"):
        sender.send(encode(first), 1)
    assert children_in(tmp_path / "db" / "mlflow.db") == {}
    monkeypatch.setattr(tracking_rows, "_rows", good)
    for key, entry in enumerate(sent):
        sender.send(encode(entry), key)
    assert len(children_in(tmp_path / "db" / "mlflow.db")) == 3


def test_what_a_database_refuses_is_raised_and_not_printed_with_its_values(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep, first, *_ = entries_of(tmp_path)
    database = tmp_path / "db" / "mlflow.db"
    sender = send_all([sweep], database)
    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE params RENAME TO elsewhere")
    capfd.readouterr()
    with pytest.raises(Exception, match="no such table"):
        sender.send(encode(first), 1)
    assert capfd.readouterr() == ("", "")
    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE elsewhere RENAME TO params")
    assert children_in(database) == {}


def test_a_deleted_run_is_not_written_over_and_a_deleted_experiment_takes_none(tmp_path: Path) -> None:
    sweep, first, second, _ = entries_of(tmp_path)
    uri = f"sqlite:///{tmp_path / 'db' / 'mlflow.db'}"
    send_all([sweep, first], tmp_path / "db" / "mlflow.db")
    client = connected(uri)
    (experiment,) = [e.experiment_id for e in client.search_experiments() if e.name == "kvknee"]
    (gone,) = client.search_runs([experiment], "tags.`kvknee.trial` = '1'")
    client.delete_run(gone.info.run_id)
    sender = send_all([sweep, first], tmp_path / "db" / "mlflow.db")
    (made,) = client.search_runs([experiment], "tags.`kvknee.trial` = '1'")
    assert made.info.run_id != gone.info.run_id
    assert made.info.status == "KILLED"
    client.delete_experiment(experiment)
    with pytest.raises(Exception, match="active"):
        sender.send(encode(second), 2)


def test_tables_not_known_here_are_left_to_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = entries_of(tmp_path)
    monkeypatch.setitem(tracking_rows._COLUMNS, "SqlMetric", "key value timestamp step is_nan run_uuid unit")
    monkeypatch.setattr(Rows, "put", None)
    send_all(sent, tmp_path / "db" / "mlflow.db")
    assert len(children_in(tmp_path / "db" / "mlflow.db")) == 3


def test_the_pinned_mlflow_has_the_tables_that_are_known_and_a_server_none(tmp_path: Path) -> None:
    assert rows_of(connected(f"sqlite:///{tmp_path / 'mlflow.db'}")) is not None
    assert rows_of(connected("http://127.0.0.1:9")) is None


@pytest.mark.parametrize("key", ["a//b", "../b", "b/", "./b", "b" * 300, "\u00e9", ""])
def test_a_key_is_one_that_mlflow_takes(key: str, tmp_path: Path) -> None:
    """The tables take more than it does, and one key that a server refuses would keep the whole run from it."""
    from mlflow.utils.validation import _validate_param

    entry = entry_of(tmp_path, 1, 1, None)
    asked = entry.spec.engine.model_copy(update={"args": {key: "v" * 7000}})
    params = params_of(entry.spec.model_copy(update={"engine": asked}))
    assert [len(value) for name, value in params.items() if name.startswith("engine.args.")] == [6000]
    for name, value in params.items():
        _validate_param(name, value)


def test_sweeps_that_make_one_database_at_once_find_all_their_runs_in_it(tmp_path: Path) -> None:
    database = tmp_path / "shared.db"
    trackers = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        trackers.append(MlflowTracker(tmp_path / name, uri=f"sqlite:///{database}", connect=ApartSender))
        trackers[-1].record(SweepEntry(name))
        trackers[-1].record(entry_of(tmp_path / name, 1, 1, None))
    assert [(tracker.close(120), tracker.trouble) for tracker in trackers] == [(0, "")] * 3
    with sqlite3.connect(database) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM runs ORDER BY name")]
    assert names == ["a", "b", "c", *["trial 0001"] * 3]


def test_the_same_names_are_the_same_run() -> None:
    assert id_of("sweep", "1", "1") == id_of("sweep", "1", "1") != id_of("sweep", "1", "2")
    assert id_of("a", "bc") != id_of("ab", "c")
    assert len(id_of("sweep")) == 32


def test_a_kill_while_tables_are_made_leaves_a_store_that_the_next_one_can_use(tmp_path: Path) -> None:
    """What went wrong: some tables stayed, and no later process could make the others."""
    code = (
        "import os, sys, pathlib\n"
        "from mlflow.store.db import utils\n"
        "from orchestrator import tracking_runs\n"
        "def killed(engine):\n"
        "    with engine.begin() as connection:\n"
        "        connection.exec_driver_sql('CREATE TABLE _alembic_tmp_metrics (a)')\n"
        "        connection.exec_driver_sql('CREATE TABLE experiments (a)')\n"
        "    os._exit(9)\n"
        "utils._initialize_tables = killed\n"
        "tracking_runs.make_tables(pathlib.Path(sys.argv[1]))\n"
    )
    database = tmp_path / "db" / "mlflow.db"
    ended = subprocess.run([sys.executable, "-c", code, str(database)], cwd=ROOT, timeout=120, check=False)
    assert ended.returncode == 9
    assert not database.exists()
    send_all(entries_of(tmp_path), database)
    assert len(children_in(database)) == 3
    assert [p.name for p in database.parent.iterdir() if p.is_file()] == ["mlflow.db"]
