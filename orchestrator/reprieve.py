"""A race whose leader fell: who was out because of it is asked again, until the race is what it would have been.

The pace is set on the first window. Where the one who set it fails on a later window, those that it beat were
rejected by a load that nobody holds everywhere. One question at a time, so that a race it stays.
"""

from collections.abc import Iterator, Sequence

from orchestrator.config import Sweep
from orchestrator.folder import TrialRecord
from orchestrator.points import Beside, Point
from search_spaces.objective import Score
from search_spaces.race import Standings


def reprieved(judged: Sequence[tuple[TrialRecord, Score]], sweep: Sweep) -> Iterator[Point]:
    """The questions that a race over `judged` leaves open; `judged`: trials of the search, finished."""
    ladder = sweep.config.measure.ladder
    if not sweep.config.races or ladder is None:
        return
    standings = Standings(ladder, sweep.config.min_gain)
    first: dict[str, TrialRecord] = {}
    for record, score in judged:
        candidate = sweep.candidate(record.spec)
        first.setdefault(candidate, record)
        if score.run:
            leads = score.feasible and sweep.space.contains(sweep.space.policy_of(record.spec))
            standings.learn_score(candidate, record.repeat, score, leads)
    for name, repeat in standings.open_questions(len(sweep.windows)):
        question = standings.question(name, repeat, raced=True)
        if question.out is None:
            yield Point((), None, repeat, Beside("reprieve", first[name].number, question.beat))
