"""What a difference is worth: paired over the same windows, with a seeded bootstrap interval. What a plan can see.

Windows differ far more from one another than candidates do on one window, so only differences on the same
window are compared. Percentile bootstrap of the mean (Efron); with few windows all resamples are enumerated, and
with two or three of them the interval is simply their full range.
"""

import itertools
import random
from collections.abc import Mapping, Sequence

import numpy as np

from search_spaces.outcome import Interval

_ENUMERATE_UP_TO = 5  # 5 ** 5 = 3,125 resamples
_RESAMPLES = 2000
COVERAGE = 0.95


ASSUMED_SPREAD = 0.02  # of paired differences between windows, as a share of the value, before any was seen
_RANGES = {2: 1.128, 3: 1.693}  # mean range of so many normal draws, in standard deviations


def visible_effect(windows: int, spread: float, min_gain: float) -> float:
    """The smallest share of a value that a plan can tell from noise; with one window nothing is told from it.

    Half of the interval that `paired_interval` gives on average, for normal differences of this spread: the range
    of two or three of them, a percentile interval of the mean of more.
    """
    if windows < 2:
        return min_gain
    half = _RANGES[windows] / 2 if windows in _RANGES else 1.96 / windows**0.5
    return max(min_gain, half * spread)


def planned_words(windows: int, min_gain: float, measured: float | None = None) -> str:
    """What a plan can see, before it is carried out. `measured`: the spread that controls showed."""
    if windows < 2:
        return (
            f"one window: a difference from min_gain {min_gain:.1%} on counts, and nothing tells it from noise; "
            "use repeats: 3"
        )
    spread = ASSUMED_SPREAD if measured is None else measured
    source = "assumed, none was measured yet" if measured is None else "as the controls measured so far do"
    return (
        f"this plan sees differences from about {visible_effect(windows, spread, min_gain):.1%} on: {windows} "
        f"windows, on which paired differences spread by {spread:.1%} ({source})"
    )


def pilot_spread(values: Sequence[Mapping[int, float]]) -> float | None:
    """Spread between windows of what candidates are over the first of them, as a share.

    None before two of them met the same two windows.
    """
    if not values:
        return None
    base, squares, freedom = values[0], 0.0, 0
    for other in values[1:]:
        shared = [r for r in sorted(base.keys() & other.keys()) if base[r] > 0]
        ratio = np.array([other[r] / base[r] for r in shared])
        if len(shared) < 2 or ratio.mean() <= 0:
            continue
        apart = ratio / ratio.mean() - 1
        squares, freedom = squares + float((apart**2).sum()), freedom + len(shared) - 1
    return (squares / freedom) ** 0.5 if freedom else None


def paired_interval(best: Mapping[int, float], other: Mapping[int, float], seed: int) -> Interval | None:
    """best - other over the windows (repeat numbers) that both have; None with fewer than two of them."""
    shared = sorted(set(best) & set(other))
    if len(shared) < 2:
        return None
    differences = np.array([best[r] - other[r] for r in shared], float)
    means = differences[_resamples(len(shared), seed)].mean(axis=1)
    # Order statistics, outwards: with few windows an interpolated quantile would claim more than was seen.
    low = np.quantile(means, (1 - COVERAGE) / 2, method="inverted_cdf")
    high = np.quantile(means, (1 + COVERAGE) / 2, method="higher")
    return Interval(mean=float(differences.mean()), low=float(low), high=float(high))


def paired_gain(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Share of `other` by which `one` is ahead on the windows that both have; None: nothing to compare."""
    shared = sorted(set(one) & set(other))
    base = sum(other[r] for r in shared)
    return sum(one[r] for r in shared) / base - 1 if base else None


def _resamples(n: int, seed: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """[resamples, n] indices with replacement."""
    if n <= _ENUMERATE_UP_TO:
        return np.array(list(itertools.product(range(n), repeat=n)), np.int64)
    draw = random.Random(seed)
    return np.array([[draw.randrange(n) for _ in range(n)] for _ in range(_RESAMPLES)], np.int64)
