"""How steady a measured CPU trial is by either clock: the demo's reference trial by CPU and by wall time in turn.

    python benchmarks/clock_steadiness.py [--json FILE|-] [--rounds N] [--gap-ms MS]

Both clocks drive the same trace at the same rate, alternating, so that whatever else the machine does meets both.
What differs between rounds of one clock is noise. Prints per clock the median and the range of each number.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from orchestrator.demo_calibration import Seen, run_seen, save_train
from orchestrator.demo_plan import DemoPlan, load_plan

CLOCKS = ("cpu", "wall")


def with_clock(plan: DemoPlan, clock: str) -> DemoPlan:
    engine = plan.sweep["engine"] | {"clock": clock}
    return plan.model_copy(update={"sweep": plan.sweep | {"engine": engine}})


def row(seen: Seen) -> dict[str, float]:
    """One trial in numbers; times in ms, the probe in s."""
    metrics = seen.replay.metrics
    found = {
        "utilisation": seen.utilisation, "ttft_p90_ms": metrics.ttft_ms.p90, "tpot_p90_ms": metrics.tpot_ms.p90,
        "itl_p99_ms": metrics.itl_ms.p99, "probe_s": seen.probe_s,
    }  # fmt: skip
    return {name: float("inf") if value is None else round(value, 4) for name, value in found.items()}


def table(rows: dict[str, list[dict[str, float]]]) -> str:
    lines = [f"{'clock':<6} {'metric':<14} {'median':>9} {'least':>9} {'most':>9} {'most/least':>11}"]
    for clock, found in rows.items():
        for name in found[0]:
            values = [r[name] for r in found]
            least, most = min(values), max(values)
            lines.append(
                f"{clock:<6} {name:<14} {median(values):>9.3f} {least:>9.3f} {most:>9.3f} {most / least:>11.2f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the JSON, or - for stdout (then the table goes to stderr)")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--gap-ms", type=float, default=60.0, help="one request in so many ms; see the demo's output"
    )
    given = parser.parse_args()
    plan, gap_ns = load_plan(), round(given.gap_ms * 1e6)
    rows: dict[str, list[dict[str, float]]] = {clock: [] for clock in CLOCKS}
    with tempfile.TemporaryDirectory(prefix="kvknee-clock-") as name:
        folder = Path(name)
        trace = {"path": str(save_train(plan, folder, gap_ns))} | plan.train.first_window(gap_ns)
        for number in range(given.rounds):
            for clock in CLOCKS:
                rows[clock].append(row(run_seen(with_clock(plan, clock), trace, folder / f"{clock}-{number}")))
    where = sys.stderr if given.json == "-" else sys.stdout
    load = os.getloadavg()[0]
    print(
        f"{given.rounds} rounds, one request in {given.gap_ms:g} ms, load average {load:.1f} at the end", file=where
    )
    print(table(rows), file=where)
    if given.json:
        text = json.dumps({"gap_ms": given.gap_ms, "load_average": load, "rows": rows}, indent=1) + "\n"
        if given.json == "-":
            sys.stdout.write(text)
        else:
            Path(given.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
