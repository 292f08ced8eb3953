"""The outcome in words: one sentence, and a verdict (ship | inspect | reject) with its reason for every option."""

from collections.abc import Sequence

from search_spaces.again import confirmed, doubts_again, survivals
from search_spaces.candidates import Candidate, common_load, excess, waste
from search_spaces.knee import Decision, Rules
from search_spaces.noise import ASSUMED_SPREAD, COVERAGE, paired_gain, visible_effect
from search_spaces.objective import shown
from search_spaces.outcome import (
    CandidateOutcome,
    ClauseSeen,
    Interval,
    NearestMiss,
    Outcome,
    Verdict,
    VerdictRow,
)
from search_spaces.pareto import front
from search_spaces.slots import effect_words
from search_spaces.space import Space

_MOST_NAMED = 6  # candidates of a sentence; the tables have all
_MOST = {
    "qualified_output_throughput": "most qualified tokens among the feasible",
    "capacity_load": "the largest load among the feasible",
    "pareto": "most qualified tokens among the feasible; `front` has what wastes less",
}
UNITS = {"qualified_output_throughput": "qualified tok/s", "capacity_load": "load", "pareto": "qualified tok/s"}


def describe(decision: Decision, space: Space, rules: Rules, notes: Sequence[str] = ()) -> Outcome:
    """The model of knee.json."""
    choice = decision.choice
    winner = choice.winner if choice else None
    binding = winner.binding if winner else None
    miss = None if choice else _nearest_miss(decision.candidates, space)
    labels = tuple(label(c, space) for c in choice.tied) if choice else ()
    return Outcome(
        kind=decision.kind,
        sentence=_sentence(decision, space, rules, miss),
        objective=rules.objective,
        winner=label(winner, space) if winner else None,
        winner_trial=_numbers(winner)[0] if winner else None,
        winner_trials=_numbers(winner) if winner else (),
        tied=labels,
        binding=binding.text if binding else miss.clause if miss else "",
        planned_effect=visible_effect(rules.num_repeats, ASSUMED_SPREAD, rules.min_gain),
        slot_effects=dict(decision.slots),
        smallest_effect=decision.smallest_effect,
        nearest_miss=miss,
        min_gain=rules.min_gain,
        num_repeats=rules.num_repeats,
        noise=_noise(rules),
        phases_agree=decision.phases_agree,
        candidates=tuple(_candidate(c, i, decision, space) for c, i in _with_intervals(decision)),
        verdicts=tuple(_verdict(c, i, decision, space, rules) for c, i in _with_intervals(decision)),
        front=front(decision.candidates, space) if rules.objective == "pareto" else (),
        confirmed=confirmed(decision, space, rules),
        survival=survivals(decision, space),
        notes=(*notes, *((said,) if (said := effect_words(decision.slots, rules.min_gain)) else ())),
    )


def label(candidate: Candidate, space: Space) -> str:
    """`block_size=16`; a control outside the space goes by its name."""
    if candidate.in_space or not candidate.controls:
        return space.label(candidate.policy)
    return candidate.controls[0]


def first_named(labels: Sequence[str]) -> str:
    """As a sentence names them: where they are many the first, and how many more there are."""
    more = f" and {len(labels) - _MOST_NAMED} more" if len(labels) > _MOST_NAMED else ""
    return f"{', '.join(labels[:_MOST_NAMED])}{more}"


def _with_intervals(decision: Decision) -> list[tuple[Candidate, Interval | None]]:
    return list(zip(decision.candidates, decision.behind, strict=True))


def _numbers(candidate: Candidate) -> tuple[int, ...]:
    return tuple(t.number for _, t in sorted(candidate.trials.items()))


def _tied(candidate: Candidate, decision: Decision) -> bool:
    return decision.choice is not None and any(c is candidate for c in decision.choice.tied)


def _noise(rules: Rules) -> str:
    if rules.num_repeats < 2:
        return f"1 repeat: no interval; ties by min_gain {rules.min_gain:.0%} only"
    return (
        f"paired bootstrap over the same {rules.num_repeats} windows, {COVERAGE:.0%}"
        f"{' (their full range)' if rules.num_repeats < 4 else ''}; ties also under min_gain {rules.min_gain:.0%}"
    )


