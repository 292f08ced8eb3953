"""Does the simulator tell a real engine's latencies, from the GPU's kernel tables and nothing fitted?

    python benchmarks/truth.py [RUN_FOLDER...] [--model PRESET] [--every S] [--sensitivity] [--json FILE]

A RUN_FOLDER is a published run of vLLM (trials/published_run.py), by default that of public_traces.py: its requests
are offered to our scheduler and pool with its settings, and each step takes what the tables of its GPU say
(trials/kernel_tables.py). No constant is fitted, and none belongs to a run; the digest of every coefficient is
printed. Asserted (exit 1): mean TTFT, TPOT and E2E within 4.0, 2.5 and 3.6 % (what a minimal simulator reached),
each TTFT decile within 10 %.
`--sensitivity` also shows what one percent of the pool, of all step times, and 0.1 ms a step would move: how much
of an error each could explain. None of it enters the comparison.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.public_traces import RUN, RUN_WHERE, RUNS, folder
from trials.content import Content
from trials.engine import Audit, DeviceBytes, EngineFacts, LedgerRow, Step, Work
from trials.engines.own import PagedEngine, effective_knobs
from trials.fingerprint import canonical_json, digest, file_digest
from trials.geometry import pool_geometry
from trials.kernel_tables import Floats, Grid, KernelTables
from trials.load import offer
from trials.plan import Plan
from trials.published_run import Latencies, PublishedRun, read_run
from trials.recording import Replay
from trials.replay import replay
from trials.units import SpecError

LIMITS = {"ttft": 0.040, "tpot": 0.025, "e2e": 0.036}
AIMS = {"ttft": 0.010, "tpot": 0.005, "e2e": 0.010}
DECILE_LIMIT = 0.10
FILES = ("dense.csv", "per_sequence.csv", "attention.csv")


class Moved:
    """Tables whose steps take another time: `share` of it, and `more_ns` beside."""

    def __init__(self, tables: KernelTables, share: float = 1.0, more_ns: int = 0) -> None:
        self._tables, self._share, self._more_ns = tables, share, more_ns

    def step_ns(self, plan: Plan) -> tuple[int, int]:
        step, attention = self._tables.step_ns(plan)
        return round(step * self._share) + self._more_ns, round(attention * self._share)


class Tabled:
    """Executes nothing: a step takes what its kernels were measured to take."""

    def __init__(self, tables: KernelTables | Moved, device: DeviceBytes) -> None:
        self._tables = tables
        self._device = device

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        return self._tables.step_ns(plan)

    def forget(self, row: int) -> None:
        """Nothing is kept of a row."""

    def reset(self) -> None:
        """Nothing is kept."""

    def device(self) -> DeviceBytes:
        return self._device


class Ahead:
    """The same engine, scheduling each step while the one before runs, as vLLM's async scheduling does.

    Who comes while a step runs therefore meets the step after the next; who finds the engine idle, the next.
    """

    def __init__(self, engine: PagedEngine) -> None:
        self._engine = engine
        self._coming: list[Work] = []
        self._running = False
        self.facts, self.start_up = engine.facts, engine.start_up

    def start(self, cold: bool) -> None:
        self._coming, self._running = [], False
        self._engine.start(cold)

    def add(self, work: Work) -> str | None:
        if not self._running:
            return self._engine.add(work)
        self._coming.append(work)
        return None

    def cancel(self, row: int) -> bool:
        return self._engine.cancel(row)

    def step(self) -> Step | None:
        coming, self._coming = self._coming, []
        step = self._engine.step()
        for work in coming:
            if (reason := self._engine.add(work)) is not None:
                raise SystemExit(f"row {work.row}: {reason}")
        self._running = step is not None
        return step if step is not None or not coming else self._engine.step()

    def ledger(self) -> tuple[LedgerRow, ...]:
        return self._engine.ledger()

    def audit(self) -> Audit:
        return self._engine.audit()

    def close(self) -> None:
        self._engine.close()


def simulate(run: PublishedRun, tables: KernelTables | Moved) -> Replay:
    """The run's requests through our scheduler and pool; every law of the ledger is checked on it."""
    spec = run.spec()
    geometry = pool_geometry(spec)
    if isinstance(geometry, str):
        raise SpecError(f"{run.folder}: {geometry}")
    facts = EngineFacts(
        name="simulator", engine_hash="", evidence="modelled", clock="virtual", groups=(geometry,), ranks=1,
        effective=effective_knobs(spec.policy, geometry), max_model_len=spec.policy.max_model_len,
    )  # fmt: skip
    device = DeviceBytes(pool=geometry.pool_bytes, weights=spec.model.weights_bytes)
    engine = PagedEngine(facts, spec.policy, Content(run.trace), Tabled(tables, device))
    assert spec.measure.load is not None
    offered = offer(run.trace, spec.trace, spec.measure.load, "cold")
    found = replay(Ahead(engine) if run.ahead else engine, run.trace, offered)
    if found.failed or found.broken_laws or found.void_because:
        raise SystemExit(f"{run.folder}: {found.failed or found.broken_laws or found.void_because}")
    return found


