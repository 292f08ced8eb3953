"""What a sweep came to: the words of knee.json. Keys are stable; scripts, recipe and report read them.

kind: knee (measured, what lies beyond it on every side measured and worse) | edge (the tied set reaches the end
of the domain) | flat (all tied: keep the default) | open (what lies beyond the best was not measured) |
infeasible (no candidate kept the SLO; `nearest_miss` says how far the best was).
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["knee", "edge", "flat", "open", "infeasible"]
Verdict = Literal["ship", "inspect", "reject"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(_Model):
    """Mean paired difference over the same windows, and its bootstrap interval; same unit as the objective."""

    mean: float
    low: float
    high: float


class ClauseSeen(_Model):
    """One bound, at its worst repeat. `over` = share beyond the limit, <= 0 where it holds; None = infinite."""

    text: str
    observed: float | None
    limit: float
    over: float | None


class CandidateOutcome(_Model):
    """One candidate (a policy) over its repeats. `values` follow `trials`; None where a trial cannot count."""

    label: str
    controls: tuple[str, ...] = ()  # the control names it answers to
    in_space: bool = True
    is_default: bool = False
    block_size: int  # effective where it was read back, else requested
    policy: dict[str, Any]
    trials: tuple[int, ...]
    repeats: tuple[int, ...]
    values: tuple[float | None, ...]
    value: float | None  # mean over the repeats; None where any cannot count
    less_than: float | None = None  # raced out: its value on the first window is less than this
    at_least: bool = False  # the ladder of loads ended before any load failed: its value is a lower bound
    feasible: bool
    why_not: tuple[str, ...] = ()
    clauses: tuple[ClauseSeen, ...] = ()
    binding: str = ""
    waste_byte_seconds_per_token: float | None = None
    behind_best: Interval | None = None  # best - this; None with one repeat or where it is not feasible
    tied: bool = False
    evidence: str = ""

    @property
    def least(self) -> str:
        """What stands before its value where that is a lower bound."""
        return ">= " if self.at_least else ""


class VerdictRow(_Model):
    """One line of the verdict table."""

    option: str
    control: bool
    signal: str
    verdict: Verdict
    reason: str


class NearestMiss(_Model):
    """The candidate that came closest to being feasible, and its worst bound."""

    label: str
    trial: int
    clause: str
    observed: float | None
    limit: float
    over: float | None  # share beyond the limit; None = without bound


class FrontPoint(_Model):
    """A candidate that no other beats in both: means over its windows."""

    label: str
    trials: tuple[int, ...]
    value: float  # qualified tokens per second
    waste_byte_seconds_per_token: float


class Confirmed(_Model):
    """A candidate measured again on windows that the search never saw. `values` follow `trials`."""

    label: str
    parts: tuple[str, ...]  # winner, default, best_fixed_block: what it was confirmed as
    trials: tuple[int, ...]
    values: tuple[float | None, ...]
    feasible: bool
    why_not: str = ""
    behind_winner: Interval | None = None  # winner - this; None with one window
    share_of_winner: float | None = None  # its mean over the winner's


class Survival(_Model):
    """A candidate under bursts of cancels and forks."""

    label: str
    trial: int
    survived: bool
    reason: str = ""


class Outcome(_Model):
    """knee.json: what the sweep came to."""

    kind: Kind
    sentence: str
    objective: str
    winner: str | None = None  # label of a candidate
    winner_trial: int | None = None  # its first repeat
    winner_trials: tuple[int, ...] = ()
    tied: tuple[str, ...] = ()
    binding: str = ""
    planned_effect: float | None = None  # share that was expected to be visible, before anything ran
    # Slot -> what it gives over the mean, by its controls. Every value here is what was measured, divided by it.
    slot_effects: dict[str, float] = Field(default_factory=dict)
    smallest_effect: float | None = None  # share of the winner's value that this sweep could have seen
    nearest_miss: NearestMiss | None = None
    min_gain: float
    num_repeats: int
    noise: str  # how ties were judged, in words
    phases_agree: bool = True
    candidates: tuple[CandidateOutcome, ...] = ()
    verdicts: tuple[VerdictRow, ...] = ()
    front: tuple[FrontPoint, ...] = ()  # objective pareto: most tokens first
    confirmed: tuple[Confirmed, ...] = ()  # the winner first
    survival: tuple[Survival, ...] = ()  # in the order in which they were tried
    notes: tuple[str, ...] = Field(default=())

    def candidate(self, label: str) -> CandidateOutcome:
        return next(c for c in self.candidates if c.label == label)
