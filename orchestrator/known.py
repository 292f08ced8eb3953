"""What a sweep knows already: finished trials by what they were asked, and trials that wait for a twin."""

from orchestrator.folder import TrialCard, TrialRecord


class Known:
    """Results of one build of the engine, to be used again, and twins of trials that run."""

    def __init__(self, build: str) -> None:
        self._build = build
        self._results: dict[str, TrialRecord] = {}  # spec hash -> the first finished trial of this build
        self._twins: dict[str, list[TrialCard]] = {}  # spec hash -> trials that wait for one that runs

    def learn(self, record: TrialRecord) -> None:
        """A finished trial; what has no result of its own, or is another build's, teaches nothing."""
        card = record.card
        if record.result is not None and card.build == self._build and card.reused_from is None:
            self._results.setdefault(card.spec_hash, record)

    def answer(self, card: TrialCard) -> TrialRecord | None:
        """The finished trial that answers this one."""
        return self._results.get(card.spec_hash)

    def wait(self, card: TrialCard) -> None:
        """Its twin runs; it is asked again when that one is over."""
        self._twins.setdefault(card.spec_hash, []).append(card)

    def released(self, card: TrialCard) -> list[TrialCard]:
        """Those that waited for this one."""
        return self._twins.pop(card.spec_hash, [])
