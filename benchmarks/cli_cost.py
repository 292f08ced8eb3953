"""What the command line costs before it does anything: CPU seconds of `--help`, and of a look at a trace.

    python benchmarks/cli_cost.py [TRACE.csv|TRACE.parquet] [--json FILE|-] [--rounds N]

    help        kvknee --help
    describe    kvknee trace describe of 19,366 rows: Azure's conversation trace of 2023 where public_traces.py
                finds it, else a generated one of that size, with prefixes

CPU seconds, user and system, of a new process and what it starts, the best of the rounds: what a busy machine adds
is not the command line's. Asserted (exit 1): help under 0.4 s, describe under 2 s.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.public_traces import PUBLIC, TRACES, folder
from trials.formats import reader
from trials.generate import generate, load_preset
from trials.trace import Trace, load_trace, save_trace

ROWS = 19_366
LIMITS_S = {"help": 0.4, "describe": 2.0}
KVKNEE = (sys.executable, "-m", "orchestrator.cli")


@dataclass(frozen=True, slots=True)
class Cost:
    """`cpu_s`: of each round."""

    name: str
    command: str
    cpu_s: tuple[float, ...]
    limit_s: float

    @property
    def met(self) -> bool:
        return min(self.cpu_s) < self.limit_s


def trace_of(asked: Path | None) -> Trace:
    """The one asked for, the public one, or a generated one of its size."""
    path = asked or next(iter(PUBLIC["azure conv"].paths(folder(TRACES))), None)
    if path is None:
        return generate(load_preset("chat").model_copy(update={"rows": ROWS}))
    return load_trace(path) if path.suffix == ".parquet" else reader("azure")([path])


def cost(name: str, words: tuple[str, ...], rounds: int) -> Cost:
    """CPU seconds of the command in new processes. RuntimeError where it fails."""
    seconds = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([*KVKNEE, *words], cwd=Path(__file__).parents[1], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"kvknee {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()[-400:]}")
        spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        seconds.append(round(spent, 3))
    return Cost(name, f"kvknee {' '.join(words)}", tuple(seconds), LIMITS_S[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="Azure CSV, or an imported trace")
    parser.add_argument("--json", help="write the result there; - for stdout alone")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvknee-cost-") as name:
        trace = trace_of(asked.trace)
        save_trace(trace, Path(name) / "t.parquet")
        words = ("trace", "describe", str(Path(name) / "t.parquet"))
        costs = [cost("help", ("--help",), asked.rounds), cost("describe", words, asked.rounds)]
    if asked.json != "-":
        what = f"of {asked.rounds} rounds; {len(trace):,} rows, {trace.meta.name}"
        print(f"{'':10}{'CPU s, best':>12}{'worst':>8}{'limit':>8}   {what}")
        for c in costs:
            said = "" if c.met else "   MISSED"
            print(f"{c.name:10}{min(c.cpu_s):12.3f}{max(c.cpu_s):8.3f}{c.limit_s:8.1f}{said}")
    answer = {"rows": len(trace), "trace": trace.meta.name, "costs": [asdict(c) | {"met": c.met} for c in costs]}
    if asked.json == "-":
        print(json.dumps(answer, indent=1))
    elif asked.json:
        Path(asked.json).write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    return 0 if all(c.met for c in costs) else 1


if __name__ == "__main__":
    sys.exit(main())
