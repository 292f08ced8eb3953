"""A sweep's rooms without processes: an executor that answers at once, a fuse that ends the driver anywhere."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from made_results import make_result

from orchestrator.executors import Done, Job, Lost
from orchestrator.folder import SweepFolder, write_text
from orchestrator.progress import Silent
from orchestrator.resolve import load_sweep
from orchestrator.sweep import Driver, Rooms
from orchestrator.tracking import MemoryTracker
from trials.fingerprint import trace_hash
from trials.result import Hashes
from trials.trace import load_trace, make_trace, save_trace

SWEEP = """
name: toy
engine: {name: simulator, step_time: roofline:h100-sxm}
model: llama-3.1-8b
pool: {bytes: 1GiB}
policy: {max_model_len: 1024}
trace: {path: t.parquet, window: {start: 0s, duration: 20s}}
slo: "ttft:p99<500ms;itl:p99<50ms"
space: {vary: {policy.block_size: {powers_of_two: [8, 32]}}}
repeats: 2
held_out: 0
survival: null
executor: process
tracking: null
"""


def write_trace(path: Path, rows: int = 60, gap_s: float = 1.0) -> None:
    """One request of 150 tokens every `gap_s` seconds."""
    arrivals = (np.arange(rows) * gap_s * 1e9).astype(np.int64)
    save_trace(make_trace(arrivals, np.full(rows, 100), np.full(rows, 50)), path)


def make_sweep(folder: Path, *sets: str, text: str = SWEEP):
    """The toy sweep, resolved, with `--set` changes."""
    if not (folder / "t.parquet").exists():
        write_trace(folder / "t.parquet")
    (folder / "s.yaml").write_text(text)
    return load_sweep(folder / "s.yaml", sets)


@dataclass
class Fuse:
    """Ends the process without any cleaning up at the n-th call; None never."""

    left: int | None = None

    def burn(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                os._exit(9)


def by_block_size(job):
    """Answer of the toy engine: best at 16."""
    spec = job.spec
    value = {8: 90.0, 16: 100.0, 32: 80.0}.get(spec.policy.block_size, 10.0) + spec.repeat
    return make_result(value, block_size=spec.policy.block_size)


@dataclass
class FakeExecutor:
    """`answer(job)` -> TrialResult, or Lost's (reason, infrastructure). Newest job first, to mix up the order."""

    sweep: object
    answer: object = by_block_size
    num_slots: int = 1
    fuse: Fuse = field(default_factory=Fuse)
    probe_s: object = None  # job -> seconds
    running: list = field(default_factory=list)
    ran: list = field(default_factory=list)
    most_at_once: int = 0
    closed: bool = False

    @property
    def slots(self):
        return self.num_slots

    @property
    def slot_names(self):
        return tuple(f"fake-{k}" for k in range(self.num_slots))

    def submit(self, job):
        self.fuse.burn()
        assert len(self.running) < self.num_slots, "more jobs than slots"
        self.running.append(job)
        self.most_at_once = max(self.most_at_once, len(self.running))

    def wait(self, timeout_s):
        self.fuse.burn()
        if not self.running:
            return []
        job = self.running.pop()
        self.ran.append(job)
        event = self._end(job)
        self.fuse.burn()
        return [event]

    def slot_of(self, job):
        return job.slot or f"fake-{job.number % self.num_slots}"

    def _end(self, job: Job):
        answer = self.answer(job)
        if isinstance(answer, tuple):
            return Lost(job, answer[0], answer[1], 1.0, "fake-0")
        own = job.spec.trace.path == self.sweep.config.trace.path
        digest = self.sweep.trace_digest if own else trace_hash(load_trace(Path(job.spec.trace.path)))
        hashes = Hashes(spec=self.sweep.hash(job.spec, digest), trace=digest, engine="e")
        result = answer.model_copy(update={"hashes": hashes})
        info = {"wall_s": 1.0, "slot": self.slot_of(job)} | ({"probe_s": self.probe_s(job)} if self.probe_s else {})
        (job.folder / "attempt.json").write_text(json.dumps(info))
        self.fuse.burn()
        # As a careless engine would: NaN and infinity are written too.
        text = json.dumps(result.model_dump(mode="python"))
        write_text(job.folder / "result.json", text)
        return Done(job, result, 1.0, "fake-0")

    def cancel(self, job):
        self.running = [j for j in self.running if j is not job]

    def close(self):
        self.closed = True
        self.running = []


class FusedFolder(SweepFolder):
    """Burns the fuse before and after each card."""

    def __init__(self, path, fuse):
        super().__init__(path)
        self.fuse = fuse

    def save_card(self, card):
        self.fuse.burn()
        super().save_card(card)
        self.fuse.burn()


class FusedTracker(MemoryTracker):
    def __init__(self, fuse):
        super().__init__()
        self.fuse = fuse

    def record(self, entry):
        self.fuse.burn()
        super().record(entry)
        self.fuse.burn()


class FusedViewer(Silent):
    """What was said, and a fuse at each picture: just after something was told."""

    def __init__(self, fuse):
        self.fuse = fuse
        self.said = []
        self.pictures = []

    def show(self, picture):
        self.fuse.burn()
        self.pictures.append(picture)

    def say(self, text):
        self.said.append(text)


@dataclass
class Ran:
    """What a drive left to look at."""

    executor: FakeExecutor
    tracker: FusedTracker
    viewer: FusedViewer
    folder: SweepFolder

    @property
    def records(self):
        return self.folder.load_trials()


def drive(path: Path, sweep, *, fuse=None, build="b1", answers_for=None, **executor) -> Ran:
    """Run the sweep in `path` to its end (or until the fuse ends this process)."""
    fuse = fuse or Fuse()
    path.mkdir(parents=True, exist_ok=True)
    fake = FakeExecutor(answers_for or sweep, fuse=fuse, **executor)
    ran = Ran(fake, FusedTracker(fuse), FusedViewer(fuse), FusedFolder(path, fuse))
    Driver(sweep, Rooms(ran.folder, ran.executor, ran.tracker, ran.viewer, build, lambda: 1.0)).run()
    return ran


def drive_and_die(path: Path, sweep, after: int, **executor) -> bool:
    """The same in a child process that ends itself at the `after`-th burn; True where it came to its end before."""
    child = os.fork()
    if child == 0:
        code = 7
        try:
            drive(path, sweep, fuse=Fuse(after), **executor)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9), f"the driver failed by itself with {code}"
    return code == 0
