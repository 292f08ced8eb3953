"""How every plot of a report looks: inline SVG for light and dark, told apart by shape and not by colour alone.

Every figure is drawn with matplotlib's object interface (no global state) and comes out as a fragment whose text
follows the page's colour and whose series follow CSS variables. The palette is Okabe and Ito's, made for the
colour-blind. What a knee or a ledger looks like stands in the rooms beside this one.
"""

import html
import io
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["chosen", "tied", "candidate", "control"]
Floats = NDArray[np.float64]

INK = "#010203"  # stands for the page's text colour until the SVG is written
PALETTE = {
    "blue": "#0072b2", "vermilion": "#d55e00", "green": "#009e73", "purple": "#cc79a7",
    "orange": "#e69f00", "sky": "#56b4e9", "yellow": "#f0e442", "grey": "#9a9a9a",
}  # fmt: skip
ROLES: dict[Role, tuple[str, str, int]] = {  # marker, colour, size
    "chosen": ("*", "vermilion", 190),
    "tied": ("D", "green", 46),
    "candidate": ("o", "blue", 36),
    "control": ("s", "purple", 40),
}
_RC = {
    "svg.fonttype": "none", "font.size": 9, "axes.edgecolor": INK, "axes.labelcolor": INK,
    "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlecolor": INK,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "legend.fontsize": 8, "path.simplify": True, "axes.grid": True, "grid.color": INK, "grid.alpha": 0.12,
    "grid.linewidth": 0.6, "axes.titlesize": 9.5, "axes.titlelocation": "left", "axes.axisbelow": True,
}  # fmt: skip
TITLE_CHARS = 43  # a line of a title, before it runs out of the figure
_NUMBER = re.compile(r"-?\d+\.\d{2,}")


@dataclass(frozen=True, slots=True)
class Said:
    """What a plot is called: `key` begins every id in it, `title` and `alt` are read out."""

    key: str
    title: str
    alt: str


def figure(said: Said, size: tuple[float, float], draw: Callable[[Any], None]) -> str:
    """Draw with the house's settings on a figure of so many inches -> an inline SVG fragment."""
    return _inline(_painted(said.key, size, draw), said)


def _painted(salt: str, size: tuple[float, float], draw: Callable[[Any], None]) -> str:
    """What matplotlib makes of it: a whole SVG file."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_RC, "svg.hashsalt": salt}):
        drawn = Figure(figsize=size, layout="constrained")
        draw(drawn)
        buffer = io.StringIO()
        drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _inline(svg: str, said: Said) -> str:
    """A stand-alone SVG as a fragment: unique ids, no fixed size, colours by CSS, a title and words for readers."""
    key = said.key
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style\b.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bd="[^"]*"', lambda path: _NUMBER.sub(_short, path[0]), body)
    body = re.sub(r'\bid="', f'id="{key}-', body)
    body = body.replace("url(#", f"url(#{key}-").replace('xlink:href="#', f'href="#{key}-')
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", body)
    body = body.replace(INK, "currentColor")
    for name, colour in PALETTE.items():
        body = body.replace(colour, f"var(--{name})")
    view = re.search(r'viewBox="[^"]*"', body)
    head = (
        f'<svg {view[0] if view else ""} xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-labelledby="{key}-t {key}-d"><title id="{key}-t">{html.escape(said.title)}</title>'
        f'<desc id="{key}-d">{html.escape(said.alt)}</desc>'
    )
    return re.sub(r"\n\s*", "\n", head + body[body.index(">") + 1 :].strip())


def _short(number: re.Match[str]) -> str:
    """A tenth of a point is less than what a screen shows; more decimals are half of a page's bytes."""
    return f"{float(number[0]):.1f}".removesuffix(".0")


def titled(axes: Any, words: str) -> None:
    """A title that breaks between words before it runs out of the figure."""
    axes.set_title("\n".join(textwrap.wrap(words, TITLE_CHARS)))


def legend_below(axes: Any, columns: int = 3) -> None:
    """Outside the plot, where it covers nothing, however many lines the title has."""
    axes.figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, handlelength=1.4,
        handletextpad=0.4, columnspacing=1.0, markerscale=0.7,
    )  # fmt: skip


def log_ticks(low: float, high: float) -> dict[float, str]:
    """Marks of a log axis and their words: powers of ten, and 2 and 5 times these on less than two decades."""
    between = (1, 2, 5) if high < 100 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [m * 10.0**p for p in powers for m in between]
    return {t: f"{t:,.0f}" if t >= 1 else f"{t:g}" for t in found if low <= t <= high}


def empty(axes: Any, why: str) -> None:
    """A plot without anything in it says why."""
    axes.text(0.5, 0.5, "\n".join(textwrap.wrap(why, 40)), ha="center", va="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def steps(axes: Any, edges: Floats, values: Floats, **look: Any) -> None:
    """Values [n] that hold between edges [n + 1]."""
    axes.step(edges, np.append(values, values[-1]), where="post", lw=1.1, **look)
