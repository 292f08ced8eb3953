"""A sweep on 64 slots: the real driver, study, race and folder over an executor whose clock is virtual.

    python benchmarks/scale.py [--slots 64] [--trials 128] [--seeds N] [--json FILE]

An engine takes 180 s to start, in a new process a trial; inside, the search for capacity replays windows of 200 s
on the one open engine (10 s of warm-up, 5 s of draining; one that fails ends early, where it is sure). Trials
take 5 to 30 minutes (printed). One in twenty runs on a slow node, 1.5 to 3 times as long; one attempt in thirty
is lost somewhere on its way; once a node with eight slots dies under its trials and comes back ten minutes later.
What a candidate holds is a smooth function of four fields; the driver searches it with TPE, racing and not, seed
after seed.

  share     slot seconds inside windows of trials that answered / slot seconds held, from a slot's first start to
            its last end: starts, warm-up, draining, lost attempts, idleness between trials count against it
  best      capacity of the winner, beside that of the same search one trial at a time

Asserted (exit 1), as medians over the seeds: a share of at least 70 % with racing; a best within 2 % of the
sequential one.
"""

import argparse
import heapq
import json
import random
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from answering import made_result, write_one_request

from orchestrator.conclude import outcome_of
from orchestrator.config import Sweep
from orchestrator.executors import Done, Event, Job, Lost
from orchestrator.folder import SweepFolder
from orchestrator.progress import Silent
from orchestrator.resolve import load_sweep
from orchestrator.sweep import Driver, Rooms
from orchestrator.tracking import MemoryTracker
from trials.bracket import rung_from, rung_near, rungs, search
from trials.result import Capacity, CapacityPart, TrialResult
from trials.spec import PoolPolicy, TrialSpec

SHARE, GAP = 0.70, 0.02
MINUTES = (0, 50, 90)  # percentiles of a trial's time that are printed; the rest are slow nodes
START_S, WARMUP_S, WINDOW_S, DRAIN_S = 180.0, 10.0, 200.0, 5.0
SLOW, FAULTY = 1 / 20, 1 / 30
NODE_SLOTS, NODE_DIES_S, NODE_IS_AWAY_S = 8, (300.0, 3000.0), 600.0

SWEEP = """
name: scale
engine: {{name: simulator, step_time: roofline:h100-sxm}}
model: llama-3.1-8b
pool: {{bytes: 16GiB}}
policy: {{max_model_len: 8192}}
trace: {{path: t.parquet}}
slo: "ttft:p99<500ms"
measure: {{ladder: {{low: 0.7, high: 1.8, within: 0.02}}}}
objective: capacity_load
race: {race}
space: {{vary: {{policy.block_size: {{powers_of_two: [1, 256]}}, policy.watermark: {{range: [0, 0.2]}},
  policy.max_num_seqs: {{powers_of_two: [8, 1024]}}, 
  policy.max_num_batched_tokens: {{powers_of_two: [512, 16384]}}}}}}
sampler: tpe
trials: {trials}
repeats: 1
controls: []
held_out: 0
survival: null
seed: {seed}
tracking: null
"""


def holds_up_to(policy: PoolPolicy) -> float:
    """The load that a candidate holds: 1.6 at block 32, 64 sequences, 8,192 tokens and a watermark of 0.06; the
    default holds 1.1."""
    block = policy.block_size.bit_length() - 1
    seqs = policy.max_num_seqs.bit_length() - 1
    tokens = policy.max_num_batched_tokens.bit_length() - 1
    lost = 0.03 * max(0, 5 - block) ** 2 + 0.05 * max(0, block - 5) ** 2
    lost += 0.06 * (seqs - 6) ** 2 + 0.04 * (tokens - 13) ** 2 + 6.0 * (policy.watermark - 0.06) ** 2
    return 1.6 / (1 + lost)


@dataclass(frozen=True, slots=True)
class Searched:
    """A trial's search on its one engine. `windows_s`: of each replay, what it measured."""

    capacity: Capacity
    windows_s: tuple[float, ...]

    @property
    def wall_s(self) -> float:
        return START_S + sum(WARMUP_S + window + DRAIN_S for window in self.windows_s)


