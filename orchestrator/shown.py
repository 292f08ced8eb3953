"""What a report shows of a sweep: candidates with their results and roles, as knee.json names them.

Nothing is chosen here. Before knee.json exists, trials stand grouped by what was varied and nobody is chosen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestrator.folder import SweepFolder, TrialRecord
from orchestrator.plots import Role
from orchestrator.plots_knee import KneePoint, Panel
from orchestrator.recipe import Recipe, load_recipe
from search_spaces.outcome import CandidateOutcome, Outcome
from trials.result import TrialResult
from trials.slo import Clause, parse_slo
from trials.spec import read_yaml

_NAMES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2el": "E2EL"}
_ALWAYS = ("ttft", "itl")


@dataclass(frozen=True, slots=True)
class Shown:
    """One candidate over its repeats. `why_not`: why it is not feasible."""

    label: str
    block_size: int
    role: Role
    in_space: bool
    feasible: bool
    records: tuple[TrialRecord, ...]
    why_not: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()  # the controls that it answers to

    @property
    def title(self) -> str:
        """The label with what is worth saying of it."""
        others = [c for c in self.controls if c not in self.label]
        words = [*([self.role] if self.role != "candidate" else []), *others]
        return f"{self.label} ({', '.join(words)})" if words else self.label

    @property
    def results(self) -> tuple[TrialResult, ...]:
        return tuple(r.result for r in self.records if r.result is not None and r.result.status == "complete")

    @property
    def evidence(self) -> str:
        """`modelled (roofline:h100-sxm)`, `measured (CPU, process CPU time)`; several, where trials differ."""
        words = {evidence_words(r) for r in self.records if r.result is not None}
        return " and ".join(sorted(words)) or "no evidence yet"

    @property
    def decisive(self) -> TrialRecord | None:
        """The first repeat that left a ledger."""
        return next((r for r in self.records if r.folder is not None and ledger_of(r).is_file()), None)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All that the page is made of, read once."""

    folder: SweepFolder
    name: str
    settings: dict[str, Any]
    records: list[TrialRecord]
    outcome: Outcome | None
    recipe: Recipe | None
    shown: list[Shown]

    @property
    def chosen(self) -> Shown | None:
        return next((s for s in self.shown if s.role == "chosen"), None)

    @property
    def ended(self) -> int:
        return sum(r.state != "running" for r in self.records)

    @property
    def unfinished(self) -> bool:
        return self.outcome is None or self.ended < len(self.records)

    @property
    def evidence(self) -> str:
        """Of the chosen candidate; before there is one, of all."""
        pool = [self.chosen] if self.chosen is not None else self.shown
        return " and ".join(sorted({s.evidence for s in pool if s.results})) or "no evidence yet"

    @property
    def short_evidence(self) -> str:
        """For plot titles: `modelled`, `measured on CPU`."""
        found = {
            "modelled" if r.result.evidence == "modelled" else f"measured on {r.spec.engine.device.upper()}"
            for s in self.shown
            for r in s.records
            if r.result is not None
        }
        return " and ".join(sorted(found)) or "no evidence yet"


def read_sweep(folder: SweepFolder) -> Sweep:
    """Everything of a sweep that a report shows. SpecError where the folder holds none."""
    folder.require()
    settings = read_yaml(folder.sweep_yaml)
    records = folder.load_trials()
    outcome = folder.load_outcome()
    recipe = load_recipe(folder.recipe_yaml) if folder.recipe_yaml.is_file() else None
    name = str(settings.get("name") or folder.path.resolve().name)
    return Sweep(folder, name, settings, records, outcome, recipe, shown_candidates(outcome, records))


def ledger_of(record: TrialRecord) -> Path:
    return (record.folder or Path()) / "ledger.parquet"


def evidence_words(record: TrialRecord) -> str:
    """What kind of evidence a trial is, with the model of time or the device and its clock."""
    if record.result is None:
        return "no evidence yet"
    if record.result.evidence == "modelled":
        return f"modelled ({record.spec.engine.step_time or 'step time of the engine'})"
    clock = "process CPU time" if any(r.clock == "cpu" for r in record.result.replays) else "wall time"
    return f"measured ({record.spec.engine.device.upper()}, {clock})"


