"""A recipe run again in new processes: same hashes, same ledger step for step, latency within its tolerance?

Two runs. The first is locked to steps: arrivals and cancels meet the steps that they met before, so the ledger of
even a measured engine must come out byte for byte. The second goes by the clock, for the latencies. Whatever
differs is named; nothing that differs stops the runs.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.attempts import PROBE_TOLERANCE
from orchestrator.folder import AttemptRecord, read_attempt
from orchestrator.ledger_diff import LedgerDifference, compare_ledgers
from orchestrator.recipe import Recipe, load_recipe, read_table
from orchestrator.targets import target_folder
from orchestrator.tolerance import Compared, compare
from trials.fingerprint import changed_parts, file_digest, spec_hash, table_digest_of, trace_hash, trace_parts
from trials.result import TrialResult
from trials.spec import TrialSpec
from trials.trace import load_trace
from trials.units import SpecError

# (spec, out, step lock or None) -> why it gave no answer, or ""
Run = Callable[[TrialSpec, Path, Path | None], str]
# the launcher puts SPEC and OUT last, the worker wants its lock behind them
_LOCKED = "import sys; from trials.worker import main; sys.exit(main([*sys.argv[2:], '--lock', sys.argv[1]]))"
_COLUMN_WORDS = {"arrival_ns": "row timestamps", "num_prompt_tokens": "prompt lengths",
                 "num_output_tokens": "answer lengths", "prefix_ids": "prefix ids"}  # fmt: skip
_SHORT = 12


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReproduceReport(_Model):
    """What came out. exit_code 0: everything that was promised held; 4: something moved, and `lines` say what."""

    exit_code: Literal[0, 4]
    lines: tuple[str, ...]
    parts: tuple[str, ...]  # what deciding content moved, as `name: old -> new`
    ledger_equal: bool
    ledger_differences: tuple[LedgerDifference, ...]
    latency: tuple[Compared, ...]
    latency_inside: bool | None  # None: nothing was promised
    environment: tuple[str, ...]  # moved, but no failure by itself


def reproduce(recipe: Path, out: Path | None, run: Run | None = None) -> ReproduceReport:
    """Run a recipe twice and compare. `out` keeps both runs' files; None: a temporary folder, removed.

    Raises SpecError or TraceError where the recipe or a file that it names cannot be read.
    """
    wanted = load_recipe(recipe)
    base = recipe.resolve().parent
    lock, rows = _verified(wanted, base)
    parts = _moved_content(wanted, wanted.resolved_spec(base))
    spec = wanted.pinned_spec(base)
    with place(out) as folder:
        locked, why_locked = _attempt(spec, folder / "locked", lock, run or run_worker)
        clocked, why_clocked = _attempt(spec, folder / "clocked", None, run or run_worker)
        parts += _moved_engine(wanted, locked if locked.result else clocked)
        differences = _ledger_differences(rows, locked)
    problems = [*_no_answer("step-locked", locked, why_locked), *_no_answer("clocked", clocked, why_clocked)]
    digests = _digest_words(wanted, locked.result, "step-locked")
    if wanted.evidence == "modelled":
        digests += _digest_words(wanted, clocked.result, "clocked")
    latency = compare(wanted.metrics, clocked.result.metrics) if clocked.result is not None else ()
    if (off := _speed_off(wanted, clocked)) is not None:
        latency = tuple(c.model_copy(update={"inside": None, "off": off}) for c in latency)
    return _report(wanted, _Seen(parts, problems, digests, differences, latency, _environment(wanted, locked)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """All that was observed, before it is judged."""

    parts: list[str]
    problems: list[str]
    digests: list[str]
    differences: tuple[LedgerDifference, ...]
    latency: tuple[Compared, ...]
    environment: tuple[str, ...]


@contextmanager
def at_hand(recipe: str, tracking: str | None) -> Iterator[Path]:
    """The recipe as a file: itself, or fetched with all that it names from the MLflow at `tracking`. SpecError."""
    if not recipe.startswith(("models:", "runs:")):
        yield Path(recipe)
        return
    from orchestrator.tracking_recipe import fetched

    with fetched(recipe, tracking, dict(os.environ)) as path:
        yield path


def worker_with(python: Path | None, model: Path | None) -> Run:
    """As `run_worker`, with this machine's interpreter and folder of the model: locators, which no hash covers."""

    def run(spec: TrialSpec, out: Path, lock: Path | None) -> str:
        engine, shape = spec.engine, spec.model
        if python is not None:
            engine = engine.model_copy(update={"python": str(python.expanduser().absolute())})
        if model is not None:
            shape = shape.model_copy(update={"path": str(model.expanduser().absolute())})
        return run_worker(spec.model_copy(update={"engine": engine, "model": shape}), out, lock)

    return run


