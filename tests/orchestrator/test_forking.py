"""Which trials are forked, from what, and that a forked one is as clean as one of a new interpreter."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from made_sweep import make_spec, make_trace_file

from orchestrator import forking
from orchestrator.forking import CannotFork, ForkServer, ForkServers, why_not
from orchestrator.launch import WORKER, How, Launch, Outcome, environment, follow, interpreter, launch
from orchestrator.package import install, pack
from orchestrator.process_group import Deadlines
from trials.preload import FORKABLE
from trials.spec import TrialSpec

REAL = {
    "engine": {"name": "torch_paged", "clock": "cpu"},
    "model": {
        "num_layers": 1, "num_kv_heads": 1, "num_query_heads": 1, "head_dim": 8, "hidden_size": 16,
        "intermediate_size": 16, "vocab_size": 64, "dtype": "float32", "kv_dtype": "float32",
    },
    "pool": {"bytes": "1MiB"},
}  # fmt: skip


@pytest.fixture(scope="module")
def package() -> Path:
    return install(pack())


@pytest.fixture
def servers() -> "ForkServers":
    made = ForkServers()
    yield made
    made.close()


def spec_of(engine: str, tmp_path: Path) -> TrialSpec:
    trace = make_trace_file(tmp_path / "t.parquet", rows=6)
    return make_spec(trace, **(REAL if engine == "torch_paged" else {}))


@pytest.mark.parametrize("engine", sorted(FORKABLE))
def test_an_engine_of_ours_is_imported_without_a_second_thread_and_forked(
    engine: str, package: Path, servers: ForkServers, tmp_path: Path
) -> None:
    spec = spec_of(engine, tmp_path)
    pids = []
    for name in ("a", "b"):
        outcome = launch(spec, tmp_path / name, Launch(package, how="fork", servers=servers))
        assert outcome.exit_code == 0, outcome
        said = json.loads((tmp_path / name / "attempt.json").read_text())
        assert said["launch"] == "fork"
        pids.append(said["pid"])
    assert len({*pids, os.getpid()}) == 3


def test_a_forked_simulator_answers_byte_for_byte_what_an_executed_one_does(
    package: Path, servers: ForkServers, tmp_path: Path
) -> None:
    spec = spec_of("simulator", tmp_path)
    for name, how in (("exec", "exec"), ("fork", "fork"), ("again", "fork")):
        assert launch(spec, tmp_path / name, Launch(package, how=how, servers=servers)).exit_code == 0
    for file in ("result.json", "ledger.parquet", "requests.parquet"):
        assert len({(tmp_path / name / file).read_bytes() for name in ("exec", "fork", "again")}) == 1, file


def test_what_cannot_be_forked_gets_an_interpreter_and_says_why(
    package: Path, servers: ForkServers, tmp_path: Path
) -> None:
    spec = spec_of("simulator", tmp_path)
    threads = spec.engine.model_copy(update={"threads": 2, "env": {"OPENBLAS_NUM_THREADS": "2"}})
    crowded = spec.model_copy(update={"engine": threads})
    outcome = launch(crowded, tmp_path / "a", Launch(package, servers=servers))
    said = json.loads((tmp_path / "a" / "attempt.json").read_text())
    assert outcome.exit_code == 0
    assert said["launch"] == "exec"
    assert "threads after its imports" in said["launch_because"]
    refused = launch(crowded, tmp_path / "b", Launch(package, how="fork", servers=servers))
    assert refused.ended_by == "never_started"


def test_engines_of_others_are_never_forked(tmp_path: Path) -> None:
    spec = spec_of("simulator", tmp_path)
    other = spec.engine.model_copy(update={"name": "vllm"})
    assert "vllm" in why_not(spec.model_copy(update={"engine": other}), WORKER)
    on_cuda = spec.engine.model_copy(update={"device": "cuda"})
    assert "cuda" in why_not(spec.model_copy(update={"engine": on_cuda}), WORKER)
    assert why_not(spec, ("-P", "-c", "print()")) != ""
    assert why_not(spec, WORKER) == ""


def test_a_server_that_died_is_started_again(package: Path, servers: ForkServers, tmp_path: Path) -> None:
    spec = spec_of("simulator", tmp_path)
    way = Launch(package, how="fork", servers=servers)
    assert launch(spec, tmp_path / "a", way).exit_code == 0
    server = servers.of(spec, interpreter(spec), environment(spec, package), WORKER)
    psutil.Process(server.pid).kill()
    psutil.Process(server.pid).wait(10)
    assert launch(spec, tmp_path / "b", way).exit_code == 0
    assert servers.of(spec, interpreter(spec), environment(spec, package), WORKER).pid != server.pid


SLEEPER = """
import json, time
print(json.dumps({"progress": "up"}), flush=True)
time.sleep(600)
"""


def test_a_trial_outlives_neither_its_launcher_s_patience_nor_its_server(
    package: Path, servers: ForkServers, tmp_path: Path
) -> None:
    """The keeper is killed under a running trial: its server still ends, and with it the trial."""
    (tmp_path / "w.py").write_text(SLEEPER)
    spec = spec_of("simulator", tmp_path)
    way = Launch(package, ("-P", str(tmp_path / "w.py")), how="fork", servers=servers)
    stop, said = threading.Event(), follow(spec, tmp_path / "a", way, threading.Event())
    assert next(said) == "up"
    server = servers.of(spec, interpreter(spec), environment(spec, package), way.worker)
    family = psutil.Process(server.pid).children(recursive=True)
    assert len(family) == 2
    psutil.Process(server.pid).kill()
    stop.set()
    said.close()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


FAMILY = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    time.sleep(600)
print(json.dumps({"progress": f"{os.getpid()} {child}"}), flush=True)
time.sleep(600)
"""

