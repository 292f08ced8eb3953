"""How much of the differences between candidates each searched parameter explains, from their values alone.

For each parameter by itself: the share of the variance of the objective that lies between its values rather than
within them, corrected for the number of values (Kelley's epsilon squared), so that a parameter with many values is
not important by their number. Parameters that a sampler moved together share what they explain: a share is a hint
where to look, not an effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Importance:
    """`share` in 0 .. 1 of the variance; None where it cannot be told. `levels`: values that were tried."""

    parameter: str
    share: float | None
    levels: int
    best: str  # the value with the best mean


def importances(policies: Sequence[Mapping[str, object]], values: Sequence[float]) -> list[Importance]:
    """One a parameter that took at least two values, the most important first. [n] candidates, [n] values.

    Values that agree in nine digits are the same: means taken in another order differ behind them.
    """
    values = [float(f"{value:.9g}") for value in values]
    names = sorted({name for policy in policies for name in policy})
    found = [_one(name, [str(policy.get(name)) for policy in policies], values) for name in names]
    return sorted((f for f in found if f.levels > 1), key=lambda f: (-(f.share or 0.0), f.parameter))


def _one(name: str, levels: Sequence[str], values: Sequence[float]) -> Importance:
    y, kinds = np.array(values, float), np.array(levels)
    names = list(dict.fromkeys(levels))
    groups = [y[kinds == kind] for kind in names]
    means = [float(g.mean()) for g in groups]
    best = names[int(np.argmax(means))]
    total = float(((y - y.mean()) ** 2).sum())
    spare = len(y) - len(groups)
    if total == 0 or spare < 1:
        return Importance(name, 0.0 if total == 0 else None, len(groups), best)
    within = float(sum(((g - g.mean()) ** 2).sum() for g in groups))
    share = 1 - (within / spare) / (total / (len(y) - 1))
    return Importance(name, min(max(share, 0.0), 1.0), len(groups), best)
