"""A sweep over a space that isolates one field, held to it: trials in which more than that changed cannot win."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.config import Sweep
from orchestrator.folder import TrialRecord
from search_spaces.isolation import Seen, leaks
from search_spaces.knee import Measured
from search_spaces.objective import NOT_ISOLATED, Score


def isolated(
    measured: Sequence[Measured], records: Sequence[TrialRecord], sweep: Sweep
) -> tuple[list[Measured], list[str]]:
    """The same trials, those that broke the isolation with that as a ground against them; and what to say of it."""
    field = sweep.space.isolates
    if field is None:
        return list(measured), []
    inside = {m.number for m in measured if sweep.space.contains(m.policy)}
    seen = [
        Seen(r.number, r.result.effective) for r in records
        if r.number in inside and r.result is not None and r.result.effective is not None
    ]  # fmt: skip
    found = leaks(seen, field)
    judged = [
        replace(m, score=_with_ground(m.score, found[m.number])) if m.number in found else m for m in measured
    ]
    return judged, [f"trial {number}: {words}" for number, words in sorted(found.items())]


def _with_ground(score: Score, words: str) -> Score:
    return replace(score, grounds=(*score.grounds, words), constraints=(*score.constraints, (NOT_ISOLATED, 1.0)))