def run_worker(spec: TrialSpec, out: Path, lock: Path | None) -> str:
    """One trial in a new process from the code that is installed here, as a sweep runs it."""
    from orchestrator.package import install, pack

    return run_package(install(pack()), spec, out, lock)


def run_package(package: Path, spec: TrialSpec, out: Path, lock: Path | None) -> str:
    """One trial in a new process from the code in `package`; with a lock, by its steps."""
    from orchestrator.launch import WORKER, Launch, launch

    worker = WORKER if lock is None else ("-P", "-c", _LOCKED, str(lock))
    ended = launch(spec, out, Launch(package, worker=worker))
    tail = f"; its last words:\n{ended.log_tail}" if ended.reason and ended.log_tail else ""
    return ended.reason + tail


@contextmanager
def place(out: Path | None) -> Iterator[Path]:
    """Where runs to compare keep their files: the folder asked for, or a temporary one that is removed."""
    if out is not None:
        folder = target_folder(out)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="kvknee-compare-") as name:
        yield Path(name).resolve()


def _verified(recipe: Recipe, base: Path) -> tuple[Path, Path]:
    """The step lock and the ledger beside the recipe, proven to be the ones that it was written with."""
    found = []
    for beside in (recipe.schedule, recipe.ledger_rows):
        path = base / beside.file
        if not path.is_file():
            raise SpecError(f"{path}: missing; it belongs beside the recipe, copy it there")
        if (digest := file_digest(path)) != beside.sha256:
            raise SpecError(
                f"{path}: sha256 {_short(digest)}, the recipe was written with {_short(beside.sha256)}; "
                "copy the file that belongs to this recipe"
            )
        found.append(path)
    return found[0], found[1]


def _attempt(spec: TrialSpec, out: Path, lock: Path | None, run: Run) -> tuple[AttemptRecord, str]:
    why = run(spec, out, lock)
    return read_attempt(out, 1), why


def _no_answer(which: str, attempt: AttemptRecord, why: str) -> list[str]:
    if attempt.result is None:
        return [f"{which} replay: no result: {why or 'the worker wrote none'}"]
    if attempt.result.status != "complete":
        return [f"{which} replay: {attempt.result.status}: {attempt.result.reason}"]
    return []


def _moved_content(recipe: Recipe, spec: TrialSpec) -> list[str]:
    """What differs before anything runs: the trace by column, and the spec."""
    trace = load_trace(Path(spec.trace.path))
    moved = []
    if (found := trace_hash(trace)) != recipe.hashes.trace:
        columns = changed_parts(recipe.trace_parts, trace_parts(trace))
        moved += [f"trace: {_in_words(line)}" for line in columns] or [_arrow("trace", recipe.hashes.trace, found)]
    asked = spec_hash(spec, recipe.hashes.trace, table_digest_of(spec))
    if asked != recipe.hashes.spec:
        moved.append(_arrow("spec (edited since the recipe was written)", recipe.hashes.spec, asked))
    return moved


def _in_words(line: str) -> str:
    """`arrival_ns: old -> new` as `arrival_ns (row timestamps) differs: old -> new`, digests shortened."""
    name, _, change = line.partition(": ")
    words = f" ({_COLUMN_WORDS[name]})" if name in _COLUMN_WORDS else ""
    return f"{name}{words} differs: {shorten(change)}"


def _moved_engine(recipe: Recipe, attempt: AttemptRecord) -> list[str]:
    """Which of the engine's deciding files, versions or settings differ."""
    if attempt.result is None or attempt.result.hashes.engine == recipe.hashes.engine:
        return []
    identity = attempt.info.get("engine_identity")
    found = identity if isinstance(identity, Mapping) else {}
    lines = [_without_group(shorten(line)) for line in changed_parts(recipe.engine_identity, found)]
    return lines or [
        _arrow("engine (its parts were not recorded)", recipe.hashes.engine, attempt.result.hashes.engine)
    ]


def _without_group(line: str) -> str:
    """`files.trials/x.py: a -> b` names the file; other groups keep their name: `distributions.numpy: a -> b`."""
    group, dot, rest = line.partition(".")
    return rest if dot and rest.startswith("trials/") and "/" not in group else line


