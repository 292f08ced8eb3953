"""Calibrate a real engine, then predict a trace that it has not seen, at three block sizes.

    python benchmarks/calibration.py [--json FILE|-] [--requests N] [--rounds N]

torch_paged on one CPU thread, clock cpu: a model of 4 layers on a pool of 34 MiB. Its step times are measured on
the region of one generated trace; another one, of other lengths and another seed, is served at saturation (a closed
load of all slots) twice at each block size, once before and once after the calibration, which sees neither, and
predicted by the simulator with the table. So the spread of the two identical runs holds what the machine's speed
did meanwhile, and their mean lies where the table was measured.

Targets: mean TPOT and makespan within max(10 %, 1.5 x the spread of the two identical runs); the peak of blocks
held equal to the block where the prediction is locked to the steps of the run. What was reached is printed in any
case; exit 1 where a target is missed. Read the errors beside the probe: the CPU time of a fixed mix of work.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trials.calibrate import calibrate, save_table
from trials.content import Content
from trials.engine import Engine, Refused
from trials.engines import simulator, torch_engine
from trials.generate import Preset, generate
from trials.load import offer
from trials.metrics import measure
from trials.recording import Replay
from trials.replay import replay
from trials.slo import parse_slo
from trials.spec import Load, TrialSpec, trial_spec
from trials.step_tables import StepTable, load_table
from trials.table_checks import outside, require_engine
from trials.trace import Trace

BLOCK_SIZES = (4, 16, 64)
WITHIN, SPREADS = 0.10, 1.5


@dataclass
class Row:
    """One number at one block size: two runs, the prediction, and what was allowed."""

    block_size: int
    name: str
    run: float
    again: float
    predicted: float
    error: float  # predicted / mean of the runs - 1
    spread: float  # of the two runs, per their mean
    allowed: float

    @property
    def met(self) -> bool:
        return abs(self.error) <= self.allowed


def trace(name: str, rows: int, seed: int, prompt: int, output: int) -> Trace:
    return generate(Preset.model_validate({
        "name": name, "rows": rows, "seed": seed, "arrivals": {"kind": "poisson", "rps": 10.0},
        "prompt": {"kind": "lognormal", "mean": prompt, "sigma": 0.5, "min": 8, "max": 320},
        "output": {"kind": "lognormal", "mean": output, "sigma": 0.4, "min": 8, "max": 190},
    }))  # fmt: skip


def spec(block_size: int, engine: dict) -> TrialSpec:
    return trial_spec({
        "engine": engine, "pool": {"bytes": "34MiB"}, "trace": {"path": "generated"}, "slo": "ttft:p99<60s",
        "model": {"num_layers": 4, "num_kv_heads": 4, "num_query_heads": 8, "head_dim": 64, "hidden_size": 256,
                  "intermediate_size": 512, "vocab_size": 1024, "kv_dtype": "float32", "dtype": "float32"},
        "policy": {"block_size": block_size, "max_model_len": 512, "max_num_seqs": 64, "prefix_caching": False,
                   "max_num_batched_tokens": 256, "watermark": 0.02},
    })  # fmt: skip


REAL = {"name": "torch_paged", "clock": "cpu"}


Run = tuple[Replay, dict[str, float]]


class Validation:
    """Runs and predictions of one trace that the calibration does not see."""

    def __init__(self, requests: int) -> None:
        self.unseen = trace("unseen", requests, 99, 140, 80)
        self.content = Content(self.unseen)
        self.load = Load(concurrency=64)
        self.engine_hashes: set[str] = set()  # of what was run

    def run(self, block_size: int) -> Run:
        """On the real engine."""
        own = spec(block_size, REAL)
        opened = torch_engine.open(own, self.content)
        assert not isinstance(opened, Refused), opened
        self.engine_hashes.add(opened.facts.engine_hash)
        return self._served(opened, own)

    def predicted(self, block_size: int, table: Path, lock: Replay | None = None) -> Run:
        """By the simulator; locked to the steps of a run where one is given."""
        own = spec(block_size, {"name": "simulator", "step_time": f"table:{table}"})
        opened = simulator.open(own, self.content)
        assert not isinstance(opened, Refused), opened
        return self._served(opened, own, lock)

    def _served(self, opened: Engine, own: TrialSpec, lock: Replay | None = None) -> Run:
        asked = offer(self.unseen, own.trace, self.load, "cold")
        if lock is not None:
            met = lock.requests
            asked = asked.locked(met.met_step, met.cancel_step, met.arrival_ns)
        recorded = replay(opened, self.unseen, asked)
        result = measure(recorded, opened.facts, parse_slo(own.slo), self.unseen)
        opened.close()
        return recorded, {
            "tpot_ms": result.metrics.tpot_ms.mean or 0.0, "makespan_s": recorded.drain_end_ns / 1e9,
            "peak_blocks": float(_peak(recorded, opened.facts.groups[0].num_blocks)),
            "preemptions": float(recorded.requests.preemptions.sum()),
        }  # fmt: skip


def _peak(recorded: Replay, num_blocks: int) -> int:
    idle = recorded.ledger["free_blocks"] + recorded.ledger["cached_blocks"] + recorded.ledger["reserve_blocks"]
    return num_blocks - int(idle.min())


def compare(
    validation: Validation, path: Path, before: dict[int, Run], after: dict[int, Run]
) -> tuple[list[Row], list[str], dict[int, tuple[float, float]]]:
    """(rows, words where the table was left, peak blocks of run and locked prediction)."""
    table: StepTable = load_table(path)
    for engine_hash in validation.engine_hashes:
        require_engine(table, engine_hash)
    rows, left, peaks = [], [], {}
    for size in BLOCK_SIZES:
        (first, one), (_, other) = before[size], after[size]
        free, predicted = validation.predicted(size, path)
        _, locked = validation.predicted(size, path, lock=first)
        peaks[size] = one["peak_blocks"], locked["peak_blocks"]
        if words := outside(table, free.steps, size):
            left.append(f"block {size}: {words}")
        for name in ("tpot_ms", "makespan_s"):
            mean = (one[name] + other[name]) / 2
            spread = abs(one[name] - other[name]) / mean
            error = predicted[name] / mean - 1
            rows.append(Row(size, name, one[name], other[name], predicted[name], error, spread,
                            max(WITHIN, SPREADS * spread)))  # fmt: skip
    return rows, left, peaks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the JSON, or - for stdout (then the table goes to stderr)")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch_engine.prepare(spec(16, REAL))
    from trials.engines.kernels.speed import probe_speed

    validation, probes = Validation(given.requests), [probe_speed()]
    before = {size: validation.run(size) for size in BLOCK_SIZES}
    probes.append(probe_speed())
    table = calibrate(spec(16, REAL), trace("seen", 80, 3, 110, 60), BLOCK_SIZES, given.rounds)
    probes.append(probe_speed())
    after = {size: validation.run(size) for size in BLOCK_SIZES}
    probes.append(probe_speed())
    with tempfile.TemporaryDirectory() as folder:
        save_table(table, Path(folder) / "table.json")
        rows, left, peaks = compare(validation, Path(folder) / "table.json", before, after)
    exact = all(run == locked for run, locked in peaks.values())
    where = sys.stderr if given.json == "-" else sys.stdout
    print_table(table, rows, left, peaks, probes, where)
    document = {
        "rows": [{**asdict(row), "met": row.met} for row in rows], "left_the_region": left, "probe_s": probes,
        "peak_blocks": {str(size): {"run": run, "locked": locked} for size, (run, locked) in peaks.items()},
        "block_term": table.block_term.model_dump(), "residuals": [r.model_dump() for r in table.residuals],
        "met": all(row.met for row in rows) and exact,
    }  # fmt: skip
    text = json.dumps(document, indent=1) + "\n"
    if given.json == "-":
        sys.stdout.write(text)
    elif given.json:
        Path(given.json).write_text(text, encoding="utf-8")
    return 0 if document["met"] else 1


def print_table(table, rows, left, peaks, probes, where) -> None:
    held = next((r for r in table.residuals if r.kind == "all" and r.held_out), None)
    if held is not None:
        print(f"held-out steps: median {held.median:+.1%}, nine of ten within {held.p90_abs:.1%}, summed "
              f"{held.of_total:+.1%}; price of a block: {table.block_term.words}", file=where)  # fmt: skip
    print(f"{'block':>6} {'':<11}{'before':>9}{'after':>9}{'predicted':>11}{'error':>8}{'allowed':>9}", file=where)
    for row in rows:
        numbers = f"{row.run:>9.3f}{row.again:>9.3f}{row.predicted:>11.3f}{row.error:>+8.1%}{row.allowed:>9.1%}"
        print(f"{row.block_size:>6} {row.name:<11}{numbers}  {'met' if row.met else 'MISSED'}", file=where)
    for size, (run, locked) in peaks.items():
        same = "equal" if run == locked else "NOT EQUAL"
        print(f"{size:>6} peak blocks {run:g} in the run, {locked:g} locked to its steps: {same}", file=where)
    for words in left:
        print(f"warning: {words}", file=where)
    print("probe of the machine's speed, CPU s at the start, around the calibration, at the end: "
          + ", ".join(f"{p:.3f}" for p in probes), file=where)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
