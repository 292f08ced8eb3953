"""Times of tokens, from runs of steps, against a server that kept every one of them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_replays import MS, Line, make_replay, toy_server

from trials.engine import Outcome
from trials.latency import RecordingError, check_tokens, fates, gaps, latencies, order_runs, qualifies
from trials.percentiles import percentile
from trials.slo import parse_slo


def measured(replay):
    runs, fate = order_runs(replay), fates(replay.requests)
    check_tokens(replay, runs)
    return latencies(replay, runs, fate)


def finite(of):
    return np.repeat(of.values, np.diff(of.upto, prepend=0)).tolist()


def test_first_token_counts_from_arrival_and_every_gap_is_kept():
    line = Line(arrival_ns=0, prompt=5, asked=3, runs=[(1, 3)])
    seen = measured(make_replay([line], [480 * MS, 20 * MS, 20 * MS, 20 * MS]))
    assert finite(seen.ttft) == [500 * MS]
    assert finite(seen.itl) == [20 * MS, 20 * MS]
    assert finite(seen.e2el) == [540 * MS]


def test_tpot_weighs_requests_and_itl_weighs_gaps():
    a = Line(0, 5, 2, [(0, 1), (20, 1)])
    b = Line(0, 5, 11, [(0, 11)])
    seen = measured(make_replay([a, b], [10 * MS] * 21))
    assert seen.tpot.mean / 1e9 == pytest.approx(0.105)
    assert seen.itl.mean / 1e9 == pytest.approx(0.3 / 11)
    assert (seen.tpot.n, seen.itl.n) == (2, 11)


def test_a_serial_server_makes_arrivals_queue():
    lines = [Line(k * 100 * MS, 5, 1, [(k, 1)]) for k in range(8)]
    ttft = measured(make_replay(lines, [500 * MS] * 8)).ttft
    assert (ttft.mean, percentile(ttft, 99), percentile(ttft, 100)) == (1900 * MS, 3272 * MS, 3300 * MS)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.3, 0.7]))
def test_populations_are_those_of_every_single_token(seed, trouble):
    replay, served, _ = toy_server(seed, trouble=trouble)
    seen = measured(replay)
    offered = [s for s in served if s.line.counted]
    assert finite(seen.ttft) == sorted(s.tokens_ns[0] - s.line.arrival_ns for s in offered)
    assert finite(seen.itl) == sorted(b - a for s in offered for a, b in itertools.pairwise(s.tokens_ns))
    own = sorted((s.tokens_ns[-1] - s.tokens_ns[0]) / (len(s.tokens_ns) - 1) for s in offered if s.line.asked > 1)
    assert finite(seen.tpot) == own
    assert finite(seen.e2el) == sorted(s.tokens_ns[-1] - s.line.arrival_ns for s in offered)


def test_a_gap_spans_what_lies_between_steps_of_a_real_clock():
    seen = measured(make_replay([Line(0, 5, 3, [(0, 3)])], [10 * MS] * 3, gap_ns=2 * MS))
    assert finite(seen.itl) == [12 * MS, 12 * MS]


def test_a_preemption_lands_in_the_gaps_and_not_in_the_first_token():
    line = Line(0, 5, 4, [(0, 2), (5, 2)], preemptions=1)
    seen = measured(make_replay([line], [10 * MS] * 7))
    assert finite(seen.itl) == [10 * MS, 10 * MS, 40 * MS]
    assert finite(seen.ttft) == [10 * MS]


def test_several_tokens_in_one_event_are_one_gap_and_zeros():
    line = Line(0, 5, 5, [(1, 2), (1, 1), (0, 1), (1, 1)])  # the run that goes on was closed first
    replay = make_replay([line], [10 * MS] * 3)
    replay.requests.first_token_ns[0] = 10 * MS
    assert finite(measured(replay).itl) == [0, 0, 10 * MS, 10 * MS]


def test_one_token_answers_have_neither_gap_nor_tpot():
    seen = measured(make_replay([Line(0, 5, 1, [(0, 1)])], [10 * MS]))
    assert (seen.ttft.n, seen.e2el.n, seen.itl.n, seen.tpot.n) == (1, 1, 0, 0)


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.FAILED, Outcome.UNFINISHED])
def test_a_lost_request_is_one_infinity_in_each_population(outcome):
    lines = [Line(0, 5, 3, [(0, 3)]), Line(0, 5, 4, [(0, 2)] if outcome != Outcome.REJECTED else [], outcome)]
    seen = measured(make_replay(lines, [10 * MS] * 3))
    for of in (seen.ttft, seen.itl, seen.tpot, seen.e2el):
        assert of.infinite == 1
        assert percentile(of, 100) == math.inf
    assert seen.ttft.n == 2
    # The gaps that a lost request did deliver were waited for, so they count.
    assert seen.itl.num_finite == (2 if outcome == Outcome.REJECTED else 3)


def test_a_lost_one_token_request_is_in_no_population_of_gaps():
    seen = measured(make_replay([Line(0, 5, 1, [], Outcome.REJECTED)], [10 * MS]))
    assert (seen.ttft.n, seen.e2el.n, seen.itl.n, seen.tpot.n) == (1, 1, 0, 0)


def test_a_cancel_that_the_trace_asked_for_leaves_every_population():
    lines = [Line(0, 5, 3, [(0, 3)]), Line(0, 5, 9, [(0, 3)], Outcome.CANCELLED)]
    seen = measured(make_replay(lines, [10 * MS] * 3))
    assert (seen.ttft.n, seen.itl.n, seen.tpot.n, seen.e2el.n) == (1, 2, 1, 1)


def test_requests_outside_the_window_are_in_no_population():
    lines = [Line(0, 5, 3, [(0, 3)], counted=0), Line(0, 5, 3, [(0, 3)])]
    seen = measured(make_replay(lines, [10 * MS] * 3))
    assert (seen.ttft.n, seen.itl.n) == (1, 2)


def test_an_answer_of_another_length_is_lost():
    seen = measured(make_replay([Line(0, 5, 4, [(0, 3)])], [10 * MS] * 3))
    assert (seen.ttft.n, seen.ttft.infinite) == (1, 1)


def good(lines, durations, slo):
    replay = make_replay(lines, durations)
    return qualifies(replay.requests, fates(replay.requests), parse_slo(slo)).tolist()


def test_a_request_qualifies_by_first_token_and_its_own_mean_gap():
    slo = "ttft:p99<20ms;itl:p99<10ms"
    at_the_limit = Line(0, 5, 3, [(1, 3)])
    late = Line(0, 5, 3, [(2, 3)])
    slow = Line(0, 5, 3, [(0, 2), (4, 1)])
    one_token = Line(0, 5, 1, [(1, 1)])
    failed = Line(0, 5, 5, [(0, 3)], Outcome.FAILED)
    assert good([at_the_limit, late, slow, one_token, failed], [10 * MS] * 5, slo) == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_end_to_end_limits_qualify_too():
    assert good([Line(0, 5, 3, [(0, 3)]), Line(0, 5, 4, [(0, 4)])], [10 * MS] * 4, "e2el:p50<30ms") == [True, False]


def test_a_mean_gap_is_compared_exactly():
    slo = "tpot:p99<10ms"
    just_over = [10 * MS, 10 * MS, 10 * MS + 1]
    assert good([Line(0, 5, 3, [(0, 3)])], just_over, slo) == [False]
    assert good([Line(0, 5, 3, [(0, 3)])], [10 * MS, 10 * MS - 1, 10 * MS + 1], slo) == [True]


def broken(change):
    replay = make_replay([Line(0, 5, 3, [(0, 3)]), Line(0, 5, 1, [(3, 1)])], [10 * MS] * 5, idle=[4])
    change(replay)
    check_tokens(replay, order_runs(replay))


def alter(run_column, at, value):
    def change(replay):
        replay.runs[run_column][at] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (alter(0, 1, 7), "no request"),
        (alter(1, 1, 9), "outside"),
        (alter(2, 1, 0), "empty"),
        (alter(1, 1, 4), "idle row"),
        (alter(0, 1, 0), "runs hold"),
        (lambda r: alter(1, 1, 1)(r) or alter(0, 1, 0)(r), "overlap"),
        (alter(2, 0, 2), "runs hold 2 tokens, said 3"),
        (alter(1, 0, 1), "first_token_ns"),
        (lambda r: r.requests.last_token_ns.__setitem__(0, 1), "last_token_ns"),
        (lambda r: r.requests.row.__setitem__(0, 5), "order of their rows"),
    ],
)
def test_columns_that_contradict_each_other_are_not_measured(change, words):
    broken(lambda replay: None)
    with pytest.raises(RecordingError, match=words):
        broken(change)


def test_gaps_are_pairs_a_step_and_never_expanded():
    replay = make_replay([Line(0, 5, 3, [(0, 3)]) for _ in range(50)], [10 * MS] * 3)
    values, times = gaps(replay, order_runs(replay), np.ones(50, bool))
    assert len(values) == 3
    assert times.tolist() == [0, 50, 50]