def searched(spec: TrialSpec, draw: random.Random) -> Searched:
    """The search as the worker's, over what the candidate holds: against the load to beat, or near another's."""
    ladder = spec.measure.ladder
    assert ladder is not None
    values, truth, windows = rungs(ladder), holds_up_to(spec.policy), []

    def holds(rung: int) -> bool:
        good = values[rung] <= truth
        windows.append(WINDOW_S if good else WINDOW_S * draw.uniform(0.5, 1.0))
        return good

    hint, less_than, best, beyond = None, None, None, None
    if ladder.beat is not None:
        hint = rung_from(values, ladder.beat)
    elif ladder.near is not None:
        hint = rung_near(values, ladder.near)
    if ladder.beat is not None and hint is not None and not holds(hint):
        less_than = values[hint]
    else:
        found = search(holds, len(values), hint)
        best = None if found.best is None else values[found.best]
        beyond = None if found.beyond is None else values[found.beyond]
    part = CapacityPart(
        start_ns=0, end_ns=1, requests=999, value=best, beyond=beyond, below=None, binding="ttft",
        replays=len(windows), stopped_early=0, engine_s=sum(windows),
    )  # fmt: skip
    words = f"< {less_than}" if less_than else ""
    capacity = Capacity(over="rate_scale", last=values[-1], value=best, low=best, high=best, less_than=less_than,
                        parts=(part,), words=words)  # fmt: skip
    return Searched(capacity, tuple(windows))


@dataclass(frozen=True, slots=True)
class Attempt:
    """What becomes of a submitted job, and when."""

    job: Job
    slot: int
    began_s: float
    ends_s: float
    result: TrialResult | None  # None: it is lost
    window_s: float


class Virtual:
    """Slots on a clock that jumps to the next end. What a job comes to follows from its spec and the seed alone."""

    def __init__(self, sweep: Sweep, slots: int, seed: int, faults: bool = True) -> None:
        self._sweep, self._seed, self._faults, self._made = sweep, seed, faults, made_result()
        self.now_s, self._order = 0.0, 0
        self._free = set(range(slots))
        self._all = slots
        self._ends: list[tuple[float, int, Attempt]] = []
        self._dead = self._back = not faults
        self._dies_s = random.Random(f"{seed}:node").uniform(*NODE_DIES_S)
        self._is_back_s = self._dies_s + NODE_IS_AWAY_S
        self.ended: list[Attempt] = []

    @property
    def slots(self) -> int:
        return self._all - (NODE_SLOTS if self._dead and not self._back else 0)

    @property
    def slot_names(self) -> tuple[str, ...]:
        return tuple(f"slot-{n}" for n in range(self._all))

    def submit(self, job: Job) -> None:
        down = set(range(NODE_SLOTS)) if self._dead and not self._back else set()
        slot = min(self._free - down)
        self._free.remove(slot)
        draw = random.Random(f"{self._seed}:{job.number}:{job.attempt}")
        found = searched(job.spec, draw)
        times = draw.uniform(1.5, 3.0) if self._faults and draw.random() < SLOW else 1.0
        wall_s, window_s = found.wall_s * times, sum(found.windows_s) * times
        lost = self._faults and draw.random() < FAULTY
        if lost:
            wall_s *= draw.random()
        result = None if lost else self._result(job, found)
        self._push(Attempt(job, slot, self.now_s, self.now_s + wall_s, result, window_s))

    def _push(self, attempt: Attempt) -> None:
        self._order += 1
        heapq.heappush(self._ends, (attempt.ends_s, self._order, attempt))

    def _result(self, job: Job, found: Searched) -> TrialResult:
        made, value = self._made, found.capacity.value
        hashes = made.hashes.model_copy(
            update={"spec": self._sweep.hash(job.spec), "trace": self._sweep.trace_digest}
        )
        metrics = made.metrics.model_copy(update={"capacity_load": value})
        held = {"metrics": metrics, "holds": value is not None}
        replays = tuple(replay.model_copy(update=held) for replay in made.replays)
        return made.model_copy(
            update={"hashes": hashes, "metrics": metrics, "replays": replays, "capacity": found.capacity}
        )

    def wait(self, timeout_s: float) -> list[Event]:
        self._node()
        if not self._ends:
            self.now_s += timeout_s
            return []
        ends_s, _, attempt = heapq.heappop(self._ends)
        self.now_s = max(self.now_s, ends_s)
        self._free.add(attempt.slot)
        self.ended.append(attempt)
        return [self._event(attempt)]

    def _event(self, attempt: Attempt) -> Event:
        job, wall_s, slot = attempt.job, attempt.ends_s - attempt.began_s, f"slot-{attempt.slot}"
        if attempt.result is None:
            return Lost(job, "lost on its way", True, wall_s, slot)
        (job.folder / "attempt.json").write_text(json.dumps({"wall_s": wall_s, "slot": slot}))
        (job.folder / "result.json").write_text(attempt.result.model_dump_json())
        return Done(job, attempt.result, wall_s, slot)

    def _node(self) -> None:
        """The node's death and return, once the clock has come to them."""
        next_s = self._ends[0][0] if self._ends else self.now_s
        if not self._dead and next_s >= self._dies_s:
            self._dead = True
            attempts = [attempt for _, _, attempt in self._ends]
            self._ends = []
            for a in attempts:
                struck = a.slot < NODE_SLOTS
                self._push(Attempt(a.job, a.slot, a.began_s, self._dies_s, None, 0.0) if struck else a)
        self._back = self._back or self.now_s >= self._is_back_s

    def cancel(self, job: Job) -> None:
        """Nothing is ever cancelled here."""

    def close(self) -> None:
        """Nothing runs."""

    def held_s(self) -> float:
        """From each slot's first start to its last end; a node that is gone is not held."""
        spans: dict[int, tuple[float, float]] = {}
        for a in self.ended:
            first, last = spans.get(a.slot, (a.began_s, a.ends_s))
            spans[a.slot] = min(first, a.began_s), max(last, a.ends_s)
        gone = [spans[n] for n in range(NODE_SLOTS) if n in spans] if self._dead and self._faults else []
        away_s = sum(max(0.0, min(self._is_back_s, last) - self._dies_s) for _, last in gone)
        return sum(last - first for first, last in spans.values()) - away_s

    def measured_s(self) -> float:
        """Inside windows of attempts that answered."""
        return sum(a.window_s for a in self.ended if a.result is not None)


