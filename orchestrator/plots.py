"""Plots of a sweep as inline SVG: small, readable in light and dark, told apart by shape and not by colour alone.

Knows how a knee and a ledger look, not where their numbers come from. Every figure is drawn with matplotlib's
object interface (no global state) and comes out as a fragment whose text follows the page's colour and whose
series follow CSS variables. The palette is Okabe and Ito's, made for the colour-blind.
"""

import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orchestrator.frames import Binned
from trials.ledger import ACCOUNTS

Role = Literal["chosen", "tied", "candidate", "control"]

_SPAN = 50
_INK = "#010203"  # stands for the page's text colour until the SVG is written
_PALETTE = {
    "blue": "#0072b2", "vermilion": "#d55e00", "green": "#009e73", "purple": "#cc79a7",
    "orange": "#e69f00", "sky": "#56b4e9", "yellow": "#f0e442", "grey": "#9a9a9a",
}  # fmt: skip
_ACCOUNT_COLOURS = {
    "payload": "blue", "tail_slack": "vermilion", "reserved_ahead": "purple", "cached": "green",
    "free": "grey", "reserve": "yellow", "padding": "orange", "remainder": "sky",
}  # fmt: skip
_ROLES: dict[Role, tuple[str, str, int]] = {  # marker, colour, size
    "chosen": ("*", "vermilion", 190),
    "tied": ("D", "green", 46),
    "candidate": ("o", "blue", 36),
    "control": ("s", "purple", 40),
}
_RC = {
    "svg.fonttype": "none", "font.size": 9, "axes.edgecolor": _INK, "axes.labelcolor": _INK,
    "text.color": _INK, "xtick.color": _INK, "ytick.color": _INK, "axes.titlecolor": _INK,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "legend.fontsize": 8, "path.simplify": True, "axes.grid": True, "grid.color": _INK, "grid.alpha": 0.12,
    "grid.linewidth": 0.6, "axes.titlesize": 9.5, "axes.titlelocation": "left", "axes.axisbelow": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KneePoint:
    """One candidate: the middle of its repeats and their range, in the panel's unit. None = nothing finite."""

    label: str
    block_size: int
    middle: float | None
    low: float | None
    high: float | None
    feasible: bool
    role: Role
    in_space: bool = True  # False: a control outside the searched space, off the line


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity against block size. `limit` is an SLO line in the same unit; `evidence` stands in the title."""

    name: str
    unit: str
    evidence: str
    limit: float | None = None


def _figure(size: tuple[float, float], draw: Callable[[Any], None], key: str, title: str, alt: str) -> str:
    """Draw with the house's settings and return an inline SVG fragment whose ids start with `key`."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_RC, "svg.hashsalt": key}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), key, title, alt)


def _inline(svg: str, key: str, title: str, alt: str) -> str:
    """A stand-alone SVG as a fragment: unique ids, no fixed size, colours by CSS, a title and words for readers."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style\b.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{key}-', body)
    body = body.replace("url(#", f"url(#{key}-").replace('xlink:href="#', f'href="#{key}-')
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", body)
    body = body.replace(_INK, "currentColor")
    for name, colour in _PALETTE.items():
        body = body.replace(colour, f"var(--{name})")
    view = re.search(r'viewBox="[^"]*"', body)
    head = (
        f'<svg {view[0] if view else ""} xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-labelledby="{key}-t {key}-d"><title id="{key}-t">{html.escape(title)}</title>'
        f'<desc id="{key}-d">{html.escape(alt)}</desc>'
    )
    return re.sub(r"\n\s*", "\n", head + body[body.index(">") + 1 :].strip())


def knee_svg(points: Sequence[KneePoint], panel: Panel, key: str) -> str:
    """The panel's quantity against block size (log2), with range bars, SLO line and the feasible region shaded."""
    shown = [p for p in points if p.middle is not None]
    return _figure((4.1, 2.9), lambda figure: _draw_knee(figure, shown, panel), key,
                   f"{panel.name} against block size", _knee_words(points, panel))  # fmt: skip


def _knee_words(points: Sequence[KneePoint], panel: Panel) -> str:
    values = [f"{p.label} {p.middle:.4g}" for p in points if p.middle is not None]
    chosen = [p.label for p in points if p.role == "chosen"]
    limit = f" Limit {panel.limit:g} {panel.unit}." if panel.limit is not None else ""
    picked = f" Chosen: {chosen[0]}." if chosen else " Nothing is chosen."
    return f"{panel.name} in {panel.unit}, {panel.evidence}: {', '.join(values) or 'no value yet'}.{limit}{picked}"


def _draw_knee(figure: Any, points: Sequence[KneePoint], panel: Panel) -> None:
    axes = figure.subplots()
    axes.set_title(f"{panel.name} ({panel.evidence})")
    axes.set_xlabel("block size, tokens")
    axes.set_ylabel(panel.unit)
    if not points:
        axes.text(0.5, 0.5, "nothing measured yet", ha="center", transform=axes.transAxes)
        return
    axes.set_xscale("log", base=2)
    _shade_feasible(axes, points)
    searched = sorted((p for p in points if p.in_space), key=lambda p: p.block_size)
    axes.plot(
        [p.block_size for p in searched], [p.middle for p in searched], color=_PALETTE["blue"], lw=1, alpha=0.6
    )
    for role, (marker, colour, size) in _ROLES.items():
        group = [p for p in points if p.role == role]
        if group:
            _scatter(axes, group, marker, _PALETTE[colour], size)
    _name_controls(axes, points)
    if panel.limit is not None:
        axes.axhline(
            panel.limit, color=_PALETTE["vermilion"], ls="--", lw=1, label=f"SLO {panel.limit:g} {panel.unit}"
        )
    _scale(axes, points, panel)
    sizes = sorted({p.block_size for p in points})
    axes.set_xticks(sizes, [_size_label(s) for s in sizes], rotation=45 if len(sizes) > 8 else 0)
    axes.xaxis.minorticks_off()
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.1), ncols=3, handletextpad=0.3, columnspacing=1.0)


