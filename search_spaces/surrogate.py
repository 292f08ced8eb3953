"""A Gaussian process over a space whose candidates can be listed, and the one that it expects most of. Pure.

A field is an axis: ordered values by their place, from 0 to 1; categories are all equally far apart. The kernel
adds a Matern 5/2 over all axes to one along each axis alone (additive: Duvenaud, Nickisch and Rasmussen 2011), so
that few trials tell already what a field does whatever the others are. What is modelled is the logarithm of how far
a candidate stays behind the best: where one falls off a cliff matters less than who is best at the top. Expected
improvement (Jones, Schonlau and Welch 1998) is worked out for every candidate, not for a sample of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_ndtr

Floats = NDArray[np.float64]
_JITTER = 1e-8
_FIRST_NOISE = 1e-3  # of a variance of 1; the spread below is of logarithms
_SPREAD_OF_SCALES, _SPREAD_OF_VARIANCES, _SPREAD_OF_NOISE = 1.5, 1.0, 1.5
_ITERATIONS = 100
_EVEN = 1e-9  # expectations that close are a tie, which the draw settles
_TURN = 0.1  # share behind the best
_BOUNDED = 0.1  # how far one that lost a race is taken to stay behind what it is known to stay under


@dataclass(frozen=True, slots=True)
class Axes:
    """points: float [candidates, axes]; categories: bool [axes], where only same or different counts."""

    points: Floats
    categories: NDArray[np.bool_]

    def beside(self, column: Floats) -> "Axes":
        """With one more axis, brought to 0 to 1."""
        span = float(np.ptp(column)) or 1.0
        column = (column - column.min()) / span
        return Axes(np.column_stack([self.points, column]), np.append(self.categories, np.False_))

    def distances(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> Floats:
        """float [rows, others, axes]: squared."""
        squared: Floats = (self.points[rows, None, :] - self.points[None, others, :]) ** 2
        squared[:, :, self.categories] = squared[:, :, self.categories] > 0
        return squared


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a candidate. `over`: by how much it misses its bounds; `bounded`: it lost a race, and its value
    is only what it stays under."""

    value: float
    over: float = 0.0
    bounded: bool = False


def standings(came: Sequence[Came], maximize: bool) -> Floats:
    """float [came]: -log(share behind the best + a tenth). Higher is better; who misses a bound comes last.

    The tenth is where the scale turns from shares to their logarithm. With a fiftieth, differences at the very top
    that no other candidate shares lead the search into its every corner.
    """
    kept = [c.value for c in came if c.over <= 0 and not c.bounded]
    best = (max if maximize else min)(kept) if kept else 0.0
    return np.array([-np.log(_behind(c, best, maximize) + _TURN) for c in came])


def _behind(one: Came, best: float, maximize: bool) -> float:
    """Share of the best that it lacks; 1 and more for what misses a bound."""
    if one.over > 0 and not one.bounded:
        return 1.0 + one.over
    more, less = (best, one.value) if maximize else (one.value, best)
    lacks = (more - less) / abs(more) if more else 1.0
    return min(1.0, max(0.0, lacks) + (_BOUNDED if one.bounded else 0.0))


def most_expected(axes: Axes, rows: Sequence[int], standing: Floats, free: NDArray[np.int64], seed: int) -> int:
    """The row, of those `free`, that is expected to improve most on the best standing; the seed settles ties."""
    known = np.asarray(rows, dtype=np.int64)
    scale = float(standing.std()) or 1.0
    level = (standing - standing.mean()) / scale
    apart = axes.distances(known, known)
    settled = _fitted(apart, level)
    lower = np.linalg.cholesky(_covariance(apart, settled) + _noise(settled) * np.eye(len(known)))
    across = np.linalg.solve(lower, _covariance(axes.distances(known, free), settled))
    mean = across.T @ np.linalg.solve(lower, level)
    variance = _variance(settled) - (across**2).sum(axis=0)
    expected = _log_improvement(mean - level.max(), np.sqrt(np.maximum(variance, 1e-12)))
    best = np.flatnonzero(expected >= expected.max() - _EVEN)
    return int(free[np.random.default_rng(seed).choice(best)])


