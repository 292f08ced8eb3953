"""Candidates and their trials: what was measured of one on each window, what speaks against it, what it wastes.

A race leaves bounds where it did not ask for more: a candidate whose value is known only to stay under one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from search_spaces.objective import Score, missed_words
from search_spaces.outcome import ClauseSeen
from search_spaces.space import Space
from trials.spec import PoolPolicy


@dataclass(frozen=True, slots=True)
class Measured:
    """One finished trial: which candidate, on which window (`repeat`), and how it was judged."""

    number: int
    repeat: int
    policy: PoolPolicy
    score: Score
    control: str | None = None
    block_size: int = 0  # effective; 0 = never read back
    evidence: str = ""
    slot: str = ""  # of the executor, where its time was measured


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy and its trials by repeat; where a window was met more than once, the first measurement counts."""

    policy: PoolPolicy
    trials: dict[int, Measured]
    controls: tuple[str, ...]
    in_space: bool
    is_default: bool

    @property
    def values(self) -> dict[int, float]:
        return {r: t.score.value for r, t in self.trials.items() if t.score.value is not None}

    @property
    def value(self) -> float | None:
        return fmean(self.values.values()) if len(self.values) == len(self.trials) and self.trials else None

    @property
    def feasible(self) -> bool:
        return bool(self.trials) and all(t.score.feasible for t in self.trials.values())

    @property
    def void(self) -> bool:
        """Whether it was measured in a way that tells nothing of it, on any window."""
        return any(t.score.void for t in self.trials.values())

    @property
    def at_least(self) -> bool:
        """Whether its value is a lower bound: on some window the ladder ended before any load failed."""
        return any(t.score.at_least for t in self.trials.values())

    @property
    def less_than(self) -> float | None:
        """What its value on the first window is known to stay under, where a race never asked for more."""
        first = self.trials.get(0)
        return first.score.less_than if first is not None and first.score.value is None else None

    @property
    def why_not(self) -> tuple[str, ...]:
        """Each bound that was missed, at its worst, then each other ground; with the repeats that met it."""
        at: dict[str, list[int]] = {}
        words: dict[str, str] = {}
        for clause in self.clauses:
            missed_in = [
                r for r, t in sorted(self.trials.items()) if clause.text in {c.text for c in t.score.missed}
            ]
            if missed_in:
                at[clause.text], words[clause.text] = missed_in, missed_words(clause)
        for repeat, trial in sorted(self.trials.items()):
            for ground in trial.score.grounds:
                at.setdefault(ground, []).append(repeat)
                words[ground] = ground
        every = len(self.trials)
        return tuple(
            words[k] if len(r) == every else f"{words[k]} (repeat {', '.join(map(str, r))})" for k, r in at.items()
        )

    @property
    def clauses(self) -> tuple[ClauseSeen, ...]:
        """Each bound at its worst repeat."""
        worst: dict[str, ClauseSeen] = {}
        for trial in self.trials.values():
            for clause in trial.score.clauses:
                kept = worst.get(clause.text)
                if kept is None or excess(clause) > excess(kept):
                    worst[clause.text] = clause
        return tuple(worst.values())

    @property
    def binding(self) -> ClauseSeen | None:
        return max(self.clauses, key=excess, default=None)


def excess(clause: ClauseSeen) -> float:
    """Share beyond the limit; infinite where nothing finite was observed."""
    return float("inf") if clause.over is None else clause.over


def group(measured: Sequence[Measured], space: Space) -> tuple[Candidate, ...]:
    """One candidate a policy; those of the space first, in its order, then controls outside it."""
    by_policy: dict[PoolPolicy, list[Measured]] = {}
    for trial in sorted(measured, key=lambda m: m.number):
        by_policy.setdefault(trial.policy, []).append(trial)
    found = []
    for policy, trials in by_policy.items():
        by_repeat: dict[int, Measured] = {}
        ran = [t for t in trials if t.score.run] or trials  # out of a race: its later windows were never run
        for trial in sorted(ran, key=_worth):
            by_repeat.setdefault(trial.repeat, trial)
        names = tuple(dict.fromkeys(t.control for t in trials if t.control))
        found.append(Candidate(policy, by_repeat, names, space.contains(policy), policy == space.default))
    return tuple(sorted(found, key=lambda c: (not c.in_space, space.position(c.policy) or ())))


def _worth(trial: Measured) -> tuple[int, float]:
    """A measurement before a bound, a low bound before a high one, and both before nothing; of equals the first."""
    if trial.score.value is not None:
        return 0, 0.0
    return (2, 0.0) if trial.score.less_than is None else (1, trial.score.less_than)


def common_load(tied: Sequence[Candidate]) -> str | None:
    """The highest load that every trial of every one of them met, as its label."""
    met = [{load for load, _ in t.score.waste_per_token} for c in tied for t in c.trials.values()]
    shared = set.intersection(*met) if met else set()
    return max(shared, key=lambda label: float(label.partition("=")[2] or 0), default=None)


def waste(candidate: Candidate, load: str | None) -> float | None:
    """Mean waste byte-seconds per qualified token at this load."""
    found = [dict(t.score.waste_per_token).get(load or "") for t in candidate.trials.values()]
    kept = [w for w in found if w is not None]
    return fmean(kept) if kept and len(kept) == len(found) else None
