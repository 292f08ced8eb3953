"""How long a decoding request waited for its next token, beside how full the pool was and how deep its table.

A step gives every decoding request one token, so its duration is a gap for each of them. Pauses after a preemption
are longer gaps and not in here; they are in `itl_ms`.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orchestrator.frames import Floats
from trials.percentiles import percentile, population
from trials.result import Observation

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class GapClass:
    """Gaps of the steps whose x lay in low .. high: `n` gaps, their median and 99th percentile, ms."""

    low: float
    high: float
    n: int
    p50_ms: float
    p99_ms: float


def gaps_by_occupancy(rows: pd.DataFrame, seen: Observation) -> list[GapClass]:
    """Classes of ten percent of the slots' bytes that hold or are claimed by live sequences."""
    steps = _decoding(rows, seen)
    slots = np.maximum((steps["pool_bytes"] - steps["padding"] - steps["remainder"]).to_numpy(float), 1.0)
    share = 100 * (steps["payload"] + steps["tail_slack"] + steps["reserved_ahead"]).to_numpy(float) / slots
    return _classes(np.minimum(share, 100.0), steps, np.arange(0.0, 101.0, 10.0))


def gaps_by_depth(rows: pd.DataFrame, seen: Observation, classes: int = 8) -> list[GapClass]:
    """Classes of equal width over the blocks that a decoding request held on average in a step."""
    steps = _decoding(rows, seen)
    depth = steps["decode_blocks"].to_numpy(float) / np.maximum(steps["num_decodes"].to_numpy(float), 1.0)
    if not len(depth):
        return []
    low, high = float(depth.min()), float(depth.max())
    return _classes(depth, steps, np.linspace(low, high if high > low else low + 1, classes + 1))


def _decoding(rows: pd.DataFrame, seen: Observation) -> pd.DataFrame:
    """Steps of the window that gave at least one decoding request a token."""
    start = rows["start_ns"]
    inside = (start >= seen.start_ns) & (start < seen.end_ns) & (rows["idle"] == 0) & (rows["num_decodes"] > 0)
    return rows[inside]


def _classes(x: Floats, steps: pd.DataFrame, edges: Floats) -> list[GapClass]:
    place = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
    duration, weight = steps["duration_ns"].to_numpy(np.int64), steps["num_decodes"].to_numpy(np.int64)
    found = []
    for i in np.unique(place):
        here = population(duration[place == i], weight[place == i])
        found.append(GapClass(float(edges[i]), float(edges[i + 1]), here.n, percentile(here, 50) / _NS_PER_MS,
                              percentile(here, 99) / _NS_PER_MS))  # fmt: skip
    return found
