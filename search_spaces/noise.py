"""What a difference is worth: paired over the same windows, with a seeded bootstrap interval.

Windows differ far more from one another than candidates do on one window, so only differences on the same
window are compared. Percentile bootstrap of the mean (Efron); with few windows all resamples are enumerated, and
with two or three of them the interval is simply their full range.
"""

import itertools
import random
from collections.abc import Mapping

import numpy as np

from search_spaces.outcome import Interval

_ENUMERATE_UP_TO = 5  # 5 ** 5 = 3,125 resamples
_RESAMPLES = 2000
COVERAGE = 0.95


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


def _resamples(n: int, seed: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """[resamples, n] indices with replacement."""
    if n <= _ENUMERATE_UP_TO:
        return np.array(list(itertools.product(range(n), repeat=n)), np.int64)
    draw = random.Random(seed)
    return np.array([[draw.randrange(n) for _ in range(n)] for _ in range(_RESAMPLES)], np.int64)
