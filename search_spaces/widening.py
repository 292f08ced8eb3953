"""Whether a space still holds every candidate of an older one, so that what was measured there counts in it."""

from collections.abc import Iterator

from search_spaces.dimension import Dimension, value_of
from search_spaces.space import Space


def lost(old: Space, new: Space) -> list[str]:
    """Why trials of the old space are not all candidates of the new one, in words; empty where it is as wide."""
    return list(_lost(old, new))


def _lost(old: Space, new: Space) -> Iterator[str]:
    if old.isolates != new.isolates:
        yield f"isolates: {old.isolates} -> {new.isolates}"
    now = {d.field: d for d in new.dimensions}
    for d in old.dimensions:
        if d.field not in now:
            yield f"{d.name} no longer moves"
            continue
        yield from _changed(d, now.pop(d.field))
    for d in now.values():
        had = value_of(old.base, d.field)
        if not d.holds(had):
            yield f"{d.name} moves, and {had}, with which all was measured, is not among its values"


def _changed(old: Dimension, new: Dimension) -> Iterator[str]:
    if old.when != new.when:
        yield f"{old.name}: it depends on something else now"
    if not old.values:
        if new.values or new.low > old.low or new.high < old.high:
            yield f"{old.name}: no longer every value from {old.low:g} to {old.high:g}"
        return
    gone = [str(value) for value in old.values if not new.holds(value)]
    if gone:
        yield f"{old.name}: {', '.join(gone)} {'is' if len(gone) == 1 else 'are'} no longer in it"
