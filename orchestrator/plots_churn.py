"""How the life of blocks is drawn over the window: step time above, what happened to blocks below."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestrator.plots import PALETTE, Floats, Said, figure, steps, titled
from trials.result import ChurnStretch


def churn_svg(stretches: Sequence[ChurnStretch], title: str, key: str) -> str:
    """Sixteen stretches of the window: steps' p50 and p99 over blocks handed out, evicted and copied."""
    out, gone = (sum(getattr(s, name) for s in stretches) for name in ("allocated_blocks", "evicted_blocks"))
    alt = f"Over the window {out:,} blocks were handed out and {gone:,} evicted, in {len(stretches)} stretches."
    return figure(Said(key, f"Churn of {title}", alt), (4.1, 3.3), lambda drawn: _draw(drawn, stretches, title))


def _draw(drawn: Any, stretches: Sequence[ChurnStretch], title: str) -> None:
    upper, lower = drawn.subplots(2, 1, sharex=True)
    titled(upper, title)
    upper.set_ylabel("step, ms")
    start = np.array([s.start_ns for s in stretches], float) / 1e9
    last = start[-1] + (start[-1] - start[-2] if len(start) > 1 else 1.0)
    edges = np.append(start, last)
    for name, colour, style in (("p99", "vermilion", "--"), ("p50", "blue", "-")):
        steps(upper, edges, _times(stretches, name), label=f"step {name}", color=PALETTE[colour], ls=style)
    for name, colour, style in (
        ("allocated", "green", "-"),
        ("evicted", "purple", "--"),
        ("copied", "orange", ":"),
    ):
        values = np.array([getattr(s, f"{name}_blocks") for s in stretches], float)
        if values.any():
            words = {"allocated": "handed out"}.get(name, name)
            steps(lower, edges, values, label=words, color=PALETTE[colour], ls=style)
    upper.set_ylim(bottom=0)
    lower.set_ylim(bottom=0)
    lower.set_ylabel("blocks")
    lower.set_xlabel("engine time, s")
    lower.set_xlim(edges[0], edges[-1])
    drawn.legend(loc="outside lower center", ncols=5, handlelength=1.4, columnspacing=1.0)


def _times(stretches: Sequence[ChurnStretch], name: str) -> Floats:
    return np.array([np.nan if (v := getattr(s.step_ms, name)) is None else v for s in stretches], float)


def divergence_svg(edges_s: Floats, burst: Floats, bound: Floats, title: str, key: str) -> str:
    """Blocks that forks took in a step against the most they could have taken: the highest of each stretch."""
    alt = f"Largest burst {np.max(burst):.0f} blocks; the bound reached {np.max(bound):.0f}."
    said = Said(key, f"Divergence bursts of {title}", alt)

    def draw(drawn: Any) -> None:
        axes = drawn.subplots()
        titled(axes, title)
        for values, colour, style, label in ((bound, "vermilion", "--", "bound"), (burst, "blue", "-", "burst")):
            steps(axes, edges_s, values, label=label, color=PALETTE[colour], ls=style)
        axes.set_ylabel("blocks a step")
        axes.set_xlabel("engine time, s")
        axes.set_ylim(bottom=0)
        drawn.legend(loc="outside lower center", ncols=2)

    return figure(said, (4.1, 2.9), draw)
