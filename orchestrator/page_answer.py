"""The report's answer: sentence, evidence and interval, the knee, the verdicts. The words are knee.json's."""

from statistics import fmean

from orchestrator.markup import Cell, Value, badge, figures, folded, items, nothing, number, paragraph, table, text
from orchestrator.plots_knee import knee_svg
from orchestrator.shown import Sweep
from orchestrator.shown_quantities import Quantity, goal_cell, knee_points, leaders, quantities
from search_spaces.outcome import CandidateOutcome, Confirmed, Interval, Outcome, Survival
from search_spaces.verdicts import UNITS


def answer(sweep: Sweep) -> str:
    so_far = f"So far {sweep.ended} trials ended, {len(sweep.records) - sweep.ended} are running."
    if sweep.outcome is None:
        best = f"{so_far} Nothing is chosen yet."
        words = [f'<p class="sentence">{text(best)}</p>', _evidence_badges(sweep)]
        return f'<div class="answer">{"".join(words)}</div>'
    outcome = sweep.outcome
    words = [
        f'<p class="sentence">{text(outcome.sentence)}</p>',
        _evidence_badges(sweep) + badge(f"outcome: {outcome.kind}", "kind-of-outcome"),
        paragraph(so_far) if sweep.unfinished else "",
        *(paragraph(line) for line in _intervals(outcome)),
        paragraph(f"Binding: {outcome.binding}.") if outcome.binding else "",
        paragraph("Cold and steady phase name different winners: inspect.") if not outcome.phases_agree else "",
        items(outcome.notes),
        paragraph(f"Labels name what differs from the default, {sweep.usual}.", "note") if sweep.short else "",
    ]
    return f'<div class="answer">{"".join(words)}</div>'


def _evidence_badges(sweep: Sweep) -> str:
    words = sweep.evidence
    css = "modelled" if "modelled" in words else "measured" if "measured" in words else ""
    return badge(words, css)


def _intervals(outcome: Outcome) -> list[str]:
    """The winner's value with its range, and how far the default lies behind the best with its interval."""
    if outcome.winner is None:
        return [_nearest_miss(outcome)]
    won = outcome.candidate(outcome.winner)
    unit = UNITS.get(outcome.objective, outcome.objective)
    lines = [f"{won.label}: {_range(won)}, in {unit}."]
    lines += [
        f"The default, {c.label}, is behind the best by {spelt(c.behind_best)}."
        for c in outcome.candidates
        if c.is_default and c.label != won.label and c.behind_best is not None
    ]
    if won.behind_best is not None and won.behind_best.mean > 0:
        lines.append(f"It is behind the best mean by {spelt(won.behind_best)}, which is within the tie.")
    if set(outcome.tied) - {won.label}:
        lines.append(f"{len(outcome.tied)} are tied, as the verdicts say. Judged so: {outcome.noise}.")
    lines += [f"Held out: {held_out(c)}, in {unit}." for c in outcome.confirmed if c.label == won.label]
    lines += [f"Under bursts of cancels and forks it {_bore(s)}." for s in outcome.survival if s.label == won.label]
    if outcome.smallest_effect is not None:
        lines.append(f"The smallest difference that this sweep could have seen is {outcome.smallest_effect:.1%}.")
    return lines


def _bore(found: Survival) -> str:
    return "survived" if found.survived else f"fell: {found.reason}"


def _nearest_miss(outcome: Outcome) -> str:
    miss = outcome.nearest_miss
    if miss is None:
        return "No candidate came near the SLO."
    seen = "without bound" if miss.observed is None else number(miss.observed)
    return f"Nearest miss: {miss.label}, {miss.clause}: {seen} against a limit of {number(miss.limit)}."


def _range(c: CandidateOutcome) -> str:
    finite = [v for v in c.values if v is not None]
    if c.value is None or not finite:
        return "not known"
    many = f" (mean of {len(finite)} repeats, {number(min(finite))} to {number(max(finite))})"
    return c.least + number(c.value) + (many if len(finite) > 1 else " (one repeat: no interval)")


def held_out(found: Confirmed) -> str:
    """`812 on 3 windows that the search never saw (790 to 830)`."""
    values = [v for v in found.values if v is not None]
    if not values:
        return "no value on windows that the search never saw"
    many = f" ({number(min(values))} to {number(max(values))})" if len(values) > 1 else ""
    windows = "a window" if len(values) == 1 else f"{len(values)} windows"
    return f"{number(fmean(values))} on {windows} that the search never saw{many}"


def spelt(i: Interval) -> str:
    """`3.5 [1 to 6]`."""
    return f"{number(i.mean)} [{number(i.low)} to {number(i.high)}]"


def knee(sweep: Sweep) -> str:
    """The objective and the latencies against block size, with limits, feasible region and controls."""
    found, leads = quantities(sweep), leaders(sweep)
    points = [knee_points(sweep.shown, q, leads) for q in found]
    drawn = [
        (knee_svg(p, q.panel, f"knee{i}"), _knee_caption(q))
        for i, (q, p) in enumerate(zip(found, points, strict=True))
    ]
    head = ["candidate", "block size", "role", "feasible"]
    for q in found:
        head += [f"{q.panel.name}, {q.panel.unit} ({q.panel.evidence})", "lowest", "highest"]
    rows: list[list[Value]] = []
    for i, s in enumerate(sweep.shown):
        row: list[Value] = [s.title, s.block_size, s.role, s.feasible]
        for nth, p in enumerate(points):
            middle = p[i].middle if nth else goal_cell(s, p[i].middle)
            row += [middle, p[i].low, p[i].high]
        rows.append(row)
    marks = [s.role == "chosen" for s in sweep.shown]
    note = (
        "Means over repeats, bars from the lowest to the highest. Filled: feasible; hollow: not. "
        "A line joins the best that was searched at each block size."
    )
    raced_out = sum(s.less_than is not None for s in sweep.shown)
    if raced_out:
        note += f" {raced_out} were raced out: the table says what they stay below."
    if any(s.at_least for s in sweep.shown):
        note += " Where the ladder of loads ended before any load failed, a value is a lower bound (>=)."
    return (
        figures(drawn, [f"knee{i}" for i in range(len(drawn))])
        + paragraph(note, "note")
        + folded("Data", table("The knee in numbers", head, rows, marks))
    )


def _knee_caption(q: Quantity) -> str:
    if q.panel.limit is None:
        return f"{q.panel.name}, {q.panel.unit}, {q.panel.evidence}."
    return f"{q.panel.name}, {q.panel.evidence}; the SLO allows {q.panel.limit:g} ms."


def verdicts(sweep: Sweep) -> str:
    if sweep.outcome is None:
        return nothing("Nothing is judged before the sweep has ended.")
    rows: list[list[Value]] = [
        [v.option + (" (control)" if v.control else ""), Cell(v.signal, "text"), Cell(v.verdict, v.verdict),
         Cell(v.reason, "text")]
        for v in sweep.outcome.verdicts
    ]  # fmt: skip
    head = ["option", "observed signal", "verdict", "why"]
    won = sweep.outcome.winner
    named = [v.option == won or v.option.startswith(f"{won} (") for v in sweep.outcome.verdicts]
    return table("Ship, inspect or reject", head, rows, named)
