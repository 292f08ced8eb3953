"""Runs cut at block boundaries: the tail block of every token, and the emptiest one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_replays import MS, Line, make_facts, make_replay, toy_server

from trials.latency import order_runs
from trials.occupancy import held
from trials.segments import integrals, largest_slack, segments

STEP = 10 * MS


def cut(replay, size):
    return segments(replay, order_runs(replay), size)


def tokens_of(one):
    """(step, tokens held) for each token delivered."""
    gave = {s for first, n in one.line.runs for s in range(first, first + n)}
    return {s: n for stay in one.stays for s, n in stay if s in gave}


def test_a_run_is_cut_where_it_enters_a_block():
    parts = cut(make_replay([Line(0, 5, 11, [(2, 11)])], [STEP] * 13, make_facts(block_size=4)), 4)
    assert parts.block.tolist() == [1, 2, 3]
    assert parts.first.tolist() == [2, 6, 10]
    assert parts.last.tolist() == [5, 9, 12]
    assert parts.held.tolist() == [5, 9, 13]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.4]), st.sampled_from([1, 3, 16, 1000]))
def test_every_token_lies_in_exactly_one_segment_at_its_block(seed, trouble, size):
    replay, served, _ = toy_server(seed, trouble=trouble, block_size=size)
    parts = cut(replay, size)
    found: dict = {}
    for request, block, first, last, tokens in zip(
        parts.request.tolist(), parts.block.tolist(), parts.first.tolist(), parts.last.tolist(),
        parts.held.tolist(), strict=True,
    ):  # fmt: skip
        for step in range(first, last + 1):
            assert (request, step) not in found
            found[request, step] = tokens + step - first
            assert (found[request, step] - 1) // size == block
    assert found == {(row, step): n for row, one in enumerate(served) for step, n in tokens_of(one).items()}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_integrals_are_sums_over_the_steps_inside_the_window(seed):
    replay, _, facts = toy_server(seed, trouble=0.3)
    finish = replay.window_ns[1]
    replay.window_ns = (finish // 4 + 1, finish // 2 + 3)
    seen = held(replay, facts)
    parts = cut(replay, 4)
    found = integrals(parts, seen)
    for k in range(len(parts.run)):
        steps = range(parts.first[k], parts.last[k] + 1)
        ns = [int(seen.lasted_ns[s]) for s in steps]
        assert found.seconds[k] == pytest.approx(sum(ns) / 1e9, abs=1e-12)
        tokens = sum(n * (int(parts.held[k]) + i) for i, n in enumerate(ns)) / 1e9
        assert found.held[k] == pytest.approx(tokens, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.4]), st.sampled_from([1, 4, 16, 1000]), st.booleans())
def test_the_emptiest_tail_is_that_of_a_walk_through_every_token(seed, trouble, size, windowed):
    replay, served, facts = toy_server(seed, trouble=trouble, block_size=size)
    finish = replay.window_ns[1]
    if windowed:
        replay.window_ns = (finish // 4 + 1, finish // 2 + 3)
    seen = held(replay, facts)
    slack = {
        (row, step): -n % size
        for row, one in enumerate(served)
        for step, n in tokens_of(one).items()
        if seen.lasted_ns[step] > 0
    }
    value, request, step = largest_slack(cut(replay, size), seen, size)
    if not slack:
        assert (value, request, step) == (0, -1, -1)
        return
    assert value == max(slack.values()) < size
    assert slack[request, step] == value
    assert step == min(s for (_, s), n in slack.items() if n == value)
