"""`kvknee check`: has the workload's shape, or the engine, moved from under a recipe? Nothing is run."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.launch import WORKER, environment
from orchestrator.package import install, pack
from orchestrator.recipe import Recipe, load_recipe
from search_spaces.drift import Moved, drift
from trials.fingerprint import changed_parts
from trials.shape import WorkloadShape, shape_of
from trials.spec import TrialSpec
from trials.trace import load_trace
from trials.units import SpecError

_DESCRIBE_S = 300.0

Describe = Callable[[TrialSpec], Mapping[str, Any]]


class CheckedProperty(BaseModel):
    """One property of the workload; `distance` None: the two cannot be compared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    before: str
    now: str
    distance: float | None
    limit: float
    unit: str
    moved: bool


class CheckReport(BaseModel):
    """`exit_code` 0: still valid; 4: something moved, and the sweep must be run again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exit_code: int
    lines: tuple[str, ...]
    properties: tuple[CheckedProperty, ...]
    engine_moved: tuple[str, ...]
    engine_unknown: str = ""  # why the engine here could not be asked


def check(path: Path, trace: Path, describe: Describe | None = None) -> CheckReport:
    """Compare a new trace and this machine's engine with a recipe. SpecError, TraceError where one cannot be read.

    An engine that cannot be asked here counts as moved: the recipe cannot be vouched for.
    """
    recipe = load_recipe(path)
    before, now = _shape(recipe, path), shape_of(load_trace(trace))
    found = drift(before, now)
    moved, unknown = _engine(recipe, describe or describe_engine)
    stale = any(m.stale for m in found) or bool(moved) or bool(unknown)
    return CheckReport(
        exit_code=4 if stale else 0,
        lines=tuple(_lines(recipe, found, now, moved, unknown)),
        properties=tuple(_property(m) for m in found),
        engine_moved=tuple(moved), engine_unknown=unknown,
    )  # fmt: skip


def _property(m: Moved) -> CheckedProperty:
    return CheckedProperty(
        name=m.name, before=m.before, now=m.now, distance=m.distance, limit=m.limit, unit=m.unit, moved=m.stale
    )


def _shape(recipe: Recipe, path: Path) -> WorkloadShape:
    """The workload that the recipe carries; of an older recipe, that of its trace."""
    carried = recipe.workload.get("shape")
    if carried is None:
        return shape_of(load_trace(recipe.trace.find(path.resolve().parent)))
    try:
        return WorkloadShape.model_validate(carried)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SpecError(f"{path}: workload.shape.{where}: {first['msg']}; write it anew: kvknee report") from None


def _engine(recipe: Recipe, describe: Describe) -> tuple[list[str], str]:
    """(what of the engine's identity differs here, why it could not be asked)."""
    spec = recipe.spec
    if spec.engine.python and not Path(spec.engine.python).is_file():
        return [], f"its interpreter {spec.engine.python} is not on this machine"
    try:
        here = describe(spec)
    except SpecError as error:
        return [], str(error)
    if here["engine_hash"] == recipe.hashes.engine:
        return [], ""
    parts = changed_parts(recipe.engine_identity, here["identity"])
    return parts or [f"engine hash: {recipe.hashes.engine[:12]} -> {str(here['engine_hash'])[:12]}"], ""


def describe_engine(spec: TrialSpec) -> Mapping[str, Any]:
    """What the spec's engine is on this machine, in its own interpreter. SpecError where it cannot say."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(spec.model_dump_json(), encoding="utf-8")
        command = [spec.engine.python or sys.executable, *WORKER, "--describe", str(path)]
        env = environment(spec, install(pack()))
        try:
            ended = subprocess.run(
                command, env=env, cwd=folder, capture_output=True, text=True, timeout=_DESCRIBE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SpecError(f"engine {spec.engine.name} cannot be asked what it is: {error}") from None
    if ended.returncode:
        last = (ended.stderr.strip() or "no words").splitlines()[-1]
        raise SpecError(f"engine {spec.engine.name} does not say what it is here: {last}")
    answer: Mapping[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return answer


def _lines(
    recipe: Recipe, found: tuple[Moved, ...], now: WorkloadShape, moved: list[str], unknown: str
) -> list[str]:
    lines = [m.words for m in found]
    if now.synthetic:
        lines.append(f"note: of the new trace these columns are synthetic: {', '.join(now.synthetic)}")
    if unknown:
        lines.append(f"engine: {unknown}")
    lines += [f"engine: {_short(part)}" for part in moved]
    if not moved and not unknown:
        lines.append(f"engine: as it was ({recipe.hashes.engine[:12]})")
    what = [m.name for m in found if m.stale] + (["the engine"] if moved or unknown else [])
    if what:
        return [*lines, f"stale: {', '.join(what)} moved; the sweep must be run again on the new trace"]
    return [*lines, f"still valid: {recipe.outcome.winner}"]


def _short(line: str) -> str:
    """Digests as their first characters."""
    words = (w[:12] + ".." if len(w) == 64 and w.isalnum() else w for w in line.split(" "))
    return " ".join(words)
