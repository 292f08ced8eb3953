"""recipe.yaml: the chosen trial, everything that decides it, and what must come out when it runs again.

Beside it lie `recipe.lock.parquet` (which step each arrival and cancel met) and `recipe.ledger.parquet` (every
account of every step, without times), each named with its digest. The winner is knee.json's; none is computed here.
"""

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.damaged import unreadable
from orchestrator.folder import SweepFolder, TrialRecord, write_text
from orchestrator.ledger_diff import rows_of
from orchestrator.tolerance import ExpectedMetric, expected_metrics, latency_promise
from search_spaces.outcome import Confirmed, Outcome, Survival, VerdictRow
from trials.describe import describe
from trials.documents import read_yaml, validated
from trials.fingerprint import environment, file_digest, trace_hash, trace_parts
from trials.parquet_footer import bounded
from trials.result import Accounts, Hashes, TrialResult
from trials.shape import shape_of
from trials.spec import Load, Measure, TrialSpec, Window
from trials.trace import Trace, load_trace, write_whole
from trials.units import SpecError

LOCK_COLUMNS = ("phase", "load", "row", "arrival_ns", "met_step", "cancel_step")
_CARRIED = ("probe_s", "engine_start", "threads")  # what the winning attempt noted of its machine


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Locator(_Model):
    """Where content lies: relative to the recipe, and where it lay when the recipe was written."""

    relative: str
    absolute: str

    def find(self, folder: Path) -> Path:
        """The file: beside the recipe if it is there, else where it was. SpecError names both places."""
        near, far = (folder / self.relative).resolve(), Path(self.absolute)
        for path in (near, far):
            if path.is_file():
                return path
        raise SpecError(f"{self.relative}: not at {near}, nor at {far}; put the file where the recipe looks for it")


class ExpectedReplay(_Model):
    """The ledger that must come out, byte for byte, when arrivals meet the same steps."""

    phase: str
    load: str
    clock: str
    num_steps: int
    rows_digest: str
    time_mean: dict[str, float]
    peak: Accounts
    peak_step: int
    window_ns: tuple[int, int] | None = None  # trace time; where a search on several windows came to this one


class Beside(_Model):
    """A file beside the recipe: a plain name, so that no recipe leads elsewhere."""

    file: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=200)
    sha256: str


class Chosen(_Model):
    """How the sweep ended, in knee.json's words."""

    kind: str
    sentence: str
    objective: str
    winner: str
    tied: tuple[str, ...]
    binding: str
    confirmed: tuple[Confirmed, ...] = ()  # on windows that the search never saw
    survival: tuple[Survival, ...] = ()


class Recipe(_Model):
    """Field by field what recipe.yaml holds. `spec` has its locators relative to the recipe."""

    recipe: Literal[1] = 1
    name: str
    created_by: str
    evidence: Literal["measured", "modelled"]
    outcome: Chosen
    spec: TrialSpec
    trace: Locator
    table: Locator | None = None
    hashes: Hashes
    trace_parts: dict[str, str]
    engine_identity: dict[str, Any]
    ledger: tuple[ExpectedReplay, ...]
    latency: str  # what is promised, in words
    metrics: tuple[ExpectedMetric, ...]
    workload: dict[str, Any]
    verdicts: tuple[VerdictRow, ...]
    schedule: Beside
    ledger_rows: Beside
    environment: dict[str, str]
    calibration: dict[str, Any]

    def resolved_spec(self, folder: Path) -> TrialSpec:
        """The whole spec with absolute locators that exist here. SpecError where one cannot be found."""
        trace = self.spec.trace.model_copy(update={"path": str(self.trace.find(folder))})
        engine = self.spec.engine
        if self.table is not None:
            engine = engine.with_table(self.table.find(folder))
        return self.spec.model_copy(update={"trace": trace, "engine": engine})

    def pinned_spec(self, folder: Path) -> TrialSpec:
        """As `resolved_spec`; a search for the largest load is replaced by the load that it came to.

        What is reproduced is the replay that decided, not the path of the search to it.
        """
        spec = self.resolved_spec(folder)
        ladder = spec.measure.ladder
        if ladder is None:
            return spec
        (decided,) = self.ledger
        value = float(decided.load.partition("=")[2])
        exact = [_load(ladder.over, v) for v in (ladder.low, ladder.high, value)]
        load = next((x for x in exact if x.label == decided.load), exact[-1])
        if decided.window_ns is not None:
            begin, finish = decided.window_ns
            window = Window.model_construct(start=begin, duration=finish - begin)
            spec = spec.model_copy(update={"trace": spec.trace.model_copy(update={"window": window})})
        return spec.model_copy(update={"measure": Measure(load=load), "phases": (decided.phase,)})