def _scale(axes: Any, points: Sequence[KneePoint], panel: Panel) -> None:
    """From zero; times that span a factor above 50 (an overloaded control) on a log axis, so that all are seen."""
    values = [v for p in points for v in (p.low, p.high, panel.limit) if v is not None]
    if panel.unit == "ms" and min(values) > 0 and max(values) / min(values) > _SPAN:
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 1.5, max(values) * 1.5)
    else:
        axes.set_ylim(0, max(values) * 1.12 or 1.0)


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
    for p in points:
        if p.feasible and p.in_space:
            axes.axvspan(p.block_size / 2**0.5, p.block_size * 2**0.5, color=_PALETTE["green"], alpha=0.12, lw=0,
                         label=label, zorder=0)  # fmt: skip
            label = None


def _size_label(size: int) -> str:
    return f"{size // 1024}Ki" if size >= 1024 and size % 1024 == 0 else str(size)


def ledger_svg(binned: Binned, title: str, key: str) -> str:
    """Where every byte of the pool was, stacked over time under the pool's total."""
    used = [a for a in ACCOUNTS if binned.accounts[a].any()]
    means = ", ".join(f"{a} {binned.mean(a) / binned.pool_bytes:.1%}" for a in used)
    return _figure((4.1, 2.9), lambda figure: _draw_ledger(figure, binned, used, title), key,
                   f"Ledger of {title}", f"Time means as shares of the pool: {means}.")  # fmt: skip


