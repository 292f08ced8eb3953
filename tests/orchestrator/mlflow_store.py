"""What an MLflow store holds of a sweep, without ids and times; and a real server on loopback."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOVED = ("mlflow.", "kvknee.sweep", "kvknee.folder", "kvknee.slot")  # ids, machines and folders


@dataclass(frozen=True)
class Run:
    """One run as it must be in every store."""

    name: str
    status: str
    params: dict[str, str]
    metrics: dict[str, float]
    histories: dict[str, tuple[tuple[int, float], ...]]
    tags: dict[str, str]
    artifacts: dict[str, str]  # path -> sha256; those that hold times, hosts or ids: ""
    datasets: tuple[tuple[str, str], ...]


_UNEQUAL = ("attempt.json", "log.txt", "report.html", "sweep.yaml", "recipe.yaml", "MLmodel", "knee.json")


def runs_of(uri: str, experiment: str, sweep_id: str) -> dict[str, Run]:
    """Every run of a sweep by its name."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    (parent,) = client.search_runs([number], f"tags.`kvknee.sweep` = '{sweep_id}'")
    mark = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    found = [_run(client, run) for run in (parent, *client.search_runs([number], mark))]
    assert len({run.name for run in found}) == len(found), "one run an attempt"
    return {run.name: run for run in found}


def _run(client: Any, run: Any) -> Run:
    tags = {k: v for k, v in run.data.tags.items() if not k.startswith(_MOVED)}
    tags.pop("kvknee.recipe", None)  # names the recipe's digest, which covers paths
    series = [name for name in run.data.metrics if name.startswith("series/")]
    histories = {n: tuple((m.step, m.value) for m in client.get_metric_history(run.info.run_id, n)) for n in series}
    return Run(
        name=run.info.run_name, status=run.info.status, params=dict(run.data.params),
        metrics=dict(run.data.metrics), histories=histories, tags=tags,
        artifacts=dict(_artifacts(client, run.info.run_id, "")),
        datasets=tuple((d.dataset.name, d.dataset.digest) for d in run.inputs.dataset_inputs),
    )  # fmt: skip


def _artifacts(client: Any, run_id: str, below: str) -> Iterator[tuple[str, str]]:
    for found in client.list_artifacts(run_id, below):
        if found.is_dir:
            yield from _artifacts(client, run_id, found.path)
            continue
        name = Path(found.path).name
        path = "recipe/" + name if found.path.startswith("recipe-") else found.path
        exact = name not in _UNEQUAL
        yield path, hashlib.sha256(_read(client, run_id, found.path)).hexdigest() if exact else ""


def _read(client: Any, run_id: str, path: str) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return Path(client.download_artifacts(run_id, path, folder)).read_bytes()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`mlflow server` over a sqlite file, on loopback; killed with all its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        env = {
            **os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{self.folder / 'server.db'}",
        }  # fmt: skip
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port),
            "--workers", "1", "--artifacts-destination", str(self.folder / "artifacts"),
        ]  # fmt: skip
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            assert self._process.poll() is None, (self.folder / "log.txt").read_text()
            time.sleep(0.2)
        raise AssertionError("the server did not come up: " + (self.folder / "log.txt").read_text()[-2000:])

    def kill(self) -> None:
        """As a machine that dies: no process of it says goodbye."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
