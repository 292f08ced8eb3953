"""One suite over every executor: what the sweep may rely on, wherever trials run."""

import json
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.executors import Done, Event, Executor, Job, Lost, Progress
from orchestrator.process_slots import ProcessExecutor
from trials.spec import TrialSpec, trial_spec

WORKER = """
import json, os, signal, subprocess, sys, time
spec_path, out = sys.argv[1:]
spec = json.load(open(spec_path))
do, args = spec["engine"]["args"]["do"], spec["engine"]["args"]
say = lambda text: print(json.dumps({"progress": text}), flush=True)

def answer(status="complete", reason=""):
    result = {"status": status, "reason": reason, "evidence": "modelled", "requested": {},
              "hashes": {"spec": "s", "trace": "t", "engine": "e"}}
    with open(out + "/requests.parquet", "wb") as f:
        f.write(bytes(range(256)) * 100)
    with open(out + "/.result", "w") as f:
        json.dump(result, f)
    os.rename(out + "/.result", out + "/result.json")

assert os.getcwd() == os.path.realpath(out), os.getcwd()
if do == "answer":
    say("measuring"); answer(args.get("status", "complete"), args.get("reason", ""))
elif do == "crash":
    print("words before the end", file=sys.stderr); sys.exit(3)
elif do == "raise":
    raise RuntimeError("the engine broke")
elif do == "exhaust":
    raise MemoryError("asked for more than there is")
elif do == "torn":
    open(out + "/result.json", "w").write('{"status": "comp')
elif do == "nothing":
    pass
elif do == "signal":
    os.kill(os.getpid(), args["signum"])
elif do == "silent":
    time.sleep(600)
elif do == "hang":
    if args.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(args["pids"], "w").write(f"{os.getpid()} {child.pid}")
    say("hanging"); time.sleep(600)
elif do == "leave_a_child":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(args["pids"], "w").write(f"{os.getpid()} {child.pid}")
    answer()
elif do == "progress":
    for i in range(args["steps"]):
        say(f"step {i}"); time.sleep(args["pause_s"])
    answer()
elif do == "chatter":
    for i in range(2000):
        print("not a progress line", i)
    print("x" * 200_000); say("one"); answer()
elif do == "meet":
    mine, other = args["mine"], args["other"]
    open(mine, "w").close()
    for _ in range(600):
        if os.path.exists(other):
            answer(); break
        time.sleep(0.05)
"""

Make = Callable[[int], Executor]
JobOf = Callable[..., Job]


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path = tmp_path_factory.mktemp("stand-in") / "worker.py"
    path.write_text(textwrap.dedent(WORKER))
    return ("-I", "-S", str(path))


KINDS = ["process", "process by fork", pytest.param("ray", marks=pytest.mark.ray)]


@pytest.fixture(params=KINDS, scope="module", name="executor")
def _executor(request: pytest.FixtureRequest, stand_in: tuple[str, ...]) -> Iterator[Executor]:
    """Two slots, shared by the tests of this module: every test leaves it idle."""
    executor: Executor
    if request.param != "ray":
        how = "fork" if request.param.endswith("fork") else "exec"
        executor = ProcessExecutor(2, worker=stand_in, how=how, grace_s=1)  # type: ignore[arg-type]
    else:
        from orchestrator.ray_slots import RayExecutor, RayTerms

        request.getfixturevalue("local_ray")
        executor = RayExecutor(2, terms=RayTerms(worker=stand_in, grace_s=1))
    yield executor
    executor.close()
    executor.close()  # may be called twice


@pytest.fixture
def job_of(tmp_path: Path) -> JobOf:
    def make(do: str, number: int = 1, start_s: float = 60, run_s: float = 60, **args: object) -> Job:
        spec: TrialSpec = trial_spec(
            {
                "engine": {"name": "simulator", "step_time": "roofline:h100-sxm", "args": {"do": do, **args}},
                "model": "llama-3.1-8b",
                "pool": {"blocks": 100},
                "trace": {"path": "/nowhere/trace.parquet"},
                "slo": "ttft:p99<500ms",
            }
        )
        folder = tmp_path / f"{number:04d}" / "attempt-1"
        return Job(number, 1, spec, folder, start_deadline_s=start_s, run_deadline_s=run_s)

    return make


def until_end(executor: Executor, jobs: int = 1, limit_s: float = 60) -> tuple[list[Done | Lost], list[Progress]]:
    ends: list[Done | Lost] = []
    said: list[Progress] = []
    began = time.monotonic()
    while len(ends) < jobs:
        assert time.monotonic() - began < limit_s, f"no end within {limit_s} s; heard {said}"
        for event in executor.wait(1.0):
            (said if isinstance(event, Progress) else ends).append(event)  # type: ignore[attr-defined]
    return ends, said


def end_of(executor: Executor, job: Job) -> Event:
    executor.submit(job)
    ends, _ = until_end(executor)
    assert ends[0].job == job
    return ends[0]