LAUNCHER = """
import sys
from pathlib import Path
from orchestrator.forking import ForkServers
from orchestrator.launch import Launch, follow
from trials.spec import TrialSpec
worker, spec, package, folder = sys.argv[1:]
servers = ForkServers()
way = Launch(Path(package), ("-P", worker), how="fork", servers=servers)
for said in follow(TrialSpec.model_validate_json(spec), Path(folder), way):
    print(servers._server.pid, said, flush=True)
"""


@pytest.mark.parametrize(
    "killed",
    [
        ("keeper",),
        ("server",),
        ("launcher",),
        ("launcher", "server"),
        ("launcher", "keeper"),
        ("keeper", "server"),
        ("server", "keeper"),
    ],
)
def test_whoever_is_killed_the_worker_and_its_children_go_too(
    killed: tuple[str, ...], package: Path, tmp_path: Path
) -> None:
    """Killed together: none of them has time to see to what another one leaves. One of the three stays."""
    (tmp_path / "w.py").write_text(FAMILY)
    spec = spec_of("simulator", tmp_path).model_dump_json()
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path / "w.py"), spec, str(package), str(tmp_path / "out")]
    with psutil.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as launcher:
        keeper, worker, child = (psutil.Process(int(pid)) for pid in launcher.stdout.readline().split())
        server = worker.parent()
        assert server.parent() == keeper
        assert child.parent() == worker
        known = {"keeper": keeper, "server": server, "launcher": launcher}
        for name in killed:
            known[name].suspend()
        for name in killed:
            known[name].kill()
        _, alive = psutil.wait_procs([keeper, server, worker, child], timeout=20)
        assert not alive


def test_the_launcher_kills_what_a_worker_left_whose_server_and_keeper_are_gone(
    package: Path, servers: ForkServers, tmp_path: Path
) -> None:
    (tmp_path / "w.py").write_text(FAMILY)
    way = Launch(package, ("-P", str(tmp_path / "w.py")), how="fork", servers=servers)
    said = follow(spec_of("simulator", tmp_path), tmp_path / "out", way)
    worker, child = (psutil.Process(int(pid)) for pid in str(next(said)).split())
    above = [worker.parent().parent(), worker.parent()]
    for one in above:
        one.suspend()
    for one in above:
        one.kill()
    psutil.wait_procs([*above, worker], timeout=10)
    assert child.is_running()
    said.close()
    assert psutil.wait_procs([child], timeout=10)[1] == []


