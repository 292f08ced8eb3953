"""Racing for capacity: a challenger has to beat the incumbent at once, or it costs one replay.

Every candidate is measured on the same rungs (trials/bracket.py). The first is searched whole. Each one behind it
is probed a lead above the incumbent's best rung, where one that is no better fails, and early; one that holds there
becomes the incumbent and is searched from where it stands. Further windows are for survivors alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low

from trials.bracket import Bracket, search

HoldsAt = Callable[[int, int, int], bool]  # (candidate, window, rung)


@dataclass(frozen=True, slots=True)
class Raced:
    """`winner`: place among the candidates, None where none holds any rung. `rungs`: its best one, by window."""

    winner: int | None
    rungs: tuple[int, ...]
    brackets: tuple[tuple[int, Bracket], ...]  # (candidate, its bracket on the first window), of incumbents
    rejected: tuple[int, ...]  # lost in their first replay
    dropped: tuple[int, ...] = ()  # won the first window and lost the median of all


def lead_rungs(min_gain: float, ratio: float) -> int:
    """How many rungs of this ratio make up a gain that is worth having; at least one."""
    return max(1, math.ceil(math.log1p(min_gain) / math.log(ratio) - 1e-9))


def race(candidates: int, holds: HoldsAt, count: int, lead: int = 1, windows: int = 1) -> Raced:
    """Race `candidates` over `count` rungs; the first stands for the default and has no one to beat."""
    field: list[tuple[int, Bracket]] = []
    rejected = []
    for number in range(candidates):
        incumbent = field[-1][1].best if field else None
        probe = None if incumbent is None else incumbent + lead
        if probe is not None and (probe >= count or not holds(number, 0, probe)):
            rejected.append(number)
            continue
        found = search(_on(holds, number, 0), count, probe if probe is not None else _hint(field))
        if found.best is None or (probe is not None and found.best < probe):
            rejected.append(number)  # it held there by luck: what lies under it did not
            continue
        field.append((number, found))
    return _on_all_windows(field, rejected, holds, (count, lead, windows))


def _hint(field: Sequence[tuple[int, Bracket]]) -> int | None:
    return field[-1][1].best if field else None


def _on(holds: HoldsAt, number: int, window: int) -> Callable[[int], bool]:
    return lambda rung: holds(number, window, rung)


def _on_all_windows(
    field: list[tuple[int, Bracket]], rejected: list[int], holds: HoldsAt, size: tuple[int, int, int]
) -> Raced:
    """The last incumbent, unless its lead is gone once all windows are in; then the one that it beat, and so on."""
    count, lead, windows = size
    dropped: list[int] = []
    best: tuple[int, tuple[int, ...]] | None = None
    for number, bracket in reversed(field):
        rungs = [bracket.best if bracket.best is not None else -1]
        for window in range(1, windows):
            found = search(_on(holds, number, window), count, rungs[0])
            rungs.append(-1 if found.best is None else found.best)
        if best is None:
            best = number, tuple(rungs)
            if windows == 1:
                break
        elif median_low(rungs) + lead > median_low(best[1]):
            dropped.append(best[0])
            best = number, tuple(rungs)
        else:
            break
    winner, rungs_of = best if best is not None else (None, ())
    return Raced(winner, rungs_of, tuple(field), tuple(rejected), tuple(dropped))
