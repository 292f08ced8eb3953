"""When a sweep asks for no more trials: rules that are looked at before each ask, each a small function.

A rule says why nothing more is asked for, or None. What runs is ended in order and told; what was not asked for is
left for `kvknee resume`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a sweep is when it would ask again. `slot_s`: seconds that attempts of this driver have held a slot,
    those that run included; `mean_s`: of those that ended, None before the first."""

    now_s: float  # the wall clock
    finished: int
    running: int
    slot_s: float
    mean_s: float | None = None


Stop = Callable[[Standing], str | None]


def first_reason(stops: Sequence[Stop], standing: Standing) -> str | None:
    """What the first rule that stops says."""
    return next((reason for stop in stops if (reason := stop(standing)) is not None), None)