def latencies(found: Replay) -> Latencies:
    """As those of the real run, in seconds."""
    requests = found.requests
    arrival, first, last = (x / 1e9 for x in (requests.arrival_ns, requests.first_token_ns, requests.last_token_ns))
    return Latencies.of(arrival, first, last, requests.num_output_tokens.astype(float))


def off(found: float, real: float) -> float:
    return found / real - 1


def coefficients(tables: KernelTables) -> str:
    """One digest over every number that a step's time is made of."""

    def plain(grid: Grid) -> Any:
        return [grid.axes, grid.values.tolist()]

    grids = (tables.dense, tables.head, tables.decode, tables.prefill, tables.beside)
    return digest(canonical_json([tables.num_layers, tables.captured, *map(plain, grids)]).encode())


@dataclass(frozen=True, slots=True)
class Seconds:
    """The simulated run once a second, beside the real one's ticks."""

    running: Floats
    kv_percent: Floats

    @classmethod
    def of(cls, found: Replay, ticks: Floats, usable: int) -> "Seconds":
        """State of the step under way at each tick; nothing runs after the last."""
        at = np.searchsorted(found.steps["start_ns"], ticks * 1e9, side="right") - 1
        over = ticks * 1e9 > found.drain_end_ns
        held = usable - found.ledger["free_blocks"][at] - found.ledger["cached_blocks"][at]
        running = found.steps["num_running"][at]
        return cls(np.where(over, 0, running).astype(float), np.where(over, 0.0, 100 * held / usable))


def compare(folder: Path, preset: str | None, every: int, sensitive: bool = False) -> dict[str, Any]:
    """One run: prints all of it, returns it, with what was missed."""
    began = time.process_time()
    run = read_run(folder, preset)
    tables = KernelTables.read(folder, run.model.num_layers, run.captured)
    found = simulate(run, tables)
    ours, real, missed = latencies(found), run.real, list[str]()
    print(f"\n{folder.name}: {len(run.trace)} requests, {run.model.name}, {time.process_time() - began:.1f} CPU s")
    print(f"  coefficients {coefficients(tables)}")
    print("".join(f"  {name} {file_digest(folder / name)[:12]}" for name in FILES))
    print("  mean         real       simulated     off   at most   aim")
    means = {}
    for name, limit in LIMITS.items():
        a, b = float(np.nanmean(getattr(real, name))), float(np.nanmean(getattr(ours, name)))
        means[name] = off(b, a)
        missed += [f"mean {name} {off(b, a):+.2%}"] if abs(off(b, a)) > limit else []
        print(f"  {name:5s} {a:11.4f} s {b:12.4f} s {off(b, a):+8.2%} {limit:7.1%} {AIMS[name]:6.1%}")
    print(f"  makespan {real.makespan:8.2f} s {ours.makespan:12.2f} s {off(ours.makespan, real.makespan):+8.2%}")
    deciles = np.arange(10, 100, 10)
    moved = np.percentile(ours.ttft, deciles) / np.percentile(real.ttft, deciles) - 1
    missed += [f"ttft p{p} {m:+.1%}" for p, m in zip(deciles, moved, strict=True) if not abs(m) <= DECILE_LIMIT]
    print("  TTFT deciles  " + "  ".join(f"p{p} {m:+.1%}" for p, m in zip(deciles, moved, strict=True)))
    preempted = int(found.requests.preemptions.sum())
    recomputed = int(found.steps["chunk_tokens"].sum() - run.trace.num_prompt_tokens.sum())
    print(f"  {preempted} preemptions, {recomputed:+d} prefill tokens beyond the prompts")
    seconds = _side_by_side(run, found, every)
    return {
        "run": folder.name, "coefficients": coefficients(tables), "mean_off": means, "makespan_off":
        off(ours.makespan, real.makespan), "ttft_decile_off": moved.tolist(), "preemptions": preempted,
        "recomputed_tokens": recomputed, "seconds": seconds, "missed": missed,
        "sensitivity": sensitivity(run, tables) if sensitive else {},
    }  # fmt: skip


