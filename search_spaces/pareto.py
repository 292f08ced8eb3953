"""The front of a search for two things at once: most qualified tokens per second against least waste per token.

A candidate is on it where no other gives at least as much for at most as much waste, and one of the two better.
"""

from collections.abc import Sequence
from statistics import fmean

from search_spaces.candidates import Candidate
from search_spaces.outcome import FrontPoint
from search_spaces.space import Space


def wasted(candidate: Candidate) -> float | None:
    """Mean waste byte-seconds per qualified token over its windows; None where a window has none."""
    found = [trial.score.wasted for trial in candidate.trials.values()]
    kept = [w for w in found if w is not None]
    return fmean(kept) if kept and len(kept) == len(found) else None


def front(candidates: Sequence[Candidate], space: Space) -> tuple[FrontPoint, ...]:
    """The feasible candidates of the space that none dominates, the most tokens first.

    Values are means over windows, so only those that met the most windows are compared.
    """
    able = [c for c in candidates if c.in_space and c.feasible]
    most = max((len(c.trials) for c in able), default=0)
    points = [
        FrontPoint(label=space.label(c.policy), trials=tuple(t.number for _, t in sorted(c.trials.items())),
                   value=c.value, waste_byte_seconds_per_token=waste)
        for c in able if len(c.trials) == most and c.value is not None and (waste := wasted(c)) is not None
    ]  # fmt: skip
    kept = [p for p in points if not any(_dominates(q, p) for q in points)]
    return tuple(sorted(kept, key=lambda p: (-p.value, p.waste_byte_seconds_per_token, p.trials)))


def _dominates(one: FrontPoint, other: FrontPoint) -> bool:
    mine = -one.value, one.waste_byte_seconds_per_token
    theirs = -other.value, other.waste_byte_seconds_per_token
    return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))