def test_a_module_that_is_not_there_is_said(package: Path, tmp_path: Path) -> None:
    spec = spec_of("simulator", tmp_path)
    env = environment(spec, package)
    with pytest.raises(CannotFork, match=r"No module named 'trials\.nothing'"):
        ForkServer(interpreter(spec), env, ("-P", "-m", "trials.nothing"), "simulator")
    outcomes = [s for s in follow(spec, tmp_path / "a", Launch(package)) if isinstance(s, Outcome)]
    assert outcomes[0].exit_code == 0


STUBBORN = (
    "import json, signal, time; signal.signal(15, signal.SIG_IGN); print(json.dumps({'progress': ''}), flush=True)"
)


def test_a_server_that_killed_a_worker_forks_the_next_one(
    package: Path, servers: ForkServers, tmp_path: Path
) -> None:
    """It is asked to reap before it knows that the worker has ended; it died of looking for the end of nobody."""
    spec = spec_of("simulator", tmp_path)
    (tmp_path / "w.py").write_text(f"{STUBBORN}; time.sleep(600)")
    way = Launch(package, ("-P", str(tmp_path / "w.py")), Deadlines(60, 0.05, 0.05), how="fork", servers=servers)
    pids = set()
    for number in range(4):
        assert launch(spec, tmp_path / str(number), way).ended_by == "run_deadline"
        pids.add(servers.of(spec, interpreter(spec), environment(spec, package), way.worker).pid)
    assert len(pids) == 1


@pytest.mark.parametrize(
    ("last", "code"), [("sys.stdout.close()", 5), ("sys.stdout = None", 5), ("os.close(1)", 120)]
)
@pytest.mark.parametrize("how", ["exec", "fork"])
def test_a_worker_that_closed_its_streams_ends_as_in_an_interpreter_of_its_own(
    last: str, code: int, how: How, package: Path, servers: ForkServers, tmp_path: Path
) -> None:
    (tmp_path / "w.py").write_text(f"import os, sys\nprint('said')\n{last}\nraise SystemExit(5)")
    way = Launch(package, ("-P", str(tmp_path / "w.py")), how=how, servers=servers)
    assert launch(spec_of("simulator", tmp_path), tmp_path / "out", way).exit_code == code


def test_a_server_and_a_keeper_that_are_stopped_are_ended_all_the_same(
    package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(forking, "_END_S", 0.5)
    spec = spec_of("simulator", tmp_path)
    server = ForkServer(interpreter(spec), environment(spec, package), WORKER, "simulator")
    both = [keeper := psutil.Process(server.pid), *keeper.children()]
    assert len(both) == 2
    for one in both:
        one.suspend()
    server.close()
    _, alive = psutil.wait_procs(both, timeout=10)
    assert not alive


def test_a_lack_of_descriptors_costs_one_fork_and_none_for_good(
    package: Path, servers: ForkServers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = spec_of("simulator", tmp_path)
    env = environment(spec, package)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(forking.subprocess, "Popen", refuse)
        with pytest.raises(CannotFork, match="Too many open files"):
            servers.of(spec, interpreter(spec), env, WORKER)
    server = servers.of(spec, interpreter(spec), env, WORKER)
    before, made = set(os.listdir("/proc/self/fd")), []
    with monkeypatch.context() as patched:
        patched.setattr(forking.os, "pipe", lambda pipe=os.pipe: refuse() if made else made.append(1) or pipe())
        with (tmp_path / "log").open("wb") as log, pytest.raises(OSError, match="Too many open files"):
            server.start(["a", "b"], tmp_path, log, ())
    assert set(os.listdir("/proc/self/fd")) == before
    assert server.alive
