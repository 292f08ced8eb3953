"""Trials after the search in the words of knee.json: held-out windows, survival, what they say of the winner."""

from search_spaces.candidates import Candidate
from search_spaces.knee import Decision, Rules
from search_spaces.outcome import Confirmed, Survival
from search_spaces.space import Space


def doubts_again(winner: Candidate, decision: Decision, rules: Rules) -> list[str]:
    """Why the winner has to be looked at: it fails or loses on held-out windows, or does not survive."""
    proofs, default, fixed = decision.proofs, decision.default, decision.best_fixed_block
    found = [proofs.why_not_survived(winner.policy), proofs.fails(winner.policy)]
    if default is not None and default.feasible and default.policy not in proofs.barred:
        found.append(proofs.loses(winner.policy, default.policy, 0.0, "the default"))
    if fixed is not None and fixed is not default:
        found.append(proofs.loses(winner.policy, fixed.policy, rules.min_gain, "the best fixed block"))
    return [doubt for doubt in found if doubt]


def confirmed(decision: Decision, space: Space, rules: Rules) -> tuple[Confirmed, ...]:
    """The winner, the default and the best fixed block where they were measured again, each once."""
    if decision.choice is None:
        return ()
    named = (("winner", decision.choice.winner), ("default", decision.default),
             ("best_fixed_block", decision.best_fixed_block))  # fmt: skip
    parts: dict[int, tuple[Candidate, list[str]]] = {}
    for name, candidate in named:
        if candidate is not None and decision.proofs.confirmed.get(candidate.policy):
            parts.setdefault(id(candidate), (candidate, []))[1].append(name)
    return tuple(_confirmed(c, tuple(names), decision, space, rules) for c, names in parts.values())


def _confirmed(c: Candidate, parts: tuple[str, ...], decision: Decision, space: Space, rules: Rules) -> Confirmed:
    assert decision.choice is not None
    proofs, winner = decision.proofs, decision.choice.winner
    trials = [again for _, again in sorted(proofs.confirmed[c.policy].items())]
    return Confirmed(
        label=space.label(c.policy), parts=parts, trials=tuple(t.number for t in trials),
        values=tuple(t.score.value for t in trials), feasible=all(t.score.feasible for t in trials),
        why_not=proofs.fails(c.policy) or "",
        behind_winner=None if c is winner else proofs.interval(winner.policy, c.policy, rules.seed),
        share_of_winner=proofs.share(c.policy, winner.policy),
    )  # fmt: skip


def survivals(decision: Decision, space: Space) -> tuple[Survival, ...]:
    """Who was put under bursts, in order."""
    tried = sorted(decision.proofs.survival.values(), key=lambda again: again.number)
    return tuple(
        Survival(
            label=space.label(a.policy),
            trial=a.number,
            survived=a.score.feasible,
            reason="; ".join(a.score.reasons),
        )
        for a in tried
    )
