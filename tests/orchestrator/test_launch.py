"""What a worker is given, what code it runs, and how long it may take."""

import json
import os
import stat
import sys
import threading
import venv
from pathlib import Path

import pytest

from orchestrator.launch import Launch, environment, launch
from orchestrator.package import Package, install, pack
from orchestrator.parcel import File, Parcel, ParcelDamaged, collect, deliver
from orchestrator.process_group import Deadlines, ProcessGroup
from trials.spec import TrialSpec, trial_spec


def spec_of(**engine: object) -> TrialSpec:
    return trial_spec(
        {
            "engine": {"name": "simulator", "step_time": "roofline:h100-sxm", **engine},
            "model": "llama-3.1-8b",
            "pool": {"blocks": 100},
            "trace": {"path": "/nowhere/trace.parquet"},
            "slo": "ttft:p99<500ms",
        }
    )


def script(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "worker.py"
    path.write_text(text)
    return ("-P", str(path))


TELL = """
import json, os, sys
print(json.dumps({"progress": json.dumps([dict(os.environ), sys.path, os.getcwd(), sys.argv[1:]])}))
"""


@pytest.fixture
def no_package(tmp_path: Path) -> Path:
    place = tmp_path / "package"
    place.mkdir()
    return place


def told(spec: TrialSpec, package: Path, folder: Path) -> tuple[dict[str, str], list[str], str, list[str]]:
    said: list[str] = []
    outcome = launch(spec, folder / "out", Launch(package, script(folder, TELL)), said.append)
    assert outcome.exit_code == 0, outcome
    env, path, cwd, arguments = json.loads(said[-1])
    return env, path, cwd, arguments


def test_a_worker_sees_the_declared_environment_and_nothing_else(
    no_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    spec = spec_of(threads=2, env={"VLLM_LOGGING_LEVEL": "DEBUG"})
    env, path, cwd, arguments = told(spec, no_package, tmp_path)
    assert "SECRET_TOKEN" not in env
    assert "PYTHONHASHSEED" not in env
    assert env["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert {env[name] for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")} == {"2"}
    assert path[0] == str(no_package)
    assert cwd == str((tmp_path / "out").resolve())
    assert arguments == [str(tmp_path / "out" / "spec.json"), str(tmp_path / "out")]
    assert set(env) - {"LC_CTYPE"} <= set(environment(spec, no_package))


def test_a_foreign_interpreter_never_gets_the_drivers_site_packages(no_package: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "foreign", symlinks=True)
    foreign = tmp_path / "foreign" / "bin" / "python"
    _, path, _, _ = told(spec_of(python=str(foreign)), no_package, tmp_path)
    assert not [p for p in path if p.startswith(sys.prefix) and "site-packages" in p]
    assert [p for p in path if p.startswith(str(tmp_path / "foreign"))]


@pytest.mark.parametrize("python", ["relative/python", "/nowhere/bin/python"])
def test_an_interpreter_that_is_not_there_is_named(no_package: Path, tmp_path: Path, python: str) -> None:
    outcome = launch(spec_of(python=python), tmp_path / "out", Launch(no_package))
    assert outcome.ended_by == "never_started"
    assert python in outcome.reason
    assert outcome.exit_code is None


def test_an_interpreter_that_cannot_run_says_why(no_package: Path, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/nowhere/interpreter\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    outcome = launch(spec_of(python=str(broken)), tmp_path / "out", Launch(no_package))
    assert outcome.exit_code == 127
    assert f"cannot start {broken}" in outcome.log_tail


SLOW_START = """
import time
for i in range(5):
    print('{"starting": "loading %d"}' % i, flush=True)
    time.sleep(0.2)
print('{"progress": "measuring"}', flush=True)
time.sleep(0.8)
"""


def test_starting_counts_against_the_start_deadline_and_measuring_against_the_other(
    no_package: Path, tmp_path: Path
) -> None:
    worker = script(tmp_path, SLOW_START)
    said: list[str] = []
    patient = Launch(no_package, worker, Deadlines(start_s=10, run_s=10, grace_s=0.1))
    assert launch(spec_of(), tmp_path / "a", patient, said.append).exit_code == 0
    assert said[-1] == "measuring"
    assert said[0].startswith("loading")
    hasty = Launch(no_package, worker, Deadlines(start_s=0.5, run_s=10, grace_s=0.1))
    assert launch(spec_of(), tmp_path / "b", hasty).ended_by == "start_deadline"
    short = Launch(no_package, worker, Deadlines(start_s=10, run_s=0.3, grace_s=0.1))
    assert launch(spec_of(), tmp_path / "c", short).ended_by == "run_deadline"


def test_the_same_code_is_the_same_archive_and_another_byte_another_digest(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name / "trials" / "deep").mkdir(parents=True)
        (tmp_path / name / "trials" / "__init__.py").write_text("")
        (tmp_path / name / "trials" / "deep" / "x.py").write_text(f"VALUE = {name == 'c'}\n")
    (tmp_path / "b" / "trials" / "__pycache__").mkdir()
    (tmp_path / "b" / "trials" / "__pycache__" / "x.pyc").write_bytes(b"compiled")
    os.utime(tmp_path / "b" / "trials" / "__init__.py", (1, 1))
    a, b, c = (pack(tmp_path / name) for name in ("a", "b", "c"))
    assert a == b
    assert a.digest != c.digest


def test_the_package_holds_trials_and_nothing_else(tmp_path: Path) -> None:
    folder = install(pack(), tmp_path)
    assert [p.name for p in folder.iterdir()] == ["trials"]
    assert (folder / "trials" / "spec.py").is_file()


def test_a_package_that_was_changed_on_disk_is_made_again(tmp_path: Path) -> None:
    package = pack()
    folder = install(package, tmp_path)
    before = (folder / "trials" / "spec.py").read_text()
    stamp = (folder / "trials" / "units.py").stat().st_mtime_ns
    assert install(package, tmp_path) == folder
    assert (folder / "trials" / "units.py").stat().st_mtime_ns == stamp, "an intact one is kept: kernels stay valid"
    (folder / "trials" / "spec.py").write_text("raise SystemExit\n")
    assert install(package, tmp_path) == folder
    assert (folder / "trials" / "spec.py").read_text() == before


def test_several_installers_at_once_agree(tmp_path: Path) -> None:
    package = pack()
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(install(package, tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert [p.name for p in tmp_path.iterdir()] == [found[0].name]


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="damaged"):
        install(Package("0" * 64, pack().archive), tmp_path)
    assert not list(tmp_path.iterdir())


FLOOD = """
import json, os, time
print(json.dumps({"progress": ""}), flush=True)
until = time.monotonic() + 12
while time.monotonic() < until:
    os.write(1, b"x\\n" * 32768)
"""


def test_a_worker_that_prints_faster_than_it_is_read_meets_its_deadline(no_package: Path, tmp_path: Path) -> None:
    way = Launch(no_package, script(tmp_path, FLOOD), Deadlines(60, 0.5, 0.5))
    outcome = launch(spec_of(), tmp_path / "out", way)
    assert outcome.ended_by == "run_deadline"
    assert outcome.wall_s < 9


ODD = """
import json
print('{"a":' * 10_000)
print("[" * 60_000)
open("attempt.json", "w").write("[1]")
"""


def test_lines_and_facts_of_any_shape_end_no_launcher(no_package: Path, tmp_path: Path) -> None:
    outcome = launch(spec_of(), tmp_path / "out", Launch(no_package, script(tmp_path, ODD)))
    assert outcome.exit_code == 0, outcome
    assert (tmp_path / "out" / "log.txt").stat().st_size == 5 * 10_000 + 1 + 60_000 + 1
    assert json.loads((tmp_path / "out" / "attempt.json").read_text())["launch"] == "exec"


def test_a_worker_whose_devices_cannot_be_watched_is_ended(
    no_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    monkeypatch.setattr(ProcessGroup, "end", lambda group, s, end=ProcessGroup.end: ended.append(end(group, s)))

    class Unreadable:
        def read(self) -> None:
            raise OSError("no devices")

    monkeypatch.setattr("orchestrator.launch.Watch", lambda *_: Unreadable().read())
    way = Launch(no_package, script(tmp_path, "import time; time.sleep(60)"), reader=Unreadable())
    with pytest.raises(OSError, match="no devices"):
        launch(spec_of(), tmp_path / "out", way)
    assert ended == [None]


KERNEL = """
import numba
import numpy as np

@numba.njit(cache=True)
def total(x):
    s = 0.0
    for v in x:
        s += v
    return s
"""
USE = """
import json, trials.kernel as k, numpy as np
assert k.total(np.ones(5)) == 5.0
hits, misses = (sum(c.values()) for c in (k.total.stats.cache_hits, k.total.stats.cache_misses))
print(json.dumps({"progress": f"{hits} {misses}"}))
"""


def test_the_second_trial_loads_the_kernels_that_the_first_compiled(tmp_path: Path) -> None:
    (tmp_path / "code" / "trials").mkdir(parents=True)
    (tmp_path / "code" / "trials" / "__init__.py").write_text("")
    (tmp_path / "code" / "trials" / "kernel.py").write_text(KERNEL)
    package = pack(tmp_path / "code")
    said: list[str] = []
    for attempt in ("first", "second"):
        folder = install(package, tmp_path / "cache")
        outcome = launch(spec_of(), tmp_path / attempt, Launch(folder, script(tmp_path, USE)), said.append)
        assert outcome.exit_code == 0, outcome
    assert said == ["0 1", "1 0"]


def test_a_parcel_arrives_whole_or_not_at_all(tmp_path: Path) -> None:
    source = tmp_path / "source"
    worker = script(
        tmp_path, "import sys\nopen(sys.argv[2] + '/.hidden', 'w')\nopen('a.txt', 'w').write('x' * 9)\n"
    )
    outcome = launch(spec_of(), source, Launch(tmp_path, worker))
    parcel = collect(outcome, source)
    assert {file.name for file in parcel.files} == {"a.txt", "attempt.json", "log.txt"}
    deliver(parcel, tmp_path / "there")
    assert (tmp_path / "there" / "a.txt").read_text() == "x" * 9
    first = parcel.files[0]
    torn = Parcel(outcome, (*parcel.files[1:], File(first.name, first.content + b"!", first.sha256)))
    with pytest.raises(ParcelDamaged, match="checksum"):
        deliver(torn, tmp_path / "elsewhere")
    climbing = Parcel(outcome, (File("../up", first.content, first.sha256),))
    with pytest.raises(ParcelDamaged, match="plain file name"):
        deliver(climbing, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "up").exists()
