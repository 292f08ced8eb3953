"""What only Ray can do to a trial: lose its node, freeze, or have too little."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from orchestrator.executors import Done, Job, Lost, Progress
from orchestrator.ray_slots import NotEnough, RayExecutor, RayTerms
from orchestrator.slot_needs import SlotNeeds
from trials.spec import trial_spec

pytestmark = pytest.mark.ray

WORKER = """
import json, os, sys, time
out = sys.argv[2]
args = json.load(open(sys.argv[1]))["engine"]["args"]
print(json.dumps({"progress": f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}"}), flush=True)
time.sleep(args.get("sleep_s", 0))
result = {"status": "complete", "evidence": "modelled", "requested": {},
          "hashes": {"spec": "s", "trace": "t", "engine": "e"}}
json.dump(result, open(out + "/result.json", "w"))
"""


@pytest.fixture
def worker(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "worker.py").write_text(WORKER)
    return ("-I", "-S", str(tmp_path / "worker.py"))


def job(folder: Path, number: int = 1, **args: object) -> Job:
    spec = trial_spec(
        {
            "engine": {"name": "simulator", "step_time": "roofline:h100-sxm", "args": args},
            "model": "llama-3.1-8b",
            "pool": {"blocks": 100},
            "trace": {"path": "/nowhere/trace.parquet"},
            "slo": "ttft:p99<500ms",
        }
    )
    return Job(number, 1, spec, folder / str(number), start_deadline_s=30, run_deadline_s=30)


def first_progress(executor: RayExecutor) -> Progress:
    for _ in range(60):
        for event in executor.wait(1.0):
            assert isinstance(event, Progress), event
            return event
    pytest.fail("the trial never spoke")


def end(executor: RayExecutor) -> Done | Lost:
    for _ in range(60):
        for event in executor.wait(1.0):
            if not isinstance(event, Progress):
                return event
    pytest.fail("the trial never ended")


def serving_again(executor: RayExecutor) -> None:
    """A lost slot takes no job until its new actor has answered."""
    for _ in range(300):
        if executor.slots:
            return
        assert executor.wait(0.1) == []
    pytest.fail("the slot never came back")


def gone(pid: int) -> bool:
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie":
            return True
        time.sleep(0.05)
    return False


def actor_of(worker_pid: int) -> psutil.Process:
    """worker -> guard (-> fork server) -> Ray's process of the slot."""
    line = [p for p in psutil.Process(worker_pid).parents() if "SlotActor" in " ".join(p.cmdline())]
    assert line
    return line[0]


def test_a_dead_slot_loses_its_trial_to_infrastructure_and_serves_again(
    local_ray: None, worker: tuple[str, ...], tmp_path: Path
) -> None:
    executor = RayExecutor(1, terms=RayTerms(worker=worker))
    try:
        executor.submit(job(tmp_path, 1, sleep_s=300))
        pid = int(first_progress(executor).text.split()[0])
        actor_of(pid).send_signal(signal.SIGKILL)
        lost = end(executor)
        assert isinstance(lost, Lost)
        assert lost.infrastructure
        assert "Actor" in lost.reason
        assert gone(pid), "the worker outlived its slot"
        serving_again(executor)
        executor.submit(job(tmp_path, 2))
        assert isinstance(end(executor), Done)
    finally:
        executor.close()


def test_a_frozen_slot_is_given_up_after_its_deadlines(
    local_ray: None, worker: tuple[str, ...], tmp_path: Path
) -> None:
    executor = RayExecutor(1, terms=RayTerms(worker=worker, lost_after_s=0.5, grace_s=0.5))
    try:
        frozen = job(tmp_path, 1, sleep_s=300)
        executor.submit(Job(1, 1, frozen.spec, frozen.folder, start_deadline_s=5, run_deadline_s=0.5))
        pid = int(first_progress(executor).text.split()[0])
        actor = actor_of(pid)
        actor.suspend()
        began = time.monotonic()
        lost = end(executor)
        assert isinstance(lost, Lost)
        assert lost.infrastructure
        assert "no word from its node" in lost.reason
        assert time.monotonic() - began < 40
        actor.resume()  # the node thaws: what was killed meanwhile must go
        assert gone(pid), "the worker outlived its slot"
    finally:
        executor.close()


def test_each_slot_sees_only_its_own_gpu(local_ray: None, worker: tuple[str, ...], tmp_path: Path) -> None:
    executor = RayExecutor(2, terms=RayTerms(needs=SlotNeeds(cpus=1, gpus=1), worker=worker))
    try:
        executor.submit(job(tmp_path, 1, sleep_s=0.2))
        executor.submit(job(tmp_path, 2, sleep_s=0.2))
        devices: set[str] = set()
        while len(devices) < 2:
            devices |= {e.text.split()[1] for e in executor.wait(10) if isinstance(e, Progress)}
        assert devices == {"0", "1"}
    finally:
        executor.close()


def test_more_than_the_cluster_has_is_refused_at_once(local_ray: None, worker: tuple[str, ...]) -> None:
    with pytest.raises(NotEnough, match="3 GPU, of 2"):
        RayExecutor(3, terms=RayTerms(needs=SlotNeeds(cpus=0, gpus=1), worker=worker))


def test_closing_ends_a_running_trial_and_leaves_the_cluster_to_its_owner(
    local_ray: None, worker: tuple[str, ...], tmp_path: Path
) -> None:
    import ray

    executor = RayExecutor(1, terms=RayTerms(worker=worker))
    executor.submit(job(tmp_path, 1, sleep_s=300))
    pid = int(first_progress(executor).text.split()[0])
    executor.close()
    executor.close()
    assert gone(pid)
    assert ray.is_initialized()


DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from orchestrator.executors import Job
from orchestrator.ray_slots import RayExecutor, RayTerms
from trials.spec import TrialSpec
executor = RayExecutor(1, terms=RayTerms(worker=("-I", "-S", sys.argv[1])))
executor.submit(Job(1, 1, TrialSpec.model_validate_json(sys.argv[2]), Path("job").absolute()))
try:
    while True:
        for event in executor.wait(30):
            print(event.text, flush=True)
finally:
    executor.close()
"""


def test_an_interrupted_driver_leaves_no_process_and_nothing_in_the_home(
    worker: tuple[str, ...], tmp_path: Path
) -> None:
    """Its own local cluster, in another process: Ctrl-C, then neither worker nor Ray may remain."""
    home = tmp_path / "home"
    home.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(home)}
    spec = job(tmp_path, 1, sleep_s=300).spec.model_dump_json()
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", DRIVER, worker[-1], spec, root]
    with psutil.Popen(command, stdout=-1, stderr=-1, cwd=tmp_path, env=env) as driver:
        pid = int(driver.stdout.readline().split()[0])
        family = driver.children(recursive=True)
        assert len(family) > 3
        driver.send_signal(signal.SIGINT)
        try:
            driver.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            driver.kill()
            raise
    assert gone(pid)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert not (home / ".ray").exists()


@pytest.mark.parametrize("lease_s", [1.0, 60.0, 600.0])
def test_a_driver_waits_longer_for_slots_than_a_killed_one_holds_them(lease_s: float) -> None:
    assert RayTerms(lease_s=lease_s).patience_s > lease_s
    assert RayTerms(lease_s=lease_s).patience_s >= 30
