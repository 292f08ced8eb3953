"""What is remembered of a sweep in MLflow: one parent run, one child a trial attempt.

The driver's thread writes an entry to the spool and goes on; ONE background thread has what stands in the spool
sent, by a process beside a sweep's driver, or in this one where nothing else is to be done meanwhile.
MLflow is a copy that can be made again: the result files are the truth.
"""

import contextlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from orchestrator.entries import Entry, SweepEntry, TrialEntry
from orchestrator.spool import Spool
from orchestrator.tracking_apart import ApartSender
from orchestrator.tracking_send import Logged, Sender, Target
from orchestrator.tracking_uri import local_database
from orchestrator.writer import Connection, SpoolWriter
from trials.trace import write_whole

__all__ = [
    "Entry",
    "Logged",
    "MemoryTracker",
    "MlflowTracker",
    "SweepEntry",
    "Tracker",
    "TrialEntry",
    "open_mlflow",
]


class Tracker(Protocol):
    """Remembers. `record` never blocks and never raises; what cannot be sent is spooled to disk."""

    def record(self, entry: TrialEntry | SweepEntry) -> None: ...

    def close(self, timeout_s: float) -> int:
        """Send what is left; returns the entries that remain unsent."""


class MemoryTracker:
    """Keeps entries in a list, for tests."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.closed = False

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)

    def close(self, timeout_s: float) -> int:
        self.closed = True
        return 0


def open_mlflow(folder: Path, experiment: str = "kvknee", uri: str | None = None) -> "MlflowTracker":
    """The tracker of a sweep's folder. `uri` None: sqlite and artifacts inside the folder."""
    return MlflowTracker(folder, experiment=experiment, uri=uri, connect=ApartSender)


def _artifacts(uri: str, folder: Path) -> str | None:
    """Beside a database that is a file, in the sweep's folder for one that is not. None: a server decides."""
    if uri.startswith(("http:", "https:", "databricks")):
        return None
    database = local_database(uri)
    return ((folder if database is None else database.absolute().parent) / "artifacts").as_uri()


class MlflowTracker:
    """One sweep's memory. The same folder opened again continues the same parent run and sends what was unsent.

    folder: the sweep's; the spool lies in folder/spool. uri None: sqlite in folder/mlflow.db, artifacts beside it.
    `again`: runs that stand there already are sent once more. `connect`: who sends, in this process or apart.
    """

    def __init__(
        self,
        folder: Path,
        *,
        experiment: str = "kvknee",
        uri: str | None = None,
        logged: Logged = Logged(),
        again: bool = False,
        connect: Callable[[Target, Logged], Connection] = Sender,
    ) -> None:
        folder = folder.resolve()
        uri = f"sqlite:///{folder / 'mlflow.db'}" if uri is None else uri
        target = Target(
            uri=uri,
            experiment=experiment,
            artifacts=_artifacts(uri, folder),
            sweep_id=_sweep_id(folder / "spool"),
            root=folder,
            again=again,
        )
        self.uri = target.uri
        self._writer = SpoolWriter(Spool(folder / "spool"), lambda: connect(target, logged))

    @property
    def trouble(self) -> str:
        """The words of the last failure; empty where there was none."""
        return self._writer.trouble

    def record(self, entry: TrialEntry | SweepEntry) -> None:
        """Remember. Costs a write into the system's page cache; sent later."""
        self._writer.put(entry)

    def close(self, timeout_s: float) -> int:
        """Send what is left, for at most `timeout_s` seconds -> entries unsent. They are sent when next opened."""
        return self._writer.close(timeout_s)


def _sweep_id(folder: Path) -> str:
    """What the parent run is found by, for as long as the folder lives."""
    path = folder / "sweep_id"
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    made = uuid.uuid4().hex
    write_whole(path, lambda temporary: temporary.write_text(made + "\n", encoding="ascii"))
    return made
