"""A first-time user's path, typed as README.md has it, in an empty folder and an empty environment, and timed.

    python benchmarks/first_use.py [TRACES] [--keep DIR] [--json FILE]

What is committed is cloned; nothing of this environment is passed on but where pip looks. Then, in the order of the
page: `make demo` (which installs), a trace of one's own from Azure's CSV, a sweep of the simulator over it, its
report, its recipe and the reproduction, and the demo's recipe once more. Each command is shown with its seconds and
exit status; outputs must hold the lines that the page shows as unvarying. Asserted (exit 1): each ends as the page
says, and all of it in under 20 minutes.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.public_traces import PUBLIC, TRACES, absent, folder

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 20 * 60
PASSED_ON = ("LANG", "TZ", "SSL_CERT_FILE")
# Of the page's commands, in its order: how each begins, and what its output has to say.
PATH = (
    ("make demo", ("outcome: ", "tied set: ", "holds  ledger: ", "holds  mlflow: ")),
    ("kvknee doctor", ()),
    ("kvknee trace generate chat", ()),
    ("kvknee trace describe", ()),
    ("kvknee trial examples/chat.yaml -o", ("sum", "pool")),
    ("kvknee trial examples/chat.yaml --set", ("sum", "pool")),
    ("kvknee trace import azure", ()),
    ("kvknee run examples/azure.yaml", ("outcome: ", "tied set: ", "recipe: runs/azure/recipe.yaml")),
    ("kvknee report runs/azure", ()),
    ("kvknee reproduce runs/azure/recipe.yaml", ("reproduced",)),
    ("kvknee reproduce runs/demo/recipe.yaml", ("reproduced",)),
    ("kvknee status runs/demo", ()),
    ("kvknee report runs/demo", ()),
)


@dataclass(frozen=True, slots=True)
class Typed:
    """`lacks`: of what the output has to say."""

    command: str
    seconds: float
    status: int
    lacks: tuple[str, ...]

    @property
    def held(self) -> bool:
        return self.status == 0 and not self.lacks


def commands() -> list[str]:
    """Those of the page that begin as PATH says, as they are typed there. ValueError where the page lacks one."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    shown = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    found = []
    for begins, _ in PATH:
        if not (typed := [c for c in shown if c.startswith(begins)]):
            raise ValueError(f"README.md has no command that begins with `{begins}`")
        found.append(typed[0])
    return found


def environment(home: Path, checkout: Path) -> dict[str, str]:
    """Nothing but what finds programs and packages."""
    kept = {k: v for k, v in os.environ.items() if k in PASSED_ON or k.startswith(("PIP_", "LC_"))}
    here = os.environ.get("VIRTUAL_ENV", "") or str(ROOT / ".venv")
    path = [p for p in os.environ["PATH"].split(":") if not p.startswith(here)]
    return {**kept, "HOME": str(home), "PATH": ":".join([str(checkout / ".venv" / "bin"), *path])}


def type_in(command: str, says: tuple[str, ...], checkout: Path, env: dict[str, str]) -> Typed:
    began = time.monotonic()
    done = subprocess.run(
        command, shell=True, cwd=checkout, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    lacks = tuple(s for s in says if s not in done.stdout)
    typed = Typed(command, time.monotonic() - began, done.returncode, lacks)
    if not typed.held:
        print(done.stdout[-4000:])
    missing = "".join(f"  LACKS {s!r}" for s in lacks)
    print(f"{typed.seconds:8.1f} s  exit {typed.status}  {command}{missing}", flush=True)
    return typed


def walk(csv: Path, place: Path) -> list[Typed]:
    """In a clone of what is committed; the trace lies where the page types its name."""
    checkout, home = place / "kvknee", place / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
    shutil.copy(csv, checkout / csv.name)
    env = environment(home, checkout)
    return [type_in(c, says, checkout, env) for c, (_, says) in zip(commands(), PATH, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="?", type=Path)
    parser.add_argument("--keep", type=Path, help="an empty folder to walk in, which stays")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    traces = folder(TRACES, asked.traces)
    csv = PUBLIC["azure conv"].paths(traces)
    if not csv:
        print(absent("azure conv", traces), file=sys.stderr)
        return 2
    place = asked.keep or Path(tempfile.mkdtemp(prefix="kvknee-first-use-"))
    place.mkdir(parents=True, exist_ok=True)
    try:
        typed = walk(csv[0], place)
    finally:
        if asked.keep is None:
            shutil.rmtree(place, ignore_errors=True)
    total_s = sum(t.seconds for t in typed)
    held = all(t.held for t in typed) and total_s < LIMIT_S
    word = "met" if held else "MISSED"
    print(f"{word:<8}{len(typed)} commands in {total_s / 60:.1f} minutes, at most {LIMIT_S // 60}")
    if asked.json:
        asked.json.write_text(
            json.dumps({"typed": [asdict(t) for t in typed], "total_s": total_s}, indent=1) + "\n"
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
