"""Search on a ladder of rungs for the highest that holds. Pure: what a rung is and how it is tried is a function.

All searches of one ladder meet the same rungs, so that what one of them found is where another begins, and equal
capacities are equal numbers. Rungs are a constant ratio apart:

    low |----|----|--best--|-beyond-|----| high        best holds, beyond does not, nothing lies between them

Whether a rung holds is not assumed to be monotone: the rung under the best is tried too, and where it does not
hold, the search goes on below it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trials.spec import Ladder

Holds = Callable[[int], bool]
_ROUNDING = 1e-9
_UPWARD = 0.6  # where in an open bracket the next rung is: what fails is given up early, what holds is not


@dataclass(frozen=True, slots=True)
class Bracket:
    """`best` None: no rung holds. `beyond` None: the highest holds. `below` None: best is the lowest."""

    best: int | None
    beyond: int | None
    below: int | None
    tried: tuple[tuple[int, bool], ...]  # in the order in which they were


def rungs(ladder: Ladder) -> tuple[float, ...]:
    """The ladder's values, ascending, both ends included; neighbours at most a ratio of 1 + within apart.

    Concurrency and pool bytes are whole: there a rung may be a step of 1 instead.
    """
    span = math.log(ladder.high / ladder.low)
    count = math.ceil(span / math.log1p(ladder.within) - 1e-9) if span else 0
    exact = [ladder.low * math.exp(span * k / count) for k in range(count)] + [ladder.high]
    if ladder.over in ("concurrency", "pool_bytes"):
        return tuple(float(v) for v in sorted({max(1, round(x)) for x in exact}))
    inner = [float(f"{x:.6g}") for x in exact[1:-1]]
    return tuple(dict.fromkeys([ladder.low, *inner, ladder.high]))


def rung_from(values: Sequence[float], wanted: float) -> int | None:
    """The lowest rung that is no less than `wanted`, up to rounding; None where all are less."""
    return next((k for k, value in enumerate(values) if value >= wanted * (1 - _ROUNDING)), None)


def rung_near(values: Sequence[float], wanted: float) -> int:
    """The rung whose ratio to `wanted` is nearest to 1; `wanted` > 0."""
    return min(range(len(values)), key=lambda k: abs(math.log(values[k] / wanted)))


@dataclass(slots=True)
class _Trials:
    """Each rung is tried once."""

    holds: Holds
    known: dict[int, bool] = field(default_factory=dict)

    def at(self, rung: int) -> bool:
        if rung not in self.known:
            self.known[rung] = self.holds(rung)
        return self.known[rung]


def search(holds: Holds, count: int, hint: int | None = None, stride: int = 1) -> Bracket:
    """The highest of `count` rungs that holds. `hint`: where it is thought to be, from a neighbour's bracket; the
    first step away from it is `stride` rungs.

    Without a hint the highest first (what is far too much is given up soon), then by bisection; with one, outwards
    from it in steps that double until the bracket is closed.
    """
    trials = _Trials(holds)
    top = count
    while True:
        low, high = _closed(trials, top, hint, stride)
        best = low if low >= 0 else None
        if best is None or best == 0 or trials.at(best - 1):
            break
        top, hint = best - 1, None  # it holds by luck: what lies under it does not
    below = best - 1 if best else None
    beyond = high if high < count else None
    return Bracket(best, beyond, below, tuple(trials.known.items()))


def _closed(trials: _Trials, top: int, hint: int | None, stride: int) -> tuple[int, int]:
    """(holds or -1, does not hold or `top`), next to each other."""
    if top == 0:
        return -1, 0
    start = min(max(top - 1 if hint is None else hint, 0), top - 1)
    low, high = _around(trials, start, top, stride if hint is not None else 0)
    while high - low > 1:
        middle = min(max(low + round((high - low) * _UPWARD), low + 1), high - 1)
        if trials.at(middle):
            low = middle
        else:
            high = middle
    return low, high


def _around(trials: _Trials, start: int, top: int, step: int) -> tuple[int, int]:
    """The bracket after the first rung, and, unless `step` is 0, after steps from there that double."""
    low, high = -1, top
    at, upwards = start, trials.at(start)
    if not step:
        return (start, top) if upwards else (-1, start)
    while 0 <= at < top and trials.at(at) == upwards:
        low, high = (at, high) if upwards else (low, at)
        at += step if upwards else -step
        step *= 2
    if 0 <= at < top:
        low, high = (low, at) if upwards else (at, high)
    return low, high