# Settings are one vector of logarithms: a scale for each axis, the variance of the product, the noise, the sum.


def _fitted(apart: Floats, level: Floats) -> Floats:
    """The settings that are likeliest after the data, begun at the middle of what is expected before."""
    middle, _ = _before(apart.shape[2])
    found = minimize(
        _unlikely, middle, (apart, level), method="L-BFGS-B", jac=True, options={"maxiter": _ITERATIONS}
    )
    settings: Floats = found.x
    return settings


def _before(axes: int) -> tuple[Floats, Floats]:
    """What is expected of the settings before anything is seen: the middle of each, and its deviation."""
    middle = np.concatenate([np.zeros(axes + 1), [np.log(_FIRST_NOISE), 0.0]])
    spread = np.array([_SPREAD_OF_SCALES] * axes + [_SPREAD_OF_VARIANCES, _SPREAD_OF_NOISE, _SPREAD_OF_VARIANCES])
    return middle, spread


def _unlikely(settings: Floats, apart: Floats, level: Floats) -> tuple[float, Floats]:
    """-log of the settings' likelihood after the data but for a constant, and its slope along each."""
    middle, spread = _before(apart.shape[2])
    try:
        lower = np.linalg.cholesky(_covariance(apart, settings) + _noise(settings) * np.eye(len(level)))
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(settings)
    inverse = np.linalg.inv(lower)
    inverse = inverse.T @ inverse
    weighted = inverse @ level
    off = (settings - middle) / spread
    value = 0.5 * float(level @ weighted) + float(np.log(np.diag(lower)).sum()) + 0.5 * float(off @ off)
    pull = 0.5 * (inverse - np.outer(weighted, weighted))
    slope = np.array([float((pull * along).sum()) for along in _slopes(apart, settings)]) + off / spread
    return value, slope


def _slopes(apart: Floats, settings: Floats) -> Iterator[Floats]:
    """Of the noisy covariance along each of the settings, in their order."""
    axes = apart.shape[2]
    weights, together, alone = np.exp(settings[:axes]), np.exp(settings[axes]), np.exp(settings[axes + 2]) / axes
    squared = apart @ weights
    by_all = together * _matern_slope(squared)
    for n in range(axes):
        one = apart[..., n] * weights[n]
        yield (by_all + alone * _matern_slope(one)) * one
    yield together * _matern(squared)
    yield np.exp(settings[axes + 1]) * np.eye(len(apart))
    yield alone * np.sum([_matern(apart[..., n] * weights[n]) for n in range(axes)], axis=0)


def _covariance(apart: Floats, settings: Floats) -> Floats:
    axes = apart.shape[2]
    weights = np.exp(settings[:axes])
    together: Floats = np.exp(settings[axes]) * _matern(apart @ weights)
    alone = sum(_matern(apart[..., n] * weights[n]) for n in range(axes))
    both: Floats = together + np.exp(settings[axes + 2]) / axes * alone
    return both


def _variance(settings: Floats) -> float:
    return float(np.exp(settings[-3]) + np.exp(settings[-1]))


def _noise(settings: Floats) -> float:
    return float(np.exp(settings[-2])) + _JITTER


def _matern(squared: Floats) -> Floats:
    distance = np.sqrt(5 * squared)
    found: Floats = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return found


def _matern_slope(squared: Floats) -> Floats:
    """Along the squared distance."""
    distance = np.sqrt(5 * squared)
    found: Floats = -5 / 6 * (1 + distance) * np.exp(-distance)
    return found


def _log_improvement(ahead: Floats, deviation: Floats) -> Floats:
    """log E[max(0, X)] of X normal; where it is next to nothing, by its leading term."""
    at = ahead / deviation
    density = np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi)
    near = np.log(np.maximum(ahead * np.exp(log_ndtr(at)) + deviation * density, 1e-300))
    far = -0.5 * at**2 - 0.5 * np.log(2 * np.pi) + np.log(deviation) - np.log(at**2 + 1)
    found: Floats = np.where(at > -5, near, far)
    return found
