"""How a knee is drawn: one quantity against block size, with range bars, limit and the feasible region."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.plots import PALETTE, ROLES, Role, Said, empty, figure, legend_below, log_ticks, titled

_SPAN = 50


@dataclass(frozen=True, slots=True)
class KneePoint:
    """One candidate: the middle of its repeats and their range, in the panel's unit. None = nothing finite.

    `leads`: the best of the searched candidates with its block size; the line joins those.
    """

    label: str
    block_size: int
    middle: float | None
    low: float | None
    high: float | None
    feasible: bool
    role: Role
    in_space: bool = True  # False: a control outside the searched space, off the line
    leads: bool = True
    control: bool = False  # answers to a control, whatever else it is
    at_least: bool = False  # the middle is a lower bound

    @property
    def least(self) -> str:
        """What stands before its value where that is a lower bound."""
        return ">= " if self.at_least else ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity against block size. `limit` is an SLO line in the same unit; `evidence` stands in the title."""

    name: str
    unit: str
    evidence: str
    limit: float | None = None


def knee_svg(points: Sequence[KneePoint], panel: Panel, key: str) -> str:
    """The panel's quantity against block size (log2), with range bars, SLO line and the feasible region shaded."""
    shown = [p for p in points if p.middle is not None]
    said = Said(key, f"{panel.name} against block size", knee_words(points, panel))
    return figure(said, (4.1, 3.1), lambda drawn: _draw_knee(drawn, shown, panel))


def knee_words(points: Sequence[KneePoint], panel: Panel) -> str:
    """What the picture shows, for those who hear it. The best of each block size, where there are many."""
    named = [p for p in points if p.middle is not None and (p.leads or p.role == "chosen" or not p.in_space)]
    values = [f"{p.label} {p.least}{p.middle:.4g}" for p in named]
    chosen = [p.label for p in points if p.role == "chosen"]
    limit = f" Limit {panel.limit:g} {panel.unit}." if panel.limit is not None else ""
    picked = f" Chosen: {chosen[0]}." if chosen else " Nothing is chosen."
    return f"{panel.name} in {panel.unit}, {panel.evidence}: {', '.join(values) or 'no value yet'}.{limit}{picked}"


def log_scaled(points: Sequence[KneePoint], panel: Panel) -> bool:
    """Times that span a factor above 50 (an overloaded control) stand on a log axis, so that all are seen."""
    values = plotted(points, panel)
    return panel.unit == "ms" and bool(values) and min(values) > 0 and max(values) / min(values) > _SPAN


def plotted(points: Sequence[KneePoint], panel: Panel) -> list[float]:
    """Every value that a panel has to show: range bars and the limit too."""
    return [v for p in points for v in (p.low, p.high, panel.limit) if v is not None]


def _draw_knee(drawn: Any, points: Sequence[KneePoint], panel: Panel) -> None:
    axes = drawn.subplots()
    titled(axes, f"{panel.name} ({panel.evidence})")
    axes.set_xlabel("block size, tokens")
    axes.set_ylabel(panel.unit)
    if not points:
        empty(axes, "nothing measured yet")
        return
    axes.set_xscale("log", base=2)
    _shade_feasible(axes, points)
    searched = sorted((p for p in points if p.in_space and p.leads), key=lambda p: p.block_size)
    axes.plot(
        [p.block_size for p in searched], [p.middle for p in searched], color=PALETTE["blue"], lw=1, alpha=0.6
    )
    for role, (marker, colour, size) in ROLES.items():
        group = [p for p in points if p.role == role]
        if group:
            _scatter(axes, group, marker, PALETTE[colour], size)
    _ring_controls(axes, points)
    _name_controls(axes, points)
    _mark_bounds(axes, points)
    if panel.limit is not None:
        axes.axhline(
            panel.limit, color=PALETTE["vermilion"], ls="--", lw=1, label=f"SLO {panel.limit:g} {panel.unit}"
        )
    _scale(axes, points, panel)
    sizes = sorted({p.block_size for p in points})
    axes.set_xticks(sizes, [size_label(s) for s in sizes], rotation=45 if crowded(sizes) else 0)
    axes.xaxis.minorticks_off()
    legend_below(axes)


def _scale(axes: Any, points: Sequence[KneePoint], panel: Panel) -> None:
    """From zero, or logarithmic."""
    values = plotted(points, panel)
    if log_scaled(points, panel):
        low, high = min(values) / 1.5, max(values) * 1.5
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        ticks = log_ticks(low, high)
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.yaxis.minorticks_off()
    else:
        axes.set_ylim(0, max(values) * 1.12 or 1.0)


def _ring_controls(axes: Any, points: Sequence[KneePoint]) -> None:
    """A control that is also something else keeps its own mark, with a square around it."""
    both = [p for p in points if p.control and p.role != "control"]
    if both:
        axes.scatter([p.block_size for p in both], [p.middle for p in both], s=230, marker="s", facecolors="none",
                     edgecolors=PALETTE["purple"], linewidths=1.0, label="also a control", zorder=2)  # fmt: skip


def _name_controls(axes: Any, points: Sequence[KneePoint]) -> None:
    """Controls outside the space by name; those that fall on one another share a line."""
    together: dict[tuple[int, str], list[str]] = {}
    for p in points:
        if not p.in_space:
            together.setdefault((p.block_size, f"{p.middle:.2g}"), []).append(p.label)
    for (size, _), labels in together.items():
        middle = next(p.middle for p in points if p.label == labels[0])
        words = ", ".join(labels)
        axes.annotate(words[:40], (size, middle), (5, 9), textcoords="offset points", ha="right", fontsize=7)


def _mark_bounds(axes: Any, points: Sequence[KneePoint]) -> None:
    """A sign above what is a lower bound."""
    for at in sorted({(p.block_size, p.middle) for p in points if p.at_least}):
        axes.annotate("≥", at, (0, 7), textcoords="offset points", ha="center", fontsize=8)


def _scatter(axes: Any, group: Sequence[KneePoint], marker: str, colour: str, size: int) -> None:
    """Feasible points are filled, infeasible ones hollow; bars span the repeats."""
    x = [p.block_size for p in group]
    middle = np.array([p.middle for p in group], float)
    below = middle - np.array([p.middle if p.low is None else p.low for p in group], float)
    above = np.array([p.middle if p.high is None else p.high for p in group], float) - middle
    faces = [colour if p.feasible else "none" for p in group]
    axes.errorbar(x, middle, yerr=[below, above], fmt="none", color=colour, elinewidth=1, capsize=3, zorder=2)
    axes.scatter(x, middle, s=size, marker=marker, facecolors=faces, edgecolors=colour, linewidths=1.2,
                 label=group[0].role, zorder=3)  # fmt: skip


def _shade_feasible(axes: Any, points: Sequence[KneePoint]) -> None:
    """Bands of half a power of two around each block size at which a searched candidate is feasible."""
    label: str | None = "feasible"
    for size in sorted({p.block_size for p in points if p.feasible and p.in_space}):
        axes.axvspan(size / 2**0.5, size * 2**0.5, color=PALETTE["green"], alpha=0.12, lw=0, label=label, zorder=0)
        label = None


def crowded(sizes: Sequence[int]) -> bool:
    """Whether their labels would run into one another: many, or squeezed together by one far away."""
    return len(sizes) > 8 or (len(sizes) > 1 and max(sizes) > 1024 * min(sizes))


def size_label(size: int) -> str:
    """`16`, `2Ki`, `16Ki`."""
    return f"{size // 1024}Ki" if size >= 1024 and size % 1024 == 0 else str(size)
