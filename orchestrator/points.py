"""Trials to be: points of a space, controls, and candidates that are measured again beside the budget."""

from dataclasses import dataclass
from typing import Literal

from search_spaces.space import Value

Role = Literal["slot", "reprieve", "neighbour", "confirm", "survival"]
OF_THE_SEARCH: tuple[Role | None, ...] = (
    None,
    "slot",
    "reprieve",
    "neighbour",
)  # what counts as a measurement of it


@dataclass(frozen=True, slots=True)
class Beside:
    """Why a candidate is measured again beside the budget. `of`: a trial of it; `beat`: a load to be held."""

    role: Role
    of: int
    beat: float | None = None
    slot: str | None = None  # where it has to run


@dataclass(frozen=True, slots=True)
class Point:
    """One trial to be: a candidate of the space (`params`, policy fields) or a control, on one window.

    `repeat` counts the searched windows, then the held-out ones, then the one of survival.
    """

    params: tuple[tuple[str, Value], ...]
    control: str | None
    repeat: int
    beside: Beside | None = None