def _candidate(c: Candidate, behind: Interval | None, decision: Decision, space: Space) -> CandidateOutcome:
    trials = [t for _, t in sorted(c.trials.items())]
    load = common_load(decision.choice.tied) if decision.choice else common_load([c])
    return CandidateOutcome(
        label=label(c, space),
        controls=c.controls,
        in_space=c.in_space,
        is_default=c.is_default,
        block_size=next((t.block_size for t in trials if t.block_size), c.policy.block_size),
        policy=c.policy.model_dump(mode="json"),
        trials=_numbers(c),
        repeats=tuple(t.repeat for t in trials),
        values=tuple(t.score.value for t in trials),
        value=c.value,
        less_than=c.less_than,
        at_least=c.at_least,
        feasible=c.feasible,
        why_not=c.why_not,
        clauses=c.clauses,
        binding=c.binding.text if c.binding else "",
        waste_byte_seconds_per_token=waste(c, load),
        behind_best=behind,
        tied=_tied(c, decision),
        evidence=trials[0].evidence,
    )


def _nearest_miss(candidates: Sequence[Candidate], space: Space) -> NearestMiss | None:
    """Of the space's candidates, the one whose worst bound was missed by the smallest share."""
    missed = [c for c in candidates if c.in_space and c.binding is not None]
    if not missed:
        return None
    # What may not win whatever its SLO (void, ineligible) is no near miss of it: those come last.
    nearest = min(missed, key=lambda c: (excess(_bound(c)) <= 0, _has_grounds(c), excess(_bound(c))))
    worst = _bound(nearest)
    return NearestMiss(
        label=label(nearest, space), trial=_trial_with(nearest, worst), clause=worst.text,
        observed=worst.observed, limit=worst.limit, over=worst.over,
    )  # fmt: skip


def _has_grounds(candidate: Candidate) -> bool:
    return any(t.score.grounds for t in candidate.trials.values())


def _trial_with(candidate: Candidate, seen: ClauseSeen) -> int:
    """The one on whose window it was seen."""
    return next(t.number for _, t in sorted(candidate.trials.items()) if seen in t.score.clauses)


def _bound(candidate: Candidate) -> ClauseSeen:
    assert candidate.binding is not None
    return candidate.binding


def _sentence(decision: Decision, space: Space, rules: Rules, miss: NearestMiss | None) -> str:
    if decision.choice is None:
        return f"no feasible candidate{_miss_words(miss)}"
    winner = decision.choice.winner
    name, unit = label(winner, space), UNITS.get(rules.objective, rules.objective)
    value = f"{_least(winner)}{shown(winner.value or 0)} {unit}"
    others = [label(c, space) for c in decision.choice.tied if c is not winner]
    ties = f"; tied with {first_named(others)}" if others else ""
    bound = f"; {winner.binding.text} binds" if winner.binding else ""
    worse = f"; {beyond}" if (beyond := _beyond(decision, space)) else ""
    missing = first_named(decision.missing)
    if decision.kind == "flat":
        effect = f"{decision.smallest_effect or rules.min_gain:.1%}"
        keep = "keep the default" if winner.is_default else "the default is not among them, take the least waste"
        seen = f"effects under {effect} could not be seen{f'; {missing}' if missing else ''}"
        return f"flat within noise: {keep}, {name} ({value}); {seen}{ties}{bound}"
    if decision.kind == "knee":
        return f"knee at {name}: {value}{worse}{ties}{bound}"
    if decision.kind == "edge":
        return f"{name}: {value}; the best reaches the edge of the domain ({missing}){worse}{ties}{bound}"
    return f"{name}: {value} is the best measured, not a knee: {missing} not measured{ties}{bound}"


def _beyond(decision: Decision, space: Space) -> str:
    """What lies next to the tied set, by why it is not the winner."""
    barred = decision.proofs.barred
    kinds: dict[str, list[str]] = {"measured and worse": [], "not feasible": [], "does not survive": []}
    for c in decision.beyond:
        unable = c.less_than is None and not c.feasible
        kind = "does not survive" if c.policy in barred else "not feasible" if unable else "measured and worse"
        kinds[kind].append(label(c, space))
    return "; ".join(f"{first_named(labels)} {kind}" for kind, labels in kinds.items() if labels)


def _least(c: Candidate) -> str:
    return ">= " if c.at_least else ""


def _miss_words(miss: NearestMiss | None) -> str:
    if miss is None:
        return ": no trial of the space gave a measurement"
    if miss.over is not None and miss.over <= 0:
        return f"; nearest is {miss.label}, which kept its SLO but may not win (see its verdict)"
    if miss.over is None or miss.observed is None:
        return f"; nearest miss {miss.label}: {miss.clause} without bound"
    unit, far = (" ms", "over it") if miss.clause != "attainment" else ("", "more misses than it allows")
    return (
        f"; nearest miss {miss.label}: {miss.clause} at {shown(miss.observed)}{unit} "
        f"against {shown(miss.limit)}{unit}, {miss.over:.1%} {far}"
    )


