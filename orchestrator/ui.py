"""`kvknee ui DIR`: the MLflow of a sweep, served on loopback until Ctrl-C; a sweep that runs goes on beside it."""

import contextlib
import importlib.util
import math
import os
import shlex
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.folder import SweepFolder
from orchestrator.process_group import Deadlines, ProcessGroup, start_by_exec
from orchestrator.redaction import without_password
from orchestrator.tracking_uri import local_database, revealed
from trials.documents import read_yaml
from trials.units import SpecError

_HOST = "127.0.0.1"
_FIRST_PORT, _PORTS = 5000, 100
_LOOK_S = 0.3
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Shown:
    """Where a sweep's runs can be seen. `store` None: a server shows them itself, at `url`."""

    url: str
    store: str | None
    study: str = ""  # how the study is opened, where its dashboard is installed


def shown(path: Path, port: int | None) -> Shown:
    """What there is to serve, and where. SpecError where the folder remembers nothing, or the port is taken."""
    folder = SweepFolder(path.resolve())
    folder.require()
    tracking = read_yaml(folder.sweep_yaml).get("tracking", {})
    if tracking is None:
        raise SpecError(f"{path}: this sweep has tracking: null; `kvknee report {path}` writes report.html")
    asked = tracking.get("uri") if isinstance(tracking, dict) else tracking
    uri = f"sqlite:///{folder.mlflow_db}" if asked is None else revealed(str(asked))
    if uri.startswith(("http:", "https:")):
        return Shown(without_password(uri), None, _study(folder))
    database = local_database(uri)
    if database is not None and not database.is_file():
        raise SpecError(
            f"{path}: no MLflow store at {database} yet; "
            f"`kvknee report {path} --rebuild-tracking` makes it from the results"
        )
    return Shown(f"http://{_HOST}:{_free(port)}", uri, _study(folder))


def _study(folder: SweepFolder) -> str:
    if importlib.util.find_spec("optuna_dashboard") is None or not folder.journal.is_file():
        return ""
    return f"optuna-dashboard {shlex.quote(str(folder.journal))}"


def _free(port: int | None) -> int:
    """The port asked for, or the first free one from 5000 on."""
    for candidate in [port] if port is not None else range(_FIRST_PORT, _FIRST_PORT + _PORTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server binds it
            probe.bind((_HOST, candidate))
            return candidate
    where = (
        f"port {port} of {_HOST} is" if port is not None else f"ports {_FIRST_PORT} to {_FIRST_PORT + _PORTS} are"
    )
    raise SpecError(f"{where} taken; name a free one with --port")


def serve(what: Shown, folder: Path, say: Callable[[str], None]) -> int:
    """Serve until Ctrl-C or SIGTERM (0), or until the server ends by itself (1). `say` hears the URL when it is up.

    The server's own words go to DIR/mlflow-ui.txt.
    """
    if what.store is None:
        say(what.url)
        return 0
    over = threading.Event()
    log_path = folder.resolve() / "mlflow-ui.txt"
    with log_path.open("wb") as log, _until_told(over):
        group = ProcessGroup(
            start_by_exec(_command(what.url), _environment(what.store), folder.resolve(), log), log
        )
        threading.Thread(target=_announce, args=(what.url, over, say), daemon=True).start()
        try:
            for _ in group.listen(Deadlines(start_s=math.inf, run_s=math.inf), over):
                pass
        finally:
            over.set()
            group.end(_GRACE_S)
    if group.exit_code is None:
        return 0
    print(f"MLflow's server ended with {group.exit_code}; its words are in {log_path}", file=sys.stderr)
    return 1


def _command(url: str) -> list[str]:
    port = url.rpartition(":")[2]
    return [sys.executable, "-m", "mlflow", "server", "--host", _HOST, "--port", port, "--workers", "1"]


def _environment(store: str) -> dict[str, str]:
    """The store's URI goes here and not on the command line, where every user of the machine could read it."""
    return os.environ | {
        "MLFLOW_BACKEND_STORE_URI": store,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # nine more processes that a sweep's runs have no use for
    }


def _announce(url: str, over: threading.Event, say: Callable[[str], None]) -> None:
    while not over.wait(_LOOK_S):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            say(url)
            return


@contextlib.contextmanager
def _until_told(over: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set `over`."""
    before = [(number, signal.signal(number, lambda *_: over.set())) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
