"""What the trials after a search say of its candidates: held-out windows, and survival under bursts. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from search_spaces.noise import paired_gain, paired_interval
from search_spaces.objective import Score, shown
from search_spaces.outcome import Interval
from trials.spec import PoolPolicy

MAX_TRIED = 3  # candidates that have to survive, one after another; then the first one stays, with the reason


@dataclass(frozen=True, slots=True)
class Again:
    """A candidate measured again: on held-out windows, or (`survival`) under bursts."""

    number: int
    repeat: int
    policy: PoolPolicy
    score: Score
    survival: bool = False
    slot: str = ""  # of the executor, where its time was measured


@dataclass(frozen=True, slots=True)
class Proofs:
    """By candidate: `confirmed` trials by window, `survival`: why it did not, empty where it did."""

    confirmed: Mapping[PoolPolicy, Mapping[int, Again]] = field(default_factory=dict)
    survival: Mapping[PoolPolicy, Again] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[PoolPolicy, ...]:
        """Candidates that did not survive, in the order in which they were tried."""
        tried = sorted(self.survival.values(), key=lambda again: again.number)
        return tuple(a.policy for a in tried if not a.score.feasible)

    @property
    def barred(self) -> tuple[PoolPolicy, ...]:
        """Those that others are tried instead of; nobody where so many failed that it is not their fault."""
        return self.failed if len(self.failed) < MAX_TRIED else ()

    def why_not_survived(self, policy: PoolPolicy) -> str | None:
        again = self.survival.get(policy)
        if again is None or again.score.feasible:
            return None
        return f"does not survive bursts of cancels and forks: {'; '.join(again.score.reasons)}"

    def fails(self, policy: PoolPolicy) -> str | None:
        """Why it may not win on a held-out window."""
        found = self.confirmed.get(policy, {}).values()
        return next(
            (f"on a held-out window: {'; '.join(a.score.reasons)}" for a in found if not a.score.feasible), None
        )

    def loses(self, policy: PoolPolicy, other: PoolPolicy, by: float, name: str) -> str | None:
        """Whether another one is ahead of it on the held-out windows by more than this share of its value."""
        own, theirs = self.values(policy), self.values(other)
        shared = own.keys() & theirs.keys()
        if policy == other or not shared or self.fails(other):
            return None
        mean, ahead = (fmean(values[r] for r in shared) for values in (own, theirs))
        if ahead - mean <= by * abs(mean):
            return None
        return f"loses on held-out windows: {shown(mean)} against {shown(ahead)} of {name}"

    def values(self, policy: PoolPolicy) -> dict[int, float]:
        found = self.confirmed.get(policy, {})
        return {r: a.score.value for r, a in found.items() if a.score.value is not None}

    def share(self, policy: PoolPolicy, other: PoolPolicy) -> float | None:
        """What the first gives over the second on the held-out windows of both; None where they share none."""
        gain = paired_gain(self.values(policy), self.values(other))
        return None if gain is None else 1 + gain

    def interval(self, policy: PoolPolicy, other: PoolPolicy, seed: int) -> Interval | None:
        """policy - other over the held-out windows."""
        return paired_interval(self.values(policy), self.values(other), seed)


def proofs_of(again: Sequence[Again]) -> Proofs:
    """The first trial of each kind counts."""
    confirmed: dict[PoolPolicy, dict[int, Again]] = {}
    survival: dict[PoolPolicy, Again] = {}
    for one in sorted(again, key=lambda a: a.number):
        if one.survival:
            survival.setdefault(one.policy, one)
        else:
            confirmed.setdefault(one.policy, {}).setdefault(one.repeat, one)
    return Proofs(confirmed, survival)
