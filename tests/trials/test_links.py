"""Links by row number: led around what is left out, and never to more than is there."""

import numpy as np
import pytest

from trials.formats.links import Link, with_sessions
from trials.trace import NONE, STARTS, Trace, TraceError, make_trace


def plain(rows: int) -> Trace:
    return make_trace(np.arange(rows), np.full(rows, 20), np.full(rows, 5))


def test_links_are_by_number_and_the_trace_is_by_place() -> None:
    """Numbers 2, 0, 1 in order of time."""
    links = [Link(7), Link(7, parent=0, inherited_tokens=9, after=(0,), think_ns=4), Link(8, priority=3)]
    trace = with_sessions(plain(3), links, [2, 0, 1])
    assert trace.session.tolist() == [8, 7, 7]
    assert trace.parent.tolist() == [NONE, NONE, 1]
    assert trace.after.row(2).tolist() == [1]
    assert trace.starts.tolist() == [STARTS["arrival"], STARTS["arrival"], STARTS["think"]]
    assert (trace.think_ns.tolist(), trace.priority.tolist()) == ([0, 0, 4], [3, 0, 0])


def test_what_follows_a_row_that_is_left_out_follows_what_it_followed() -> None:
    links = [Link(), Link(), Link(parent=0, inherited_tokens=3, after=(0, 1)),
             Link(parent=2, inherited_tokens=8, after=(2,), think_ns=6)]  # fmt: skip
    trace = with_sessions(plain(3), links, [0, 1, 3])
    assert trace.after.row(2).tolist() == [0, 1]
    assert (trace.parent.tolist(), trace.inherited_tokens.tolist()) == ([NONE, NONE, 0], [0, 0, 3])


def test_a_chain_of_rows_that_are_left_out_ends_at_an_arrival() -> None:
    links = [Link(), Link(parent=0, inherited_tokens=5, after=(0,)), Link(parent=1, inherited_tokens=5, after=(1,))]
    trace = with_sessions(plain(1), links, [2])
    assert (trace.starts.tolist(), trace.parent.tolist(), trace.inherited_tokens.tolist()) == ([0], [NONE], [0])


def test_no_more_is_inherited_than_the_parent_has_or_the_prompt_holds() -> None:
    links = [Link(), Link(parent=0, inherited_tokens=99), None]
    trace = with_sessions(plain(3), links, [0, 1, 2])
    assert trace.inherited_tokens.tolist() == [0, 20, 0]


def test_a_row_that_would_stand_before_its_cause_is_refused() -> None:
    with pytest.raises(TraceError, match="row 0: starts after a row that does not stand before it"):
        with_sessions(plain(2), [Link(), Link(after=(0,))], [1, 0])
