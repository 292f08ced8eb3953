"""The process that sends to MLflow: the same runs as from this one, whatever becomes of it or of its driver."""

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from test_tracking import Seen, entry_of, result_of

from orchestrator.entries import Entry, SweepEntry, encode
from orchestrator.sqlite_log import WriteAheadLog, file_system
from orchestrator.tracking import MlflowTracker
from orchestrator.tracking_apart import ApartSender, serve
from orchestrator.tracking_send import Logged, Target

DRIVER = """
import sys, time
from pathlib import Path
from orchestrator.entries import SweepEntry
from orchestrator.tracking import MlflowTracker
from orchestrator.tracking_apart import ApartSender
folder, uri = Path(sys.argv[1]), sys.argv[2]
tracker = MlflowTracker(folder, uri=uri, connect=ApartSender)
tracker.record(SweepEntry("sweep"))
print("recorded", flush=True)
time.sleep(600)
"""


def wait_for(what: Callable[[], object], limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


class Kept:
    """A tracker that sends apart, and its connection."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.senders: list[ApartSender] = []
        self.tracker = MlflowTracker(folder, uri=uri, connect=self._connect)

    def _connect(self, target: Target, logged: Logged) -> ApartSender:
        self.senders.append(ApartSender(target, logged))
        return self.senders[-1]

    @property
    def pid(self) -> int | None:
        return self.senders[0].pid if self.senders else None


def sent(folder: Path) -> int:
    return len((folder / "spool" / "sent.log").read_bytes().split())


def test_the_process_is_killed_and_begun_again_and_each_run_stands_once(mlflow_uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    kept = Kept(folder, mlflow_uri)
    kept.tracker.record(SweepEntry("sweep"))
    for number in range(6):
        kept.tracker.record(entry_of(folder, number, 1, result_of()))
    wait_for(lambda: sent(folder) >= 2)
    first = kept.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert kept.tracker.close(120) == 0, kept.tracker.trouble
    assert "ended with exit code -9" in kept.tracker.trouble
    assert not psutil.pid_exists(first)
    seen = Seen(mlflow_uri, folder)
    assert sorted(run.data.tags["kvknee.trial"] for run in seen.children) == [str(n) for n in range(6)]
    assert {run.info.status for run in seen.children} == {"FINISHED"}
    assert {run.data.metrics["output_throughput"] for run in seen.children} == {12.5}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere it ends with its entry, not at once")
def test_it_dies_with_its_driver_before_another_can_take_over(mlflow_uri: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "sweep"), mlflow_uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        wait_for(lambda: sent(tmp_path / "sweep"))
        (sender,) = (
            p for p in psutil.Process(driver.pid).children() if "orchestrator.tracking_apart" in p.cmdline()
        )
        sender.suspend()  # whatever it does: it is not asked
        driver.kill()
    wait_for(lambda: not sender.is_running() or sender.status() == psutil.STATUS_ZOMBIE, 10)
    again = MlflowTracker(tmp_path / "sweep", uri=mlflow_uri)
    assert again.close(60) == 0, again.trouble
    assert Seen(mlflow_uri, tmp_path / "sweep").parent.info.run_name == "sweep"


def test_the_words_of_a_store_that_refuses_come_back(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "http://127.0.0.1:9")
    kept.tracker.record(SweepEntry("sweep"))
    assert kept.tracker.close(60) == 1
    assert "127.0.0.1" in kept.tracker.trouble
    assert kept.pid is None


def write_to(database: Path, rows: int) -> None:
    """As MLflow does, through an engine of SQLAlchemy's."""
    from sqlalchemy import create_engine, text

    engine = create_engine(f"sqlite:///{database}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS t (a)"))
        for n in range(rows):
            connection.execute(text("INSERT INTO t VALUES (:n)"), {"n": n})


def mode_of(database: Path) -> str:
    connection = sqlite3.connect(database)
    mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    connection.close()
    return mode


def test_a_database_is_written_ahead_while_it_is_used_and_one_file_afterwards(tmp_path: Path) -> None:
    if not (log := WriteAheadLog(tmp_path / "m.db")).used:
        pytest.skip(f"temporary files lie on {file_system(tmp_path)}")
    write_to(tmp_path / "m.db", 3)
    write_to(tmp_path / "other.db", 3)
    assert (tmp_path / "m.db-wal").exists()
    assert mode_of(tmp_path / "m.db") == "wal"
    assert mode_of(tmp_path / "other.db") == "delete"
    log.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.db", "other.db"]
    assert mode_of(tmp_path / "m.db") == "delete"
    write_to(tmp_path / "m.db", 1)
    assert mode_of(tmp_path / "m.db") == "delete"
    assert sqlite3.connect(tmp_path / "m.db").execute("SELECT count(*) FROM t").fetchone() == (4,)


def test_a_network_file_system_is_left_with_sqlites_own_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.sqlite_log.file_system", lambda path: "nfs4")
    log = WriteAheadLog(tmp_path / "m.db")
    write_to(tmp_path / "m.db", 1)
    assert mode_of(tmp_path / "m.db") == "delete"
    log.close()


class Dictated(io.BytesIO):
    """Lines of which each one is said once `before` it something was done."""

    def __init__(self, order: bytes, entries: list[Entry], before: dict[int, Callable[[], object]]) -> None:
        super().__init__(order)
        self._entries, self._before = entries, before

    def __iter__(self) -> Iterator[bytes]:
        for key, entry in enumerate(self._entries):
            self._before.get(key, bool)()
            yield b"%d %s\n" % (key, encode(entry).encode())


@pytest.mark.parametrize("stale_log", [False, True])
def test_nothing_is_written_into_a_database_that_nobody_finds_any_more(
    stale_log: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "mlflow.db"
    target = Target(f"sqlite:///{database}", "kvknee", (tmp_path / "artifacts").as_uri(), "s", tmp_path)
    order = ApartSender(target, Logged())._order
    entries = [SweepEntry("sweep"), *(entry_of(tmp_path, n, 1, None) for n in (1, 2, 3))]

    def delete() -> None:
        for path in tmp_path.glob("mlflow.db" if stale_log else "mlflow.db*"):
            path.unlink()

    answers = io.BytesIO()
    serve(Dictated(order, entries, {2: delete}), answers)
    first, second, third = map(json.loads, answers.getvalue().splitlines())
    assert first == second == ""
    assert "moved, deleted or replaced" in third
    assert "--rebuild-tracking" in capsys.readouterr().err