def _signal(c: Candidate, unit: str) -> str:
    values = sorted(c.values.values())
    if not values:
        return "no measurement" if c.less_than is None else f"< {shown(c.less_than)} {unit}"
    spread = f" [{shown(values[0])} .. {shown(values[-1])}]" if len(values) > 1 else ""
    worst = c.binding
    if worst is None:
        return f"{_least(c)}{shown(sum(values) / len(values))} {unit}{spread}"
    seen = "no bound" if worst.observed is None else f"{shown(worst.observed)}"
    return f"{_least(c)}{shown(sum(values) / len(values))} {unit}{spread}; {worst.text} at {seen}"


def _verdict(c: Candidate, behind: Interval | None, decision: Decision, space: Space, rules: Rules) -> VerdictRow:
    verdict, reason = _judge(c, behind, decision, rules)
    names = f" ({', '.join(c.controls)})" if c.controls and c.in_space else ""
    evidence = next((t.evidence for t in c.trials.values() if t.evidence), "")
    unit = UNITS.get(rules.objective, rules.objective)
    signal = f"{_signal(c, unit)}{f', {evidence}' if evidence else ''}"
    return VerdictRow(
        option=f"{label(c, space)}{names}", control=bool(c.controls), signal=signal, verdict=verdict, reason=reason
    )


def _judge(c: Candidate, behind: Interval | None, decision: Decision, rules: Rules) -> tuple[Verdict, str]:
    if not c.feasible:
        return "reject", "; ".join(c.why_not) or "not feasible"
    choice = decision.choice
    if choice is not None and c is choice.winner:
        return _judge_winner(c, decision, rules)
    if (killed := decision.proofs.why_not_survived(c.policy)) is not None:
        return "inspect", killed
    if _tied(c, decision):
        return "inspect", "not told apart from the winner" + ("" if choice is None else _by(c, choice.winner))
    share = None if choice is None else paired_gain(c.values, choice.best.values)
    if not c.in_space:
        words = "" if choice is None else f", {_ahead(share)}"
        beats = share is not None and share > 0
        return ("inspect" if beats else "reject"), f"a control outside the space{words}"
    bounds = f", interval {shown(behind.low)} .. {shown(behind.high)}" if behind else ""
    return "reject", f"{_ahead(share)}{bounds}"


def _judge_winner(c: Candidate, decision: Decision, rules: Rules) -> tuple[Verdict, str]:
    doubts = doubts_again(c, decision, rules)
    if not decision.phases_agree:
        doubts.append("another phase would choose otherwise")
    if decision.kind == "open":
        doubts.append("what lies beyond it was not measured")
    if c.at_least and any(_may_hold_more(other, c) for other in decision.candidates if other is not c):
        doubts.append("the ladder of loads ends before it tells this from others: raise measure.ladder.high")
    if len(c.trials) < rules.num_repeats:
        doubts.append(f"measured on {len(c.trials)} of {rules.num_repeats} windows")
    if rules.num_repeats < 2 and any(t.evidence == "measured" for t in c.trials.values()):
        doubts.append("measured once: its noise is unknown")
    if doubts:
        return "inspect", "; ".join(doubts)
    if c.is_default and decision.choice is not None and len(decision.choice.tied) > 1:
        return "ship", "the default, within noise of the best"
    return (
        "ship",
        _MOST.get(rules.objective, f"the highest {rules.objective} among the feasible")
        if decision.choice and c is decision.choice.best
        else ("within noise of the best, least waste"),
    )


def _may_hold_more(other: Candidate, winner: Candidate) -> bool:
    """Whether it, too, held all that was asked of it, or lost to a load that the ladder does not have."""
    if not other.in_space:
        return False
    first, bound = winner.values.get(0), other.less_than
    return (other.feasible and other.at_least) or (first is not None and bound is not None and bound > first)


def _by(c: Candidate, winner: Candidate) -> str:
    share = paired_gain(c.values, winner.values)
    return "" if share is None else f" ({share:+.1%})"


def _ahead(share: float | None) -> str:
    if share is None:
        return "nothing to compare with"
    if abs(share) < 0.0005:
        return "level with the best"
    return f"{-share:.1%} behind the best" if share <= 0 else f"{share:.1%} ahead of the best of the space"
