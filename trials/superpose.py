"""Shifted copies of a trace over one another: more requests in one span, where a trace is too short to judge by.

Copy k begins k / N of the span later and wraps around the end. Copies share nothing with one another: each has its
own prefix ids and sessions. Requests that hang together (forks, turns, what inherits a context) move together.
Arrival rates add up, so N copies at rate_scale 1 / N are the trace's own rate over N times its span.
"""

from dataclasses import replace

import numpy as np

from trials.trace import NONE, Ints, Ragged, Trace, TraceMeta, validate


def superposed(trace: Trace, copies: int) -> Trace:
    """`copies` of the trace over one another, labelled in its notes; one copy is the trace itself."""
    if copies == 1:
        return trace
    first = int(trace.arrival_ns[0])
    span = int(trace.arrival_ns[-1]) - first + 1
    roots = _roots(trace)
    began = trace.arrival_ns[roots] - first  # of each row's group, so that a group is never cut
    whole = [
        (began + span * k // copies) % span + first + (trace.arrival_ns - first - began) for k in range(copies)
    ]
    arrival = np.concatenate(whole)
    order = np.argsort(arrival, kind="stable")
    return _in_order(_laid(trace, copies, arrival), order)


def _roots(trace: Trace) -> Ints:
    """Of each row, the first row of those that it hangs together with by parent or `after`."""
    root = np.arange(len(trace))

    def first_of(row: int) -> int:
        while root[row] != row:
            root[row] = root[root[row]]
            row = int(root[row])
        return row

    for row in np.flatnonzero((trace.parent >= 0) | (trace.after.lengths > 0)).tolist():
        before = [int(trace.parent[row])] if trace.parent[row] >= 0 else []
        firsts = [first_of(other) for other in [row, *before, *trace.after.row(row).tolist()]]
        root[firsts] = min(firsts)
    return np.array([first_of(row) for row in range(len(trace))], np.int64)


def _laid(trace: Trace, copies: int, arrival: Ints) -> Trace:
    """All copies one behind the other, still in the order of their rows."""
    rows = len(trace)
    ids = int(trace.prefix_ids.values.max(initial=-1)) + 1
    sessions = int(trace.session.max(initial=-1)) + 1

    def again(column: Ints, step: int) -> Ints:
        return np.concatenate([np.where(column >= 0, column + k * step, NONE) for k in range(copies)])

    def lists(ragged: Ragged, step: int) -> Ragged:
        lengths = np.tile(ragged.lengths, copies)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        return Ragged(offsets, np.concatenate([ragged.values + k * step for k in range(copies)]))

    plain = ("num_prompt_tokens", "num_output_tokens", "priority", "inherited_tokens", "starts", "think_ns",
             "cancel_after_ns", "cancel_after_tokens")  # fmt: skip
    meta = trace.meta
    note = f"{copies} shifted copies over one another, each with prefixes and sessions of its own"
    return Trace(
        arrival_ns=arrival, session=again(trace.session, sessions), parent=again(trace.parent, rows),
        after=lists(trace.after, rows), prefix_ids=lists(trace.prefix_ids, ids),
        meta=TraceMeta(
            meta.tokens_per_id, meta.tail_rule, tuple(dict.fromkeys((*meta.synthetic, "arrival_ns"))),
            meta.name, meta.source, (*meta.notes, note),
        ),
        **{name: np.tile(getattr(trace, name), copies) for name in plain},
    )  # fmt: skip


def _in_order(laid: Trace, order: Ints) -> Trace:
    """Rows by arrival; those at one moment stay in the order of their copy, parents first."""
    ordered = laid.take(order)
    moved = replace(ordered, meta=laid.meta)
    validate(moved)
    return moved
