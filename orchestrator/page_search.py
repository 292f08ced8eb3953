"""The report's search: what was tried in which order, which parameters mattered, and value against waste."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from orchestrator.importance import importances
from orchestrator.markup import Value, figures, folded, nothing, number, paragraph, table
from orchestrator.plots_bars import Bars, Part, bars_svg
from orchestrator.plots_points import Cloud, Point, cloud_svg
from orchestrator.shown import Shown, Sweep
from orchestrator.shown_quantities import Read, objective_of
from search_spaces.outcome import FrontPoint
from trials.units import byte_unit


def search(sweep: Sweep) -> str:
    """History, importance, front: each with its table, or with the reason why it is empty."""
    if not any(s.results for s in sweep.shown):
        return nothing("No trial has ended with a result yet.")
    parts = [_history(sweep), _importance(sweep), _front(sweep)]
    drawn = [(p.svg, p.caption) for p in parts if p.svg]
    notes = "".join(paragraph(p.note, "note") if p.svg else nothing(p.note) for p in parts if p.note)
    live = [p.live for p in parts if p.svg]
    return figures(drawn, live) + notes + folded("Data", *(p.data for p in parts))


@dataclass(frozen=True, slots=True)
class _Part:
    """One figure with its table and a note; no `svg`: the note says why there is none. `live`: its key, or none."""

    data: str = ""
    note: str = ""
    svg: str = ""
    caption: str = ""
    live: str = ""


def history_cloud(sweep: Sweep) -> Cloud:
    """Searched trials by number; the line is the best feasible candidate so far."""
    goal = objective_of(sweep)
    points, line, best = [], [], None
    for number_, s, value in _searched(sweep, goal.read):
        points.append(Point(f"trial {number_}: {s.label}", number_, value, s.role, s.feasible))
        if s.feasible and (best is None or value > best):
            best = value
        if best is not None:
            line.append((float(number_), best))
    return Cloud(
        f"Search history ({goal.panel.evidence})", "trial", f"{goal.panel.name}, {goal.panel.unit}", tuple(points),
        tuple(line), "best so far", True, "no searched trial has a value",
    )  # fmt: skip


def _searched(sweep: Sweep, read: Read) -> list[tuple[int, Shown, float]]:
    """Trial number, its candidate and its value, in the order of numbers; controls are not searched."""
    found = [
        (r.number, s, value)
        for s in sweep.shown
        for r in s.records
        if r.control is None and r.result is not None and (value := read(r.result)) is not None
    ]
    return sorted(found, key=lambda f: f[0])


def _history(sweep: Sweep) -> _Part:
    cloud = history_cloud(sweep)
    best = dict(cloud.line)
    rows: list[list[Value]] = [[p.label, p.y, p.filled, best.get(p.x)] for p in cloud.points]
    data = table("Search history", ["trial", cloud.y_name, "feasible", "best so far"], rows)
    caption = "Every searched trial; hollow ones are not feasible."
    return _Part(data, svg=cloud_svg(cloud, "history"), caption=caption, live="history")


def _importance(sweep: Sweep) -> _Part:
    read = objective_of(sweep).read
    policies, values = [], []
    for s in sweep.shown:
        found = [v for r in s.results if (v := read(r)) is not None]
        if s.in_space and found and s.records and s.records[0].params:
            policies.append(dict(s.records[0].params))
            values.append(fmean(found))
    each = importances(policies, values)
    if len(each) > 1 and not any(e.share for e in each):
        return _Part(note="Parameter importance: no parameter explains any of the differences between candidates.")
    if len(each) < 2:
        only = f"only {each[0].parameter} moved" if each else "no parameter took two values"
        return _Part(note=f"Parameter importance: {only}, so there is nothing to compare it with.")
    bars = Bars(
        f"Importance of parameters, {len(values)} candidates", "% of the variance explained",
        tuple(e.parameter for e in each), (Part("share", "blue", tuple(100 * (e.share or 0.0) for e in each)),),
    )  # fmt: skip
    rows: list[list[Value]] = [
        [e.parameter, "cannot be told" if e.share is None else f"{e.share:.1%}", e.levels, e.best] for e in each
    ]
    note = (
        "Importance: each parameter by itself, corrected for how many values it has. What a sampler moved together "
        "shares what it explains: a hint where to look, not an effect."
    )
    data = table("Parameter importance", ["parameter", "share of the variance", "values tried", "best value"], rows)
    caption = "How much of the objective's variance goes with each parameter."
    return _Part(data, note, bars_svg(bars, "importance"), caption)


def front_cloud(sweep: Sweep) -> Cloud:
    """Feasible and other candidates by waste and value; the line joins those that none beats in both."""
    goal = objective_of(sweep)
    points = []
    for s in sweep.shown:
        values = [v for r in s.results if (v := goal.read(r)) is not None]
        wasted = [w for r in s.results if (w := r.metrics.waste_per_qualified_token) is not None]
        if values and len(wasted) == len(values) == len(s.results):
            points.append(Point(s.label, fmean(wasted), fmean(values), s.role, s.feasible))
    asked = sweep.outcome.front if sweep.outcome is not None else ()
    line = _asked(asked) if asked else _best(points)
    unit, scale = byte_unit(max((p.x for p in points), default=0.0))
    return Cloud(
        f"Value against waste ({goal.panel.evidence})", f"waste, {unit} x s a qualified token",
        f"{goal.panel.name}, {goal.panel.unit}", tuple(replace(p, x=p.x / scale) for p in points),
        tuple((x / scale, y) for x, y in line), "none beats both", True,
        "no candidate has a qualified token",
    )  # fmt: skip


def _asked(front: Sequence[FrontPoint]) -> tuple[tuple[float, float], ...]:
    """The front that the search was asked for, least waste first."""
    return tuple(sorted((f.waste_byte_seconds_per_token, f.value) for f in front))


def _best(points: list[Point]) -> tuple[tuple[float, float], ...]:
    """Feasible points, least waste first, each with more value than all before it."""
    line: list[tuple[float, float]] = []
    for p in sorted((p for p in points if p.filled), key=lambda p: (p.x, -p.y)):
        if not line or p.y > line[-1][1]:
            line.append((p.x, p.y))
    return tuple(line)


def _front(sweep: Sweep) -> _Part:
    cloud = front_cloud(sweep)
    on = {(_digits(x), _digits(y)) for x, y in cloud.line}
    rows: list[list[Value]] = [
        [p.label, p.x, p.y, p.filled, (_digits(p.x), _digits(p.y)) in on] for p in cloud.points
    ]
    head = ["candidate", cloud.x_name, cloud.y_name, "feasible", "on the front"]
    best = sum(row[-1] is True for row in rows)
    caption = f"Up and to the left is better; {number(best)} of {number(len(rows))} are on the front."
    return _Part(table("Pareto front", head, rows), svg=cloud_svg(cloud, "front"), caption=caption, live="front")


def _digits(value: float) -> float:
    """Enough to know a point again whose mean was taken in another order."""
    return float(f"{value:.9g}")
