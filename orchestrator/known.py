"""What a sweep knows already: finished trials by what they were asked, and trials that wait for others."""

from orchestrator.folder import TrialCard, TrialRecord
from trials.spec import TrialSpec


class Known:
    """Results of one build of the engine, to be used again, and trials that wait.

    A question is the hash of what a spec asks, whatever a race knew when it asked. A result in full answers a raced
    question too; a bound answers those that ask for no more than it says.
    """

    def __init__(self, build: str) -> None:
        self._build = build
        self._whole: dict[str, TrialRecord] = {}  # question -> the first finished trial of this build
        self._bounds: dict[str, TrialRecord] = {}  # question -> the one that was raced out at the lowest load
        self._waiting: dict[int, list[TrialCard]] = {}  # trial that runs -> trials that wait for it

    @property
    def num_waiting(self) -> int:
        return sum(len(cards) for cards in self._waiting.values())

    def learn(self, record: TrialRecord, asked: str) -> None:
        """A finished trial and its question; one without a result, or of another build, teaches nothing."""
        card = record.card
        if record.result is None or card.build != self._build or card.reused_from is not None:
            return
        bound = _bound(record)
        if bound is None:
            self._whole.setdefault(asked, record)
        elif asked not in self._bounds or bound < (_bound(self._bounds[asked]) or 0.0):
            self._bounds[asked] = record

    def answer(self, asked: str, spec: TrialSpec) -> TrialRecord | None:
        """The finished trial that answers this question, as this spec asks it."""
        ladder = spec.measure.ladder
        if asked in self._whole:
            return self._whole[asked]
        found = self._bounds.get(asked)
        if found is None or ladder is None or ladder.beat is None:
            return None
        return found if (_bound(found) or 0.0) <= ladder.beat else None

    def wait(self, card: TrialCard, number: int) -> None:
        """It is placed again when trial `number` is over."""
        self._waiting.setdefault(number, []).append(card)

    def released(self, number: int) -> list[TrialCard]:
        """Those that waited for this one."""
        return self._waiting.pop(number, [])


def _bound(record: TrialRecord) -> float | None:
    """The load that a trial had to beat and did not; None where it answers in full."""
    capacity = record.result.capacity if record.result else None
    return capacity.less_than if capacity else None
