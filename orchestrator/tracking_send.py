"""Sends entries to MLflow, always the same way for the same entry: sending twice leaves one run.

What is known of the server is forgotten after every failure and asked for anew: a request that was answered by
nobody may have been carried out all the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator import tracking_content as content
from orchestrator import tracking_registry as registry
from orchestrator.entries import (
    MAX_PARAM_CHARS,
    MAX_TAG_CHARS,
    SweepEntry,
    TrialEntry,
    cut,
    decode,
    metrics_of,
    params_of,
    run_status,
    tags_of,
)
from orchestrator.origin import origin_tags
from orchestrator.redaction import redacted
from orchestrator.series import series_of
from orchestrator.tracking_files import keep_files, shown
from orchestrator.tracking_rows import Point, Rows, WholeRun, id_of, rows_of
from orchestrator.tracking_runs import (
    OVER,
    Child,
    alone,
    connected,
    dataset_of,
    experiment_of,
    files_of,
    known_children,
    make_tables,
    new_files_of,
)
from orchestrator.tracking_uri import local_database

_PARAMS_A_BATCH, _METRICS_A_BATCH = 100, 900  # of at most 1,000 entities together
_CHARS_A_BATCH = 400_000  # of params; a request holds at most a megabyte


@dataclass(frozen=True, slots=True)
class Logged:
    """How much of a trial goes to MLflow beside params, metrics and tags."""

    series_points: int = 200  # of each ledger account over the steps; 1,000 take a tenth of a second; 0: none
    table_bytes: int = 64 << 20  # parquet files up to this size become artifacts; larger ones are named in a tag


@dataclass(frozen=True, slots=True)
class Target:
    """Where the runs of one sweep go. `again`: also what stands there already is sent once more."""

    uri: str = field(repr=False)
    experiment: str
    artifacts: str | None  # None: the server decides
    sweep_id: str
    root: Path  # the sweep's folder
    again: bool = False


class Sender:
    """Speaks to MLflow, on one thread alone. What a trial's run costs is in docs/clusters.md."""

    def __init__(self, target: Target, logged: Logged) -> None:
        self._target, self._logged = target, logged
        self._client: Any = None
        self._experiment = self._parent = ""
        self._rows: Rows | None = None  # the tables themselves, where no server stands between
        self._children: dict[tuple[str, str], Child] = {}  # by trial and attempt
        self._sent_again: set[tuple[str, str]] = set()
        self._dataset: tuple[Any, str] | None = None  # the sweep's trace and its hash
        self._newest_sweep_entry = -1
        self._origin = origin_tags()

    def send(self, text: str, key: int) -> None:
        """Raises whatever MLflow raises; what was known of the server is then forgotten."""
        entry = decode(text)
        try:
            if self._client is None:
                self._connect(entry.name if isinstance(entry, SweepEntry) else self._target.root.name)
            if isinstance(entry, TrialEntry):
                self._send_trial(entry)
            else:
                self._send_sweep(entry, newest=key >= self._newest_sweep_entry or key < 0)
                self._newest_sweep_entry = max(key, self._newest_sweep_entry)
        except BaseException:
            self._client = None
            raise

    def close(self) -> None:
        """Nothing is held open between two entries."""

    def _connect(self, name: str) -> None:
        """Find or make experiment and parent, and know the children that exist."""
        database = local_database(self._target.uri)
        with alone(database):
            make_tables(database)
            client = connected(self._target.uri)
            self._experiment = experiment_of(client, self._target.experiment, self._target.artifacts)
        mark = f"tags.`kvknee.sweep` = '{self._target.sweep_id}'"
        found = client.search_runs([self._experiment], mark, max_results=1, order_by=["attributes.start_time ASC"])
        if found:
            parent = found[0]
        else:
            tags = {"kvknee.sweep": self._target.sweep_id, **self._origin}
            parent = client.create_run(self._experiment, tags=tags, run_name=redacted(name))
        self._parent = parent.info.run_id
        self._dataset = self._dataset or dataset_of(parent)
        self._children = known_children(client, self._experiment, self._parent)
        self._rows = rows_of(client)
        self._client = client

    def _send_trial(self, entry: TrialEntry) -> None:
        tags = shown(tags_of(entry))
        known = tags["kvknee.trial"], tags["kvknee.attempt"]
        child = self._children.get(known)
        # The status is written last: of a run that is over, all is there.
        once_more = self._target.again and known not in self._sent_again
        if child is None:
            tags |= {"mlflow.parentRunId": self._parent, **self._origin}
            child = self._children[known] = self._put_whole(entry, tags) or self._made(entry, tags)
            once_more = False
        if child.status not in OVER or once_more:
            self._fill(child, entry)
        self._sent_again.add(known)

    def _put_whole(self, entry: TrialEntry, tags: dict[str, str]) -> Child | None:
        """Its run in one transaction, files first; None where it has to be made call by call."""
        if self._rows is None:
            return None
        uses = None
        if self._dataset is not None:
            dataset, digest = self._dataset
            known = self._rows.dataset_id(self._experiment, dataset)
            if known is None:
                return None
            uses = known, content.words_of(digest)
        run_id = id_of(self._target.sweep_id, tags["kvknee.trial"], tags["kvknee.attempt"])
        place = self._rows.artifacts_of(self._experiment, run_id)
        child = Child(run_id, place, run_status(entry), knows_trace=uses is not None)
        if left_out := self._keep_files(new_files_of(self._target.uri, child.artifact_uri), entry):
            tags = {**tags, "kvknee.left_out": left_out}
        run = WholeRun(
            run_id, self._experiment, child.artifact_uri, _name_of(entry), child.status,
            (entry.started_ms, entry.ended_ms), tags, shown(params_of(entry.spec)), self._metrics(entry), uses,
        )  # fmt: skip
        return child if self._rows.put(run) else None

    def _made(self, entry: TrialEntry, tags: Mapping[str, str]) -> Child:
        made = self._client.create_run(self._experiment, entry.started_ms, tags, _name_of(entry))
        return Child(made.info.run_id, made.info.artifact_uri)

    def _fill(self, child: Child, entry: TrialEntry) -> None:
        """A run that stands there: its files, what was asked and measured, and last that it is over."""
        if left_out := self._keep_files(files_of(self._target.uri, child.artifact_uri), entry):
            self._client.set_tag(child.run_id, "kvknee.left_out", left_out)
        self._say_trace(child)
        self._log(child.run_id, params_of(entry.spec), self._metrics(entry))
        self._client.set_terminated(child.run_id, run_status(entry), entry.ended_ms)
        child.status = run_status(entry)

    def _keep_files(self, repository: Any, entry: TrialEntry) -> str:
        """-> what was left out, in words."""
        return ", ".join(keep_files(repository, entry, self._logged.table_bytes))

    def _metrics(self, entry: TrialEntry) -> list[Point]:
        scalars = {} if entry.result is None else metrics_of(entry.result)
        series = series_of(entry, self._logged.series_points)
        return [
            *_scalars(scalars, entry.ended_ms),
            *(Point(f"series/{name}", value, entry.ended_ms, step) for name, step, value in series),
        ]

    def _say_trace(self, child: Child) -> None:
        """Which dataset it replayed; not yet known where the sweep's own entry has to be sent again."""
        if self._dataset is not None and not child.knows_trace:
            content.use(self._client, child.run_id, *self._dataset)
            child.knows_trace = True

    def _log(self, run_id: str, params: Mapping[str, str], metrics: Sequence[Point]) -> None:
        from mlflow.entities import Metric, Param

        some_params = list(_param_chunks([Param(k, v) for k, v in sorted(shown(params).items())]))
        some_metrics = list(_chunks([Metric(*astuple(point)) for point in metrics], _METRICS_A_BATCH))
        for some, others in zip_longest(some_metrics, some_params, fillvalue=()):
            self._client.log_batch(run_id, metrics=some, params=others)

    def _send_sweep(self, entry: SweepEntry, newest: bool) -> None:
        """Params cannot change in MLflow: a resumed sweep's changed ones are kept as tags beside the first."""
        from mlflow.entities import RunTag

        run = self._client.get_run(self._parent)
        params = {k: cut(redacted(v), MAX_PARAM_CHARS) for k, v in entry.params}
        fresh = {k: v for k, v in params.items() if k not in run.data.params}
        changed = {f"kvknee.now.{k}": v for k, v in params.items() if run.data.params.get(k, v) != v}
        tags = {**changed, **dict(entry.tags), "kvknee.sweep_name": entry.name}
        if entry.recipe is not None and entry.recipe.is_file():
            tags["kvknee.recipe"] = registry.recipe_folder(entry.recipe)
        tags |= self._keep_content(entry)
        texts = {k: cut(redacted(v), MAX_TAG_CHARS) for k, v in sorted(tags.items())}
        for some in _chunks([RunTag(k, v) for k, v in texts.items()], _PARAMS_A_BATCH):
            self._client.log_batch(self._parent, tags=some)
        finite = {k: v for k, v in entry.metrics if np.isfinite(v)}
        self._log(self._parent, fresh, list(_scalars(finite, entry.ended_ms or run.info.start_time)))
        self._keep_outcome(entry, newest)
        if run.info.run_name != (name := redacted(entry.name)):  # a trial was sent before it, and knew no name
            self._client.update_run(self._parent, name=name)
        if newest and entry.status == "RUNNING":
            self._client.update_run(self._parent, status="RUNNING")
        elif newest:  # otherwise a later entry has told already how it stands
            self._client.set_terminated(self._parent, entry.status, entry.ended_ms)

    def _keep_content(self, entry: SweepEntry) -> dict[str, str]:
        """The files that trials rest on, and the trace as a dataset; returns tags that say what is missing."""
        missing = {}
        for one in entry.content:
            if why := content.keep(self._client, self._parent, one):
                missing[f"kvknee.missing.{one.kind}"] = why
            elif one.kind == "trace":
                self._dataset = content.dataset(one, self._parent), one.digest
                content.use(self._client, self._parent, *self._dataset)
                for child in self._children.values():
                    self._say_trace(child)
        return missing

    def _keep_outcome(self, entry: SweepEntry, newest: bool) -> None:
        """Report, summary and the like; the recipe, registered where no later entry knows better."""
        for path in entry.artifacts:
            if path.is_file():
                self._client.log_artifact(self._parent, str(path))
        if entry.recipe is not None and entry.recipe.is_file():
            registry.keep_recipe(self._client, self._parent, entry.recipe)
            if newest:
                tags = {k: cut(redacted(v), MAX_TAG_CHARS) for k, v in entry.tags if k in _REGISTERED}
                registry.crown(self._client, self._parent, entry.name, entry.recipe, tags)
        elif newest and entry.status == "FINISHED":
            registry.withdraw(self._client, self._parent, entry.name)


_REGISTERED = ("kvknee.trace_hash", "kvknee.outcome", "kvknee.sentence", "kvknee.winner", "kvknee.binding")


def _scalars(values: Mapping[str, float], at_ms: int) -> Iterator[Point]:
    for key, value in sorted(values.items()):
        yield Point(key, value, at_ms)


def _name_of(entry: TrialEntry) -> str:
    return f"trial {entry.number:04d}" + (f" attempt {entry.attempt}" if entry.attempt > 1 else "")


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _param_chunks(params: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """At most 100 of them, and not more characters than a request takes."""
    some: list[Any] = []
    chars = 0
    for param in params:
        size = len(param.key) + len(param.value)
        if some and (len(some) == _PARAMS_A_BATCH or chars + size > _CHARS_A_BATCH):
            yield some
            some, chars = [], 0
        some.append(param)
        chars += size
    if some:
        yield some
