"""The report's gain: what the bound said could be won before the sweep, and what the winner won of it."""

from orchestrator.bound_answer import BoundRow, gain_words
from orchestrator.markup import Value, figures, folded, nothing, number, paragraph, table
from orchestrator.page_answer import spelt
from orchestrator.plots_bars import Bars, Part, bars_svg
from orchestrator.shown import Shown, Sweep
from search_spaces.outcome import CandidateOutcome, Outcome
from trials.relaxed import MECHANISMS

_NO_BOUND = (
    "No bound was taken: it is modelled, and is taken where step times are modelled and the SLO bounds waiting. "
    "kvknee bound TRACE --engine SPEC.yaml takes one for any spec."
)


def gain(sweep: Sweep) -> str:
    """The bound by mechanism, the winner's gain over the default, and which waste moved between them."""
    won = _won(sweep)
    if sweep.bound is None:
        return won + nothing(_NO_BOUND)
    bound = sweep.bound
    rows = bound.rows
    gains = Part("gain", "blue", tuple(100 * (r.gain or 0.0) for r in rows))
    title, unit = "Gain with one mechanism switched off (modelled)", "% of the default's capacity"
    nothing_gained = "switching any mechanism off gains nothing"
    bars = Bars(title, unit, tuple(map(_name, rows)), (gains,), nothing_gained, linear_to=1.0)
    held = "no load holds" if bound.default is None else f"holds at {number(bound.default)} x the trace's rate"
    listed: list[list[Value]] = [
        [_name(r), "–" if r.capacity is None else f"{number(r.capacity)} x", gain_words(r.gain), r.replays]
        for r in rows
    ]
    note = (
        f"Modelled on {bound.requests} requests under {bound.slo}; the default {held}, {bound.binding} "
        f"binds beyond. Gains below {bound.within:.1%} are not told from none."
    )
    absent = f"Not there to switch off: {', '.join(bound.not_applicable)}."
    missing = paragraph(absent, "note") if bound.not_applicable else ""
    caption = "The most that each could gain, were it free."
    return (
        paragraph(f"The bound: {bound.words}.") + won + figures([(bars_svg(bars, "bound"), caption)])
        + paragraph(note, "note") + missing
        + folded("Data", table("Bound", ["without", "largest load that holds", "gain", "replays"], listed))
    )  # fmt: skip


def _name(row: BoundRow) -> str:
    return f"without {row.mechanism.replace('_', ' ')}" if row.mechanism in MECHANISMS else row.noun


def _won(sweep: Sweep) -> str:
    """The winner beside the default: value, and byte-seconds of each kind of waste."""
    outcome = sweep.outcome
    if outcome is None or outcome.winner is None:
        return nothing("Nothing is won yet: no candidate is chosen.")
    winner = outcome.candidate(outcome.winner)
    default = next((c for c in outcome.candidates if c.is_default), None)
    if default is None or default.label == winner.label:
        return paragraph(f"The winner is the default, {winner.label}: there is nothing to attribute.")
    return paragraph(_gained(winner, default)) + _moved(sweep, winner, default, outcome)


def _gained(winner: CandidateOutcome, default: CandidateOutcome) -> str:
    if winner.value is None or not default.value:
        return f"{winner.label} is chosen; the default, {default.label}, has no value to compare it with."
    interval = ""
    if default.behind_best is not None:
        interval = f"; the default is behind the best by {spelt(default.behind_best)}"
    return (
        f"{winner.label} gained {winner.value / default.value - 1:+.1%} over the default, {default.label} "
        f"({winner.least}{number(winner.value)} against {default.least}{number(default.value)}{interval})."
    )


def _moved(sweep: Sweep, winner: CandidateOutcome, default: CandidateOutcome, outcome: Outcome) -> str:
    of = {s.label: s for s in sweep.shown}
    new, old = (_waste(of.get(label)) for label in (winner.label, default.label))
    kinds = sorted({*new, *old} - {"total", "tail_slack_filled_later"})
    rows: list[list[Value]] = [
        [kind.replace("_", " "), old.get(kind, 0.0), new.get(kind, 0.0), new.get(kind, 0.0) - old.get(kind, 0.0)]
        for kind in kinds
        if old.get(kind) or new.get(kind)
    ]
    head = ["waste", default.label, winner.label, "difference"]
    return folded("What moved between them", table("Waste, byte-seconds, first repeat", head, rows)) if rows else ""


def _waste(shown: Shown | None) -> dict[str, float]:
    return dict(shown.results[0].metrics.waste_byte_seconds) if shown is not None and shown.results else {}
