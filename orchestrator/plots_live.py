"""Plots that answer to the mouse: the knee, clouds of points, and two trials side by side. Bokeh lives here.

Each comes out as the JSON that Bokeh's script makes a plot of, with the same stand-in colours as the SVG beside it;
the page's script puts the reader's colours in. What a plot says stands in the SVG and the table that it covers.
"""

import json
from collections.abc import Sequence
from typing import Any

from orchestrator.plots import INK, PALETTE, ROLES, log_ticks
from orchestrator.plots_knee import KneePoint, Panel, crowded, log_scaled, plotted, size_label
from orchestrator.plots_ledger import ACCOUNT_COLOURS
from orchestrator.plots_points import Cloud
from trials.ledger import ACCOUNTS
from trials.units import byte_unit

_HEIGHT = 300
_MARKERS = {"chosen": "star", "tied": "diamond", "candidate": "circle", "control": "square"}
_SIZES = {"chosen": 19, "tied": 12, "candidate": 9, "control": 9}
Item = dict[str, Any]  # what Bokeh.embed.embed_item takes


def library() -> str:
    """Bokeh's script, whole, with its copyright in front."""
    from importlib import resources

    script = resources.files("bokeh") / "server" / "static" / "js" / "bokeh.min.js"
    return script.read_text(encoding="utf-8")


def library_words() -> str:
    """What it is and whose, for the foot of the page."""
    import bokeh

    return f"Plots that answer to the mouse: Bokeh {bokeh.__version__}, Bokeh contributors, BSD-3-Clause"


def knee_live(points: Sequence[KneePoint], panel: Panel) -> Item:
    """The knee of one quantity; a point says its candidate, value and range."""
    from bokeh.models import BoxAnnotation, FixedTicker

    shown = [p for p in points if p.middle is not None]
    scale = "log" if log_scaled(shown, panel) else "linear"
    drawn = _figure("block size, tokens", panel.unit, x_axis_type="log", y_axis_type=scale)
    _titled(drawn, f"{panel.name} ({panel.evidence})")
    sizes = sorted({p.block_size for p in shown})
    drawn.xaxis.ticker = FixedTicker(ticks=sizes)
    drawn.xaxis.major_label_overrides = {s: size_label(s) for s in sizes}
    drawn.xaxis.major_label_orientation = 0.8 if crowded(sizes) else "horizontal"
    if scale == "linear":
        ends = [v for p in shown for v in (p.high, panel.limit) if v is not None]
        drawn.y_range.start, drawn.y_range.end = 0, 1.12 * max(ends, default=0) or 1.0
    else:
        values = plotted(shown, panel)
        low, high = min(values) / 1.5, max(values) * 1.5
        ticks = log_ticks(low, high)
        drawn.y_range.start, drawn.y_range.end = low, high
        drawn.yaxis.ticker = FixedTicker(ticks=list(ticks))
        drawn.yaxis.major_label_overrides = dict(ticks)
    for size in sorted({p.block_size for p in shown if p.feasible and p.in_space}):
        drawn.add_layout(BoxAnnotation(left=size / 2**0.5, right=size * 2**0.5, fill_color=PALETTE["green"],
                                       fill_alpha=0.12, line_color=None))  # fmt: skip
    if panel.limit is not None:
        across = [min(sizes, default=1) / 1.4, 1.4 * max(sizes, default=1)]
        drawn.line(across, [panel.limit] * 2, color=PALETTE["vermilion"], line_dash="dashed",
                   legend_label=f"SLO {panel.limit:g} ms")  # fmt: skip
    leads = sorted((p for p in shown if p.in_space and p.leads), key=lambda p: p.block_size)
    drawn.line([p.block_size for p in leads], [p.middle for p in leads], color=PALETTE["blue"], alpha=0.6)
    told = [
        ("candidate", "@label"), ("block size", "@x tokens"), (panel.name, f"@least@y{{0,0.[000]}} {panel.unit}"),
        ("range", "@low{0,0.[000]} to @high{0,0.[000]}"), ("feasible", "@feasible"), ("role", "@role"),
    ]  # fmt: skip
    both = [p for p in shown if p.control and p.role != "control"]
    if both:
        x, y = [p.block_size for p in both], [p.middle for p in both]
        drawn.scatter(x, y, marker="square", size=20, fill_alpha=0, line_color=PALETTE["purple"],
                      legend_label="also a control")  # fmt: skip
    _scatter(drawn, [_of_knee(p) for p in shown], told, bars=True)
    return _item(drawn)


def _of_knee(p: KneePoint) -> Item:
    return {
        "label": p.label, "x": p.block_size, "y": p.middle, "low": p.low, "high": p.high, "role": p.role,
        "feasible": "yes" if p.feasible else "no", "least": p.least,
    }  # fmt: skip


def cloud_live(cloud: Cloud) -> Item:
    """Points with the line through the best of them; a point says which trial or candidate it is."""
    drawn = _figure(cloud.x_name, cloud.y_name)
    _titled(drawn, cloud.title)
    if cloud.line:
        x, y = (list(v) for v in zip(*cloud.line, strict=True))
        look = {"color": PALETTE["vermilion"], "line_width": 1.5, "alpha": 0.8}
        if cloud.stepped:
            drawn.step(x, y, mode="after", **look)
        else:
            drawn.line(x, y, **look)
    if min(p.y for p in cloud.points) >= 0:
        drawn.y_range.start = 0
    told = [
        ("", "@label"),
        (cloud.x_name, "@x{0,0.[000]}"),
        (cloud.y_name, "@y{0,0.[000]}"),
        ("feasible", "@feasible"),
    ]
    rows = [
        {"label": p.label, "x": p.x, "y": p.y, "role": p.role, "feasible": "yes" if p.filled else "no"}
        for p in cloud.points
    ]
    _scatter(drawn, rows, told)
    return _item(drawn)


