"""From measured candidates to the outcome of a sweep. Pure; the words are made in `verdicts`.

Ties: the paired interval of (best - candidate) over the same windows includes 0, or the gain stays under
min_gain. Of the tied, the default stays if it is among them; else the one that wastes fewest byte-seconds per
qualified token at one load that all of them met.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from search_spaces.noise import paired_interval
from search_spaces.objective import Score, missed_words
from search_spaces.outcome import ClauseSeen, Interval, Kind
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


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides between candidates."""

    objective: str
    min_gain: float  # share
    num_repeats: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy and its trials by repeat; where a window was met more than once, the first counts."""

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


@dataclass(frozen=True, slots=True)
class Choice:
    """`best` has the highest mean, `winner` is what ties leave of it."""

    best: Candidate
    tied: tuple[Candidate, ...]
    winner: Candidate


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that `verdicts.describe` puts into words."""

    kind: Kind
    candidates: tuple[Candidate, ...]
    choice: Choice | None
    behind: tuple[Interval | None, ...]  # best - candidate, in the order of `candidates`
    smallest_effect: float | None
    phases_agree: bool
    beyond: tuple[Candidate, ...] = ()  # measured and worse, next to the tied set
    missing: tuple[str, ...] = ()  # what was not measured, or where the domain ends


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
        for trial in trials:
            by_repeat.setdefault(trial.repeat, trial)
        names = tuple(dict.fromkeys(t.control for t in trials if t.control))
        found.append(Candidate(policy, by_repeat, names, space.contains(policy), policy == space.default))
    return tuple(sorted(found, key=lambda c: (not c.in_space, space.position(c.policy) or ())))


def decide(measured: Sequence[Measured], space: Space, rules: Rules) -> Decision:
    candidates = group(measured, space)
    feasible = [c for c in candidates if c.in_space and c.feasible]
    if not feasible:
        return Decision("infeasible", candidates, None, (None,) * len(candidates), None, True)
    choice = _choose(feasible, rules, lambda c: c.values)
    behind = tuple(
        None if c is choice.best or not c.feasible else paired_interval(choice.best.values, c.values, rules.seed)
        for c in candidates
    )
    effect = _smallest_effect(candidates, behind, choice, rules)
    agree = _phases_agree(feasible, choice, rules)
    decision = Decision("knee", candidates, choice, behind, effect, agree)
    return _placed(decision, space)


def _choose(feasible: Sequence[Candidate], rules: Rules, values: Callable[[Candidate], dict[int, float]]) -> Choice:
    best = max(feasible, key=lambda c: fmean(values(c).values()))
    tied = tuple(c for c in feasible if c is best or _ties(values(best), values(c), rules))
    default = next((c for c in tied if c.is_default), None)
    return Choice(best, tied, default or _least_waste(tied, best))


def _ties(best: dict[int, float], other: dict[int, float], rules: Rules) -> bool:
    shared = best.keys() & other.keys()
    if not shared:
        return True  # never met on one window: nothing tells them apart
    base = fmean(other[r] for r in shared)
    gain = fmean(best[r] - other[r] for r in shared)
    interval = paired_interval(best, other, rules.seed)
    return gain < rules.min_gain * abs(base) or (interval is not None and interval.low <= 0 <= interval.high)


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


def _least_waste(tied: Sequence[Candidate], best: Candidate) -> Candidate:
    load = common_load(tied)
    if load is None:
        return best
    return min(tied, key=lambda c: waste(c, load) or 0.0)


def _smallest_effect(
    candidates: Sequence[Candidate], behind: Sequence[Interval | None], choice: Choice, rules: Rules
) -> float:
    """Share of the winner's value that this sweep could have told apart: half a typical interval."""
    base = choice.winner.value or 0.0
    halves = [(i.high - i.low) / 2 for c, i in zip(candidates, behind, strict=True) if i and c.in_space]
    return max(rules.min_gain, median(halves) / base) if halves and base else rules.min_gain


def _phases_agree(feasible: Sequence[Candidate], choice: Choice, rules: Rules) -> bool:
    """Whether every other phase would also have left the winner among its tied best."""
    phases = {p.phase for t in choice.winner.trials.values() for p in t.score.phases}
    return all(_holds_in(phase, feasible, choice.winner, rules) for phase in phases)


def _holds_in(phase: str, feasible: Sequence[Candidate], winner: Candidate, rules: Rules) -> bool:
    seen: dict[int, dict[int, float]] = {}
    for index, candidate in enumerate(feasible):
        of_phase = {r: p for r, t in candidate.trials.items() for p in t.score.phases if p.phase == phase}
        if len(of_phase) == len(candidate.trials) and all(p.feasible for p in of_phase.values()):
            seen[index] = {r: p.value for r, p in of_phase.items()}
    place = next(i for i, c in enumerate(feasible) if c is winner)
    if place not in seen:
        return False
    best = max(seen, key=lambda i: fmean(seen[i].values()))
    return best == place or _ties(seen[best], seen[place], rules)


def _placed(decision: Decision, space: Space) -> Decision:
    """Tell knee, edge, flat and open apart by what lies beyond the tied set."""
    assert decision.choice is not None
    inside = [c for c in decision.candidates if c.in_space]
    tied = {id(c) for c in decision.choice.tied}
    if len(inside) > 1 and all(id(c) in tied for c in inside):
        gaps = space.num_candidates - len(inside) if space.enumerable else 0
        words = (f"{gaps} candidates of the space were not measured",) if gaps else ()
        return replace(decision, kind="flat", missing=words)
    start = space.position(decision.choice.winner.policy)
    if start is None:
        return replace(decision, kind="open", missing=("the space is continuous: no candidate lies next to it",))
    at = {p: c for c in inside if (p := space.position(c.policy)) is not None}
    beyond, unmeasured, edges = [], [], []
    for axis, line in space.lines(start):
        for place in line:
            candidate = at.get(place)
            if candidate is None or candidate.value is None:
                unmeasured.append(f"{space.dimensions[axis].label}={space.dimensions[axis].values[place[axis]]}")
                break
            if id(candidate) not in tied:
                beyond.append(candidate)
                break
        else:
            if space.dimensions[axis].categorical:
                continue  # categories have no end
            edges.append(_end(space, axis, line, start))
    kind: Kind = "open" if unmeasured else "edge" if edges else "knee"
    return replace(decision, kind=kind, beyond=tuple(beyond), missing=tuple(unmeasured or edges))


def _end(space: Space, axis: int, line: list[tuple[int, ...]], start: tuple[int, ...]) -> str:
    dimension = space.dimensions[axis]
    return f"{dimension.label}={dimension.values[(line[-1] if line else start)[axis]]}"
