"""Racing for capacity: a challenger has to beat the incumbent at once, or it costs one replay.

Every candidate is measured on the same rungs (trials/bracket.py). The first is searched whole. Each one behind it
is probed above the incumbent's best rung, where one that is no better fails, and early; one that holds there
becomes the incumbent and is searched from where it stands. Further windows are for survivors alone.

`race` is the race on one window as one function of whether a rung holds. `Standings` is the rule for a driver that
asks one trial after another, over all windows: what the race knows goes into each trial's spec.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from search_spaces.objective import Score
from trials.bracket import rung_from, rungs, search
from trials.spec import Ladder

_ROUNDING = 1e-9  # of a value that was taken to another slot and back
HoldsAt = Callable[[int, int], bool]  # (candidate, rung)


@dataclass(frozen=True, slots=True)
class Raced:
    """`winner`: place among the candidates, None where none holds any rung; `rung`: its best one."""

    winner: int | None
    rung: int | None
    rejected: tuple[int, ...]  # lost in their first replay


def race(candidates: int, holds: HoldsAt, count: int) -> Raced:
    """Over `count` rungs of one window; the first candidate stands for the default and has no one to beat."""
    winner: int | None = None
    best: int | None = None
    rejected = []
    for number in range(candidates):
        probe = None if best is None else best + 1
        if probe is not None and (probe >= count or not holds(number, probe)):
            rejected.append(number)
            continue
        found = search(partial(holds, number), count, probe)
        if found.best is None or (probe is not None and found.best < probe):
            rejected.append(number)  # it held there by luck: what lies under it did not
            continue
        winner, best = number, found.best
    return Raced(winner, best, tuple(rejected))


@dataclass(frozen=True, slots=True)
class Finish:
    """One candidate on one window: its capacity, or the load that it had to beat and did not, or neither."""

    value: float | None
    less_than: float | None = None
    leads: bool = True  # it may win: a control outside the space, or what is not eligible, sets no pace


@dataclass(frozen=True, slots=True)
class Question:
    """What a candidate is asked on a window. `out`: why it is not asked at all; `less_than` is then its bound."""

    beat: float | None = None
    near: float | None = None
    out: str | None = None
    less_than: float | None = None


class Standings:
    """What a race knows so far; candidates by any name of their own."""

    def __init__(self, ladder: Ladder, min_gain: float) -> None:
        self._values, self._min_gain = rungs(ladder), min_gain
        self._seen: dict[tuple[str, int], Finish] = {}

    def learn(self, candidate: str, repeat: int, finish: Finish) -> None:
        """A finished trial. A capacity is worth more than a bound, and a lower bound more than a higher one."""
        known = self._seen.get((candidate, repeat))
        if known is None or _rank(finish) < _rank(known):
            self._seen[candidate, repeat] = finish

    def learn_score(self, candidate: str, repeat: int, score: Score, leads: bool) -> None:
        """The same of a judged trial: what is not feasible has no capacity."""
        self.learn(candidate, repeat, Finish(score.value if score.feasible else None, score.less_than, leads))

    def knows(self, candidate: str, repeat: int) -> bool:
        return (candidate, repeat) in self._seen

    def question(self, candidate: str, repeat: int, raced: bool) -> Question:
        """`raced` False: a control, whose capacity is wanted whatever it is."""
        if raced and repeat and (lost := self._lost(candidate)) is not None:
            return lost
        leader = self._leader(0)
        if not raced or repeat or leader is None:
            return Question(near=self._near(candidate, repeat))
        beat = self._rung_above(leader)
        if beat is None:
            words = f"raced out: nothing on the ladder lies {self._min_gain:.1%} above {leader:g}"
            return Question(out=words, less_than=leader * (1 + self._min_gain))
        return Question(beat=beat)

    def open_questions(self, windows: int) -> list[tuple[str, int]]:
        """(candidate, window) that the race as it stands now would still ask for, though it was asked to its end.

        First the leader's later windows; then those that were rejected by a load above what is to be beaten now.
        """
        leader = max(self._leading(0), key=lambda pair: pair[1], default=None)
        if leader is not None:
            missing = [(leader[0], r) for r in range(windows) if not self.knows(leader[0], r)]
            if missing:
                return missing
        beat = self._rung_above(leader[1]) if leader is not None else math.inf
        bounds = {c: f.less_than for (c, r), f in self._seen.items() if r == 0 and f.value is None and f.less_than}
        return [(c, 0) for c, bound in bounds.items() if leader is None or (beat is not None and bound > beat)]

    def to_be_worse(self, value: float) -> float | None:
        """The load that a candidate must miss to be worse than `value` by min_gain; None where there is none."""
        above = [v for v in self._values if v > value / (1 + self._min_gain)]
        return above[0] if above and above[0] <= value * (1 + _ROUNDING) else None

    def _lost(self, candidate: str) -> Question | None:
        """Further windows are for survivors: those whose capacity on the first one is known."""
        first = self._seen.get((candidate, 0))
        if first is None or first.value is not None:
            return None
        if first.less_than is not None:
            return Question(out="raced out on the first window", less_than=first.less_than)
        return Question(out="it holds no load on the first window")

    def _leader(self, repeat: int) -> float | None:
        """The highest capacity on this window of those that may win."""
        return max((value for _, value in self._leading(repeat)), default=None)

    def _leading(self, repeat: int) -> list[tuple[str, float]]:
        """Those that may win and their capacity on this window; who failed on any window has fallen out."""
        fallen = {c for (c, _), f in self._seen.items() if f.value is None and f.less_than is None}
        return [
            (c, f.value) for (c, r), f in self._seen.items()
            if r == repeat and f.leads and f.value is not None and c not in fallen
        ]  # fmt: skip

    def _rung_above(self, leader: float) -> float | None:
        """The lowest load that is min_gain above it; None where the ladder ends below."""
        rung = rung_from(self._values, leader * (1 + self._min_gain))
        return None if rung is None else self._values[rung]

    def _near(self, candidate: str, repeat: int) -> float | None:
        """Its own capacity on the first window that it has one on, else the leader's here, else on the first."""
        own = sorted((r, f.value) for (c, r), f in self._seen.items() if c == candidate and f.value is not None)
        return own[0][1] if own else self._leader(repeat) or self._leader(0)


def _rank(finish: Finish) -> tuple[bool, float]:
    return finish.value is None, math.inf if finish.less_than is None else finish.less_than
