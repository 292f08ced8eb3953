"""`python -m orchestrator.demo -o runs/demo`: block sizes searched on this machine's CPU, with real tensors.

Calibrates load and limits to the machine, runs an ordinary sweep, and asserts ledgers and labels; which block
size wins is what it finds out, and is not asserted. An interrupted demo is continued, a finished one is left as it
is and a new one is made beside it. Exit codes are those of `kvknee run`.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from orchestrator.cli_errors import verb
from orchestrator.cli_sweep import run_sweep, stored
from orchestrator.config import Sweep
from orchestrator.demo_calibration import Calibration, calibrate, seen_in
from orchestrator.demo_checks import check_lines, checks
from orchestrator.demo_plan import DemoPlan, load_plan
from orchestrator.folder import SweepFolder, TrialRecord
from orchestrator.resolve import resolve

_CPU_WORDS = (
    "CPU results: times are CPU seconds of one thread (clock cpu). They compare block sizes for this kernel on\n"
    "this machine, and are no GPU's latencies; the side of small blocks moves with the machine: docs/measuring.md."
)
_REPRODUCE_UNTIL_S = 200.0  # of the demo's four minutes: with less left, reproducing is the reader's


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.demo", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("-o", "--output-dir", type=Path, default=Path("runs/demo"), help="folder to write")
    given = parser.parse_args(arguments)
    try:
        with verb(as_json=False):
            return demo(given.output_dir.resolve(), load_plan())
    except typer.Exit as ended:
        return ended.exit_code


def demo(out: Path, plan: DemoPlan) -> int:
    """The whole demo in `out`, or beside it where a finished one stands there; returns the exit code."""
    began = time.monotonic()
    out, sweep = _continued(out)
    if sweep is None:
        with stage("calibrate load and limits to this machine"):
            sweep = _calibrated(out, plan)
    with stage(f"measure {sweep.space.num_candidates} block sizes and the controls"):
        code = run_sweep(out, sweep, as_json=False, say=print)
    print(f"\n{_CPU_WORDS}\n")
    folder = SweepFolder(out)
    with stage("check ledgers and labels"):
        found = checks(folder)
        print("\n".join([*check_lines(found), *_utilisation(folder.load_trials(), sweep)]))
    broken = [c for c in found if not c.holds]
    if any(c.ledger for c in broken) or code == 5:
        return 5
    if broken:
        return 1
    left_s = _REPRODUCE_UNTIL_S - (time.monotonic() - began)
    reproduced = _reproduced(folder, left_s) if code == 0 else 0
    print(f"\nall together: {time.monotonic() - began:.0f} s")
    return code or reproduced


def _continued(out: Path) -> tuple[Path, Sweep | None]:
    """Where to run, and the sweep that was interrupted there, if one was."""
    number, path = 1, out
    while SweepFolder(path).sweep_yaml.is_file():
        sweep = stored(path)
        if not _finished(SweepFolder(path), sweep):
            print(f"continuing the demo in {path}", flush=True)
            return path, sweep
        number += 1
        path = out.with_name(f"{out.name}-{number}")
    if path != out:
        print(f"{out} holds a finished demo; this one goes to {path}", flush=True)
    return path, None


def _finished(folder: SweepFolder, sweep: Sweep) -> bool:
    planned = sweep.budget + len(list(sweep.control_points()))
    ended = [r for r in folder.load_trials() if r.state != "running" and r.card.role is None]
    return len(ended) == planned and folder.report_html.is_file()


def _calibrated(out: Path, plan: DemoPlan) -> Sweep:
    place = out / "calibration"
    if place.exists():  # of a demo that was interrupted before it had a sweep
        shutil.rmtree(place)
    found, trace = calibrate(plan, place, lambda text: print(f"  {text}", flush=True))
    print(f"  limits: {found.slo}; {_plan_words(plan, found)}")
    keys = {"path": str(trace)} | plan.train.first_window(round(found.gap_ms_per_request * 1e6))
    config = plan.config({
        "trace": keys, "slo": found.slo, "repeats": found.repeats, "calibration": found.model_dump(mode="json"),
    })  # fmt: skip
    return resolve(config, out)


def _plan_words(plan: DemoPlan, found: Calibration) -> str:
    trials = plan.num_points * found.repeats
    windows = f"{found.repeats} window{'s' if found.repeats > 1 else ''}"
    return f"{plan.num_points} options on {windows}: {trials} trials of about {found.trial_seconds:.0f} s"


def _utilisation(records: list[TrialRecord], sweep: Sweep) -> Iterator[str]:
    """How busy the reference block size was in the sweep itself; the calibration aimed at this."""
    size = sweep.config.policy.block_size
    for record in records:
        here = record.control is None and record.spec.policy.block_size == size
        if not here or record.result is None or record.result.decides is None:
            continue
        attempt = next(a for a in record.attempts if a.number == record.card.decides)
        seen = seen_in(attempt, record.result.replays[record.result.decides])
        yield f"utilisation at block_size={size}, window {record.repeat}: {seen.utilisation:.2f}"


def _reproduced(folder: SweepFolder, left_s: float) -> int:
    """Reproduce the recipe where there is time for it, else say how."""
    walls = [float(a.info.get("wall_s", 0.0)) for r in folder.load_trials() for a in r.attempts]
    if 2 * max(walls, default=0.0) > left_s:
        print(f"\nrun it again in new processes and compare:\n  .venv/bin/kvknee reproduce {folder.recipe_yaml}")
        return 0
    from orchestrator.reproduce import reproduce

    with stage("reproduce the recipe in new processes"):
        report = reproduce(folder.recipe_yaml, None)
        print("\n".join(f"  {line}" for line in report.lines))
    return 0 if report.ledger_equal else 4


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Says what begins, and how many seconds it took."""
    began = time.monotonic()
    print(f"-- {name}", flush=True)
    yield
    print(f"-- {name}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
