"""Which candidates are worth an engine's time, from what a simulator said of all of them; and whether it was right.

Pure. A screen orders the space and never decides: what it calls promising is measured, with the neighbours of its
best, and a few that it calls unpromising as checks. Where what is measured contradicts it, it is dropped.
"""

import math
import random
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from search_spaces.neighbours import Key, key_of
from search_spaces.space import Space, Value

Role = Literal["default", "promising", "neighbour", "check"]
_BETWEEN = 3  # promising ones from one check to the next
ENOUGH = 6  # candidates measured, below which nothing is said of a screen
LEAST_TAU = 0.2  # rank correlation under which it orders no better than chance, by so few


@dataclass(frozen=True, slots=True)
class Screened:
    """What a simulator, or an engine, said of a candidate. `merit`: higher is better, the feasible come first."""

    params: Mapping[str, Value]
    value: float | None  # of the objective; None: nothing that can be told
    over: float = 0.0  # share by which the worst bound is missed; 0 where all hold

    @property
    def merit(self) -> tuple[float, float]:
        value = -math.inf if self.value is None else self.value
        return (-self.over, value) if self.over > 0 or self.value is None else (math.inf, value)


@dataclass(frozen=True, slots=True)
class Listed:
    """One candidate that is to be measured, and why."""

    params: dict[str, Value]
    role: Role


@dataclass(frozen=True, slots=True)
class Screen:
    """A screen that a search follows: what to measure in order, what was said of all, why it was dropped if so."""

    listed: tuple[Listed, ...]
    said: Mapping[Key, Screened]
    dropped: str = ""

    def misled(self, measured: Mapping[Key, Screened], min_gain: float) -> str:
        """Why it is not to be followed any more, by what was measured so far; empty where it is."""
        checks = [key_of(one.params) for one in self.listed if one.role == "check"]
        return agreement(self.said, measured, checks, min_gain).misled


@dataclass(frozen=True, slots=True)
class Agreement:
    """The screen against what was measured. `tau`: Kendall's, 1 same order, -1 reversed. `regret`: share of the
    measured best that the screen's own first choice lacks."""

    measured: int
    tau: float | None
    regret: float | None
    misled: str = ""  # why it is not to be followed; empty where it is


def shortlist(space: Space, screened: Sequence[Screened], keep: float, checks: int, seed: int) -> list[Listed]:
    """What to measure, in this order: the default, the promising with the checks among the first of them, and the
    neighbours of the first choice."""
    ranked = sorted(screened, key=lambda s: (s.merit, -_order(space, s.params)), reverse=True)
    promising = ranked[: max(1, math.ceil(keep * len(ranked)))]
    rest = [s.params for s in ranked[len(promising) :]]
    drawn = random.Random(seed).sample(rest, min(checks, len(rest)))
    listed: dict[Key, Listed] = {}

    def add(params: Mapping[str, Value], role: Role) -> None:
        listed.setdefault(key_of(params), Listed(dict(params), role))

    default = space.params_of(space.default)
    if default is not None:
        add(default, "default")
    unplaced = iter(drawn)
    for place, one in enumerate(promising, start=1):
        add(one.params, "promising")
        if place % _BETWEEN == 0 and (params := next(unplaced, None)) is not None:
            add(params, "check")
    for params in unplaced:
        add(params, "check")
    for params in _beside(space, promising[0].params):
        add(params, "neighbour")
    return list(listed.values())


def _order(space: Space, params: Mapping[str, Value]) -> float:
    """A place to settle equals by: the space's own order, as one number."""
    at = 0.0
    for d in space.dimensions:
        index = d.values.index(params[d.field]) if d.field in params and d.values else -1
        at = at * (len(d.values) + 1) + index + 1
    return at


def _beside(space: Space, params: Mapping[str, Value]) -> list[dict[str, Value]]:
    """The next candidate along each line out of this one."""
    lines = space.lines(space.place_of(params))
    return [space.candidate_at(line[0]) for _, line in lines if line]


def agreement(
    screened: Mapping[Key, Screened], measured: Mapping[Key, Screened], checks: Sequence[Key], min_gain: float
) -> Agreement:
    """How the order of the screen compares with that of what was measured. Regret is in values of the objective."""
    both = [key for key in measured if key in screened]
    if len(both) < 2:
        return Agreement(len(both), None, None)
    tau = kendall([screened[k].merit for k in both], [measured[k].merit for k in both])
    first = max(both, key=lambda k: screened[k].merit)
    best = max(both, key=lambda k: measured[k].merit)
    found = Agreement(len(both), tau, _behind(measured[first], measured[best]))
    return replace(found, misled=_misled(found, measured, [k for k in checks if k in measured], min_gain))


def _behind(one: Screened, best: Screened) -> float:
    """Share of the best's value that this lacks; all of it where it misses a bound that the best keeps."""
    if best.over <= 0 < one.over or not best.value or one.value is None:
        return 1.0 if one.merit < best.merit else 0.0
    return max(0.0, 1 - one.value / best.value)


def _misled(found: Agreement, measured: Mapping[Key, Screened], checks: Sequence[Key], min_gain: float) -> str:
    kept = [key for key in measured if key not in checks]
    if found.measured < ENOUGH or not kept:
        return ""
    if checks:
        check, best = (max((measured[k] for k in keys), key=lambda s: s.merit) for keys in (checks, kept))
        if check.merit > best.merit and _behind(best, check) > min_gain:
            return (
                f"a candidate that it called unpromising is better than all it kept, by {_behind(best, check):.1%}"
            )
    if found.tau is not None and found.tau < LEAST_TAU:
        return (
            f"it orders {found.measured} measured candidates no better than chance (Kendall's tau {found.tau:.2f})"
        )
    return ""


def kendall(a: Sequence[Any], b: Sequence[Any]) -> float | None:
    """Kendall's tau-b over pairs (Kendall 1945: ties corrected); None where one side is all ties.

    By sorting, not pair by pair (Knight 1966): in the order of `a`, pairs that `b` turns around are inversions.
    """
    turned, seen = 0, list[Any]()
    for _, y in sorted(zip(a, b, strict=True)):
        turned += len(seen) - bisect_right(seen, y)
        insort(seen, y)
    tied_a, tied_b, tied_both = _tied(a), _tied(b), _tied(zip(a, b, strict=True))
    pairs = len(a) * (len(a) - 1) // 2
    apart_a, apart_b = pairs - tied_a, pairs - tied_b
    if not apart_a or not apart_b:
        return None
    return (pairs - tied_a - tied_b + tied_both - 2 * turned) / math.sqrt(apart_a * apart_b)


def _tied(values: Iterable[Hashable]) -> int:
    """Pairs of equals."""
    return sum(n * (n - 1) // 2 for n in Counter(values).values())
