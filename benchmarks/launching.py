"""A trial in a forked process against one in a new interpreter: the same ledger, the same latency, less waiting.

    python benchmarks/launching.py [--rounds N] [--json FILE]

Both kinds in turn, on the same trace, so that whatever else the machine does meets both. The simulator: result and
ledger byte for byte. torch_paged, real tensors on one thread by CPU time, eight requests at once: who comes next
depends on steps alone, so nothing but times may differ; then every account of every step, and the medians of the
latencies. Printed beside: what a trial costs from its submission to its answer.

Asserted (exit 1): equal results of the simulator; equal ledgers of torch_paged; mean TPOT and ITL by fork against
exec of the same round no more than 3 % apart as far as the rounds can tell: the 95 % interval of the median of
their ratios reaches into that. Rounds are run until that interval is at most 5 % to either side; where `--rounds`
do not suffice, the machine was too busy to tell, which fails too.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import quantile_test

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from orchestrator.forking import ForkServers
from orchestrator.launch import WORKER, How, Launch, launch
from orchestrator.ledger_diff import compare_ledgers
from orchestrator.package import install, pack
from trials.result import load_result
from trials.spec import TrialSpec, trial_spec
from trials.trace import make_trace, save_trace

SAME, TELLS, LEAST = 0.03, 0.05, 8  # shares of a latency; rounds
TIMES = ("start_ns", "duration_ns", "attention_ns")
MODEL = {
    "num_layers": 4, "hidden_size": 256, "num_query_heads": 8, "num_kv_heads": 4, "head_dim": 64,
    "intermediate_size": 512, "vocab_size": 1024, "dtype": "float32", "kv_dtype": "float32",
}  # fmt: skip


@dataclass
class Kind:
    """What one way of starting came to, round by round."""

    wall_s: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)
    ledgers: list[Path] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


def spec_of(engine: str, trace: Path) -> TrialSpec:
    real = engine == "torch_paged"
    return trial_spec({
        "engine": {"name": engine, "clock": "cpu"} if real else {"name": engine, "step_time": "roofline:h100-sxm"},
        "model": MODEL if real else "llama-3.1-8b",
        "pool": {"bytes": "34MiB" if real else "256MiB"},
        "policy": {"max_model_len": 512, "max_num_seqs": 16, "max_num_batched_tokens": 256},
        "trace": {"path": str(trace)}, "slo": "ttft:p99<10s", "phases": ["cold"],
        "measure": {"load": {"concurrency": 8}},
    })  # fmt: skip


def write_trace(path: Path) -> None:
    """60 requests in bursts of six."""
    draw = np.random.default_rng(0)
    arrival_ns = np.repeat(np.arange(10) * 200_000_000, 6).astype(np.int64)
    save_trace(make_trace(arrival_ns, draw.integers(20, 200, 60), draw.integers(10, 60, 60)), path)


class Bench:
    """Trials of one engine, one after the other."""

    def __init__(self, engine: str, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        write_trace(folder / "t.parquet")
        self.spec = spec_of(engine, folder / "t.parquet")
        self._package, self._servers = install(pack()), ForkServers()
        self.kinds: dict[str, Kind] = {"exec": Kind(), "fork": Kind()}

    def _run(self, how: str, name: str) -> tuple[Path, float]:
        out = self._folder / name
        began = time.perf_counter()
        way = Launch(self._package, WORKER, how=_how(how), servers=self._servers)
        ended = launch(self.spec, out, way)
        assert ended.exit_code == 0, ended
        assert json.loads((out / "attempt.json").read_text())["launch"] == how
        return out, time.perf_counter() - began

    def round(self, number: int) -> None:
        for how in ("exec", "fork") if number % 2 else ("fork", "exec"):
            out, wall_s = self._run(how, f"{how}-{number}")
            metrics, kind = load_result(out / "result.json").metrics, self.kinds[how]
            kind.wall_s.append(wall_s)
            kind.tpot_ms.append(metrics.tpot_ms.mean or 0.0)
            kind.itl_ms.append(metrics.itl_ms.mean or 0.0)
            kind.ledgers.append(out / "ledger.parquet")
            kind.results.append((out / "result.json").read_text())

    def close(self) -> None:
        self._servers.close()


def _how(name: str) -> How:
    return "fork" if name == "fork" else "exec"


def differing(one: Path, other: Path) -> list[str]:
    """Where two ledgers differ, step by step, times left out."""
    a, b = (pq.read_table(path).drop_columns(list(TIMES)) for path in (one, other))
    return [difference.line for difference in compare_ledgers(a, b)]


def apart(executed: list[float], forked: list[float]) -> tuple[float, float, float]:
    """Median of the rounds' ratios, less one, and its 95 % interval: order statistics, no law of errors assumed."""
    ratios = [two / one - 1 for one, two in zip(executed, forked, strict=True)]
    around = quantile_test(ratios, q=0.0, p=0.5).confidence_interval(0.95)
    return median(ratios), float(around.low), float(around.high)


def tells(executed: list[float], forked: list[float]) -> bool:
    """Whether the interval is narrow enough; a simulator's times are always the same."""
    _, low, high = apart(executed, forked)
    return high - low <= 2 * TELLS


def latencies(kinds: dict[str, Kind]) -> dict[str, tuple[list[float], list[float]]]:
    """By name: those of exec, those of fork."""
    one, other = kinds["exec"], kinds["fork"]
    return {"TPOT": (one.tpot_ms, other.tpot_ms), "ITL": (one.itl_ms, other.itl_ms)}


def main() -> int:
    """Run both engines, print, write JSON; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kvknee-launching-"))
    failed, found = [], {}
    try:
        for engine in ("simulator", "torch_paged"):
            bench = Bench(engine, folder / engine)
            try:
                for number in range(asked.rounds):
                    bench.round(number)
                    if number + 1 >= LEAST and all(tells(*pair) for pair in latencies(bench.kinds).values()):
                        break
            finally:
                bench.close()
            failed += judged(engine, bench.kinds)
            found[engine] = {name: {"wall_s": k.wall_s, "tpot_ms": k.tpot_ms} for name, k in bench.kinds.items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.json:
        asked.json.write_text(json.dumps({"found": found, "failed": failed}, indent=1) + "\n")
    for words in failed:
        print(f"FAILED: {words}")
    return bool(failed)


def judged(engine: str, kinds: dict[str, Kind]) -> list[str]:
    """What does not hold, in words; the table is printed."""
    executed, forked = kinds["exec"], kinds["fork"]
    print(f"{engine}: exec {1000 * median(executed.wall_s):.0f} ms, fork {1000 * median(forked.wall_s):.0f} ms "
          f"a trial (medians of {len(forked.wall_s)})", flush=True)  # fmt: skip
    failed = [
        f"{engine}: {one.parent.name}: {line}"
        for one in (*executed.ledgers, *forked.ledgers) for line in differing(executed.ledgers[0], one)
    ]  # fmt: skip
    if engine == "simulator":
        same = set(executed.results) == set(forked.results) and len(set(forked.results)) == 1
        return failed if same else [*failed, "simulator: results differ"]
    for name, (a, b) in latencies(kinds).items():
        change, low, high = apart(a, b)
        told = f"{change:+.2%} by fork, 95 % from {low:+.2%} to {high:+.2%}"
        print(f"{engine}: mean {name} {median(a):.3f} ms by exec, {told}")
        if low > SAME or high < -SAME:
            failed.append(f"{engine}: {name} differs: {told}")
        if not tells(a, b):
            failed.append(f"{engine}: {name}: too few rounds, or a machine too busy, to tell: {told}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