def sensitivity(run: PublishedRun, tables: KernelTables) -> dict[str, dict[str, float]]:
    """Prints what the means would be off if one thing were otherwise."""
    blocks = run.settings["cache_config"]["num_gpu_blocks"]
    larger = {**run.settings["cache_config"], "num_gpu_blocks": round(blocks * 1.01)}
    roomier = replace(run, settings={**run.settings, "cache_config": larger})
    cases: dict[str, tuple[PublishedRun, KernelTables | Moved]] = {
        "as published": (run, tables), "1 % more blocks": (roomier, tables),
        "steps 1 % faster": (run, Moved(tables, 0.99)), "0.1 ms more a step": (run, Moved(tables, 1.0, 100_000)),
    }  # fmt: skip
    print("  off, were it     " + "".join(f"{name:>8}" for name in LIMITS))
    out = {}
    for name, (other, times) in cases.items():
        ours = latencies(simulate(other, times))
        out[name] = {
            m: off(float(np.nanmean(getattr(ours, m))), float(np.nanmean(getattr(run.real, m)))) for m in LIMITS
        }
        print(f"  {name:18s}" + "".join(f"{moved:+8.2%}" for moved in out[name].values()))
    return out


def _side_by_side(run: PublishedRun, found: Replay, every: int) -> dict[str, list[float]]:
    ticks = run.ticks
    ours = Seconds.of(found, ticks["t"], run.settings["cache_config"]["num_gpu_blocks"] - 1)
    print("      t   running  simulated   KV %   simulated")
    for k in range(0, len(ticks["t"]), every):
        print(f"  {ticks['t'][k]:5.0f} {ticks['running'][k]:9.0f} {ours.running[k]:10.0f} "
              f"{ticks['kv_cache_pct'][k]:8.1f} {ours.kv_percent[k]:10.1f}")  # fmt: skip
    apart = [float(np.abs(a - b).mean()) for a, b in (
        (ours.running, ticks["running"]), (ours.kv_percent, ticks["kv_cache_pct"]))]  # fmt: skip
    print(f"  mean distance: {apart[0]:.2f} requests, {apart[1]:.2f} points of KV")
    return {
        "t": ticks["t"].tolist(), "running": ticks["running"].tolist(), "running_simulated": ours.running.tolist(),
        "kv_percent": ticks["kv_cache_pct"].tolist(), "kv_percent_simulated": ours.kv_percent.tolist(),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="RUN_FOLDER", help=f"else {RUN} below {RUNS}")
    parser.add_argument("--model", help="preset, where meta.json's model is not one")
    parser.add_argument("--every", type=int, default=1, help="print one second in so many")
    parser.add_argument("--sensitivity", action="store_true", help="what else one percent of something would move")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    beside = folder(RUNS)
    folders = asked.folders or ([beside / RUN] if beside is not None else [])
    if not folders:
        print(f"no run to compare with: name its folder, or set {RUNS}; {RUN} is published at {RUN_WHERE}",
              file=sys.stderr)  # fmt: skip
        return 2
    try:
        runs = [compare(at, asked.model, max(asked.every, 1), asked.sensitivity) for at in folders]
    except SpecError as error:
        print(error, file=sys.stderr)
        return 2
    if asked.json:
        asked.json.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    missed = [f"{run['run']}: {what}" for run in runs for what in run["missed"]]
    print("\n" + ("\n".join(f"MISSED {line}" for line in missed) if missed else "all within the limits"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
