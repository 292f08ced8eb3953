"""Copies over one another: everything stands N times, nothing is shared between copies, nothing is cut."""

from dataclasses import replace

import numpy as np
import pytest

from tests.builders import build_trace
from trials.content import Content
from trials.describe import describe
from trials.superpose import superposed
from trials.trace import STARTS, Ragged, make_trace, validate, with_links


def shared():
    return build_trace([40, 40, 40], [4, 5, 6], arrivals_ms=[0, 10, 30], ids=[[1, 2, 3], [1, 2, 4], [1, 5, 6]])


def test_one_copy_is_the_trace_itself():
    trace = shared()
    assert superposed(trace, 1) is trace


@pytest.mark.parametrize("copies", [2, 3, 7])
def test_every_request_stands_as_often_as_there_are_copies_within_the_span(copies):
    trace = shared()
    made = superposed(trace, copies)
    validate(made)
    assert sorted(made.num_output_tokens.tolist()) == sorted(trace.num_output_tokens.tolist() * copies)
    assert made.arrival_ns.max() <= trace.arrival_ns.max()
    assert f"{copies} shifted copies" in made.meta.notes[-1]
    assert "arrival_ns" in made.meta.synthetic


def test_copies_share_prefixes_inside_and_never_across():
    trace = shared()
    one, three = Content(trace), superposed(trace, 3)
    content = Content(three)
    groups = three.prefix_ids.values[three.prefix_ids.offsets[:-1]]  # the root id names the copy
    for i in range(len(three)):
        for j in range(i):
            common = content.common_tokens(i, j)
            if groups[i] != groups[j]:
                assert common == 0
            else:
                a, b = (three.num_output_tokens[[i, j]] - 4).tolist()  # which row of the trace it was
                assert common == one.common_tokens(a, b)
    assert describe(three).sharing.hit_tokens == 3 * describe(trace).sharing.hit_tokens


def test_what_hangs_together_moves_together():
    count = 6
    columns = {
        "parent": np.array([-1, 0, -1, 2, -1, -1]), "inherited_tokens": np.array([0, 20, 0, 10, 0, 0]),
        "starts": np.array([0, STARTS["fork"], 0, 0, 0, 0]),
        "session": np.array([0, 0, 1, 1, 2, 2]), "cancel_after_ns": np.array([-1, 5, -1, -1, -1, -1]),
    }  # fmt: skip
    trace = make_trace(np.array([0, 0, 100, 400, 500, 900]), np.full(count, 30), np.arange(1, count + 1), **columns)
    starts = trace.starts.copy()
    starts[[3, 5]] = STARTS["think"]
    trace = with_links(replace(trace, starts=starts), Ragged.of([[], [], [], [2], [], [3, 4]]))
    made = superposed(trace, 4)
    validate(made)
    assert len(made) == 24
    for row in range(24):
        kind = int(made.num_output_tokens[row])
        parent = int(made.parent[row])
        if kind in (2, 4):
            assert int(made.num_output_tokens[parent]) == kind - 1
            gap = int(made.arrival_ns[row] - made.arrival_ns[parent])
            assert gap == (0 if kind == 2 else 300)
            assert made.session[row] == made.session[parent]
        if kind == 6:
            assert sorted(made.num_output_tokens[made.after.row(row)].tolist()) == [4, 5]
    assert len(set(made.session.tolist())) == 12
    assert made.cancel_after_ns.tolist().count(5) == 4
