"""What came of candidates that were asked for, and how much of it a sampler is shown. Pure."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from search_spaces.dimension import Value
from search_spaces.idle import Reached
from search_spaces.neighbours import Key

_MOST_SHOWN = 128  # candidates
_BEST_SHOWN = 32  # of these, the best; the others are the newest, and all that run
MOST_OVER = 10.0  # a bound missed by more than so many times itself tells a model nothing more


@dataclass(frozen=True, slots=True)
class Past:
    """A candidate that was asked for, and what came of it. `values` None: it runs yet, or gave no answer."""

    params: Mapping[str, Value]
    values: tuple[float, ...] | None
    constraints: Mapping[str, float] = field(default_factory=dict)  # <= 0 holds
    running: bool = False
    key: Key = ()  # of `params`, where it is known already
    reached: Reached | None = None  # None: it is not known how far its limits were come to
    over: float = field(init=False, default=0.0)  # by how much it misses its bounds, together

    def __post_init__(self) -> None:
        over = sum(min(bound, MOST_OVER) for bound in self.constraints.values() if bound > 0)
        object.__setattr__(self, "over", over)


def shown(past: Sequence[Past], directions: Sequence[str]) -> list[Past]:
    """What a sampler is shown of the past, in its order: all of it, or 128 of more.

    A model of a thousand candidates proposes no better than one of a hundred and takes minutes (what an ask costs
    must not grow with the search): of many, the best by each direction and the newest are shown, and whatever runs.
    """
    said = [p for p in past if p.values is not None or p.running]
    return said if len(said) <= _MOST_SHOWN else [said[n] for n in _chosen(said, directions)]


def answered_before(past: Sequence[Past]) -> list[int]:
    """How many had answered that were asked for before each."""
    answered = itertools.accumulate((p.values is not None for p in past), initial=0)
    return list(answered)[:-1]


def _chosen(said: Sequence[Past], directions: Sequence[str]) -> list[int]:
    """Places of those that are shown, in order. What misses a bound comes behind all that miss none, by how far."""
    kept = {n for n, p in enumerate(said) if p.running}
    done = [(n, p.over, p.values) for n, p in enumerate(said) if p.values is not None]
    over = np.array([miss for _, miss, _ in done])
    for place, direction in enumerate(directions):
        values = np.array([values[place] for _, _, values in done], dtype=np.float64)
        order = np.lexsort((values if direction == "minimize" else -values, over))
        kept.update(done[n][0] for n in order[: _BEST_SHOWN // len(directions)])
    newest = (n for n in range(len(said) - 1, -1, -1) if n not in kept)
    kept.update(itertools.islice(newest, max(0, _MOST_SHOWN - len(kept))))
    return sorted(kept)
