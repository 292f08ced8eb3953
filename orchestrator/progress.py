"""How far a sweep is: one frozen picture, and who may look at it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Picture:
    """Trials by state (waiting, running, complete, refused, failed, reused), best feasible so far, seconds left."""

    planned: int
    states: Mapping[str, int]
    best: tuple[str, float] | None = None  # (candidate, value of its best trial)
    eta_s: float | None = None
    running: Mapping[int, str] = field(default_factory=dict)  # trial -> where it runs, and what it says of itself
    at_once: int = 1  # slots in service
    fault: str = ""  # the last one
    unit: str = ""  # of the best's value


@dataclass(slots=True)
class Tally:
    """Running totals of a sweep, from which pictures are made."""

    walls_s: list[float] = field(default_factory=list)  # of every attempt of this driver
    best: tuple[str, float] | None = None
    states: dict[str, int] = field(default_factory=dict)
    fault: str = ""  # what last went wrong
    unit: str = ""  # of what is maximised

    def count(self, state: str, label: str, value: float | None) -> None:
        """One more finished trial; `value` None where it may not win."""
        self.states[state] = self.states.get(state, 0) + 1
        if value is not None and (self.best is None or value > self.best[1]):
            self.best = (label, value)

    def picture(self, planned: int, running: Mapping[int, str], at_once: int) -> Picture:
        left = planned - sum(self.states.values())
        states = {"waiting": left - len(running), "running": len(running), **self.states}
        eta_s = sum(self.walls_s) / len(self.walls_s) * left / at_once if self.walls_s and at_once else None
        return Picture(planned, states, self.best, eta_s, dict(running), at_once, self.fault, self.unit)


class Viewer(Protocol):
    """Shows a sweep while it runs."""

    def show(self, picture: Picture) -> None:
        """The state changed."""

    def say(self, text: str) -> None:
        """Something worth a line of its own."""

    def close(self) -> None:
        """The sweep is over; may be called twice."""


class Silent:
    """Shows nothing."""

    def show(self, picture: Picture) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass
