"""What a public format cannot say of a trace, by name, and how its text is written: whole or not at all."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trials.trace import NONE, STARTS, Ints, Trace, write_whole

_NOTHING = {
    "session": NONE, "priority": 0, "parent": NONE, "inherited_tokens": 0, "starts": STARTS["arrival"],
    "think_ns": 0, "cancel_after_ns": NONE, "cancel_after_tokens": NONE,
}  # fmt: skip


class Loss(NamedTuple):
    """A column of the trace that does not come through as it is, and how."""

    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. With no losses, importing the file gives the same trace hash."""

    losses: tuple[Loss, ...]
    hint: str = ""  # what the tool that reads it must be told


def left_behind(trace: Trace, carried: Iterable[str] = ()) -> Iterator[Loss]:
    """Columns with content that the format has no place for. Arrivals, lengths and prefix ids are the caller's."""
    kept = set(carried)
    for name, nothing in _NOTHING.items():
        rows = int((getattr(trace, name) != nothing).sum())
        if rows and name not in kept:
            yield Loss(name, f"no place for it: {rows} rows have one")
    rows = int((trace.after.lengths > 0).sum())
    if rows and "after" not in kept:
        yield Loss("after", f"no place for it: {rows} rows come after others, and are written at their stamps")


def without_ids(trace: Trace) -> Iterator[Loss]:
    """The loss of a file that says nothing of prefixes."""
    if trace.meta.tokens_per_id:
        yield Loss("prefix_ids", "no place for them")
    elif trace.meta.tail_rule != "ceil":
        yield Loss("tail_rule", f"{trace.meta.tail_rule} becomes ceil, which says nothing without prefix ids")


def in_ticks(trace: Trace, tick_ns: int) -> tuple[Ints, list[Loss]]:
    """Arrivals [R] in whole ticks, to the nearest, and what that costs. Importers count from the first row."""
    ticks = (trace.arrival_ns + tick_ns // 2) // tick_ns
    moved = int(np.abs(ticks * tick_ns - trace.arrival_ns).max())
    losses = [Loss("arrival_ns", f"whole {tick_ns} ns: rows move by up to {moved} ns")] if moved else []
    first = int(trace.arrival_ns[0])
    if first:
        losses.append(Loss("arrival_ns", f"times count from the first row, which stands at {first} ns"))
    return ticks, losses


def write_text(path: Path, lines: Iterable[str], end: str = "\n") -> None:
    """The lines, each with its end, as a whole file."""
    write_whole(path, lambda place: place.write_bytes("".join(f"{line}{end}" for line in lines).encode()))
