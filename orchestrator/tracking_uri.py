"""Where runs are remembered, as a URI: made absolute, kept without its password, and given it back when it is used.

`env:NAME` takes the whole URI from the environment. A stored URI has `***` for its password, or for a token
in its user's place; the true one is then looked for in MLFLOW_TRACKING_URI. User and password of a server may also
stand in MLflow's own variables.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.redaction import HIDDEN, without_password
from trials.secret_names import REFERENCE
from trials.units import SpecError, nearest

VARIABLE = "MLFLOW_TRACKING_URI"
_SERVERS = ("http", "https", "databricks")
_DATABASES = ("postgresql", "mysql", "mssql")
_FORMS = "sqlite:///FILE.db, http://HOST:PORT, postgresql://..., or env:NAME of a variable that holds one"


def settled(uri: str, folder: Path) -> str:
    """The URI with a relative sqlite file made absolute under `folder`. SpecError where MLflow takes no such."""
    if uri.startswith(REFERENCE):
        return uri
    if uri.startswith("sqlite:"):
        return f"sqlite:///{_database_file(uri, folder)}"
    scheme = urlsplit(uri).scheme.partition("+")[0]
    if scheme in ("", "file"):
        raise SpecError(
            f"tracking.uri: {without_password(uri)}: MLflow no longer keeps runs in a folder of files; "
            f"write sqlite:///{uri.removeprefix('file://').rstrip('/')}/mlflow.db, or another of: {_FORMS}"
        )
    if scheme not in (*_SERVERS, *_DATABASES):
        known = ("sqlite", *_SERVERS, *_DATABASES)
        raise SpecError(f"tracking.uri: {scheme!r} is no kind of tracking store; {nearest(scheme, known)}")
    if scheme in ("http", "https") and not urlsplit(uri).hostname:
        raise SpecError(f"tracking.uri: {without_password(uri)}: no host in it; write one of: {_FORMS}")
    return uri


def _database_file(uri: str, folder: Path) -> Path:
    name = uri.removeprefix("sqlite:///")
    if name == uri or not name or name.startswith(":memory:"):
        raise SpecError(f"tracking.uri: {uri}: a file is needed, as sqlite:///runs.db")
    path = (folder / Path(name).expanduser()).resolve()
    if path.is_dir():
        raise SpecError(f"tracking.uri: {path} is a folder; name a file in it, as sqlite:///{path}/mlflow.db")
    return path


def revealed(uri: str, env: Mapping[str, str] = os.environ) -> str:
    """The URI to connect with. SpecError where it, or its password, is not in the environment."""
    if uri.startswith(REFERENCE):
        name = uri.removeprefix(REFERENCE)
        if not env.get(name):
            raise SpecError(f"tracking.uri: {uri}: {name} is not set; export {name}=URI of the tracking server")
        return settled(env[name], Path.cwd())
    if not any(hidden in uri for hidden in (f"//{HIDDEN}", f":{HIDDEN}@", f"={HIDDEN}")):
        return uri
    whole = env.get(VARIABLE, "")
    if without_password(whole) != uri:
        raise SpecError(
            f"tracking.uri: {uri}: its password or token is not kept on disk; export {VARIABLE} with the whole URI "
            f"of the same server, or write tracking: {{uri: env:NAME}}"
        )
    return whole


def local_database(uri: str) -> Path | None:
    """The file of a sqlite URI; None for servers."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None
