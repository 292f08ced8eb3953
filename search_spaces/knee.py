"""From measured candidates to the outcome of a sweep. Pure; the words are made in `verdicts`.

Ties: the paired interval of (best - candidate) over the same windows includes 0, or the gain stays under
min_gain. Of the tied, the default stays if it is among them; else the one that wastes fewest byte-seconds per
qualified token at one load that all of them met.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from search_spaces.candidates import Candidate, common_load, group, waste
from search_spaces.candidates import Measured as Measured
from search_spaces.noise import paired_interval
from search_spaces.outcome import Interval, Kind
from search_spaces.proofs import Again, Proofs, proofs_of
from search_spaces.slots import Effects, levelled, slot_effects
from search_spaces.space import Space


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides between candidates."""

    objective: str
    min_gain: float  # share
    num_repeats: int
    seed: int = 0


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
    proofs: Proofs = field(default_factory=Proofs)
    slots: Effects = field(default_factory=dict)
    beyond: tuple[Candidate, ...] = ()  # next to the tied set: measured, and worse or unable to win
    missing: tuple[str, ...] = ()  # what was not measured, or where the domain ends

    @property
    def default(self) -> Candidate | None:
        return next((c for c in self.candidates if c.is_default), None)

    def may_win(self, candidate: Candidate) -> bool:
        """Whether it is a candidate of the space that is feasible and survives, as far as that was tried."""
        return candidate.in_space and candidate.feasible and candidate.policy not in self.proofs.barred

    @property
    def best_fixed_block(self) -> Candidate | None:
        """The best of those that are the default but for their block size, and may win; None where none may."""
        if self.default is None:
            return None
        policy = self.default.policy
        fixed = [
            c for c in self.candidates
            if self.may_win(c) and c.policy.model_copy(update={"block_size": policy.block_size}) == policy
        ]  # fmt: skip
        level = _levels([c.values for c in fixed]) if fixed else []
        return fixed[max(range(len(fixed)), key=lambda k: level[k])] if fixed else None


def decide(measured: Sequence[Measured], space: Space, rules: Rules, again: Sequence[Again] = ()) -> Decision:
    """`again`: trials after the search; who did not survive its bursts is not chosen while another can be.

    Values are those of a slot that gives the mean, from here on.
    """
    slots = slot_effects(measured)
    candidates, proofs = group(levelled(measured, slots), space), proofs_of(levelled(again, slots))
    able = [c for c in candidates if c.in_space and c.feasible]
    if not able:
        nobody = (None,) * len(candidates)
        return Decision("infeasible", candidates, None, nobody, None, True, proofs, slots)
    feasible = [c for c in able if c.policy not in proofs.barred] or able
    choice = _choose(feasible, rules)
    behind = tuple(
        None if c is choice.best or not c.feasible else paired_interval(choice.best.values, c.values, rules.seed)
        for c in candidates
    )
    effect = _smallest_effect(candidates, behind, choice, rules)
    agree = _phases_agree(feasible, choice, rules)
    decision = Decision("knee", candidates, choice, behind, effect, agree, proofs, slots)
    return _placed(decision, space)


def _choose(feasible: Sequence[Candidate], rules: Rules) -> Choice:
    level = _levels([c.values for c in feasible])
    best = feasible[max(range(len(feasible)), key=lambda k: level[k])]
    tied = tuple(c for c in feasible if c is best or _ties(best.values, c.values, rules))
    default = next((c for c in tied if c.is_default), None)
    return Choice(best, tied, default or _least_waste(tied, best))


def _levels(values: Sequence[dict[int, float]]) -> list[float]:
    """Means over the windows, where all met the same ones. Windows differ more than candidates do: one that met
    fewer is placed by its differences to the one that met most, on the windows that both met."""
    most = max(values, key=len)
    found = []
    for own in values:
        shared = own.keys() & most.keys()
        apart = fmean(own[r] - most[r] for r in shared) if shared else fmean(own.values()) - fmean(most.values())
        found.append(fmean(most.values()) + apart if own.keys() != most.keys() else fmean(own.values()))
    return found


def _ties(best: dict[int, float], other: dict[int, float], rules: Rules) -> bool:
    shared = best.keys() & other.keys()
    if not shared:
        return True  # never met on one window: nothing tells them apart
    base = fmean(other[r] for r in shared)
    gain = fmean(best[r] - other[r] for r in shared)
    interval = paired_interval(best, other, rules.seed)
    return gain < rules.min_gain * abs(base) or (interval is not None and interval.low <= 0 <= interval.high)


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
    best = max(zip(seen, _levels(list(seen.values())), strict=True), key=lambda pair: pair[1])[0]
    return best == place or _ties(seen[best], seen[place], rules)


def _placed(decision: Decision, space: Space) -> Decision:
    """Tell knee, edge, flat and open apart by what lies beyond the tied set."""
    assert decision.choice is not None
    inside = [c for c in decision.candidates if c.in_space]
    tied = {id(c) for c in decision.choice.tied}
    open_ones = [c for c in inside if c.less_than is not None and not _is_worse(c, decision.choice.winner)]
    if len(inside) > 1 and all(id(c) in tied or c in open_ones for c in inside):
        gaps = space.num_candidates - len(inside) if space.enumerable else 0
        words = [f"{gaps} candidates of the space were not measured"] if gaps else []
        words += [f"of {len(open_ones)} it is only known that they are not better"] if open_ones else []
        return replace(decision, kind="flat", missing=tuple(words))
    start = space.position(decision.choice.winner.policy)
    if start is None:
        return replace(decision, kind="open", missing=("the space is continuous: no candidate lies next to it",))
    at = {p: c for c in inside if (p := space.position(c.policy)) is not None}
    beyond, unmeasured, edges = [], [], []
    for axis, line in space.lines(start):
        for place in line:
            candidate = at.get(place)
            if candidate is not None and _is_worse(candidate, decision.choice.winner):
                beyond.append(candidate)
                break
            if candidate is None or candidate.value is None or candidate.void:
                name = f"{space.dimensions[axis].label}={space.dimensions[axis].values[place[axis]]}"
                unmeasured.append(name if candidate is None or not candidate.void else f"{name} (void)")
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


def _is_worse(candidate: Candidate, winner: Candidate) -> bool:
    """Whether a race left it under what the winner is on the first window."""
    bound, first = candidate.less_than, winner.values.get(0)
    return bound is not None and first is not None and bound <= first


def unresolved(decision: Decision, space: Space) -> tuple[Candidate, ...]:
    """Next to the tied set, those of which a race knows only that they are not better than the winner."""
    if decision.choice is None or (start := space.position(decision.choice.winner.policy)) is None:
        return ()
    at = {p: c for c in decision.candidates if c.in_space and (p := space.position(c.policy)) is not None}
    tied = {id(c) for c in decision.choice.tied}
    firsts = [
        next((c for place in line if id(c := at.get(place)) not in tied), None) for _, line in space.lines(start)
    ]
    winner = decision.choice.winner
    return tuple(c for c in firsts if c is not None and c.less_than is not None and not _is_worse(c, winner))
