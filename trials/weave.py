"""Rows put into a trace that exists: turns, samples, branches. Links are by number while it grows."""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from trials.trace import COLUMNS, NONE, STARTS, Ints, Ragged, Trace, validate


@dataclass(slots=True)
class NewRows:
    """Parallel lists, one entry a new row. Row numbers: those of the trace, then the new rows in this order.

    `root`: the row of the trace whose session and priority it takes, and behind which it stands.
    """

    first: int  # the number that the next trace row would have: len(trace)
    root: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    inherited_tokens: list[int] = field(default_factory=list)
    num_prompt_tokens: list[int] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)
    arrival_ns: list[int] = field(default_factory=list)
    think_ns: list[int] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)

    def fork(self, root: int, parent: int, tokens: int, num_output_tokens: int, arrival_ns: int) -> int:
        """A row that goes on from its parent's first `tokens` tokens; returns its number."""
        return self._add(root, parent, tokens, tokens, num_output_tokens, arrival_ns, 0, [])

    def turn(self, root: int, before: int, lengths: tuple[int, int, int], arrival_ns: int, think_ns: int) -> int:
        """A row `think_ns` after `before` ended. `lengths`: (tokens it inherits, prompt, output)."""
        inherited, prompt, output = lengths
        return self._add(root, before, inherited, prompt, output, arrival_ns, think_ns, [before])

    def _add(self, *values: object) -> int:
        for place, value in zip(fields(self)[1:], values, strict=True):
            getattr(self, place.name).append(value)
        return self.first + len(self.root) - 1


def woven(trace: Trace, rows: NewRows, by_time: bool) -> Trace:
    """The trace with the new rows: in order of time, or each directly behind the row that it stands behind."""
    root = np.array(rows.root, np.int64)
    after = rows.after
    new = {name: np.array(getattr(rows, name), np.int64) for name in COLUMNS if hasattr(rows, name)}
    new |= {
        "session": trace.session[root],
        "priority": trace.priority[root],
        "starts": np.array([STARTS["think" if links else "fork"] for links in after], np.int64),
        "cancel_after_ns": np.full(len(root), NONE),
        "cancel_after_tokens": np.full(len(root), NONE),
    }
    links = [trace.after.row(row).tolist() for row in range(len(trace))] + after
    empty = Ragged.empty(len(root))
    ids = Ragged(
        np.concatenate([trace.prefix_ids.offsets, trace.prefix_ids.offsets[-1] + empty.offsets[1:]]),
        trace.prefix_ids.values,
    )
    grown = Trace(
        **{name: np.concatenate([getattr(trace, name), new[name]]) for name in COLUMNS},
        after=Ragged.of(links), prefix_ids=ids, meta=trace.meta,
    )  # fmt: skip
    behind = np.concatenate([np.arange(len(trace), dtype=np.int64), root])
    return in_order(grown, np.argsort(grown.arrival_ns if by_time else behind, kind="stable"))


def in_order(trace: Trace, order: Ints) -> Trace:
    """All rows in another order, links kept; TraceError where one would stand before a row that it follows."""
    moved = trace.take(order)
    validate(moved)
    return moved


def described(trace: Trace, touched: tuple[str, ...], *notes: str) -> Trace:
    """The trace with columns marked as not observed, and what was done."""
    meta = trace.meta
    synthetic = tuple(dict.fromkeys((*meta.synthetic, *touched)))
    return replace(trace, meta=replace(meta, synthetic=synthetic, notes=(*meta.notes, *notes)))
