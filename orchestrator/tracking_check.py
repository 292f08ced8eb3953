"""Whether a tracking store can be used, asked once before the first trial: later trouble never stops a sweep."""

import http.client
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.redaction import redacted, without_password
from orchestrator.tracking_runs import connected
from orchestrator.tracking_uri import local_database
from trials.units import SpecError

_PATIENCE_S = 10.0
_REMEDY = "mend it, or choose another with --set tracking.uri=... (--set tracking=null remembers nothing)"


class NotReachable(SpecError):
    """Nothing answers where runs are to be remembered."""


def check_store(uri: str, experiment: str) -> None:
    """Raises NotReachable, or SpecError where the store is damaged or the experiment is deleted there."""
    database = local_database(uri)
    if database is not None:
        _check_file(database, experiment)
        return
    if urlsplit(uri).scheme in ("http", "https"):
        _answers(uri)
    try:
        found: Any = connected(uri).get_experiment_by_name(experiment)
    except Exception as error:
        said = redacted(str(error)).strip().splitlines() or [type(error).__name__]
        raise NotReachable(f"tracking store {without_password(uri)}: {said[0][:300]}; {_REMEDY}") from None
    if found is not None and found.lifecycle_stage == "deleted":
        raise SpecError(_deleted(experiment, without_password(uri), found.experiment_id))


def _deleted(experiment: str, where: str, number: object) -> str:
    return (
        f"experiment {experiment!r} is deleted in {where}: restore it with "
        f"`mlflow experiments restore -x {number}`, or give the sweep another name"
    )


def _answers(uri: str) -> None:
    """A server says within seconds that it is one; MLflow's client would try for minutes."""
    parts = urlsplit(uri)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    shown = without_password(uri)
    try:
        with closing(kind(parts.hostname or "", parts.port, timeout=_PATIENCE_S)) as connection:
            connection.request("GET", f"{parts.path.rstrip('/')}/health")
            answer = connection.getresponse()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotReachable(f"tracking store {shown}: no answer ({redacted(str(error))}); {_REMEDY}") from None
    if answer.status == 404 or answer.status >= 500:
        raise NotReachable(f"tracking store {shown}: answers {answer.status} at /health; {_REMEDY}")


def _check_file(path: Path, experiment: str) -> None:
    """A database in a file: whole where it exists, writable, and made with its folder where it does not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotReachable(f"tracking store {path}: {error}; {_REMEDY}") from None
    place = path if path.exists() else path.parent
    if not os.access(place, os.W_OK):
        raise NotReachable(f"tracking store {path}: {place} cannot be written; {_REMEDY}")
    if not path.exists() or not path.stat().st_size:
        return
    try:
        row = _experiment_row(path, experiment)
    except sqlite3.Error as error:
        raise SpecError(
            f"tracking store {path}: {error}; `kvknee report DIR --rebuild-tracking` makes it anew from results"
        ) from None
    if row is not None and row[1] == "deleted":
        raise SpecError(_deleted(experiment, str(path), row[0]))


def _experiment_row(path: Path, experiment: str) -> tuple[Any, ...] | None:
    # Not read-only: what a killed driver left half written is rolled back by whoever opens the file next.
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_PATIENCE_S)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'experiments'").fetchall()
        if not tables:
            return None
        asked = "SELECT experiment_id, lifecycle_stage FROM experiments WHERE name = ?"
        row: tuple[Any, ...] | None = connection.execute(asked, (experiment,)).fetchone()
        return row
