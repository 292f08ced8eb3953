"""What is remembered of a sweep in MLflow: one parent run, one child a trial attempt. MLflow is imported here only.

The driver's thread writes an entry to the spool and goes on; ONE background thread sends what stands in the spool.
MLflow is a copy that can be made again: the result files are the truth.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from orchestrator.entries import (
    MAX_PARAM_CHARS,
    MAX_TAG_CHARS,
    Entry,
    SweepEntry,
    TrialEntry,
    cut,
    metrics_of,
    params_of,
    run_status,
    tags_of,
)
from orchestrator.origin import origin_tags
from orchestrator.series import series_of
from orchestrator.spool import Spool
from orchestrator.writer import SpoolWriter
from trials.trace import write_whole

__all__ = ["Entry", "MemoryTracker", "MlflowTracker", "SweepEntry", "Tracker", "TrialEntry", "open_mlflow"]

_PARAMS_A_BATCH, _METRICS_A_BATCH = 100, 500
_SMALL_FILES = ("spec.json", "result.json", "attempt.json", "log.txt")
_TABLES = ("requests.parquet", "ledger.parquet")


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


@dataclass(frozen=True, slots=True)
class Logged:
    """How much of a trial goes to MLflow beside params, metrics and tags."""

    series_points: int = 500  # of each ledger account over the steps; 0: none
    table_bytes: int = 5 << 20  # parquet files up to this size become artifacts; 0: none


@dataclass(frozen=True, slots=True)
class _Target:
    uri: str
    experiment: str
    artifacts: str | None  # None: the server decides
    sweep_id: str
    root: Path  # the sweep's folder


def open_mlflow(folder: Path, experiment: str = "kvknee", uri: str | None = None) -> "MlflowTracker":
    """The tracker of a sweep's folder. `uri` None: sqlite and artifacts inside the folder."""
    return MlflowTracker(folder, experiment=experiment, uri=uri)


def _beside(uri: str) -> str | None:
    """Where runs of a database in a local file keep artifacts: beside it. None: a server decides itself."""
    if not uri.startswith("sqlite:///"):
        return None
    return (Path(uri.removeprefix("sqlite:///")).absolute().parent / "artifacts").as_uri()


class MlflowTracker:
    """One sweep's memory. The same folder opened again continues the same parent run and sends what was unsent.

    folder: the sweep's; the spool lies in folder/spool. uri None: sqlite in folder/mlflow.db, artifacts beside it.
    """

    def __init__(
        self, folder: Path, *, experiment: str = "kvknee", uri: str | None = None, logged: Logged = Logged()
    ) -> None:
        folder = folder.resolve()
        uri = f"sqlite:///{folder / 'mlflow.db'}" if uri is None else uri
        target = _Target(
            uri=uri,
            experiment=experiment,
            artifacts=_beside(uri),
            sweep_id=_sweep_id(folder / "spool"),
            root=folder,
        )
        self.uri = target.uri
        self._writer = SpoolWriter(Spool(folder / "spool"), lambda: _Sender(target, logged).send)

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