def _environment(recipe: Recipe, attempt: AttemptRecord) -> tuple[str, ...]:
    found = attempt.info.get("environment")
    lines = []
    if isinstance(found, Mapping):
        lines += changed_parts(recipe.environment, {k: str(v) for k, v in found.items()})
    return tuple(lines)


def _speed_off(recipe: Recipe, clocked: AttemptRecord) -> float | None:
    """By how much this machine is slower (> 0) or faster than the recipe's, as the probe beside each trial saw it.

    None where that is within what a sweep itself puts up with. Beyond it another machine was measured, in effect,
    and its latencies say nothing of the recipe's.
    """
    before, now = recipe.calibration.get("probe_s"), clocked.probe_s
    if not isinstance(before, int | float) or now is None or abs(now / before - 1) <= PROBE_TOLERANCE:
        return None
    return now / before - 1


def _digest_words(recipe: Recipe, result: TrialResult | None, which: str) -> list[str]:
    """Replays whose account columns do not have the expected digest."""
    if result is None:
        return []
    if len(result.replays) != len(recipe.ledger):
        return [f"ledger ({which}): {len(recipe.ledger)} replays -> {len(result.replays)}"]
    return [
        _arrow(f"ledger ({which}, {old.phase}, {old.load}) digest", old.rows_digest, new.ledger.rows_digest)
        for old, new in zip(recipe.ledger, result.replays, strict=True)
        if old.rows_digest != new.ledger.rows_digest
    ]


def _ledger_differences(rows: Path, locked: AttemptRecord) -> tuple[LedgerDifference, ...]:
    found = locked.folder / "ledger.parquet"
    if locked.result is None or not found.is_file():
        return ()
    return compare_ledgers(read_table(rows), read_table(found))


def _report(recipe: Recipe, seen: _Seen) -> ReproduceReport:
    judged = [c.inside for c in seen.latency if c.inside is not None]
    inside = all(judged) if judged else None
    ledger_equal = not (seen.digests or seen.differences or seen.problems)
    fine = not seen.parts and ledger_equal and inside is not False
    return ReproduceReport(
        exit_code=0 if fine else 4,
        lines=tuple(_lines(recipe, seen, ledger_equal, fine)),
        parts=tuple(seen.parts),
        ledger_equal=ledger_equal,
        ledger_differences=seen.differences,
        latency=seen.latency,
        latency_inside=inside,
        environment=seen.environment,
    )


def _lines(recipe: Recipe, seen: _Seen, ledger_equal: bool, fine: bool) -> Iterator[str]:
    yield from seen.parts or [f"hashes: spec, trace and engine are the recipe's ({_short(recipe.hashes.engine)})"]
    yield from seen.problems
    yield from (f"ledger: {difference.line}" for difference in seen.differences)
    yield from seen.digests
    if ledger_equal:
        steps = sum(r.num_steps for r in recipe.ledger)
        yield f"ledger: byte-exact over {steps} steps in {len(recipe.ledger)} replays, locked to steps"
    yield f"latency: {recipe.latency}"
    yield from (_latency_line(c, recipe.evidence) for c in seen.latency)
    yield from (f"environment (no failure by itself): {line}" for line in seen.environment)
    yield "reproduced" if fine else "did not reproduce"


def _latency_line(c: Compared, evidence: str) -> str:
    found = "none" if c.found is None else f"{c.found:.6g}"
    moved = "" if c.moved is None else f" ({c.moved:+.2%})"
    if c.off is not None:
        verdict = f"not judged: this machine's speed probe took {c.off:+.0%}"
    elif c.inside is None:
        verdict = "not promised"
    else:
        verdict = f"{'inside' if c.inside else 'OUTSIDE'} {c.tolerance:.1%}" if c.tolerance else _exactly(c.inside)
    return f"{c.name} [{evidence}]: {c.expected:.6g} -> {found}{moved}, {verdict}"


def _exactly(inside: bool) -> str:
    return "equal" if inside else "NOT EQUAL, and a modelled number must be"


def _arrow(name: str, old: str, new: str) -> str:
    return f"{name}: {_short(old)} -> {_short(new)}"


def shorten(line: str) -> str:
    """Digests in a line cut to their first characters."""
    return " ".join(_short(word) for word in line.split(" "))


def _short(word: str) -> str:
    """A digest as its first characters; other words as they are."""
    is_digest = len(word) == 64 and all(c in "0123456789abcdef" for c in word)
    return f"{word[:_SHORT]}.." if is_digest else word
