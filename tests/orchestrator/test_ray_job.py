"""`ray job submit` of a sweep as docs/clusters.md has it: with the token it runs, without it nothing does."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_rooms import SWEEP, write_trace
from mlflow_store import free_port

from orchestrator.folder import SweepFolder

ROOT = Path(__file__).resolve().parents[2]
RAY = [str(Path(sys.executable).with_name("ray"))]
pytestmark = pytest.mark.ray


@dataclass
class Head:
    """A head of its own on loopback, in a session of its own."""

    process: subprocess.Popen[bytes]
    dashboard: str
    env: dict[str, str]
    place: Path


def environment(place: Path, **more: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return plain | {
        "RAY_TMPDIR": str(place), "HOME": str(place), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT),
        "MLFLOW_DISABLE_TELEMETRY": "true", **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """Started with the token authentication on; ended with all its processes, by its id alone."""
    place = Path(tempfile.mkdtemp(prefix="kvj"))  # short: Ray keeps sockets below it
    env = environment(place, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    port, dashboard, *others = (free_port() for _ in range(6))
    command = [
        *RAY, "start", "--head", "--block", "--num-cpus=2", "--object-store-memory=80000000",
        "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--port={port}",
        f"--dashboard-port={dashboard}", f"--ray-client-server-port={others[0]}",
        f"--dashboard-agent-listen-port={others[1]}", f"--metrics-export-port={others[2]}",
        f"--dashboard-agent-grpc-port={others[3]}", "--include-log-monitor=false",
    ]  # fmt: skip
    with (place / "head.txt").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        up = Head(process, f"http://127.0.0.1:{dashboard}", env, place)
        _wait_for(up)
        yield up
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


def _wait_for(head: Head) -> None:
    deadline = time.monotonic() + 120
    while status(head, head.env["RAY_AUTH_TOKEN"]) != 200:
        assert head.process.poll() is None, (head.place / "head.txt").read_text()
        assert time.monotonic() < deadline, (head.place / "head.txt").read_text()
        time.sleep(0.5)


def status(head: Head, token: str | None) -> int:
    """What the head answers to a question about its jobs; 0 where it does not answer."""
    request = urllib.request.Request(f"{head.dashboard}/api/jobs/")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def submit(head: Head, env: dict[str, str], *entrypoint: str) -> subprocess.CompletedProcess[str]:
    command = [*RAY, "job", "submit", "--address", head.dashboard, "--", *entrypoint]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_a_sweep_is_submitted_with_the_token(head: Head, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text(SWEEP.replace("executor: process", "executor: {kind: ray, slots: 2}"))
    out = tmp_path / "out"
    ended = submit(
        head, head.env, sys.executable, "-m", "orchestrator.cli", "run", str(tmp_path / "s.yaml"), "-o", str(out),
        "--address", "auto", "--set", "controls=[]", "--set", "repeats=1",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "outcome:" in ended.stdout
    folder = SweepFolder(out)
    assert [r.state for r in folder.load_trials()] == ["complete"] * 3
    assert folder.recipe_yaml.is_file()
    token = head.env["RAY_AUTH_TOKEN"]
    assert not [p for p in out.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]


def test_without_the_token_nothing_runs(head: Head, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for name, env in {
        "off": environment(head.place, RAY_AUTH_MODE="disabled"),
        "wrong": environment(head.place, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32)),
    }.items():
        ended = submit(head, env, "touch", str(mark))
        assert ended.returncode != 0, name
        assert "uthenticat" in ended.stdout + ended.stderr, name
    assert not mark.exists()
    assert (status(head, None), status(head, "0" * 64)) == (401, 403)
    assert status(head, head.env["RAY_AUTH_TOKEN"]) == 200
