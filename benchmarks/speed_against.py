"""The simulator's speed now against that of an earlier commit, both in one run.

    python benchmarks/speed_against.py REV [--rounds N] [--least 0.9]

The earlier commit's trials/ is unpacked into a temporary folder and driven by the present
benchmarks/simulator_speed.py, in turns with the present one, so that both meet the same machine. The best round
of each case counts. Exit 1 where the present reaches less than `least` of the earlier speed in a case, 2 where
the commit cannot be measured.
"""

import argparse
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPEED, BESIDE = "benchmarks/simulator_speed.py", "benchmarks/public_traces.py"


def unpack(revision: str, into: Path) -> None:
    """trials/ of a commit, and the present benchmark beside it."""
    packed = subprocess.run(["git", "archive", revision, "trials"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        raise SystemExit(f"{revision}: {packed.stderr.decode().strip()}; name a commit of this repository")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(into, filter="data")
    (into / "benchmarks").mkdir()
    for script in (SPEED, BESIDE):
        shutil.copy(ROOT / script, into / script)


def seconds(tree: Path, trace: Path | None) -> dict[str, float]:
    """Case -> CPU seconds of one round in that tree."""
    given = [] if trace is None else [str(trace.resolve())]
    command = [sys.executable, SPEED, *given, "--json", "-", "--rounds", "1"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{tree}: {done.stderr.strip()[-400:]}")
    rows = json.loads(done.stdout)["rows"]
    return {name: min(row["cpu_s"]) for name, row in rows.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.9)
    parser.add_argument("--trace", type=Path, help="Azure CSV, or an imported trace; else of KVKNEE_TRACES")
    asked = parser.parse_args()
    best: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(prefix="kvknee-speed-") as name:
        unpack(asked.revision, Path(name))
        for _ in range(asked.rounds):
            then, now = seconds(Path(name), asked.trace), seconds(ROOT, asked.trace)
            for case in then.keys() & now.keys():
                old, new = best.get(case, (float("inf"), float("inf")))
                best[case] = min(old, then[case]), min(new, now[case])
    print(f"{'case':<24}{asked.revision[:12]:>14}{'now':>10}{'speed':>9}   CPU s, best of {asked.rounds}")
    for case, (old, new) in sorted(best.items()):
        print(f"{case:<24}{old:>14.3f}{new:>10.3f}{old / new:>8.2f}x")
    slow = [case for case, (old, new) in best.items() if old / new < asked.least]
    print(f"less than {asked.least:g} of the earlier speed: {', '.join(slow) or 'nowhere'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
