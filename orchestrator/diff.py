"""Two builds of an engine on one trace: which account moved, at which step first, by how much.

The first build runs by the clock; the second is locked to the steps at which the first met every arrival and
cancel, so that every row of its ledger must be the first's. It then runs by its own clock too, for what the change
is worth in qualified output tokens/s at this load. Each build runs in a new process, under the interpreter that its
YAML names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from orchestrator.config import SWEEP_ONLY
from orchestrator.folder import AttemptRecord, read_attempt
from orchestrator.ledger_diff import LedgerDifference, compare_ledgers, rows_of
from orchestrator.recipe import account_columns, read_table
from orchestrator.reproduce import Run, place, run_package, run_worker, shorten
from trials.documents import read_yaml, validated
from trials.fingerprint import changed_parts
from trials.ledger import ACCOUNTS
from trials.result import TrialResult
from trials.spec import Load, Measure, TrialSpec, resolve_paths
from trials.trace import load_trace
from trials.units import SpecError

_ONLY_ENGINES = {"engine"}
_AT_ONCE = 12  # changed parts that are named before the rest is counted


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Moved(_Model):
    """One account over the steps that both builds have of a locked replay, in bytes; `most` is signed."""

    account: str
    replay: str
    before: float  # mean over the steps
    after: float
    most: int  # the farthest that one step lies from the first build's

    @property
    def line(self) -> str:
        share = f" ({self.after / self.before - 1:+.2%})" if self.before else ""
        by = self.after - self.before
        return f"{self.account} of {self.replay}: {by:+,.0f} bytes a step on average{share}, at most {self.most:+,}"


class DiffReport(_Model):
    """exit_code 0: the ledger is the same, step for step; 4: it is not; 3: the first build gave nothing to compare.

    `throughput`: qualified output tokens/s of both builds by their own clocks, None where one gave none.
    """

    exit_code: Literal[0, 3, 4]
    lines: tuple[str, ...]
    parts: tuple[str, ...]  # what the engines differ in, as `name: a -> b`
    ledger_differences: tuple[LedgerDifference, ...]
    moved: tuple[Moved, ...]
    problems: tuple[str, ...]
    throughput: tuple[float, float] | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Build:
    """What runs and how: a spec, and the code of trials/ that runs it (None: this one's)."""

    spec: TrialSpec
    run: Run


def build_of(engine: Path, trace: Path, package: Path | None = None) -> Build:
    """A build from a trial's or sweep's YAML, on this trace at one load. SpecError where it cannot be read."""
    data = {key: value for key, value in read_yaml(engine).items() if key not in SWEEP_ONLY}
    asked = data.get("trace")
    data["trace"] = {**(asked if isinstance(asked, dict) else {}), "path": str(trace.resolve())}
    spec = resolve_paths(validated(TrialSpec, data, str(engine)), engine.resolve().parent)
    if spec.measure.load is None:
        spec = spec.model_copy(update={"measure": Measure(load=Load(rate_scale=1.0))})
    if package is not None and not (package / "trials" / "worker.py").is_file():
        raise SpecError(f"package {package}: holds no trials/worker.py; name the folder that trials/ lies in")
    return Build(spec, run_worker if package is None else partial(run_package, package.resolve()))


def diff(first: Build, second: Build, out: Path | None) -> DiffReport:
    """Run both builds and compare. `out` keeps their files; None: a temporary folder, removed."""
    asked = _asked_apart(first.spec, second.spec)
    load_trace(Path(first.spec.trace.path))  # what cannot be read is the trace's fault, and not a build's
    with place(out) as folder:
        before, why_before = _attempt(first, folder / "a", None)
        if before.result is None or before.result.status != "complete":
            return _nothing(before.result, why_before)
        lock = folder / "a" / "requests.parquet"
        locked, why_locked = _attempt(second, folder / "b-locked", lock)
        clocked, why_clocked = _attempt(second, folder / "b", None)
        problems = [*_no_answer("step-locked", locked, why_locked), *_no_answer("clocked", clocked, why_clocked)]
        differences = _ledgers(before, locked) if locked.result is not None else ()
        moved = _moved(before, locked) if differences else ()
    tokens = _throughput(before.result, clocked.result)
    seen = _Seen(asked, _parts(before.info, locked.info), problems, differences, moved, tokens)
    return _report(before.result, seen)


@dataclass(frozen=True, slots=True)
class _Seen:
    """All that was observed, before it is judged."""

    asked: Sequence[str]
    parts: Sequence[str]
    problems: Sequence[str]
    differences: tuple[LedgerDifference, ...]
    moved: tuple[Moved, ...]
    throughput: tuple[float, float] | None


def _attempt(build: Build, out: Path, lock: Path | None) -> tuple[AttemptRecord, str]:
    why = build.run(build.spec, out, lock)
    return read_attempt(out, 1), why


def _no_answer(which: str, attempt: AttemptRecord, why: str) -> list[str]:
    if attempt.result is None:
        return [f"second build, {which}: no result: {why or 'the worker wrote none'}"]
    result = attempt.result
    if result.status != "complete":
        return [f"second build, {which}: {result.status}: {result.reason}"]
    return [f"second build, {which}: {reason}" for reason in result.ineligible_because]


def _asked_apart(first: TrialSpec, second: TrialSpec) -> list[str]:
    """Whatever the two YAMLs ask beside their engines: then it is not only the build that differs."""
    a, b = (spec.model_dump(mode="json", exclude=_ONLY_ENGINES) for spec in (first, second))
    return [f"asked otherwise: {line}" for line in changed_parts(a, b)]


def _parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Deciding files, versions and settings of the two engines that are not the same."""
    a, b = (info.get("engine_identity") for info in (before, after))
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return []
    return [shorten(line) for line in changed_parts(a, b)]


def _ledgers(before: AttemptRecord, locked: AttemptRecord) -> tuple[LedgerDifference, ...]:
    found = locked.folder / "ledger.parquet"
    if not found.is_file():
        return ()
    expected = read_table(before.folder / "ledger.parquet")
    return compare_ledgers(expected.select(account_columns(expected)), read_table(found))


def _moved(before: AttemptRecord, locked: AttemptRecord) -> tuple[Moved, ...]:
    """Accounts that differ, over common steps. Time is left out: a locked replay does not wait as a clocked one."""
    expected, found = (read_table(attempt.folder / "ledger.parquet") for attempt in (before, locked))
    out = []
    for phase, load in dict.fromkeys(zip(*(expected[n].to_pylist() for n in ("phase", "load")), strict=True)):
        old, new = (rows_of(table, phase, load) for table in (expected, found))
        common = min(len(old), len(new))
        for name in ACCOUNTS:
            a, b = (np.asarray(table[name], np.int64)[:common] for table in (old, new))
            if (apart := b - a).any():
                most = int(apart[np.abs(apart).argmax()])
                out.append(Moved(account=name, replay=f"{phase} {load}", before=float(a.mean()),
                                 after=float(b.mean()), most=most))  # fmt: skip
    return tuple(out)


def _throughput(before: TrialResult, after: TrialResult | None) -> tuple[float, float] | None:
    if after is None or after.status != "complete":
        return None
    return before.metrics.qualified_output_throughput, after.metrics.qualified_output_throughput


def _nothing(result: TrialResult | None, why: str) -> DiffReport:
    said = f"{result.status}: {result.reason}" if result is not None else f"no result: {why}"
    problem = f"first build: {said}"
    return DiffReport(
        exit_code=3, lines=(problem, "nothing to compare"), parts=(), ledger_differences=(), moved=(),
        problems=(problem,), throughput=None, evidence=result.evidence if result is not None else "",
    )  # fmt: skip


def _report(before: TrialResult, seen: _Seen) -> DiffReport:
    apart = seen.throughput is not None and before.evidence == "modelled" and len(set(seen.throughput)) > 1
    same = not (seen.differences or apart or _new(before, seen.problems))
    return DiffReport(
        exit_code=0 if same else 4, lines=tuple(_lines(before, seen, same)), parts=tuple(seen.parts),
        ledger_differences=seen.differences, moved=seen.moved, problems=tuple(seen.problems),
        throughput=seen.throughput, evidence=before.evidence,
    )  # fmt: skip


def _new(before: TrialResult, problems: Sequence[str]) -> list[str]:
    """Problems of the second build that the first did not have as well."""
    return [p for p in problems if not p.endswith(tuple(before.ineligible_because) or ("\0",))]


def _lines(before: TrialResult, seen: _Seen, same: bool) -> Iterator[str]:
    yield from seen.asked
    yield from seen.parts[:_AT_ONCE] or ["the engines are the same: files, versions and settings"]
    if len(seen.parts) > _AT_ONCE:
        yield f"and {len(seen.parts) - _AT_ONCE} parts more"
    yield from seen.problems
    yield from (f"ledger: {difference.line}" for difference in seen.differences)
    yield from (f"moved: {moved.line}" for moved in seen.moved)
    if not seen.differences and not seen.problems:
        steps = sum(r.observation.num_steps for r in before.replays)
        yield f"ledger: byte-exact over {steps} steps in {len(before.replays)} replays, locked to steps"
    if seen.throughput is not None:
        a, b = seen.throughput
        by = f" ({b / a - 1:+.2%})" if a else ""
        load = before.replays[before.decides].load if before.replays and before.decides is not None else ""
        yield f"qualified output tokens/s [{before.evidence}] at {load}: {a:.6g} -> {b:.6g}{by}"
    yield "the builds allocate alike" if same else "the builds differ"
