"""The driver's side of a race: what is known goes into the spec that a trial is asked with, and its answer back."""

from dataclasses import dataclass

from orchestrator.config import Sweep
from orchestrator.folder import TrialCard
from search_spaces.objective import Score
from search_spaces.race import Standings
from trials.spec import TrialSpec


@dataclass(frozen=True, slots=True)
class Out:
    """A trial that is told without being run: why, and what its capacity stays under where that is known."""

    why: str
    less_than: float | None


class Race:
    """Of one sweep whose objective is a capacity."""

    def __init__(self, sweep: Sweep) -> None:
        ladder = sweep.config.measure.ladder
        assert ladder is not None
        self._sweep, self.standings = sweep, Standings(ladder, sweep.config.min_gain)

    def learn(self, card: TrialCard, score: Score) -> None:
        """A trial that was told. Only what may win sets the pace."""
        leads = score.feasible and self._sweep.space.contains(self._sweep.space.policy_of(card.spec))
        self.standings.learn_score(self._sweep.candidate(card.spec), card.repeat, score, leads)

    def first_of(self, card: TrialCard) -> str | None:
        """The candidate whose first window has to be over before this trial can be asked; None where it is."""
        candidate = self._sweep.candidate(card.spec)
        waits = card.control is None and card.repeat > 0 and not self.standings.knows(candidate, 0)
        return candidate if waits else None

    def asked(self, card: TrialCard) -> TrialSpec | Out:
        """The trial's spec with the load to beat, or with where its answer is thought to be."""
        spec, ladder = card.spec, card.spec.measure.ladder
        assert ladder is not None
        candidate, raced = self._sweep.candidate(spec), card.control is None
        question = self.standings.question(candidate, card.repeat, raced)
        if question.out is not None:
            return Out(question.out, question.less_than)
        ladder = ladder.model_copy(update={"beat": question.beat, "near": question.near})
        return spec.model_copy(update={"measure": spec.measure.model_copy(update={"ladder": ladder})})