def _draw_ledger(figure: Any, binned: Binned, used: Sequence[str], title: str) -> None:
    axes = figure.subplots()
    unit, scale = _byte_unit(binned.pool_bytes)
    axes.set_title(title)
    axes.set_xlabel("engine time, s")
    axes.set_ylabel(unit)
    floor = np.zeros(len(binned.edges_s))
    for account in used:
        values = binned.accounts[account] / scale
        top = floor + np.append(values, values[-1])
        axes.fill_between(binned.edges_s, floor, top, step="post", lw=0, label=account.replace("_", " "),
                          color=_PALETTE[_ACCOUNT_COLOURS[account]])  # fmt: skip
        floor = top
    axes.axhline(binned.pool_bytes / scale, color=_INK, lw=1.2, label="pool total")
    axes.set_xlim(binned.edges_s[0], binned.edges_s[-1])
    axes.set_ylim(0, binned.pool_bytes / scale * 1.05)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.1), ncols=3, handlelength=1, columnspacing=1.0)


def tokens_svg(binned: Binned, title: str, key: str) -> str:
    """Three numbers often taken for one another: tokens held, slots allocated for them, slots there are."""
    alt = (
        f"Time means: {_mean(binned, binned.live_tokens):,.0f} live tokens in "
        f"{_mean(binned, binned.allocated_slots):,.0f} allocated slots of {binned.pool_slots:,} in the pool."
    )
    return _figure((4.1, 2.9), lambda figure: _draw_tokens(figure, binned, title), key,
                   f"Tokens and slots of {title}", alt)  # fmt: skip


def _mean(binned: Binned, values: NDArray[np.float64]) -> float:
    return float(np.average(values, weights=np.diff(binned.edges_s)))


def _draw_tokens(figure: Any, binned: Binned, title: str) -> None:
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel("engine time, s")
    axes.set_ylabel("tokens")
    axes.axhline(binned.pool_slots, color=_INK, lw=1.2, label="pool slots")
    for values, colour, style, label in (
        (binned.allocated_slots, "vermilion", "--", "allocated slots"),
        (binned.live_tokens, "blue", "-", "live tokens"),
    ):
        _steps(axes, binned.edges_s, values, label=label, color=_PALETTE[colour], ls=style)
    axes.set_xlim(binned.edges_s[0], binned.edges_s[-1])
    axes.set_ylim(0, max(binned.pool_slots, 1) * 1.05)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.1), ncols=3, columnspacing=1.0)


def occupancy_svg(binned: Binned, title: str, evidence: str, key: str) -> str:
    """How long steps took beside how full the pool was at that time."""
    worst = float(np.nanmax(binned.step_ms_max)) if np.isfinite(binned.step_ms_max).any() else 0.0
    alt = f"Longest step {worst:.4g} ms ({evidence}); the pool's allocated share is drawn below it."
    return _figure((4.1, 3.3), lambda figure: _draw_occupancy(figure, binned, title, evidence), key,
                   f"Step time beside occupancy of {title}", alt)  # fmt: skip


def _draw_occupancy(figure: Any, binned: Binned, title: str, evidence: str) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.set_title(f"{title} ({evidence})")
    upper.set_ylabel("step, ms")
    for values, colour, style, label in (
        (binned.step_ms_max, "vermilion", "--", "longest"),
        (binned.step_ms_mean, "blue", "-", "mean"),
    ):
        _steps(upper, binned.edges_s, values, label=label, color=_PALETTE[colour], ls=style)
    upper.set_ylim(bottom=0)
    upper.legend(loc="lower center", bbox_to_anchor=(0.5, 1.2), ncols=2)
    share = 100 * binned.allocated_slots / max(binned.pool_slots, 1)
    lower.fill_between(
        binned.edges_s, np.append(share, share[-1]), step="post", color=_PALETTE["green"], alpha=0.5, lw=0
    )
    lower.set_ylabel("allocated, %")
    lower.set_xlabel("engine time, s")
    lower.set_ylim(0, 105)
    lower.set_xlim(binned.edges_s[0], binned.edges_s[-1])


def _steps(axes: Any, edges_s: NDArray[np.float64], values: NDArray[np.float64], **look: Any) -> None:
    axes.step(edges_s, np.append(values, values[-1]), where="post", lw=1.1, **look)


def _byte_unit(value: int) -> tuple[str, int]:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return unit, scale
    return "bytes", 1
