"""Rows put into a trace keep its own rows, links and ids, wherever they come to stand."""

import numpy as np
import pytest

from trials.trace import NONE, STARTS, Ragged, Trace, TraceError, TraceMeta, make_trace, with_links
from trials.weave import NewRows, described, in_order, woven


def plain() -> Trace:
    trace = make_trace(
        np.array([0, 10, 20]), np.array([4, 5, 6]), np.array([7, 8, 9]), Ragged.of([[1], [1, 2], [3]]),
        TraceMeta(2, "floor"), session=np.array([5, 6, 5]), priority=np.array([0, 2, 0]),
        parent=np.array([NONE, NONE, 0]),
    )  # fmt: skip
    return with_links(trace, Ragged.of([[], [], [0]]))


def test_a_fork_stands_behind_its_row_and_takes_its_session_and_priority() -> None:
    rows = NewRows(3)
    first = rows.fork(1, 1, 5, 30, 10)
    rows.fork(1, first, 9, 31, 10)
    done = woven(plain(), rows, by_time=False)
    assert done.num_output_tokens.tolist() == [7, 8, 30, 31, 9]
    assert done.parent.tolist() == [NONE, NONE, 1, 2, 0]
    assert (done.session.tolist(), done.priority.tolist()) == ([5, 6, 6, 6, 5], [0, 2, 2, 2, 0])
    assert done.starts.tolist() == [0, 0, STARTS["fork"], STARTS["fork"], 0]
    assert [done.prefix_ids.row(r).tolist() for r in range(5)] == [[1], [1, 2], [], [], [3]]
    assert [done.after.row(r).tolist() for r in range(5)] == [[], [], [], [], [0]]


def test_turns_stand_in_order_of_time() -> None:
    rows = NewRows(3)
    first = rows.turn(0, 0, (11, 13, 2), 15, 4)
    rows.turn(0, first, (15, 18, 3), 90, 75)
    done = woven(plain(), rows, by_time=True)
    assert done.arrival_ns.tolist() == [0, 10, 15, 20, 90]
    assert [done.after.row(r).tolist() for r in range(5)] == [[], [], [0], [0], [2]]
    assert done.starts.tolist() == [0, 0, STARTS["think"], 0, STARTS["think"]]
    assert done.think_ns.tolist() == [0, 0, 4, 0, 75]
    assert done.inherited_tokens.tolist() == [0, 0, 11, 0, 15]


def test_an_order_that_puts_a_row_before_its_cause_is_refused() -> None:
    trace = make_trace(np.zeros(2, np.int64), np.array([4, 5]), np.array([7, 8]), parent=np.array([NONE, 0]))
    with pytest.raises(TraceError, match="its parent does not stand before it"):
        in_order(trace, np.array([1, 0]))


def test_marks_are_added_once_and_notes_at_the_end() -> None:
    done = described(described(plain(), ("parent",), "a"), ("parent", "starts"), "b")
    assert done.meta.synthetic == ("parent", "starts")
    assert done.meta.notes == ("a", "b")


def test_many_forks_of_one_row_keep_their_order() -> None:
    rows = NewRows(3)
    for n in range(200):
        rows.fork(n % 2, n % 2, 4, n + 1, 10 * (n % 2))
    done = woven(plain(), rows, by_time=False)
    assert done.num_output_tokens.tolist() == [7, *range(1, 201, 2), 8, *range(2, 201, 2), 9]
