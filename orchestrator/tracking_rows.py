"""A run that is over, put into a database at once: MLflow's own tables, in one transaction, all of it or nothing.

MLflow's client makes such a run in a dozen transactions, of which each reads what the ones before it wrote. A
database that is spoken to from here, without a server between, takes the same rows in one. Only where MLflow's
tables are those that are known here: with others, and for runs that stand there already, its client is used.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_COLUMNS = {
    "SqlRun": "run_uuid name source_type source_name entry_point_name user_id status start_time end_time "
    "deleted_time source_version lifecycle_stage artifact_uri experiment_id",
    "SqlTag": "key value run_uuid",
    "SqlParam": "key value run_uuid",
    "SqlMetric": "key value timestamp step is_nan run_uuid",
    "SqlLatestMetric": "key value timestamp step is_nan run_uuid",
    "SqlInput": "input_uuid source_type source_id destination_type destination_id step",
    "SqlInputTag": "input_uuid name value",
}


@dataclass(frozen=True, slots=True)
class Point:
    """A finite metric at a step."""

    key: str
    value: float
    at_ms: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class WholeRun:
    """All of a run that is over. `uses`: the dataset that it replayed and the words that go with it."""

    run_id: str
    experiment: str
    artifact_uri: str
    name: str
    status: str
    times_ms: tuple[int, int]  # begun, ended
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Sequence[Point]
    uses: tuple[str, Mapping[str, str]] | None = None


class Rows:
    """The tables of one database, through the store that MLflow's client has opened."""

    def __init__(self, store: Any) -> None:
        from mlflow.store.tracking.dbmodels import models

        self._store, self._models = store, models
        self._folders: dict[str, str] = {}  # experiment -> where its runs' artifacts lie
        self._datasets: dict[tuple[str, str, str], str] = {}

    def artifacts_of(self, experiment: str, run_id: str) -> str:
        """Where the store would put the artifacts of a run of this id."""
        from mlflow.utils.uri import append_to_uri_path

        if experiment not in self._folders:
            self._folders[experiment] = self._store.get_experiment(experiment).artifact_location
        return str(append_to_uri_path(self._folders[experiment], run_id, self._store.ARTIFACTS_FOLDER_NAME))

    def dataset_id(self, experiment: str, dataset: Any) -> str | None:
        """What a dataset of the experiment is known by; None before any run was given it."""
        from sqlalchemy import select

        known = experiment, dataset.name, dataset.digest
        if known not in self._datasets:
            c = self._models.SqlDataset.__table__.c
            which = (c.experiment_id == int(experiment), c.name == dataset.name, c.digest == dataset.digest)
            with self._store.ManagedSessionMaker() as session:
                found = session.connection().execute(select(c.dataset_uuid).where(*which)).scalar()
            if found is None:
                return None
            self._datasets[known] = found
        return self._datasets[known]

    def put(self, run: WholeRun) -> bool:
        """Write it whole. False, and nothing is written, where a run of this id stands there already, a deleted one
        too, or where its experiment takes no more."""
        from sqlalchemy import select

        runs, experiments = self._models.SqlRun.__table__.c, self._models.SqlExperiment.__table__.c
        same = select(runs.run_uuid).where(runs.run_uuid == run.run_id)
        stage = select(experiments.lifecycle_stage).where(experiments.experiment_id == int(run.experiment))
        with self._store.ManagedSessionMaker(read_only=False) as session:
            connection = session.connection()
            if connection.execute(same).first() or connection.execute(stage).scalar() != "active":
                return False
            for name, rows in _rows(run):
                if rows:
                    connection.execute(getattr(self._models, name).__table__.insert(), rows)
        return True


def rows_of(client: Any) -> Rows | None:
    """The tables behind a client; None where a server stands between, or this MLflow's tables are not known."""
    from mlflow.store.tracking.dbmodels import models
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = client._tracking_client.store
    if type(store) is not SqlAlchemyStore:
        return None
    known = all(_is_known(getattr(models, name, None), columns) for name, columns in _COLUMNS.items())
    return Rows(store) if known else None


def _is_known(model: Any, columns: str) -> bool:
    table = getattr(model, "__table__", None)
    return table is not None and {c.name for c in table.columns} == set(columns.split())


def id_of(*named: str) -> str:
    """The run id of what has these names, always the same: written twice, it would still be one run."""
    return uuid.uuid5(_OURS, "\0".join(named)).hex


_OURS = uuid.UUID("6d1f3b0c-6b76-4b6e-9e65-6b766b6e6565")


def _rows(run: WholeRun) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Table by table, as MLflow's client would leave them."""
    this = {"run_uuid": run.run_id}
    yield "SqlRun", [{
        **this, "name": run.name, "source_type": "UNKNOWN", "source_name": "", "entry_point_name": "",
        "user_id": run.tags.get("mlflow.user", "unknown"), "status": run.status, "start_time": run.times_ms[0],
        "end_time": run.times_ms[1], "source_version": "", "lifecycle_stage": "active",
        "artifact_uri": run.artifact_uri, "experiment_id": int(run.experiment),
    }]  # fmt: skip
    tags = {**run.tags, "mlflow.runName": run.name}
    yield "SqlTag", [{**this, "key": k, "value": v} for k, v in sorted(tags.items())]
    yield "SqlParam", [{**this, "key": k, "value": v} for k, v in sorted(run.params.items())]
    yield "SqlMetric", [_metric_row(point, this) for point in run.metrics]
    latest: dict[str, Point] = {}
    for point in run.metrics:
        known = latest.get(point.key)
        if known is None or (point.step, point.at_ms, point.value) > (known.step, known.at_ms, known.value):
            latest[point.key] = point
    yield "SqlLatestMetric", [_metric_row(point, this) for point in latest.values()]
    if run.uses is not None:
        dataset, words = run.uses
        edge = {"input_uuid": id_of(run.run_id, dataset)}
        yield "SqlInput", [{
            **edge, "source_type": "DATASET", "source_id": dataset, "destination_type": "RUN",
            "destination_id": run.run_id, "step": 0,
        }]  # fmt: skip
        yield "SqlInputTag", [{**edge, "name": k, "value": v} for k, v in words.items()]


def _metric_row(point: Point, this: Mapping[str, str]) -> dict[str, Any]:
    at = {"timestamp": point.at_ms, "step": point.step}
    return {**this, "key": point.key, "value": point.value, **at, "is_nan": False}
