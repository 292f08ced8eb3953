"""What stands in an MLflow store: connecting to it, and finding a sweep's experiment and runs."""

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OVER = ("FINISHED", "FAILED", "KILLED")
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the writer tries again by itself, and knows what was done before
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def connected(uri: str) -> Any:
    """A client of the store at `uri`, quiet and impatient. Imports MLflow."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # It prints what it raises as well, with all values of the row, at each of many tries.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return MlflowClient(uri)


@contextlib.contextmanager
def alone(database: Path | None) -> Iterator[None]:
    """One process at a time: MLflow makes the tables of a file in many steps, and two at once leave neither's.

    Held is the file's folder, which leaves nothing behind. Where it cannot be, as on some network file systems, or
    for a server (None), nothing is held.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            if database is not None:
                folder = os.open(database.parent, os.O_RDONLY)
                held.callback(os.close, folder)
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def make_tables(database: Path | None) -> None:
    """Have a new file made beside its place, and moved there whole: MLflow makes its tables in many steps, and of a
    process that is killed between them a file would stay with which no later one can go on."""
    if database is None or database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    beside = database.with_name(f".{database.name}.making")
    for left in (beside, beside.with_name(f"{beside.name}-journal")):
        left.unlink(missing_ok=True)
    store = connected(f"sqlite:///{beside}")._tracking_client.store
    store.engine.dispose()
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(beside, database)


def experiment_of(client: Any, name: str, artifacts: str | None) -> str:
    """Its id; two drivers may make it at once, and then one finds it made."""
    found = client.get_experiment_by_name(name)
    if found is None:
        with contextlib.suppress(Exception):
            return str(client.create_experiment(name, artifacts))
        found = client.get_experiment_by_name(name)
        if found is None:
            return str(client.create_experiment(name, artifacts))
    return str(found.experiment_id)


def files_of(uri: str, artifact_uri: str) -> Any:
    """Where a run's artifacts lie. MLflow's client would read the whole run to find out, which the caller knows."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.utils.uri import add_databricks_profile_info_to_artifact_uri

    return get_artifact_repository(add_databricks_profile_info_to_artifact_uri(artifact_uri, uri), tracking_uri=uri)


class NewFolder:
    """The artifacts of a run that stands nowhere yet, in a folder of this machine: nobody reads them before the run
    is there, so that files are copied without the store's precautions. Speaks as MLflow's repositories do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def log_artifact(self, local_file: str) -> None:
        shutil.copyfile(local_file, self._folder / os.path.basename(local_file))


def new_files_of(uri: str, artifact_uri: str) -> Any:
    """As `files_of`, for a run that is not there before its files are."""
    if artifact_uri.startswith("file:"):
        from mlflow.utils.file_utils import local_file_uri_to_path

        return NewFolder(Path(local_file_uri_to_path(artifact_uri)))
    return files_of(uri, artifact_uri)


@dataclass(slots=True)
class Child:
    """A run of an attempt as it stands in the store."""

    run_id: str
    artifact_uri: str
    status: str = "RUNNING"
    knows_trace: bool = False  # whether it says which dataset it replayed


def known_children(client: Any, experiment: str, parent: str) -> dict[tuple[str, str], Child]:
    """(trial, attempt) -> its run. A second run of the same attempt, of a lost answer, is deleted."""
    found: dict[tuple[str, str], Child] = {}
    for run in children_of(client, experiment, parent):
        tags = run.data.tags
        known = tags.get("kvknee.trial", ""), tags.get("kvknee.attempt", "")
        before = found.get(known)
        if before is not None:
            spare, kept = (_child(run), before) if before.status in OVER else (before, _child(run))
            client.delete_run(spare.run_id)
            found[known] = kept
        else:
            found[known] = _child(run)
    return found


def _child(run: Any) -> Child:
    info, uses = run.info, bool(run.inputs and run.inputs.dataset_inputs)
    return Child(info.run_id, info.artifact_uri, info.status, uses)


def dataset_of(parent: Any) -> tuple[Any, str] | None:
    """The trace that the sweep's run was given, with its whole hash."""
    for used in parent.inputs.dataset_inputs if parent.inputs else ():
        for tag in used.tags:
            if tag.key == "kvknee.trace_hash":
                return used.dataset, tag.value
    return None


def children_of(client: Any, experiment: str, parent: str) -> Iterator[Any]:
    """Every run below a sweep's."""
    token = None
    while True:
        mark = f"tags.`mlflow.parentRunId` = '{parent}'"
        page = client.search_runs([experiment], mark, max_results=500, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
