"""What a trial never came to: limits and rules that had nothing to decide in it, so that moving them tells nothing.

Where nobody was preempted, the rule of who is preempted was never asked; where at most 20 requests ran at once, a
limit of 64 and one of 256 are the same schedule. A search that knows it spends no trial on such a twin. It is a
reason not to propose one, never a reason to take its result as known: an engine may warm up otherwise for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials.result import TrialResult


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a trial went, over all its replays: most requests that ran at once, and how often blocks were taken
    from somebody (preemptions) or from the cache (evictions)."""

    most_running: int
    preemptions: int
    evictions: int

    def __or__(self, other: "Reached") -> "Reached":
        """Of two trials of one candidate: the further."""
        return Reached(
            max(self.most_running, other.most_running),
            max(self.preemptions, other.preemptions),
            max(self.evictions, other.evictions),
        )

    @property
    def idle_rules(self) -> tuple[str, ...]:
        """Fields of a policy that were never asked."""
        unpreempted = () if self.preemptions else ("victim", "preemption")
        return (*unpreempted, *(() if self.evictions else ("eviction",)))


def reached(result: TrialResult) -> Reached | None:
    """None where nothing was replayed, or nothing ran."""
    seen = [r.observation for r in result.replays]
    most = max((o.most_running for o in seen), default=0)
    if not most:
        return None
    evictions = sum(r.metrics.evict_events for r in result.replays)
    return Reached(most, sum(o.preemptions for o in seen), evictions)


@dataclass(frozen=True, slots=True)
class Grid:
    """Every candidate of a space. places: int [candidates, fields], of a value among its field's; fields: names;
    limits: the values of max_num_seqs in the order of its places, empty where the space does not move it."""

    places: NDArray[np.int64]
    fields: tuple[str, ...]
    limits: tuple[int, ...] = ()

    def twins(self, row: int, seen: Reached) -> NDArray[np.bool_]:
        """bool [candidates]: who can differ from this one in nothing that was ever decided, itself included."""
        here = self.places[row]
        asked = [n for n, name in enumerate(self.fields) if name not in (*seen.idle_rules, "max_num_seqs")]
        same: NDArray[np.bool_] = (self.places[:, asked] == here[asked]).all(axis=1)
        if "max_num_seqs" not in self.fields:
            return same
        at = self.fields.index("max_num_seqs")
        same &= self._as_wide(at, int(here[at]), seen)
        return same

    def _as_wide(self, at: int, place: int, seen: Reached) -> NDArray[np.bool_]:
        """Limits that nobody came to, where this one was not come to; else the same limit alone."""
        if self.limits[place] <= seen.most_running:
            alone: NDArray[np.bool_] = self.places[:, at] == place
            return alone
        wide = np.array([limit > seen.most_running for limit in self.limits])
        chosen: NDArray[np.bool_] = wide[self.places[:, at]]
        return chosen


def told_by(grid: Grid, rows: Sequence[int], seen: Sequence[Reached | None]) -> NDArray[np.bool_]:
    """bool [candidates]: measured, or the twin of one that was."""
    known = np.zeros(len(grid.places), dtype=np.bool_)
    for row, one in zip(rows, seen, strict=True):
        known[row] = True
        if one is not None:
            known |= grid.twins(row, one)
    return known
