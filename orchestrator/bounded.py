"""The bound of a sweep: taken before its first trial where time is modelled, kept as bound.json, and said."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from orchestrator.config import Sweep
from orchestrator.folder import SweepFolder, write_text
from trials.slo import parse_slo
from trials.spec import MODELLED
from trials.trace import load_trace
from trials.units import SpecError

if TYPE_CHECKING:
    from orchestrator.bound_answer import Bound

_NUM_REQUESTS = 200
_FILE = "bound.json"


def bound_first(folder: SweepFolder, sweep: Sweep) -> None:
    """Bound the default on the first window, once a folder; says why where it cannot."""
    path = folder.path / _FILE
    if path.is_file() or sweep.config.engine.name not in MODELLED or not parse_slo(sweep.config.slo).bounds_waiting:
        return
    from orchestrator.bound import bound

    base = sweep.space.base
    own = base.model_copy(update={"trace": base.trace.model_copy(update={"window": sweep.windows[0]})})
    try:
        found = bound(own, load_trace(Path(own.trace.path)), _NUM_REQUESTS)
    except SpecError as error:
        print(f"note: no bound: {error}", file=sys.stderr)
        return
    write_text(path, found.model_dump_json(indent=1) + "\n")
    print(f"bound: {found.words}", file=sys.stderr)


def load_bound(folder: SweepFolder) -> "Bound | None":
    """What the bound found; None where none was taken, or its file is not whole."""
    from orchestrator.bound_answer import Bound

    try:
        return Bound.model_validate_json((folder.path / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None


def bound_words(folder: SweepFolder) -> str:
    """What the bound said, as a note of the outcome; empty where there is none."""
    found = load_bound(folder)
    return "" if found is None else f"bound (modelled, {found.requests} requests): {found.words}"
