"""`kvknee ui` serves a sweep's runs on loopback, alone, and leaves no process behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from mlflow_store import free_port

from orchestrator import ui
from trials.units import SpecError

ROOT = Path(__file__).resolve().parents[2]


def folder_in(place: Path, tracking: object = "absent") -> Path:
    place.mkdir(parents=True, exist_ok=True)
    data = {"name": "toy"} | ({} if tracking == "absent" else {"tracking": tracking})
    (place / "sweep.yaml").write_text(yaml.safe_dump(data))
    return place


def processes_of(group: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_it_serves_the_runs_on_loopback_alone_and_ends_with_all_its_processes(
    mlflow_uri: str, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    MlflowClient(mlflow_uri).search_experiments()
    folder, port = folder_in(tmp_path / "out"), free_port()
    shutil.copy(mlflow_uri.removeprefix("sqlite:///"), folder / "mlflow.db")
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    client.create_experiment("shown by ui")
    command = [sys.executable, "-m", "orchestrator.cli", "ui", str(folder), "--port", str(port), "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not said.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, (folder / "mlflow-ui.txt").read_text()
                said += line
            url = json.loads(said)["url"]
            assert url == f"http://127.0.0.1:{port}"
            served = MlflowClient(url).get_experiment_by_name("shown by ui")
            assert served is not None
            client.create_experiment("made while it is served")  # as a sweep does
            assert MlflowClient(url).get_experiment_by_name("made while it is served") is not None
            assert _listeners(port) == {"127.0.0.1"}
            others = urllib.request.Request(url, headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(others, timeout=10)
            (guard,) = _children(process.pid)
            assert len(processes_of(guard)) >= 2
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    deadline = time.monotonic() + 10
    while processes_of(guard) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(guard) == []


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _listeners(port: int) -> set[str]:
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        if state == "0A" and int(address.split(":")[1], 16) == port:
            found.add(socket.inet_ntoa(bytes.fromhex(address.split(":")[0])[::-1]))
    six = Path("/proc/net/tcp6")
    if six.is_file():
        lines = [line.split() for line in six.read_text().splitlines()[1:]]
        found |= {f[1] for f in lines if f[3] == "0A" and int(f[1].split(":")[1], 16) == port}
    return found


def test_a_server_that_shows_itself_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM", "https://me:s3cret-pw@mlflow.example/team")
    said: list[str] = []
    what = ui.shown(folder_in(tmp_path, {"uri": "env:TEAM"}), None)
    assert ui.serve(what, tmp_path, said.append) == 0
    assert said == ["https://me:***@mlflow.example/team"]


def test_a_taken_port_is_said_and_another_is_found_where_none_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_in(tmp_path)
    (folder / "mlflow.db").write_bytes(b"")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=f"port {port} of 127.0.0.1 is taken"):
            ui.shown(folder, port)
        monkeypatch.setattr(ui, "_FIRST_PORT", port)
        found = int(ui.shown(folder, None).url.rpartition(":")[2])
        assert port < found < port + 100


@pytest.mark.parametrize(
    ("tracking", "words"),
    [(None, "tracking: null"), ("absent", "--rebuild-tracking"), ({"uri": "env:NOT_SET_HERE"}, "NOT_SET_HERE")],
)
def test_a_folder_with_nothing_to_show_says_so(tmp_path: Path, tracking: object, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        ui.shown(folder_in(tmp_path, tracking), None)


def test_no_sweep_no_ui(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no sweep\.yaml"):
        ui.shown(tmp_path, None)


def test_the_studys_dashboard_is_pointed_to_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_in(tmp_path / "a sweep")
    (folder / "mlflow.db").write_bytes(b"")
    (folder / "study.journal").write_text("")
    assert ui.shown(folder, free_port()).study == ""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "optuna_dashboard" or None)
    assert ui.shown(folder, free_port()).study == f"optuna-dashboard '{folder}/study.journal'"


def test_the_stores_password_is_not_on_the_command_line() -> None:
    command = ui._command("http://127.0.0.1:5000")
    store = "postgresql://me:s3cret-pw@db/x"
    assert "s3cret-pw" not in " ".join(command)
    assert ui._environment(store)["MLFLOW_BACKEND_STORE_URI"] == store