def _load(kind: str, value: float) -> Load:
    return Load.model_validate({kind: round(value) if kind == "concurrency" else value})


def load_recipe(path: Path | str) -> Recipe:
    """Read and validate a file; SpecError says what is wrong. `reproduce.at_hand` fetches one from MLflow."""
    return validated(Recipe, read_yaml(Path(path)), f"{path}: not a recipe")


def write_recipe(folder: Path) -> Path | None:
    """recipe.yaml of a sweep's winner with the files beside it; None where knee.json names no winner."""
    sweep = SweepFolder(folder)
    outcome = sweep.load_outcome()
    if outcome is None or outcome.winner_trial is None:
        _forget(sweep)
        return None
    records = sweep.load_trials()
    winner = next((r for r in records if r.number == outcome.winner_trial), None)
    if winner is None or winner.result is None or winner.folder is None:
        raise SpecError(f"{folder}: knee.json names trial {outcome.winner_trial}, which has no result here")
    repeats = [r.result for r in records if r.number in outcome.winner_trials and r.result is not None]
    recipe = _recipe(sweep, outcome, winner, repeats)
    text = "# Run it again and compare: kvknee reproduce recipe.yaml\n" + yaml.safe_dump(
        recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110
    )
    write_text(sweep.recipe_yaml, text)
    return sweep.recipe_yaml


def _forget(sweep: SweepFolder) -> None:
    """An earlier recipe must not name a winner that knee.json does not."""
    for path in (sweep.recipe_yaml, *_beside_paths(sweep)):
        path.unlink(missing_ok=True)


def _beside_paths(sweep: SweepFolder) -> tuple[Path, Path]:
    stem = sweep.recipe_yaml.stem
    return sweep.path / f"{stem}.lock.parquet", sweep.path / f"{stem}.ledger.parquet"


def _recipe(sweep: SweepFolder, outcome: Outcome, winner: TrialRecord, repeats: Sequence[TrialResult]) -> Recipe:
    result = winner.result
    assert result is not None
    metrics = expected_metrics(result, repeats)
    trace = load_trace(Path(winner.spec.trace.path))
    if trace_hash(trace) != result.hashes.trace:
        raise SpecError(f"{winner.spec.trace.path}: changed since trial {winner.number} ran; restore it")
    schedule, ledger_rows = _write_beside(sweep, winner, result)
    settings = read_yaml(sweep.sweep_yaml) if sweep.sweep_yaml.is_file() else {}
    spec, where, table = _relative(winner.spec, sweep.path)
    return Recipe(
        name=str(settings.get("name") or sweep.path.resolve().name),
        created_by=f"kvknee {_version()}",
        evidence=result.evidence,
        outcome=_chosen(outcome),
        spec=spec,
        trace=where,
        table=table,
        hashes=result.hashes,
        trace_parts=trace_parts(trace),
        engine_identity=_mapping(winner.info.get("engine_identity")),
        ledger=_expected_replays(result, whole=winner.spec.measure.ladder is None),
        latency=latency_promise(metrics, result.evidence),
        metrics=metrics,
        workload=_shape(trace),
        verdicts=outcome.verdicts,
        schedule=schedule,
        ledger_rows=ledger_rows,
        environment={k: str(v) for k, v in (_mapping(winner.info.get("environment")) or environment()).items()},
        calibration=_calibration(settings, winner.info),
    )


