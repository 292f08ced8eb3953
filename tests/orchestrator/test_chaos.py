"""A sweep over an emulated cluster while things die: trials, a slot, nodes, the driver; and one node freezes.

Whatever happens, and whenever: every trial of the plan is finished once, nothing runs on, no record stays open,
nothing is repeated but what was killed, and the winner is that of a sweep that nothing happened to.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import psutil
import pytest
from emulated import Emulated, until
from fake_rooms import write_trace

from orchestrator.conclude import outcome_of
from orchestrator.folder import SweepFolder
from orchestrator.opening import open_executor
from orchestrator.progress import Silent
from orchestrator.resolve import load_sweep
from orchestrator.sweep import Driver, Rooms
from orchestrator.tracking import MemoryTracker

SWEEP = """
name: chaos
engine: {name: simulator, step_time: roofline:h100-sxm}
model: llama-3.1-8b
pool: {bytes: 256MiB}
policy: {max_model_len: 1024}
trace: {path: t.parquet, window: {start: 0s, duration: 55s}}
slo: "ttft:p99<2000ms;itl:p99<100ms"
space: {vary: {policy.block_size: {powers_of_two: [1, 256]}}}
repeats: 2
held_out: 0
survival: null
controls: [contiguous, one_block, vendor_default]
executor: {kind: ray, slots: 3, slot: {cpus: 1, gpus: 1}, wait_for_nodes_s: 60, lease_s: 6}
"""
PLANNED = 24  # 9 block sizes and 3 controls on 2 windows
ROOT = Path(__file__).parents[2]


class Chaos:
    """A driver in a process of its own, and what is done to it and to its cluster. `killed`: attempts that may have
    to be repeated."""

    def __init__(self, cluster: Emulated, folder: Path, seed: int) -> None:
        self.cluster, self.folder, self.random = cluster, SweepFolder(folder / "out"), random.Random(seed)
        self.killed = 0
        self.log = (folder / "driver.log").open("ab")
        self.yaml = folder / "sweep.yaml"
        self.driver = self._start("run", str(self.yaml), "--address", cluster.address, "-o", str(self.folder.path))

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "orchestrator.cli", *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=self.log, env=dict(os.environ))

    @property
    def finished(self) -> int:
        return sum(r.state != "running" for r in self.folder.load_trials())

    def reach(self, trials: int) -> None:
        """Until so many trials are finished."""
        assert until(lambda: self.finished >= trials or self.driver.poll() is not None, 120), self.said()
        assert self.driver.poll() is None, self.said()

    def said(self) -> str:
        return Path(self.log.name).read_text()[-3000:]

    def busy_node(self) -> str:
        """A node on which a trial runs now, drawn by the seed."""
        names = sorted(self.cluster.nodes)
        self.random.shuffle(names)
        found: list[str] = []
        assert until(lambda: found.extend(n for n in names if self.cluster.workers(n)) or found, 60), self.said()
        return found[0]

    def kill_one(self, of: Callable[[str], list[psutil.Process]]) -> None:
        """SIGKILL to the first process of its kind that is still there to be killed."""
        for _ in range(50):
            for process in of(self.busy_node()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                    self.killed += 1
                    return
        pytest.fail(self.said())

    def kill_trial(self) -> None:
        self.kill_one(self.cluster.workers)

    def kill_actor(self) -> None:
        self.kill_one(self.cluster.actors)

    def kill_node(self) -> None:
        """Gone, and after a while another one joins."""
        self.cluster.kill(self.busy_node())
        self.killed += 1
        self.cluster.add("n9")

    def freeze_raylet(self) -> None:
        self.cluster.raylet(self.busy_node()).suspend()
        self.killed += 1

    def kill_driver(self) -> None:
        self.busy_node()
        self.driver.send_signal(signal.SIGKILL)
        self.driver.wait()
        self.killed += 3  # whatever its slots ran
        self.driver = self._start("resume", str(self.folder.path))


FAULTS: tuple[Callable[[Chaos], None], ...] = (
    Chaos.kill_trial, Chaos.kill_actor, Chaos.kill_node, Chaos.freeze_raylet, Chaos.kill_driver,
)  # fmt: skip


def undisturbed(folder: Path) -> str:
    """The winner where nothing happens, without Ray."""
    sweep = load_sweep(folder / "sweep.yaml", ["executor={kind: process, slots: 2}"])
    executor = open_executor(sweep)
    (folder / "whole").mkdir()
    try:
        rooms = Rooms(SweepFolder(folder / "whole"), executor, MemoryTracker(), Silent(), "b")
        Driver(sweep, rooms).run()
    finally:
        executor.close()
    records = rooms.folder.load_trials()
    assert len(records) == PLANNED
    winner = outcome_of(records, sweep).winner
    assert winner is not None
    return winner


def check_records(folder: SweepFolder, killed: int) -> None:
    """Law 16: 24 finished and none open, in folder, Optuna and MLflow; nothing repeated but what was killed."""
    records = folder.load_trials()
    assert [r.number for r in records] == list(range(PLANNED))
    assert all(r.state == "complete" or r.state == "refused" for r in records), [r.card.reason for r in records]
    attempts = [a for r in records for a in r.attempts]
    answered = [a for a in attempts if a.result is not None and a.lost is None]
    assert len(answered) == sum(r.card.reused_from is None for r in records)
    assert len(attempts) - len(answered) <= killed
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder.journal)))
    states = [t.state.name for t in optuna.load_study(study_name="chaos", storage=storage).get_trials()]
    assert states == ["COMPLETE"] * PLANNED
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder.mlflow_db}")
    runs = client.search_runs([client.get_experiment_by_name("chaos").experiment_id], max_results=1000)
    assert {run.info.status for run in runs} <= {"FINISHED", "FAILED", "KILLED"}
    assert len([r for r in runs if "mlflow.parentRunId" in r.data.tags]) == len(attempts)


def drive_through_chaos(seed: int, folder: Path) -> None:
    write_trace(folder / "t.parquet", rows=1200, gap_s=0.1)
    (folder / "sweep.yaml").write_text(SWEEP)
    expected = undisturbed(folder)
    draw = random.Random(f"kvknee-chaos-{seed}")
    faults = draw.sample(FAULTS, len(FAULTS))
    moments = sorted(draw.sample(range(1, 16), len(FAULTS)))
    with Emulated(3) as cluster:
        chaos = Chaos(cluster, folder, seed)
        try:
            for moment, fault in zip(moments, faults, strict=True):
                chaos.reach(moment)
                began = time.monotonic()
                fault(chaos)
                print(f"seed {seed}: after {chaos.finished}: {fault.__name__}, {time.monotonic() - began:.1f} s")
            assert chaos.driver.wait(150) == 0, chaos.said()
        finally:
            chaos.driver.kill()
            chaos.log.close()
        assert until(lambda: not cluster.left_behind(), 20), cluster.left_behind()
    check_records(chaos.folder, chaos.killed)
    assert json.loads(chaos.folder.knee_json.read_text())["winner"] == expected


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_sweep_survives_whatever_dies_and_comes_to_the_same_winner(tmp_path: Path) -> None:
    drive_through_chaos(1, tmp_path)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_a_sweep_survives_at_other_moments(tmp_path: Path, seed: int) -> None:
    drive_through_chaos(seed, tmp_path)
