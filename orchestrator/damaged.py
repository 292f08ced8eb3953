"""What in a sweep's folder should be there and cannot be read: it does not count, and that is said."""

from collections.abc import Sequence
from pathlib import Path

from orchestrator.folder import SweepFolder, TrialRecord
from trials.units import SpecError

_REMEDY = "restore it from a copy"
_NAMED = 6


def damage(folder: SweepFolder, records: Sequence[TrialRecord]) -> list[str]:
    """A line for every trial whose card, or whose result that decided, is gone or not whole."""
    read = {record.number for record in records}
    numbers = sorted(int(p.name) for p in folder.trials.glob("[0-9]*") if p.name.isdigit())
    # A trial whose driver was killed before it wrote the card has a folder, and no attempt in it.
    lost = [n for n in numbers if n not in read and (folder.card(n).exists() or folder.attempts(n))]
    anew = f"`kvknee resume {folder.path}` makes it anew"
    cards = [f"trial {n} is left out: {_within(folder, n, 'trial.json')}; {anew}" for n in lost]
    return cards + [_of_result(folder, r) for r in records if r.state == "complete" and r.result is None]


def require_grounds(folder: SweepFolder, resumed: bool = False) -> None:
    """SpecError where trials that gave knee.json its values cannot be read any more.

    Judged again without them, it would be lost, and with it a recipe that nothing could make anew. `resumed`: by a
    driver, which makes a card anew where the trial's answer is there.
    """
    try:
        outcome = folder.load_outcome()
    except (SpecError, OSError):
        return  # nothing that could be lost: it is made anew
    if outcome is None:
        return
    records = folder.load_trials()
    valued = {n for c in outcome.candidates for n, v in zip(c.trials, c.values, strict=False) if v is not None}
    gone = sorted(valued - {r.number for r in records if r.result is not None})
    if resumed:
        carded = {r.number for r in records}
        gone = [n for n in gone if n in carded or not folder.answered(n)]
    if gone:
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        found = "".join(f"\n  {said}" for said in damage(folder, records)[:_NAMED])
        raise SpecError(
            f"{folder.path}: knee.json rests on trials that cannot be read any more: "
            f"{', '.join(map(str, gone[:_NAMED]))}{more}. Nothing was written: restore them from a copy, or move "
            f"knee.json and recipe.yaml away to have the sweep judged without them{found}"
        )


def unreadable(path: Path, error: OSError | ValueError) -> SpecError:
    """In words, why a trial's table cannot be used, and what to do."""
    if isinstance(error, OSError):
        return SpecError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}; {_REMEDY}")
    return SpecError(f"{path}: damaged: {error}; {_REMEDY}, or move it away")


def _of_result(folder: SweepFolder, record: TrialRecord) -> str:
    card = record.card
    if card.reused_from is not None:
        return f"trial {record.number} counts as without result: that of trial {card.reused_from} cannot be read"
    what = _within(folder, record.number, f"attempt-{card.decides}/result.json")
    return f"trial {record.number} counts as without result: {what}; {_REMEDY}"


def _within(folder: SweepFolder, number: int, name: str) -> str:
    path = folder.trial(number) / name
    return f"{path.relative_to(folder.path)} is {'damaged or may not be read' if path.exists() else 'missing'}"