class _Sender:
    """Speaks to MLflow, always the same way for the same entry: sending twice leaves one run."""

    def __init__(self, target: _Target, logged: Logged) -> None:
        self._target, self._logged = target, logged
        self._client: Any = None
        self._experiment = self._parent = ""
        self._children: dict[tuple[str, str], tuple[str, str]] = {}  # trial, attempt -> run id, status
        self._newest_sweep_entry = -1
        self._origin = origin_tags()

    def send(self, entry: Entry, key: int) -> None:
        """Raises whatever MLflow raises."""
        if self._client is None:
            self._connect(entry.name if isinstance(entry, SweepEntry) else self._target.root.name)
        if isinstance(entry, TrialEntry):
            self._send_trial(entry)
        else:
            self._send_sweep(entry, newest=key >= self._newest_sweep_entry or key < 0)
            self._newest_sweep_entry = max(key, self._newest_sweep_entry)

    def _connect(self, name: str) -> None:
        """Import MLflow, find or make experiment and parent, and know the children that exist."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # this thread tries again by itself
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        import logging

        from mlflow import MlflowClient

        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        client = MlflowClient(self._target.uri)
        self._experiment = _experiment(client, self._target)
        mark = f"tags.`kvknee.sweep` = '{self._target.sweep_id}'"
        found = client.search_runs([self._experiment], mark, max_results=1, order_by=["attributes.start_time ASC"])
        if found:
            self._parent = found[0].info.run_id
        else:
            tags = {"kvknee.sweep": self._target.sweep_id, **self._origin}
            self._parent = client.create_run(self._experiment, tags=tags, run_name=name).info.run_id
        for run in _children(client, self._experiment, self._parent):
            tags = run.data.tags
            known = tags.get("kvknee.trial", ""), tags.get("kvknee.attempt", "")
            self._children[known] = run.info.run_id, run.info.status
        self._client = client

    def _send_trial(self, entry: TrialEntry) -> None:
        tags = tags_of(entry)
        known = tags["kvknee.trial"], tags["kvknee.attempt"]
        run_id, status = self._children.get(known, ("", ""))
        if status in ("FINISHED", "FAILED", "KILLED"):  # the status is written last: all of it is there
            return
        if not run_id:
            name = f"trial {entry.number:04d}" + (f" attempt {entry.attempt}" if entry.attempt > 1 else "")
            tags |= {"mlflow.parentRunId": self._parent, **self._origin}
            made = self._client.create_run(self._experiment, entry.started_ms, tags, name)
            run_id = made.info.run_id
            self._children[known] = run_id, "RUNNING"
        metrics = {} if entry.result is None else metrics_of(entry.result)
        self._log(run_id, params_of(entry.spec), metrics, entry.ended_ms)
        self._log_series(run_id, entry)
        self._log_files(run_id, entry)
        self._client.set_terminated(run_id, run_status(entry), entry.ended_ms)
        self._children[known] = run_id, run_status(entry)

    def _log(self, run_id: str, params: Mapping[str, str], metrics: Mapping[str, float], at_ms: int) -> None:
        from mlflow.entities import Metric, Param

        for some in _chunks([Param(k, v) for k, v in sorted(params.items())], _PARAMS_A_BATCH):
            self._client.log_batch(run_id, params=some)
        for some in _chunks([Metric(k, v, at_ms, 0) for k, v in sorted(metrics.items())], _METRICS_A_BATCH):
            self._client.log_batch(run_id, metrics=some)

    def _log_series(self, run_id: str, entry: TrialEntry) -> None:
        from mlflow.entities import Metric

        points = [
            Metric(f"series/{name}", value, entry.ended_ms, step)
            for name, step, value in series_of(entry, self._logged.series_points)
        ]
        for some in _chunks(points, _METRICS_A_BATCH):
            self._client.log_batch(run_id, metrics=some)

    def _log_files(self, run_id: str, entry: TrialEntry) -> None:
        names = [n for n in _SMALL_FILES if (entry.folder / n).is_file()]
        for name in _TABLES:
            path = entry.folder / name
            if path.is_file() and path.stat().st_size <= self._logged.table_bytes:
                names.append(name)
        for name in names:
            self._client.log_artifact(run_id, str(entry.folder / name))
        if entry.result is not None:
            self._client.log_dict(run_id, entry.result.ledger.model_dump(mode="json"), "ledger.json")
            if "result.json" not in names:
                self._client.log_dict(run_id, entry.result.model_dump(mode="json"), "result.json")

    def _send_sweep(self, entry: SweepEntry, newest: bool) -> None:
        """Params cannot change in MLflow: a resumed sweep's changed ones are kept as tags beside the first."""
        from mlflow.entities import RunTag

        run = self._client.get_run(self._parent)
        params = {k: cut(v, MAX_PARAM_CHARS) for k, v in entry.params}
        fresh = {k: v for k, v in params.items() if k not in run.data.params}
        changed = {f"kvknee.now.{k}": v for k, v in params.items() if run.data.params.get(k, v) != v}
        tags = {**changed, **{k: cut(v, MAX_TAG_CHARS) for k, v in entry.tags}, "kvknee.sweep_name": entry.name}
        for some in _chunks([RunTag(k, v) for k, v in sorted(tags.items())], _PARAMS_A_BATCH):
            self._client.log_batch(self._parent, tags=some)
        finite = {k: v for k, v in entry.metrics if np.isfinite(v)}
        self._log(self._parent, fresh, finite, entry.ended_ms or run.info.start_time)
        for path in entry.artifacts:
            if path.is_file():
                self._client.log_artifact(self._parent, str(path))
        if not newest:  # a later entry has told already how it stands
            return
        if entry.status == "RUNNING":
            self._client.update_run(self._parent, status="RUNNING")
        else:
            self._client.set_terminated(self._parent, entry.status, entry.ended_ms)


def _experiment(client: Any, target: _Target) -> str:
    """Its id; two drivers may make it at once, and then one finds it made."""
    found = client.get_experiment_by_name(target.experiment)
    if found is None:
        with contextlib.suppress(Exception):
            return str(client.create_experiment(target.experiment, target.artifacts))
        found = client.get_experiment_by_name(target.experiment)
        if found is None:
            return str(client.create_experiment(target.experiment, target.artifacts))
    return str(found.experiment_id)


def _children(client: Any, experiment: str, parent: str) -> Iterator[Any]:
    token = None
    while True:
        mark = f"tags.`mlflow.parentRunId` = '{parent}'"
        page = client.search_runs([experiment], mark, max_results=500, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
