"""A race whose leader fell: who was out because of it is asked again, until the race is what it would have been.

The pace is set on the first window. Where the one who set it fails on a later window, those that it beat were
rejected by a load that nobody holds everywhere. One question at a time, so that a race it stays.
"""

from collections.abc import Iterator, Sequence

from orchestrator.config import Sweep
from orchestrator.folder import TrialRecord
from orchestrator.points import Beside, Point
from orchestrator.racing import Race
from search_spaces.objective import Score


def reprieved(judged: Sequence[tuple[TrialRecord, Score]], sweep: Sweep) -> Iterator[Point]:
    """The questions that a race over `judged` leaves open; `judged`: trials of the search, finished."""
    if not sweep.config.races:
        return
    race = Race(sweep)
    first: dict[str, TrialRecord] = {}
    for record, score in judged:
        first.setdefault(sweep.candidate(record.spec), record)
        if score.run:
            race.learn(record.card, score)
    for name, repeat in race.standings.open_questions(len(sweep.windows)):
        question = race.standings.question(name, repeat, raced=True)
        if question.out is None:
            yield Point((), None, repeat, Beside("reprieve", first[name].number, question.beat))