def assert_gone(pids: Path) -> None:
    numbers = [int(n) for n in pids.read_text().split()]
    assert len(numbers) == 2
    for _ in range(100):
        if not any(psutil.pid_exists(n) and psutil.Process(n).status() != "zombie" for n in numbers):
            return
        time.sleep(0.05)
    pytest.fail(f"still alive: {[psutil.Process(n) for n in numbers if psutil.pid_exists(n)]}")


def test_an_answer_is_done_and_all_files_lie_whole_in_the_jobs_folder(executor: Executor, job_of: JobOf) -> None:
    job = job_of("answer")
    end = end_of(executor, job)
    assert isinstance(end, Done), end
    assert end.result.status == "complete"
    assert end.wall_s > 0
    assert (job.folder / "requests.parquet").read_bytes() == bytes(range(256)) * 100
    assert TrialSpec.model_validate_json((job.folder / "spec.json").read_text()) == job.spec
    assert json.loads((job.folder / "result.json").read_text())["status"] == "complete"
    assert not [p.name for p in job.folder.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("status", ["refused", "failed"])
def test_a_refusal_and_a_failure_with_a_result_are_answers(executor: Executor, job_of: JobOf, status: str) -> None:
    end = end_of(executor, job_of("answer", status=status, reason="in its own words"))
    assert isinstance(end, Done), end
    assert (end.result.status, end.result.reason) == (status, "in its own words")


def test_an_exit_without_a_result_is_the_engines_failure_in_its_own_words(
    executor: Executor, job_of: JobOf
) -> None:
    job = job_of("crash")
    end = end_of(executor, job)
    assert isinstance(end, Lost)
    assert not end.infrastructure
    assert "exit code 3" in end.reason
    assert "words before the end" in end.reason
    assert "words before the end" in (job.folder / "log.txt").read_text()


def test_a_traceback_is_kept_in_the_reason(executor: Executor, job_of: JobOf) -> None:
    end = end_of(executor, job_of("raise"))
    assert isinstance(end, Lost)
    assert not end.infrastructure
    assert "RuntimeError: the engine broke" in end.reason


def test_an_engine_without_memory_has_refused_and_an_error_names_its_log(executor: Executor, job_of: JobOf) -> None:
    job = job_of("exhaust")
    refused, failed = end_of(executor, job), end_of(executor, job_of("raise", 2))
    assert isinstance(refused, Lost)
    assert isinstance(failed, Lost)
    assert (refused.refused, refused.infrastructure) == (True, False)
    assert (failed.refused, failed.infrastructure) == (False, False)
    assert f"log: {job.folder / 'log.txt'}" in refused.reason


@pytest.mark.parametrize(("do", "word"), [("torn", "not a whole, valid result"), ("nothing", "no result.json")])
def test_a_good_exit_with_a_torn_or_absent_result_is_lost(
    executor: Executor, job_of: JobOf, do: str, word: str
) -> None:
    end = end_of(executor, job_of(do))
    assert isinstance(end, Lost)
    assert end.infrastructure
    assert word in end.reason


def test_an_old_result_in_the_folder_is_never_taken_for_an_answer(executor: Executor, job_of: JobOf) -> None:
    job = job_of("answer")
    assert isinstance(end_of(executor, job), Done)
    crashing = Job(job.number, job.attempt, job_of("crash").spec, job.folder)
    assert isinstance(end_of(executor, crashing), Lost)
    assert not (job.folder / "result.json").exists()


@pytest.mark.parametrize(
    ("number", "infrastructure"), [(signal.SIGKILL, True), (signal.SIGTERM, True), (signal.SIGSEGV, False)]
)
def test_a_kill_from_outside_is_infrastructure_and_a_segfault_is_not(
    executor: Executor, job_of: JobOf, number: int, infrastructure: bool
) -> None:
    end = end_of(executor, job_of("signal", signum=int(number)))
    assert isinstance(end, Lost)
    assert end.infrastructure is infrastructure
    assert f"signal {int(number)}" in end.reason


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_hang_ends_at_the_run_deadline_with_its_children(
    executor: Executor, job_of: JobOf, tmp_path: Path, stubborn: bool
) -> None:
    job = job_of("hang", run_s=0.5, pids=str(tmp_path / "pids"), stubborn=stubborn)
    end = end_of(executor, job)
    assert isinstance(end, Lost)
    assert not end.infrastructure
    assert "did not end within 0.5 s" in end.reason
    assert_gone(tmp_path / "pids")


def test_silence_ends_at_the_start_deadline(executor: Executor, job_of: JobOf) -> None:
    end = end_of(executor, job_of("silent", start_s=0.5))
    assert isinstance(end, Lost)
    assert not end.infrastructure
    assert "did not start within 0.5 s" in end.reason


def test_a_cancelled_job_is_lost_to_infrastructure_and_leaves_no_process(
    executor: Executor, job_of: JobOf, tmp_path: Path
) -> None:
    job = job_of("hang", pids=str(tmp_path / "pids"))
    executor.submit(job)
    while not any(isinstance(event, Progress) for event in executor.wait(30)):
        pass
    executor.cancel(job)
    ends, _ = until_end(executor)
    assert isinstance(ends[0], Lost)
    assert ends[0].infrastructure
    assert ends[0].reason.startswith("cancelled")
    assert_gone(tmp_path / "pids")
    executor.cancel(job)  # over: nothing happens


def test_a_cancel_at_once_is_not_forgotten(executor: Executor, job_of: JobOf) -> None:
    job = job_of("silent")
    executor.submit(job)
    executor.cancel(job)
    ends, _ = until_end(executor)
    assert isinstance(ends[0], Lost)
    assert ends[0].reason.startswith("cancelled")


def test_what_an_answering_worker_left_running_is_ended(executor: Executor, job_of: JobOf, tmp_path: Path) -> None:
    end = end_of(executor, job_of("leave_a_child", pids=str(tmp_path / "pids")))
    assert isinstance(end, Done), end
    assert_gone(tmp_path / "pids")


def test_progress_arrives_while_the_trial_runs(executor: Executor, job_of: JobOf) -> None:
    job = job_of("progress", steps=5, pause_s=0.3)
    executor.submit(job)
    ends, said = until_end(executor)
    assert isinstance(ends[0], Done), ends
    texts = [progress.text for progress in said]
    assert texts == sorted(texts)
    assert len(texts) >= 3
    assert set(texts) <= {f"step {i}" for i in range(5)}


def test_other_output_goes_to_the_log_and_is_no_progress(executor: Executor, job_of: JobOf) -> None:
    job = job_of("chatter")
    executor.submit(job)
    ends, said = until_end(executor)
    assert isinstance(ends[0], Done), ends
    assert {progress.text for progress in said} <= {"one"}
    log = (job.folder / "log.txt").read_text()
    assert "not a progress line 1999" in log
    assert "x" * 200_000 in log.replace("\n", "")  # a line without end is kept, in pieces


def test_two_slots_run_at_once_and_a_third_job_is_refused(
    executor: Executor, job_of: JobOf, tmp_path: Path
) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert executor.slots == 2
    executor.submit(job_of("meet", 1, mine=a, other=b))
    executor.submit(job_of("meet", 2, mine=b, other=a))
    with pytest.raises(ValueError, match="no free slot"):
        executor.submit(job_of("answer", 3))
    ends, _ = until_end(executor, 2)
    assert all(isinstance(end, Done) for end in ends), ends
    assert {end.slot for end in ends} == set(executor.slot_names)  # type: ignore[attr-defined]


def test_a_named_slot_is_used_and_an_unknown_one_answered_with_the_known(executor: Executor, job_of: JobOf) -> None:
    job = job_of("answer")
    last = executor.slot_names[-1]  # type: ignore[attr-defined]
    named = Job(1, 1, job.spec, job.folder, slot=last)
    end = end_of(executor, named)
    assert isinstance(end, Done), end
    assert end.slot == last
    with pytest.raises(ValueError, match=last):
        executor.submit(Job(2, 1, job.spec, job.folder, slot="elsewhere"))


def test_waiting_for_nothing_returns_empty_after_the_timeout(executor: Executor) -> None:
    began = time.monotonic()
    assert executor.wait(0.2) == []
    assert 0.15 < time.monotonic() - began < 5


def test_closing_ends_what_runs(stand_in: tuple[str, ...], job_of: JobOf, tmp_path: Path) -> None:
    executor = ProcessExecutor(1, worker=stand_in, grace_s=1)
    executor.submit(job_of("hang", pids=str(tmp_path / "pids")))
    while not executor.wait(30):
        pass
    executor.close()
    assert_gone(tmp_path / "pids")


DRIVER = """
import sys
from pathlib import Path
from orchestrator.executors import Job
from orchestrator.process_slots import ProcessExecutor
from trials.spec import TrialSpec
worker, spec, folder = sys.argv[1:]
executor = ProcessExecutor(1, worker=("-I", "-S", worker))
executor.submit(Job(1, 1, TrialSpec.model_validate_json(spec), Path(folder)))
while True:
    for event in executor.wait(30):
        print(event, flush=True)
"""


def test_no_process_survives_a_killed_driver(stand_in: tuple[str, ...], job_of: JobOf, tmp_path: Path) -> None:
    job = job_of("hang", pids=str(tmp_path / "pids"), stubborn=True)
    command = [sys.executable, "-c", DRIVER, stand_in[-1], job.spec.model_dump_json(), str(job.folder)]
    with psutil.Popen(command, stdout=-1, cwd=Path(__file__).parents[2]) as driver:
        assert "hanging" in driver.stdout.readline().decode()
        driver.kill()
        driver.wait(10)
    assert_gone(tmp_path / "pids")
