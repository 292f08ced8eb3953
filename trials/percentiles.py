"""The one percentile of the project: linear interpolation over a weighted population, exact.

Four million gaps between tokens are a few thousand (value, count) pairs; a concurrency over an hour is a value
and the nanoseconds that it lasted. Both are populations here, and neither is ever expanded.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trials.recording import Ints
from trials.result import Percentiles, Spread

Numbers = NDArray[Any]  # int64 or float64
_NS_PER_MS = 1e6


def integral(values: Ints, weights: Ints) -> int:
    """Sum of values x weights, [K] each, no weight negative: exact, however large; the same on every machine."""
    total = int(weights.sum())
    if total == 0:
        return 0
    if values.min() < 0:
        return integral(np.maximum(values, 0), weights) - integral(np.maximum(-values, 0), weights)
    bits = 62 - total.bit_length()  # of the values, so many at a time, keep a partial sum inside int64
    if bits < 1 or weights.min() < 0:
        raise ValueError(f"an integral needs weights that are not negative, of a total below 2**61, got {total}")
    most, out = int(values.max()), 0
    for shift in range(0, max(most.bit_length(), 1), bits):
        out += int(np.sum((values >> shift & (1 << bits) - 1) * weights)) << shift
    return out


@dataclass(frozen=True, slots=True)
class Population:
    """`values` ascending [K], `upto` [K]: how many entries lie at or below each; `infinite` more lie above all."""

    values: Numbers
    upto: Ints
    infinite: int = 0

    @property
    def n(self) -> int:
        return self.num_finite + self.infinite

    @property
    def num_finite(self) -> int:
        return int(self.upto[-1]) if len(self.upto) else 0

    @property
    def mean(self) -> float:
        """inf where any entry is; NaN where there is none. Whole numbers are summed exactly."""
        if self.infinite or not self.num_finite:
            return math.inf if self.infinite else math.nan
        weights = np.diff(self.upto, prepend=0)
        if self.values.dtype == np.int64:
            return integral(self.values, weights) / self.num_finite
        return float(np.sum(self.values * weights.astype(np.float64))) / self.num_finite

    def at(self, rank: int) -> float | int:
        """The entry of that rank, 0 the least."""
        if rank >= self.num_finite:
            return math.inf
        value: float | int = self.values[int(np.searchsorted(self.upto, rank, side="right"))].item()
        return value


def population(values: Numbers, weights: Ints | None = None, infinite: int = 0) -> Population:
    """Entries `values` [K], each counted `weights` [K] times (else once), and `infinite` entries of +inf."""
    if weights is not None:
        present = weights > 0
        values, weights = values[present], weights[present]
        order = np.argsort(values, kind="stable")
        return Population(values[order], np.cumsum(weights[order], dtype=np.int64), infinite)
    return Population(np.sort(values), np.arange(1, len(values) + 1, dtype=np.int64), infinite)


def percentile(of: Population, q: float) -> float:
    """The q-th percentile, 0 <= q <= 100: numpy's `percentile` (linear) of the expanded population, to the bit.

    NaN where the population is empty; inf where the interpolation touches an infinite entry.
    """
    if not 0 <= q <= 100:
        raise ValueError(f"a percentile lies between 0 and 100, got {q}")
    if of.n == 0:
        return math.nan
    position = (of.n - 1) * (q / 100)
    below = math.floor(position)
    share = position - below
    low = of.at(below)
    if share == 0 or below + 1 >= of.n:
        return float(low)
    high = of.at(below + 1)
    if math.isinf(high):
        return math.inf
    step = high - low
    # The second form for the upper half is numpy's: it makes the result monotone in q where rounding would not.
    return float(high - step * (1 - share)) if share >= 0.5 else float(low + step * share)


def _finite_ms(ns: float) -> float | None:
    return ns / _NS_PER_MS if math.isfinite(ns) else None


def percentiles_ms(of: Population) -> Percentiles:
    """The face of a population of ns, in ms. None where it is infinite or nothing was observed."""
    return Percentiles(
        n=of.n, mean=_finite_ms(of.mean), p50=_finite_ms(percentile(of, 50)), p90=_finite_ms(percentile(of, 90)),
        p99=_finite_ms(percentile(of, 99)), max=_finite_ms(percentile(of, 100)),
    )  # fmt: skip


def spread(values: Numbers, lasted_ns: Ints) -> Spread:
    """Time-weighted: each value [K] held for `lasted_ns` [K]. Zeros where no time passed."""
    held = population(values, lasted_ns)
    if held.n == 0:
        return Spread()
    return Spread(mean=held.mean, p10=percentile(held, 10), peak=percentile(held, 100))