def _chosen(outcome: Outcome) -> Chosen:
    assert outcome.winner is not None
    return Chosen(
        kind=outcome.kind, sentence=outcome.sentence, objective=outcome.objective, winner=outcome.winner,
        tied=outcome.tied, binding=outcome.binding, confirmed=outcome.confirmed, survival=outcome.survival,
    )  # fmt: skip


def _expected_replays(result: TrialResult, whole: bool) -> tuple[ExpectedReplay, ...]:
    """All replays, or the deciding one where a search for the load made the others."""
    replays = result.replays if whole or result.decides is None else (result.replays[result.decides],)
    return tuple(
        ExpectedReplay(
            phase=r.phase,
            load=r.load,
            clock=r.clock,
            num_steps=r.observation.num_steps,
            rows_digest=r.ledger.rows_digest,
            time_mean=r.ledger.time_mean,
            peak=r.ledger.peak,
            peak_step=r.ledger.peak_step,
            window_ns=_window_of(result),
        )
        for r in replays
    )


def _window_of(result: TrialResult) -> tuple[int, int] | None:
    """Of several windows that were searched, the one whose replays the result holds."""
    found = result.capacity
    if found is None or len(found.parts) < 2:
        return None
    part = found.parts[found.decides]
    return part.start_ns, part.end_ns


def _relative(spec: TrialSpec, folder: Path) -> tuple[TrialSpec, Locator, Locator | None]:
    """The spec with locators relative to the recipe's folder, and both forms of each."""
    trace = _locator(Path(spec.trace.path), folder)
    engine = spec.engine
    table = None if engine.table is None else _locator(engine.table, folder)
    if table is not None:
        engine = engine.with_table(table.relative)
    moved = spec.model_copy(
        update={"trace": spec.trace.model_copy(update={"path": trace.relative}), "engine": engine}
    )
    return moved, trace, table


def _locator(path: Path, folder: Path) -> Locator:
    return Locator(relative=os.path.relpath(path.resolve(), folder.resolve()), absolute=str(path.resolve()))


def _write_beside(sweep: SweepFolder, winner: TrialRecord, result: TrialResult) -> tuple[Beside, Beside]:
    """The step lock and the ledger without times, from the files that the winning trial left."""
    assert winner.folder is not None
    requests = read_table(winner.folder / "requests.parquet")
    missing = [c for c in LOCK_COLUMNS if c not in requests.column_names]
    if missing:
        raise SpecError(f"{winner.folder / 'requests.parquet'}: columns missing: {', '.join(missing)}")
    ledger = read_table(winner.folder / "ledger.parquet")
    if winner.spec.measure.ladder is not None and result.decides is not None:
        decided = result.replays[result.decides]
        ledger = rows_of(ledger, decided.phase, decided.load)
    lock_path, ledger_path = _beside_paths(sweep)
    lock = _beside(lock_path, requests.select(LOCK_COLUMNS))
    return lock, _beside(ledger_path, ledger.select(account_columns(ledger)))


def account_columns(ledger: Any) -> list[str]:
    """All that must be equal under a step lock: every column but times."""
    return [c for c in ledger.column_names if not c.endswith("_ns")]


def read_table(path: Path) -> Any:
    """A parquet file as an Arrow table; SpecError where it is absent or broken."""
    try:
        return pq.read_table(bounded(path))
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file; it is needed beside the recipe") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def _beside(path: Path, table: Any) -> Beside:
    write_whole(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))
    return Beside(file=path.name, sha256=file_digest(path))


def _calibration(settings: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """How the load was found, as the sweep keeps it, and the winning attempt's notes on its machine."""
    found = _mapping(settings.get("calibration"))
    return found | {k: info[k] for k in _CARRIED if info.get(k) not in (None, {}, [], "") and k not in found}


def _shape(trace: Trace) -> dict[str, Any]:
    return describe(trace).model_dump(mode="json") | {"shape": shape_of(trace).model_dump(mode="json")}


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _version() -> str:
    try:
        return importlib.metadata.version("kvknee")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
