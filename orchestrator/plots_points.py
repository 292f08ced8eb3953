"""Points and lines: what a search tried in its order, one quantity against another, a time by classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.plots import PALETTE, ROLES, Role, Said, empty, figure, legend_below, titled

_SPAN = 20  # x that spans more stands on a log axis


@dataclass(frozen=True, slots=True)
class Point:
    """One trial or candidate. `filled`: feasible."""

    label: str
    x: float
    y: float
    role: Role = "candidate"
    filled: bool = True


@dataclass(frozen=True, slots=True)
class Cloud:
    """Points with a line through some of them: `line` [K] of (x, y), drawn in steps or straight."""

    title: str
    x_name: str
    y_name: str
    points: tuple[Point, ...]
    line: tuple[tuple[float, float], ...] = ()
    line_name: str = ""
    stepped: bool = False
    nothing: str = "nothing measured yet"

    @property
    def words(self) -> str:
        if not self.points:
            return f"{self.title}: {self.nothing}."
        ends = (
            f" {self.line_name}: {', '.join(f'({x:.4g}, {y:.4g})' for x, y in self.line[:12])}."
            if self.line
            else ""
        )
        return f"{self.title}: {len(self.points)} points, {self.y_name} against {self.x_name}.{ends}"


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity by classes: middle of each class, its median and 99th percentile."""

    name: str
    colour: str
    x: tuple[float, ...]
    p50: tuple[float, ...]
    p99: tuple[float, ...]


def cloud_svg(cloud: Cloud, key: str) -> str:
    """A scatter of candidates; infeasible ones hollow."""
    return figure(Said(key, cloud.title, cloud.words), (4.1, 3.1), lambda drawn: _draw_cloud(drawn, cloud))


def _draw_cloud(drawn: Any, cloud: Cloud) -> None:
    axes = drawn.subplots()
    titled(axes, cloud.title)
    if not cloud.points:
        empty(axes, cloud.nothing)
        return
    axes.set_xlabel(cloud.x_name)
    axes.set_ylabel(cloud.y_name)
    if cloud.line:
        x, y = zip(*cloud.line, strict=True)
        draw = axes.step if cloud.stepped else axes.plot
        how = {"where": "post"} if cloud.stepped else {}
        draw(x, y, color=PALETTE["vermilion"], lw=1.2, alpha=0.8, label=cloud.line_name, **how)
    for role, (marker, colour, size) in ROLES.items():
        group = [p for p in cloud.points if p.role == role]
        if group:
            faces = [PALETTE[colour] if p.filled else "none" for p in group]
            axes.scatter([p.x for p in group], [p.y for p in group], s=size * 0.7, marker=marker, facecolors=faces,
                         edgecolors=PALETTE[colour], linewidths=1.1, label=role, zorder=3)  # fmt: skip
    _from_zero(axes, [p.y for p in cloud.points])
    legend_below(axes)


def _from_zero(axes: Any, values: Sequence[float]) -> None:
    if min(values) >= 0:
        axes.set_ylim(0, max(values) * 1.12 or 1.0)


def curves_svg(curves: Sequence[Curve], title: str, x_name: str, key: str) -> str:
    """Median (line) and 99th percentile (dashes) of a time in ms, against something."""
    said = [f"{c.name} p99 from {min(c.p99):.4g} to {max(c.p99):.4g} ms" for c in curves if c.p99]
    alt = f"{title} against {x_name}: {'; '.join(said) or 'no decoding step'}."
    return figure(Said(key, title, alt), (4.1, 3.1), lambda drawn: _draw_curves(drawn, curves, title, x_name))


def _draw_curves(drawn: Any, curves: Sequence[Curve], title: str, x_name: str) -> None:
    axes = drawn.subplots()
    titled(axes, title)
    if not any(c.x for c in curves):
        empty(axes, "no step in the window gave a decoding request a token")
        return
    axes.set_xlabel(x_name)
    axes.set_ylabel("ms")
    across = [x for c in curves for x in c.x]
    if min(across) > 0 and max(across) / min(across) > _SPAN:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for i, curve in enumerate(curves):
        marker = "osD^v"[i % 5]
        look = {"color": PALETTE[curve.colour], "lw": 1.2, "marker": marker, "ms": 4}
        axes.plot(curve.x, curve.p99, ls="--", **look)
        axes.plot(curve.x, curve.p50, ls="-", label=_short(curve.name), **look)
    top = np.nanmax([v for c in curves for v in (*c.p50, *c.p99)])
    axes.set_ylim(0, float(top) * 1.1 or 1.0)
    legend_below(axes, 1)


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"
