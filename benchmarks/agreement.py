"""Our scheduler and pool against vLLM's own, block for block, after every step.

    .venv-engines/bin/python benchmarks/agreement.py [--requests N] [--jobs N] [--every K] [--traces DIR]
                                                     [--json FILE|-] [--no-controls]

The grid: five block sizes, prefix caching on and off, tight and ample pools, token budgets 64 (64 sequences) and
2048, for N requests of each public trace (public_traces.py says which; without any, of a generated one); with
aborts, repeated samples, watermarks, reservations, long-prefill thresholds and the priority policy drawn per cell.
`--every K` takes every K-th cell. Compared after each step:
tokens scheduled, running and waiting order, KV tokens held, new block ids, free and cached counts, the free queue
in order, hits, preemptions, ends, the ledger row, why the head of the queue waits, and the step's time.

Then the negative control: our scheduler with one rule broken at a time must differ from vLLM's in small made-up
loads. Exit 1 when any step of the grid differs, or when a broken rule stays unseen. Needs vLLM (`make engines`).
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.agreement_loads import GENERATED, Cell, available, case, cells, load
from benchmarks.agreement_pair import Tally, lockstep, record, replayed
from benchmarks.agreement_rules import RULES, Caught, caught, control_cases
from benchmarks.public_traces import TRACES, folder
from trials.trace import Trace

_COLUMNS = ("steps", "preemptions", "hit_tokens", "evictions", "aborts", "finished", "stuck", "differing")


@dataclass(frozen=True, slots=True)
class Run:
    """One cell's outcome."""

    cell: Cell
    policy: dict[str, object]
    num_blocks: int
    rows: int
    tally: Tally
    seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    cell: Cell
    folder: Path | None
    requests: int


@cache
def _trace(at: Path | None, source: str) -> Trace:
    return load(at, source)


def run_cell(task: Task) -> Run:
    """One cell in lockstep (in a worker process)."""
    made = case(task.cell, _trace(task.folder, task.cell.source), task.requests)
    began = time.process_time()
    tally = lockstep(made)
    return Run(
        task.cell, made.policy.model_dump(mode="json"), made.num_blocks, len(made.trace), tally,
        round(time.process_time() - began, 2),
    )  # fmt: skip


def run_grid(tasks: list[Task], jobs: int, out: TextIO) -> list[Run]:
    """All cells, `jobs` at a time; a difference is printed as soon as it is known."""
    runs = []
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=40) as pool:
        for run in pool.imap_unordered(run_cell, tasks):
            runs.append(run)
            if run.tally.differing:
                print(f"DIFFERS {run.cell} {run.policy}\n  {run.tally.first}", file=out, flush=True)
    return sorted(runs, key=lambda run: run.cell.number)


def totals(runs: Iterable[Run]) -> dict[str, int]:
    chosen = list(runs)
    return {name: sum(getattr(run.tally, name) for run in chosen) for name in _COLUMNS}


def print_grid(runs: list[Run], out: TextIO) -> None:
    """One line a trace and block size, and the sum of all."""
    names = ("trace", "block", "runs", "requests", *(name.replace("_", " ") for name in _COLUMNS))
    print("  ".join(f"{name:>12}" for name in names), file=out)
    for source, size in dict.fromkeys((run.cell.source, run.cell.block_size) for run in runs):
        some = [run for run in runs if (run.cell.source, run.cell.block_size) == (source, size)]
        _line(source, str(size), some, out)
    _line("all", "", runs, out)


def _line(source: str, size: str, runs: list[Run], out: TextIO) -> None:
    values = (source, size, len(runs), sum(run.rows for run in runs), *totals(runs).values())
    print("  ".join(f"{value:>12,}" if isinstance(value, int) else f"{value:>12}" for value in values), file=out)


def run_controls(out: TextIO) -> tuple[list[Caught], list[str]]:
    """Every broken rule against kept runs of vLLM's scheduler -> (where each showed, what is wrong)."""
    scripts = [record(made) for made in control_cases()]
    wrong = []
    for number, script in enumerate(scripts, start=1):
        for step, names in enumerate(replayed(script)):
            if names:
                wrong.append(f"load {number}, no rule broken: step {step} differs in {', '.join(names)}")
                break
    found = [caught(broken, scripts) for broken in RULES]
    print(f"\n{'broken rule':<60}  load   step  seen in", file=out)
    for one in found:
        print(f"{one.rule:<60}  {one.load:>4}  {one.step:>5}  {one.fields or 'NOT SEEN'}", file=out)
    wrong += [f"not seen: {one.rule}" for one in found if one.step < 0]
    steps = sum(len(script.seen) for script in scripts)
    print(f"{len(found) - sum(o.step < 0 for o in found)} of {len(found)} broken rules seen, "
          f"in {len(scripts)} loads of {steps} steps; unbroken: {'differs' if wrong else '0 differing steps'}",
          file=out)  # fmt: skip
    return found, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=30, help="requests of each trace in a cell")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="take every K-th cell of the grid")
    parser.add_argument("--traces", type=Path, help=f"folder of public traces; default: {TRACES}")
    parser.add_argument("--json", help="file for the document, or - for stdout (then the tables go to stderr)")
    parser.add_argument("--no-controls", action="store_true")
    chosen = parser.parse_args()
    out = sys.stderr if chosen.json == "-" else sys.stdout
    traces = folder(TRACES, chosen.traces)
    sources, missing = available(traces)
    for reason in missing:
        print(f"left out: {reason}", file=out)
    if GENERATED in sources:
        print("no public trace: the grid runs on a generated one", file=out)
    began = time.perf_counter()
    tasks = [Task(cell, traces, chosen.requests) for cell in list(cells(sources))[:: chosen.every]]
    runs = run_grid(tasks, chosen.jobs, out)
    print_grid(runs, out)
    found, wrong = ([], []) if chosen.no_controls else run_controls(out)
    differing = totals(runs)["differing"]
    print(
        f"{totals(runs)['steps']:,} steps compared, {differing} differ; {time.perf_counter() - began:.0f} s",
        file=out,
    )
    for line in wrong:
        print(line, file=out)
    if chosen.json:
        document = {
            "requests": chosen.requests, "totals": totals(runs), "left_out": missing,
            "runs": [asdict(run) for run in runs], "controls": [asdict(one) for one in found], "wrong": wrong,
        }  # fmt: skip
        text = json.dumps(document, indent=1, sort_keys=True)
        print(text) if chosen.json == "-" else Path(chosen.json).write_text(text + "\n", encoding="utf-8")
    return 1 if differing or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