def run(folder: Path, text: str, slots: int, seed: int, faults: bool) -> dict[str, Any]:
    """One sweep to its end."""
    folder.mkdir()
    write_one_request(folder)
    (folder / "s.yaml").write_text(text)
    sweep = load_sweep(folder / "s.yaml")
    out = SweepFolder(folder / "out")
    out.path.mkdir()
    executor = Virtual(sweep, slots, seed, faults)
    rooms = Rooms(out, executor, MemoryTracker(), Silent(), "b", lambda: executor.now_s)
    Driver(sweep, rooms).run()
    records = out.load_trials()
    outcome = outcome_of(records, sweep)
    winner = next(r for r in records if r.number == outcome.winner_trial)
    answered = [a for a in executor.ended if a.result is not None]
    took = np.percentile([(a.ends_s - a.began_s) / 60 for a in answered], MINUTES)
    return {
        "trials": len(records), "runs": len(answered), "lost": len(executor.ended) - len(answered),
        "minutes": executor.now_s / 60, "gpu_hours": executor.held_s() / 3600,
        "share": executor.measured_s() / executor.held_s(),
        "trial_minutes": took.tolist(),
        "best": holds_up_to(winner.spec.policy),
    }  # fmt: skip


def main() -> int:
    """Run all seeds, print the table, write JSON; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kvknee-scale-"))
    kinds = {
        "race": ("true", asked.slots, True),
        "no race": ("false", asked.slots, True),
        "one by one": ("true", 1, False),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds}
    try:
        for seed in range(asked.seeds):
            for name, (race, slots, faults) in kinds.items():
                text = SWEEP.format(race=race, trials=asked.trials, seed=seed)
                one = run(folder / f"{name}-{seed}", text, slots, seed, faults)
                found[name].append(one)
                minutes = " ".join(f"{m:.0f}" for m in one["trial_minutes"])
                print(f"seed {seed}  {name:<10} {one['runs']:4d} runs, {one['lost']:2d} lost, "
                      f"{one['minutes']:6.0f} min, {one['gpu_hours']:5.1f} GPU-hours held, "
                      f"share {one['share']:.1%}, a trial {minutes} min, "
                      f"best {one['best']:.3f}", flush=True)  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    share = statistics.median(one["share"] for one in found["race"])
    pairs = zip(found["race"], found["one by one"], strict=True)
    behind = statistics.median(1 - wide["best"] / narrow["best"] for wide, narrow in pairs)
    print(f"share with racing: {share:.1%} (at least {SHARE:.0%}); best behind the sequential one: {behind:.2%} "
          f"(at most {GAP:.0%})")  # fmt: skip
    failed = share < SHARE or behind > GAP
    if asked.json:
        asked.json.write_text(json.dumps({"found": found, "share": share, "behind": behind}, indent=1) + "\n")
    if failed:
        print("FAILED")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