def _scatter(drawn: Any, rows: Sequence[Item], told: Sequence[tuple[str, str]], bars: bool = False) -> None:
    """A glyph a role, hollow where not feasible, and what a point says when it is pointed at."""
    from bokeh.models import ColumnDataSource, HoverTool

    found = []
    for role, (_, colour, _) in ROLES.items():
        own = [{**r, "fill": 0.9 if r["feasible"] == "yes" else 0.0} for r in rows if r["role"] == role]
        if not own:
            continue
        source = ColumnDataSource({key: [r[key] for r in own] for key in own[0]})
        if bars:
            drawn.segment("x", "low", "x", "high", source=source, color=PALETTE[colour])
        found.append(drawn.scatter(
            "x", "y", source=source, marker=_MARKERS[role], size=_SIZES[role], line_color=PALETTE[colour],
            fill_color=PALETTE[colour], fill_alpha="fill", line_width=1.5, legend_label=role,
        ))  # fmt: skip
    drawn.add_tools(HoverTool(renderers=found, tooltips=list(told)))
    _legend(drawn)


def ledger_live(side: str, pool_bytes: int) -> Item:
    """Accounts stacked over time; the page's script fills the source named `side`, bytes in the axis' unit."""
    from bokeh.models import ColumnDataSource, HoverTool, Span

    unit, scale = byte_unit(pool_bytes)
    source = ColumnDataSource({name: [0.0] for name in ("x", "width", *ACCOUNTS)}, name=side)
    drawn = _figure("engine time, s", unit, x_range=(0, 1), y_range=(0, 1.05 * pool_bytes / scale))
    colours = [PALETTE[ACCOUNT_COLOURS[a]] for a in ACCOUNTS]
    drawn.vbar_stack(ACCOUNTS, x="x", width="width", source=source, fill_color=colours, line_color=colours,
                     legend_label=[a.replace("_", " ") for a in ACCOUNTS])  # fmt: skip
    drawn.add_layout(Span(location=pool_bytes / scale, dimension="width", line_color=INK, name=f"{side}-pool"))
    told = [("time", "@x{0.00} s"), *((a.replace("_", " "), f"@{a}{{0.000}} {unit}") for a in ACCOUNTS)]
    drawn.add_tools(HoverTool(renderers=[drawn.renderers[0]], tooltips=told, mode="vline"))
    _legend(drawn)
    return _item(drawn)


def both_live(quantities: Sequence[tuple[str, str, str]], unit: str) -> Item:
    """Quantities of trial A (solid) and B (dashed) over time: (column, words, colour). Sources `A` and `B`."""
    from bokeh.models import ColumnDataSource, HoverTool

    drawn = _figure("share of the replay, %", unit, x_range=(0, 100), y_range=(0, 105))
    for side, dash in (("A", "solid"), ("B", "dashed")):
        source = ColumnDataSource({name: [0.0] for name in ("x", *(q for q, _, _ in quantities))}, name=side)
        lines = [
            drawn.line("x", column, source=source, color=PALETTE[colour], line_dash=dash, line_width=1.5,
                       legend_label=f"{side}: {words}")
            for column, words, colour in quantities
        ]  # fmt: skip
        told = [(f"{side}: {words}", f"@{column}{{0,0.[00]}} {unit}") for column, words, _ in quantities]
        drawn.add_tools(HoverTool(renderers=lines[:1], tooltips=told, mode="vline"))
    _legend(drawn, 2)
    return _item(drawn)


def _figure(x_name: str, y_name: str, **kinds: Any) -> Any:
    """An empty plot in the reader's colours, as wide as its frame; a finger or a wheel on it scrolls the page."""
    from bokeh.plotting import figure

    drawn = figure(height=_HEIGHT, sizing_mode="stretch_width", tools="", toolbar_location=None, **kinds)
    drawn.background_fill_alpha = drawn.border_fill_alpha = 0
    drawn.outline_line_color = None
    drawn.grid.grid_line_color = INK
    drawn.grid.grid_line_alpha = 0.12
    drawn.axis.axis_label_text_font_style = "normal"
    for name in ("axis_line", "major_tick_line", "axis_label_text", "major_label_text"):
        setattr(drawn.axis, f"{name}_color", INK)
    drawn.axis.minor_tick_line_color = None
    drawn.xaxis.axis_label, drawn.yaxis.axis_label = x_name, y_name
    return drawn


def _titled(drawn: Any, words: str) -> None:
    drawn.title.text = words
    drawn.title.text_color = INK
    drawn.title.text_font_style = "normal"


def _legend(drawn: Any, columns: int = 3) -> None:
    """Above the plot, where it covers nothing."""
    legend = drawn.legend[0]
    drawn.add_layout(legend, "above")
    legend.orientation, legend.ncols = "horizontal", columns
    legend.label_text_color = INK
    legend.label_text_font_size = "11px"
    legend.background_fill_alpha = 0
    legend.border_line_color = None
    legend.location, legend.margin = "left", 2
    legend.padding, legend.spacing, legend.glyph_height, legend.glyph_width = 2, 6, 14, 14


def _item(drawn: Any) -> Item:
    from bokeh.embed import json_item

    item: Item = json.loads(json.dumps(json_item(drawn)))
    return item
