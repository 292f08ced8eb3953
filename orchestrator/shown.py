"""What a report shows of a sweep: candidates with their results and roles, as knee.json names them.

Nothing is chosen here. Before knee.json exists, trials stand grouped by what was varied and nobody is chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.bound_answer import Bound
from orchestrator.bounded import load_bound
from orchestrator.folder import SweepFolder, TrialRecord
from orchestrator.frames import DRAWN_COLUMNS, Binned, Frame, bin_ledger, deciding_rows, read_columns
from orchestrator.plots import Role
from orchestrator.points import OF_THE_SEARCH
from orchestrator.recipe import Recipe, load_recipe
from orchestrator.short_labels import short_labels, shortened
from search_spaces.outcome import CandidateOutcome, Outcome
from trials.result import TrialResult
from trials.spec import read_yaml

NO_LEDGER = "No trial has left a ledger yet."
_IN_FOCUS = 8  # candidates whose ledgers are drawn; the tables have all
_STRETCHES = 120  # of time in a drawing: each some pixels wide


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
    less_than: float | None = None  # raced out: what its value stays below
    at_least: bool = False  # its value is a lower bound: the ladder of loads ended before any load failed

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
class Focus:
    """A candidate that is looked at closely: its first repeat's result, and the ledger rows of what decided.

    `binned`: the rows in stretches of equal time; None where no time passed.
    """

    shown: Shown
    key: str
    record: TrialRecord
    result: TrialResult
    rows: Frame
    binned: Binned | None

    @property
    def title(self) -> str:
        return self.shown.title


@dataclass(frozen=True, slots=True)
class Sweep:
    """All that the page is made of, read once. `focus`: the winner or nearest miss, the default, the controls.

    `labels`: trial number -> its candidate, of every trial. `short`: what knee.json calls a candidate -> what the
    page calls it, where labels are long; `outcome` and `labels` have that already. `usual`: the default's own.
    """

    folder: SweepFolder
    name: str
    settings: dict[str, Any]
    records: list[TrialRecord]
    outcome: Outcome | None
    recipe: Recipe | None
    shown: list[Shown]
    labels: Mapping[int, str]
    short: Mapping[str, str]
    usual: str
    bound: Bound | None = None
    focus: tuple[Focus, ...] = ()

    @property
    def chosen(self) -> Shown | None:
        return next((s for s in self.shown if s.role == "chosen"), None)

    @property
    def slo(self) -> str:
        """Of the trials; before there is one, of the sweep."""
        return self.records[0].spec.slo if self.records else str(self.settings.get("slo", ""))

    @property
    def objective(self) -> str:
        """What was maximised, as knee.json or the sweep names it."""
        asked = self.settings.get("objective", "qualified_output_throughput")
        return self.outcome.objective if self.outcome is not None else str(asked)

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
    found = folder.load_outcome()
    short = short_labels(found.candidates) if found is not None else {}
    usual = next((c.label for c in found.candidates if c.is_default), "") if found is not None else ""
    outcome = shortened(found, short) if found is not None else None
    recipe = load_recipe(folder.recipe_yaml) if folder.recipe_yaml.is_file() else None
    name = str(settings.get("name") or folder.path.resolve().name)
    shown = shown_candidates(outcome, records)
    named = labels(records, outcome)
    return Sweep(folder, name, settings, records, outcome, recipe, shown, named, short, usual, load_bound(folder),
                 _focus(shown, outcome))  # fmt: skip


def _focus(shown: Sequence[Shown], outcome: Outcome | None) -> tuple[Focus, ...]:
    """The winner (or the nearest miss) first, then the default, then controls; before knee.json, what there is."""
    miss = outcome.nearest_miss.label if outcome and outcome.nearest_miss else None
    default = {c.label for c in outcome.candidates if c.is_default} if outcome else set()

    def rank(s: Shown) -> int:
        first = s.role == "chosen" or s.label == miss
        return 0 if first else 1 if s.label in default else 2 if s.controls else 3

    wanted = sorted((s for s in shown if outcome is None or rank(s) < 3), key=rank)
    found = (_focused(s, str(i)) for i, s in enumerate(wanted[:_IN_FOCUS]))
    return tuple(f for f in found if f is not None)


def _focused(shown: Shown, key: str) -> Focus | None:
    record = shown.decisive
    if record is None or record.result is None or record.result.effective is None:
        return None
    rows = deciding_rows(read_columns(ledger_of(record), DRAWN_COLUMNS), record.result)
    binned = bin_ledger(rows, record.result.effective, _STRETCHES)
    return Focus(shown, key, record, record.result, rows, binned)


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
    named = labels(records, None)
    for record in (r for r in records if r.card.role in OF_THE_SEARCH):
        groups.setdefault(named[record.number], []).append(record)
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
                 candidate.why_not, candidate.controls, candidate.less_than, candidate.at_least)  # fmt: skip


def labels(records: Sequence[TrialRecord], outcome: Outcome | None) -> dict[int, str]:
    """Trial number -> the label of its candidate: knee.json's, else the control, else what was varied.

    One that was measured again beside the budget has the label of the trial that it is `of`.
    """
    known = {n: c.label for c in (outcome.candidates if outcome is not None else ()) for n in c.trials}
    found: dict[int, str] = {}
    for record in sorted(records, key=lambda r: r.number):  # `of` is an earlier one
        of = record.card.of
        again = found.get(of) if of is not None else None
        found[record.number] = known.get(record.number) or again or record.control or _varied(record)
    return found


def _varied(record: TrialRecord) -> str:
    words = " ".join(f"{k.rpartition('.')[2]}={v}" for k, v in record.params.items())
    return words or f"block_size={record.spec.policy.block_size}"


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
    open_ended = any(r.capacity is not None and r.capacity.at_least for r in results)
    return Shown(label, size, role, first.control is None, holds, tuple(group), (), controls, at_least=open_ended)
