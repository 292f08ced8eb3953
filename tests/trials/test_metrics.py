"""A replay's result: counts, rates over the window's time, and one measurement in well under a second."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_replays import MS, Line, make_facts, make_ledger, make_replay, make_steps, toy_server

from trials.engine import Outcome
from trials.metrics import measure
from trials.recording import Replay, Requests
from trials.slo import parse_slo

SLO = parse_slo("ttft:p99<500ms;itl:p99<50ms")
STEP = 10 * MS
FATES = [
    Line(0, 5, 4, [(0, 4)]),
    Line(0, 5, 4, [(0, 2)], Outcome.CANCELLED),
    Line(0, 5, 4, [], Outcome.REJECTED),
    Line(0, 5, 4, [(0, 2)], Outcome.FAILED),
    Line(0, 5, 4, [(0, 2)], Outcome.UNFINISHED),
    Line(0, 5, 4, [(0, 4)], counted=0),
]


def test_every_counted_request_has_one_fate_and_cancels_are_not_offered():
    counts = measure(make_replay(FATES, [STEP] * 4), make_facts(), SLO).counts
    assert (counts.offered, counts.completed, counts.qualified, counts.cancelled) == (4, 1, 1, 1)
    assert (counts.rejected, counts.failed, counts.unfinished) == (1, 1, 1)


def test_lost_requests_count_against_attainment():
    result = measure(make_replay(FATES, [STEP] * 4), make_facts(), SLO)
    assert (result.attainment, result.holds) == (0.25, False)
    assert result.metrics.slo_values_ms == {"ttft:p99<500ms": None, "itl:p99<50ms": None}
    assert result.binding == "ttft:p99<500ms"


def test_a_request_that_qualifies_counts_whole_wherever_it_ends():
    lines = [Line(0, 5, 8, [(0, 8)]), Line(STEP, 5, 4, [(2, 4)])]
    metrics = measure(make_replay(lines, [STEP] * 8, window_ns=(0, 4 * STEP)), make_facts(), SLO).metrics
    assert metrics.qualified_output_tokens == 12
    assert metrics.qualified_output_throughput == 12 / 0.04
    assert metrics.request_goodput == 2 / 0.04


def test_throughput_is_of_what_came_inside_the_window_whoever_got_it():
    early = Line(0, 5, 1, [(0, 1)], counted=0)
    lines = [Line(0, 5, 8, [(0, 8)], counted=0), Line(STEP, 5, 3, [(2, 3)]), early]
    metrics = measure(make_replay(lines, [STEP] * 8, window_ns=(2 * STEP, 6 * STEP)), make_facts(), SLO).metrics
    # Tokens come at the ends of steps: 20, 30, 40 and 50 ms, and 30, 40, 50 ms.
    assert metrics.output_throughput == 7 / 0.04
    assert metrics.request_throughput == 1 / 0.04


def test_tokens_of_a_request_that_missed_its_limits_are_not_qualified():
    late = Line(0, 5, 4, [(60, 4)])
    result = measure(make_replay([late, Line(0, 5, 6, [(0, 6)])], [STEP] * 64), make_facts(), SLO)
    assert (result.counts.completed, result.counts.qualified, result.metrics.qualified_output_tokens) == (2, 1, 6)


def test_an_answer_of_another_length_is_failed_and_what_voids_the_replay_is_passed_on():
    replay = make_replay([Line(0, 5, 4, [(0, 3)])], [STEP] * 3)
    replay.void_because = ["1 request was delivered another length"]
    result = measure(replay, make_facts(), SLO)
    assert result.void_because == ("1 request was delivered another length",)
    assert (result.counts.completed, result.counts.failed, result.counts.qualified) == (0, 1, 0)


def test_a_window_without_length_is_refused():
    with pytest.raises(ValueError, match="no length"):
        measure(make_replay([Line(0, 5, 1, [(0, 1)])], [STEP], window_ns=(5, 5)), make_facts(), SLO)


def test_nothing_offered_qualifies_nothing_and_holds_nothing():
    result = measure(make_replay([Line(0, 5, 1, [(0, 1)], counted=0)], [STEP]), make_facts(), SLO)
    assert (result.counts.offered, result.holds, result.metrics.ttft_ms.n) == (0, False, 0)


def test_preemptions_and_recomputed_tokens_are_those_of_counted_requests():
    lines = [
        Line(0, 5, 4, [(0, 2), (3, 2)], preemptions=1, recomputed=6),
        Line(0, 5, 1, [(0, 1)], counted=0, preemptions=0),
    ]
    metrics = measure(make_replay(lines, [STEP] * 5), make_facts(), SLO).metrics
    assert (metrics.num_preemptions, metrics.num_recomputed_tokens) == (1, 6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.5]))
def test_rates_are_those_of_every_single_token(seed, trouble):
    replay, served, facts = toy_server(seed, trouble=trouble)
    begin, finish = replay.window_ns = (60 * MS, 300 * MS)
    result = measure(replay, facts, SLO)
    inside = sum(begin <= t < finish for s in served for t in s.tokens_ns)
    assert result.metrics.output_throughput == pytest.approx(inside / 0.24)
    good = [s for s in served if s.line.counted and s.tokens_ns[0] - s.line.arrival_ns <= 500 * MS
            and s.tokens_ns[-1] - s.tokens_ns[0] <= 50 * MS * (len(s.tokens_ns) - 1)]  # fmt: skip
    assert result.counts.qualified == len(good)
    assert result.metrics.qualified_output_tokens == sum(len(s.tokens_ns) for s in good)
    assert result.ledger.unbalanced_rows == 0


def test_equal_replays_give_equal_bytes_and_no_infinity():
    def text():
        replay, _, facts = toy_server(11, trouble=0.4)
        return json.dumps(measure(replay, facts, SLO).model_dump(mode="json"), sort_keys=True, allow_nan=False)

    assert text() == text()


def large_replay(num_steps=450_000, num_requests=20_000):
    """4 M tokens in two runs a request."""
    rng = np.random.default_rng(0)
    facts = make_facts(num_blocks=100_000)
    steps = make_steps(rng.integers(5 * MS, 15 * MS, num_steps), waiting_tokens=rng.integers(0, 10**6, num_steps),
                       num_waiting=rng.integers(0, 9, num_steps), refusal_cause=rng.integers(0, 7, num_steps),
                       num_running=rng.integers(1, 250, num_steps), num_decodes=rng.integers(1, 250, num_steps),
                       decode_blocks=rng.integers(1, 90_000, num_steps))  # fmt: skip
    payload, slack = rng.integers(0, 10**6, num_steps), rng.integers(0, 4000, num_steps)
    ledger = make_ledger(num_steps, facts, payload_tokens=payload, logical_tokens=payload, tail_slack_tokens=slack)
    half = rng.integers(1, 200, num_requests)
    first = np.sort(rng.integers(0, num_steps - 1000, num_requests))
    second = first + half + 3
    runs = [np.repeat(np.arange(num_requests), 2), np.stack([first, second], 1).ravel(), np.repeat(half, 2)]
    end = steps["start_ns"] + steps["duration_ns"]
    zero, one = np.zeros(num_requests, np.int64), np.ones(num_requests, np.int64)
    prompt = rng.integers(1, 4000, num_requests)
    requests = Requests(
        np.arange(num_requests), steps["start_ns"][first], first, -one, steps["start_ns"][first], end[first],
        end[second + half - 1], end[second + half - 1], zero, prompt, 2 * half, 2 * half, zero, zero, zero, one,
    )  # fmt: skip
    return Replay("steady", "rate_scale 1", "virtual", steps, ledger, requests, (runs[0], runs[1], runs[2]),
                  (0, int(end[-1])), int(end[-1])), facts  # fmt: skip


def test_four_million_tokens_are_measured_in_about_a_second():
    replay, facts = large_replay()
    assert replay.requests.num_delivered.sum() > 3_900_000
    began = time.process_time()
    result = measure(replay, facts, SLO)
    took = time.process_time() - began
    assert result.metrics.itl_ms.n == replay.requests.num_delivered.sum() - 20_000
    assert took < 3.0  # 0.6 s measured; a busy machine gets room, a loop over tokens does not


def test_a_broken_ledger_is_measured_and_shown_and_never_hidden_by_a_crash():
    replay, _, facts = toy_server(5)
    replay.ledger["free_blocks"][3] = -7
    assert measure(replay, facts, SLO).ledger.unbalanced_rows == 1
