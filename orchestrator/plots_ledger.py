"""How a ledger is drawn over time: accounts stacked under the pool, tokens against slots, steps beside both."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestrator.frames import Binned
from orchestrator.plots import INK, PALETTE, Floats, Said, figure, legend_below, steps, titled
from trials.ledger import ACCOUNTS
from trials.units import byte_unit

ACCOUNT_COLOURS = {
    "payload": "blue", "tail_slack": "vermilion", "reserved_ahead": "purple", "cached": "green",
    "free": "grey", "reserve": "yellow", "padding": "orange", "remainder": "sky",
}  # fmt: skip


def ledger_svg(binned: Binned, title: str, key: str) -> str:
    """Where every byte of the pool was, stacked over time under the pool's total."""
    used = [a for a in ACCOUNTS if binned.accounts[a].any()]
    means = ", ".join(f"{a} {binned.mean(a) / binned.pool_bytes:.1%}" for a in used)
    said = Said(key, f"Ledger of {title}", f"Time means as shares of the pool: {means}.")
    return figure(said, (4.1, 3.1), lambda drawn: _draw_ledger(drawn, binned, used, title))


def _draw_ledger(drawn: Any, binned: Binned, used: Sequence[str], title: str) -> None:
    axes = drawn.subplots()
    unit, scale = byte_unit(binned.pool_bytes)
    titled(axes, title)
    axes.set_xlabel("engine time, s")
    axes.set_ylabel(unit)
    floor = np.zeros(len(binned.edges_s))
    for account in used:
        values = binned.accounts[account] / scale
        top = floor + np.append(values, values[-1])
        axes.fill_between(binned.edges_s, floor, top, step="post", lw=0, label=account.replace("_", " "),
                          color=PALETTE[ACCOUNT_COLOURS[account]])  # fmt: skip
        floor = top
    axes.axhline(binned.pool_bytes / scale, color=INK, lw=1.2, label="pool total")
    axes.set_xlim(binned.edges_s[0], binned.edges_s[-1])
    axes.set_ylim(0, binned.pool_bytes / scale * 1.05)
    legend_below(axes)


def tokens_svg(binned: Binned, title: str, key: str) -> str:
    """Three numbers often taken for one another: tokens held, slots allocated for them, slots there are."""
    alt = (
        f"Time means: {_mean(binned, binned.live_tokens):,.0f} live tokens in "
        f"{_mean(binned, binned.allocated_slots):,.0f} allocated slots of {binned.pool_slots:,} in the pool."
    )
    said = Said(key, f"Tokens and slots of {title}", alt)
    return figure(said, (4.1, 3.1), lambda drawn: _draw_tokens(drawn, binned, title))


def _mean(binned: Binned, values: Floats) -> float:
    return float(np.average(values, weights=np.diff(binned.edges_s)))


def _draw_tokens(drawn: Any, binned: Binned, title: str) -> None:
    axes = drawn.subplots()
    titled(axes, title)
    axes.set_xlabel("engine time, s")
    axes.set_ylabel("tokens")
    axes.axhline(binned.pool_slots, color=INK, lw=1.2, label="pool slots")
    for values, colour, style, label in (
        (binned.allocated_slots, "vermilion", "--", "allocated slots"),
        (binned.live_tokens, "blue", "-", "live tokens"),
    ):
        steps(axes, binned.edges_s, values, label=label, color=PALETTE[colour], ls=style)
    axes.set_xlim(binned.edges_s[0], binned.edges_s[-1])
    axes.set_ylim(0, max(binned.pool_slots, 1) * 1.05)
    legend_below(axes)


def occupancy_svg(binned: Binned, title: str, evidence: str, key: str) -> str:
    """How long steps took beside how full the pool was at that time."""
    worst = float(np.nanmax(binned.step_ms_max)) if np.isfinite(binned.step_ms_max).any() else 0.0
    alt = f"Longest step {worst:.4g} ms ({evidence}); the pool's allocated share is drawn below it."
    said = Said(key, f"Step time beside occupancy of {title}", alt)
    return figure(said, (4.1, 3.3), lambda drawn: _draw_occupancy(drawn, binned, f"{title} ({evidence})"))


def _draw_occupancy(drawn: Any, binned: Binned, title: str) -> None:
    upper, lower = drawn.subplots(2, 1, sharex=True)
    titled(upper, title)
    upper.set_ylabel("step, ms")
    for values, colour, style, label in (
        (binned.step_ms_max, "vermilion", "--", "longest"),
        (binned.step_ms_mean, "blue", "-", "mean"),
    ):
        steps(upper, binned.edges_s, values, label=label, color=PALETTE[colour], ls=style)
    upper.set_ylim(bottom=0)
    legend_below(upper, 2)
    share = 100 * binned.allocated_slots / max(binned.pool_slots, 1)
    lower.fill_between(
        binned.edges_s, np.append(share, share[-1]), step="post", color=PALETTE["green"], alpha=0.5, lw=0
    )
    lower.set_ylabel("allocated, %")
    lower.set_xlabel("engine time, s")
    lower.set_ylim(0, 105)
    lower.set_xlim(binned.edges_s[0], binned.edges_s[-1])
