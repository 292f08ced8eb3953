"""Laws of windows: disjoint, the same for all, and never more than the trace holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.windows import repeat_windows, rows_in, window_of
from trials.trace import make_trace
from trials.units import SpecError

S = 10**9


def trace_of(seconds):
    arrivals = np.array([int(s * S) for s in seconds], np.int64)
    return make_trace(arrivals, np.full(len(arrivals), 10), np.full(len(arrivals), 5))


def test_repeat_r_begins_where_the_one_before_it_ends():
    windows = repeat_windows(trace_of(range(100)), window_of(10 * S, 20 * S), 4)
    assert [(w.start // S, w.duration // S) for w in windows] == [(10, 20), (30, 20), (50, 20), (70, 20)]


def test_one_repeat_without_a_window_is_the_whole_trace():
    assert repeat_windows(trace_of([0, 5]), None, 1) == (None,)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=30).map(sorted), st.integers(2, 5))
def test_without_a_window_every_row_lies_in_exactly_one_part(seconds, repeats):
    trace = trace_of(seconds)
    try:
        windows = repeat_windows(trace, None, repeats)
    except SpecError:
        return  # a part without a request is refused
    rows = np.concatenate([rows_in(trace, w) for w in windows])
    assert sorted(rows.tolist()) == list(range(len(trace)))


def test_too_many_windows_are_refused_with_how_many_fit():
    with pytest.raises(SpecError, match="2 fit"):
        repeat_windows(trace_of(range(51)), window_of(0, 20 * S), 3)


def test_the_last_window_may_outlast_the_last_arrival_a_little():
    assert len(repeat_windows(trace_of(range(60)), window_of(0, 20 * S), 3)) == 3  # 60 gaps of 1 s
    assert len(repeat_windows(trace_of([*np.arange(0, 59.7, 0.1)]), window_of(0, 20 * S), 3)) == 3
    with pytest.raises(SpecError):
        repeat_windows(trace_of([*np.arange(0, 59, 0.1)]), window_of(0, 20 * S), 3)


def test_a_window_without_a_request_is_refused():
    with pytest.raises(SpecError, match="repeat 1: no request"):
        repeat_windows(trace_of([0, 1, 99, 100]), None, 3)


def test_windows_count_from_the_first_arrival():
    trace = trace_of([1000, 1001, 1050])
    assert rows_in(trace, window_of(0, 10 * S)).tolist() == [0, 1]
