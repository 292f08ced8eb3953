"""The report's proofs: what was tried again after the search, how slots differed, what could be seen."""

from statistics import fmean

from orchestrator.markup import Cell, Value, items, nothing, paragraph, table
from orchestrator.page_answer import spelt
from orchestrator.shown import Sweep
from search_spaces.outcome import Outcome
from search_spaces.verdicts import UNITS

_NOT_AGAIN = (
    "Nothing was tried on windows that the search never saw: none were left, or the sweep did not ask for it. "
    "The values above are those that the choice was made by, so that the best of many is flattered by chance."
)


def proofs(sweep: Sweep) -> str:
    """Held-out windows, survival under bursts, slots, and the effects that could be seen."""
    outcome = sweep.outcome
    if outcome is None:
        return nothing("Nothing is proved before the search has ended.")
    return _confirmed(outcome) + _survival(outcome) + _slots(outcome) + _effects(outcome)


def _confirmed(outcome: Outcome) -> str:
    if not outcome.confirmed:
        return nothing(_NOT_AGAIN)
    head = ["candidate", "as", "windows", "mean", "lowest", "highest", "feasible", "behind the winner",
            "of the winner's", "why not feasible"]  # fmt: skip
    rows: list[list[Value]] = []
    for c in outcome.confirmed:
        values = [v for v in c.values if v is not None]
        ends: list[Value] = [fmean(values), min(values), max(values)] if values else [None, None, None]
        rows.append([
            c.label, ", ".join(p.replace("_", " ") for p in c.parts), len(c.values), *ends, c.feasible,
            "–" if c.behind_winner is None else spelt(c.behind_winner),
            "–" if c.share_of_winner is None else f"{c.share_of_winner:.1%}", Cell(c.why_not, "text"),
        ])  # fmt: skip
    marks = ["winner" in c.parts for c in outcome.confirmed]
    unit = UNITS.get(outcome.objective, outcome.objective)
    return table(f"On windows that the search never saw, {unit}", head, rows, marks)


def _survival(outcome: Outcome) -> str:
    if not outcome.survival:
        return nothing("No candidate was put under bursts of cancels and forks.")
    rows: list[list[Value]] = [
        [s.label, str(s.trial), Cell("survived" if s.survived else "fell", "ship" if s.survived else "reject"),
         Cell(s.reason, "text")]
        for s in outcome.survival
    ]  # fmt: skip
    return table("Under bursts of cancels and forks", ["candidate", "trial", "outcome", "reason"], rows)


def _slots(outcome: Outcome) -> str:
    """What controls that ran on every slot say of the slots; every value of the outcome is divided by it."""
    if not outcome.slot_effects:
        return ""
    effects = sorted(outcome.slot_effects.items())
    rows: list[list[Value]] = [[slot, f"{effect - 1:+.2%}"] for slot, effect in effects]
    return table("What each slot gives over the mean, by its controls", ["slot", "effect"], rows)


def _effects(outcome: Outcome) -> str:
    lines = []
    if outcome.planned_effect is not None:
        lines.append(f"Before it ran, differences of {outcome.planned_effect:.1%} were expected to be visible.")
    if outcome.smallest_effect is not None:
        lines.append(f"Afterwards, differences from {outcome.smallest_effect:.1%} on could have been seen.")
    return items(lines) or paragraph("How small a difference could be seen is not known: one repeat.", "note")
