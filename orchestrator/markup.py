"""Pieces of HTML for the report. Every text that comes in is escaped here; nothing else writes tags around data."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from trials.units import byte_unit


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell with a class of its own, for a verdict or a long text."""

    text: str
    css: str = ""


Value = str | int | float | bool | None | Cell


def number(value: float | None, digits: int = 4) -> str:
    """`12,345`, `0.01234`, `1.235e+12`; a dash where there is no finite value."""
    if value is None or not math.isfinite(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    rounded = f"{value:.{digits}g}"
    return f"{float(rounded):,.0f}" if 1000 <= abs(value) < 1e15 else rounded


def in_bytes(value: float) -> str:
    """`1.5 GiB`, `384 KiB`, `17 B`."""
    unit, scale = byte_unit(value)
    return f"{value / scale:.4g} {unit}"


def text(value: object) -> str:
    return html.escape(str(value), quote=True)


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Value]], chosen: Sequence[bool] = ()) -> str:
    """A table with its caption, scrollable by keyboard on a narrow screen. `chosen` marks rows."""
    if not rows:
        return f'<p class="note">{text(caption)}: nothing yet.</p>'
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(head))]
    kinds = ["n" if n else "" for n in numeric]
    heads = "".join(f'<th scope="col"{_css(k)}>{text(h)}</th>' for h, k in zip(head, kinds, strict=True))
    marked = [*chosen, *[False] * (len(rows) - len(chosen))]
    body = "\n".join(_row(row, mark) for row, mark in zip(rows, marked, strict=True))
    name = text(caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{name}"><table>'
        f"<caption>{name}</caption><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[Value], mark: bool) -> str:
    first, *rest = row
    cells = f'<th scope="row">{text(_plain(first))}</th>' + "".join(_cell(v) for v in rest)
    return f"<tr{_css('chosen' if mark else '')}>{cells}</tr>"


def _cell(value: Value) -> str:
    if isinstance(value, Cell):
        return f"<td{_css(value.css)}>{text(value.text)}</td>"
    return f"<td{_css('n' if _is_number(value) else '')}>{text(_plain(value))}</td>"


def _plain(value: Value) -> str:
    if isinstance(value, Cell):
        return value.text
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else number(value)


def _is_number(value: Value) -> bool:
    return not isinstance(value, bool | str | Cell)


def _css(name: str) -> str:
    return f' class="{text(name)}"' if name else ""


def badge(words: str, css: str) -> str:
    return f'<span class="badge {text(css)}">{text(words)}</span>'


def paragraph(words: str, css: str = "") -> str:
    return f"<p{_css(css)}>{text(words)}</p>"


def nothing(why: str) -> str:
    """An empty panel says why it is empty."""
    return paragraph(why, "nothing")


def items(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>" if lines else ""


def section(key: str, heading: str, body: str) -> str:
    head = f'<section id="{text(key)}" aria-labelledby="{text(key)}-h"><h2 id="{text(key)}-h">{text(heading)}</h2>'
    return f"{head}\n{body}\n</section>"


def folded(summary: str, *parts: str) -> str:
    return f"<details><summary>{text(summary)}</summary>\n{''.join(parts)}\n</details>"


def figures(drawn: Sequence[tuple[str, str]], live: Sequence[str] = ()) -> str:
    """(svg, caption) side by side where there is room. The SVG is our own and goes in as it is.

    live: for each, the key under which the page's script has a plot to put in front of it, or nothing.
    """
    marks = [f' data-live="{text(key)}"' if key else "" for key in live] or [""] * len(drawn)
    cells = "\n".join(
        f"<figure{mark}>{svg}<figcaption>{text(words)}</figcaption></figure>"
        for mark, (svg, words) in zip(marks, drawn, strict=True)
    )
    return f'<div class="plots">{cells}</div>' if drawn else ""


def option(value: str, words: str, selected: bool) -> str:
    return f'<option value="{text(value)}"{" selected" if selected else ""}>{text(words)}</option>'


def listing(content: str) -> str:
    return f"<pre>{text(content)}</pre>"
