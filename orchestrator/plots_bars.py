"""Stacked horizontal bars: what something is made of, a bar a row."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.plots import PALETTE, TITLE_CHARS, Said, empty, figure

_LABEL_CHARS = 24
_FAR = 100


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of thing in every bar: `values` follow the rows. `colour` of PALETTE, `hatch` tells it apart too."""

    name: str
    colour: str
    values: tuple[float, ...]
    hatch: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """`rows` are labels, from the top; `unit` stands at the axis."""

    title: str
    unit: str
    rows: tuple[str, ...]
    parts: tuple[Part, ...]
    nothing: str = "nothing to show"  # said where every value is 0
    counts: bool = False  # values are whole numbers of something
    linear_to: float = 0.0  # above it the axis is logarithmic, where the longest bar is far above it; 0: never

    @property
    def shown(self) -> tuple[Part, ...]:
        return tuple(p for p in self.parts if any(p.values))

    @property
    def words(self) -> str:
        """The numbers, for those who hear the picture."""
        if not self.shown:
            return f"{self.title}: {self.nothing}."
        said = [
            f"{row}: {', '.join(f'{p.name} {p.values[i]:.4g}' for p in self.shown if p.values[i]) or '0'}"
            for i, row in enumerate(self.rows)
        ]
        return f"{self.title}, {self.unit}. {'; '.join(said)}."


def bars_svg(bars: Bars, key: str) -> str:
    """One bar a row, its parts side by side, those that are 0 everywhere left out."""
    height = 1.0 + 0.32 * len(bars.rows) + 0.1 * len(bars.shown) if bars.shown else 1.8
    return figure(Said(key, bars.title, bars.words), (4.1, height), lambda drawn: _draw(drawn, bars))


def _draw(drawn: Any, bars: Bars) -> None:
    axes = drawn.subplots()
    drawn.suptitle("\n".join(textwrap.wrap(bars.title, TITLE_CHARS)), x=0.01, ha="left", fontsize=9.5)
    if not bars.shown:
        empty(axes, bars.nothing)
        return
    place = np.arange(len(bars.rows))
    left = np.zeros(len(bars.rows))
    for part in bars.shown:
        values = np.array(part.values, float)
        axes.barh(place, values, left=left, height=0.7, color=PALETTE[part.colour], label=part.name,
                  hatch=part.hatch or None, edgecolor="#ffffff", linewidth=0.4)  # fmt: skip
        left += values
    axes.set_yticks(place, ["\n".join(wrapped(row)) for row in bars.rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(bars.unit)
    most = float(left.max())
    if bars.linear_to and most > _FAR * bars.linear_to:
        axes.set_xscale("symlog", linthresh=bars.linear_to)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.minorticks_off()
        axes.set_xlim(0, most * 1.2)
    else:
        axes.set_xlim(0, most * 1.02)
        axes.locator_params(axis="x", nbins=5, integer=bars.counts)
    axes.grid(visible=False, axis="y")
    if len(bars.parts) > 1:
        drawn.legend(loc="outside lower center", ncols=2, handlelength=1.4, columnspacing=1.0)


def wrapped(label: str) -> Sequence[str]:
    """A label in at most two lines."""
    return textwrap.wrap(label, _LABEL_CHARS, max_lines=2, placeholder="...")