def shown_candidates(outcome: Outcome | None, records: Sequence[TrialRecord]) -> list[Shown]:
    """knee.json's candidates in its order; without it, trials grouped by control and parameters."""
    if outcome is not None:
        by_number = {r.number: r for r in records}
        return [_known(c, outcome, by_number) for c in outcome.candidates]
    groups: dict[str, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(_group_label(record), []).append(record)
    shown = [_unjudged(label, group) for label, group in groups.items()]
    return sorted(shown, key=lambda s: (not s.in_space, s.block_size, s.label))


def _known(candidate: CandidateOutcome, outcome: Outcome, by_number: dict[int, TrialRecord]) -> Shown:
    role: Role = "candidate"
    if candidate.label == outcome.winner:
        role = "chosen"
    elif candidate.in_space and (candidate.tied or candidate.label in outcome.tied):
        role = "tied"
    elif candidate.controls or not candidate.in_space:
        role = "control"
    records = tuple(by_number[n] for n in candidate.trials if n in by_number)
    return Shown(candidate.label, candidate.block_size, role, candidate.in_space, candidate.feasible, records,
                 candidate.why_not, candidate.controls)  # fmt: skip


def _group_label(record: TrialRecord) -> str:
    if record.control is not None:
        return f"control {record.control}"
    varied = ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in record.params.items())
    return varied or f"block_size {record.spec.policy.block_size}"


def _unjudged(label: str, group: Sequence[TrialRecord]) -> Shown:
    first = group[0]
    results = [r.result for r in group if r.result is not None]
    effective = next((r.effective for r in results if r.effective is not None), None)
    size = effective.block_size if effective is not None else first.spec.policy.block_size
    holds = bool(results) and all(
        r.eligible and r.decides is not None and r.replays[r.decides].holds for r in results
    )
    role: Role = "control" if first.control is not None else "candidate"
    controls = (first.control,) if first.control is not None else ()
    return Shown(label, size, role, first.control is None, holds, tuple(group), (), controls)


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a panel plots, and how it is read from a result. None = not finite."""

    panel: Panel
    read: Callable[[TrialResult], float | None]


def quantities(slo_text: str, evidence: str) -> list[Quantity]:
    """Qualified throughput, each SLO clause with its limit, then p99 of TTFT and ITL where no clause has them."""
    panel = Panel("Qualified output", "tokens/s", evidence)
    found = [Quantity(panel, lambda r: r.metrics.qualified_output_throughput)]
    clauses = parse_slo(slo_text).clauses
    found += [_of_clause(clause, evidence) for clause in clauses]
    for name in _ALWAYS:
        if name not in {c.metric for c in clauses}:
            found.append(_of_percentile(name, evidence))
    return found


def _of_clause(clause: Clause, evidence: str) -> Quantity:
    title = f"{_NAMES[clause.metric]} p{clause.percentile:g}"
    panel = Panel(title, "ms", evidence, clause.limit_ns / 1e6)
    return Quantity(panel, lambda r: r.metrics.slo_values_ms.get(clause.text))


def _of_percentile(name: str, evidence: str) -> Quantity:
    def read(result: TrialResult) -> float | None:
        value: float | None = getattr(result.metrics, f"{name}_ms").p99
        return value

    return Quantity(Panel(f"{_NAMES[name]} p99", "ms", evidence), read)


def knee_points(shown: Sequence[Shown], quantity: Quantity) -> list[KneePoint]:
    """One point a candidate: mean over its repeats, and their range; none where a repeat has no finite value."""
    points = []
    for s in shown:
        read = [quantity.read(r) for r in s.results]
        values = [v for v in read if v is not None]
        whole = bool(values) and len(values) == len(read)
        middle, low, high = (fmean(values), min(values), max(values)) if whole else (None, None, None)
        points.append(KneePoint(s.label, s.block_size, middle, low, high, s.feasible, s.role, s.in_space))
    return points
