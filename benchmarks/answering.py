"""Trials that cost nothing: a worker that answers at once, and an executor that answers in place.

Their answers are whole results of the spec that was asked, so that the driver treats them as it does any other.
"""

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.config import Sweep
from orchestrator.executors import Done, Event, Job
from orchestrator.package import Package, pack
from orchestrator.resolve import load_sweep
from trials.fingerprint import trace_hash
from trials.trace import load_trace, make_trace, save_trace

ROOT = Path(__file__).resolve().parents[1]

SWEEP = """
name: noop
engine: {{name: simulator, step_time: roofline:h100-sxm}}
model: llama-3.1-8b
pool: {{bytes: 1GiB}}
policy: {{max_model_len: 1024}}
trace: {{path: t.parquet}}
slo: "ttft:p99<500ms"
space: {{vary: {{policy.block_size: {{powers_of_two: [1, 256]}}, policy.watermark: {{range: [0, 0.2]}},
  policy.max_num_seqs: {{powers_of_two: [8, 1024]}}}}}}
sampler: tpe
trials: {trials}
repeats: 1
controls: []
held_out: 0
survival: null
tracking: null
"""

NOOP = '''"""Answers what it is asked at once: it reads its spec, and not the trace, which is a trial's own work."""

import json
import os
import sys
from pathlib import Path

from trials.preload import preload

preload("simulator")

from trials.fingerprint import spec_hash
from trials.worker import read_spec, say

MADE = json.loads((Path(__file__).parent / "made.json").read_text())  # what a trial's own work would come to


def main(arguments: list[str]) -> int:
    spec, out = read_spec(Path(arguments[0])), Path(arguments[1])
    say("measuring")
    known = MADE["hashes"]["trace"]
    made = MADE | {"hashes": {"spec": spec_hash(spec, known, None), "trace": known, "engine": "e" * 64}}
    (out / "attempt.json").write_text(json.dumps({"pid": os.getpid()}))
    (out / "requests.parquet").write_bytes(b"")
    (out / ".result").write_text(json.dumps(made))
    os.rename(out / ".result", out / "result.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''


def noop_sweep(folder: Path, trials: int) -> Sweep:
    """A TPE search over three dimensions; its trace has one request."""
    write_one_request(folder)
    (folder / "s.yaml").write_text(SWEEP.format(trials=trials))
    return load_sweep(folder / "s.yaml")


def write_one_request(folder: Path) -> None:
    """`folder`/t.parquet: a trace of one request."""
    one = np.zeros(1, np.int64)
    save_trace(make_trace(one, one + 100, one + 50), folder / "t.parquet")


def made_result() -> Any:
    """A whole, feasible result of a made-up trial."""
    import sys

    sys.path.insert(0, str(ROOT / "tests"))
    from made_results import make_result

    return make_result(100.0)


def noop_package(folder: Path) -> Package:
    """The package of trials/ with the worker that answers at once in it, and what it answers."""
    root = folder / "code"
    if not root.exists():
        shutil.copytree(ROOT / "trials", root / "trials", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "trials" / "noop.py").write_text(NOOP)
        made = made_result()
        hashes = made.hashes.model_copy(update={"trace": trace_hash(load_trace(folder / "t.parquet"))})
        answer = made.model_copy(update={"hashes": hashes}).model_dump_json()
        (root / "trials" / "made.json").write_text(answer)
    return pack(root)


class Answering:
    """An executor of one slot that answers a job at once. `cpu_s`: of the calling thread, at submissions."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep, self._made = sweep, made_result()
        self._ended: list[Event] = []
        self.cpu_s: list[float] = []

    @property
    def slots(self) -> int:
        return 1

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("here",)

    def submit(self, job: Job) -> None:
        self.cpu_s.append(time.thread_time())
        value = 100.0 - abs(job.spec.policy.block_size - 16)
        hashes = self._made.hashes.model_copy(
            update={"spec": self._sweep.hash(job.spec), "trace": self._sweep.trace_digest}
        )
        metrics = self._made.metrics.model_copy(update={"qualified_output_throughput": value})
        result = self._made.model_copy(update={"hashes": hashes, "metrics": metrics})
        (job.folder / "attempt.json").write_text('{"wall_s": 1.0}')
        (job.folder / "result.json").write_text(result.model_dump_json())
        self._ended.append(Done(job, result, 1.0, "here"))

    def wait(self, timeout_s: float) -> list[Event]:
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, job: Job) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing runs."""
