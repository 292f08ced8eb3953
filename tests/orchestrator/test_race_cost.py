"""What a race saves a sweep: 40 candidates on the simulator, the same capacity, at most 0.35 of engine seconds."""

import numpy as np
from fake_rooms import FakeExecutor, Fuse, FusedFolder, FusedTracker, FusedViewer, make_sweep

from orchestrator.conclude import outcome_of
from orchestrator.executors import Done
from orchestrator.sweep import Driver, Rooms
from trials.trace import make_trace, save_trace
from trials.worker import run_trial

SWEEP = """
name: forty
engine: {name: simulator, step_time: roofline:h100-sxm}
model: llama-3.1-8b
pool: {bytes: 4GiB}
policy: {block_size: 16, max_num_batched_tokens: 2048, max_model_len: 8192}
trace: {path: t.parquet}
slo: "ttft:p90<1s;tpot:p90<60ms"
measure: {ladder: {low: 0.5, high: 16, within: 0.025}}
objective: capacity_load
phases: [cold]
space: {vary: {policy.block_size: {powers_of_two: [4, 512]},
               policy.max_num_batched_tokens: {powers_of_two: [256, 4096]}}}
repeats: 1
controls: []
survival: null
executor: process
tracking: null
"""


class InThisProcess(FakeExecutor):
    """Real trials, without a process each."""

    def _end(self, job):
        result = run_trial(job.spec, job.folder)
        return Done(job, result, 1.0, "here")


def write_trace(path, rows=80):
    rng = np.random.default_rng(11)
    at = np.cumsum(rng.exponential(0.125e9, rows)).astype(np.int64)
    prompts = np.clip(rng.lognormal(6.1, 0.9, rows), 32, 6000).astype(np.int64)
    outputs = np.clip(rng.lognormal(4.5, 0.7, rows), 4, 500).astype(np.int64)
    save_trace(make_trace(at, prompts, outputs), path)


def driven(folder, sweep):
    folder.mkdir()
    fuse = Fuse()
    rooms = Rooms(FusedFolder(folder, fuse), InThisProcess(sweep), FusedTracker(fuse), FusedViewer(fuse), "b")
    Driver(sweep, rooms).run()
    return rooms.folder.load_trials()


def engine_s(records):
    return sum(p.engine_s for r in records for a in r.attempts if a.result for p in a.result.capacity.parts)


def test_forty_candidates_raced_come_to_the_same_capacity_for_a_third_of_the_engine_seconds(tmp_path):
    write_trace(tmp_path / "t.parquet")
    plain_sweep = make_sweep(tmp_path, "race=false", text=SWEEP)
    sweep = make_sweep(tmp_path, text=SWEEP)
    assert sweep.budget == plain_sweep.budget == 40
    plain, raced = driven(tmp_path / "plain", plain_sweep), driven(tmp_path / "raced", sweep)
    believed, found = outcome_of(plain, plain_sweep), outcome_of(raced, sweep)
    share = engine_s(raced) / engine_s(plain)
    print(f"{engine_s(plain):.0f} engine s without a race, {engine_s(raced):.0f} with: {share:.2f}")
    # A rung is more than min_gain, so only equal capacities tie; of those a race keeps the one that it met first.
    assert found.candidate(found.winner).value == believed.candidate(believed.winner).value
    assert found.winner in believed.tied
    assert believed.candidate(believed.winner).value == max(c.value for c in believed.candidates)
    assert share <= 0.35
    # what the race only bounded is indeed below the bound
    for candidate in found.candidates:
        whole = believed.candidate(candidate.label)
        assert candidate.less_than is None or whole.value < candidate.less_than
        assert candidate.value in (None, whole.value)
