"""Accounts by length of request and by state of the block: every token of every step stands somewhere, once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_replays import MS, Line, make_facts, make_replay, toy_server

from trials.breakdown import by_length, by_state, byte_shares, shares
from trials.latency import fates, order_runs
from trials.occupancy import held
from trials.segments import segments
from trials.waste import waste


def broken_down(replay, facts):
    runs = order_runs(replay)
    parts = segments(replay, runs, facts.groups[0].block_size)
    return shares(replay, runs, parts, facts, held(replay, facts), facts.groups[0])


def in_bytes(replay, facts):
    runs = order_runs(replay)
    parts = segments(replay, runs, facts.groups[0].block_size)
    return byte_shares(replay, runs, parts, facts, held(replay, facts))


def table_of(replay, facts, members):
    return by_length(replay, in_bytes(replay, facts), members)


def walk(replay, served, size):
    """Per request: token-seconds in full blocks, in the tail, and of its slack, over steps that gave a token."""
    seconds = replay.steps["duration_ns"] / 1e9
    out = np.zeros((len(served), 3))
    for row, one in enumerate(served):
        gave = {s for first, n in one.line.runs for s in range(first, first + n)}
        for step, tokens in (pair for stay in one.stays for pair in stay):
            if step in gave:
                full = (tokens - 1) // size * size
                out[row] += np.array([full, tokens - full, full + size - tokens]) * seconds[step]
    return out


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.4]), st.sampled_from([1, 4, 16]))
def test_full_tail_and_slack_are_those_of_a_walk_through_every_step(seed, trouble, size):
    replay, served, facts = toy_server(seed, trouble=trouble, block_size=size)
    found = broken_down(replay, facts)
    expected = walk(replay, served, size)
    for column, values in enumerate((found.full, found.tail, found.tail_slack)):
        assert values == pytest.approx(expected[:, column], abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.4]))
def test_breakdown_by_length_covers_every_offered_request_once(seed, trouble):
    replay, served, facts = toy_server(seed, trouble=trouble)
    table = table_of(replay, facts, fates(replay.requests).offered)
    offered = [s for s in served if s.line.counted]
    assert sum(part["requests"] for part in table.values()) == len(offered)
    assert sum(part["output_tokens"] for part in table.values()) == sum(s.line.asked for s in offered)
    whole = walk(replay, served, 4)[[s.line.counted == 1 for s in served]] * facts.groups[0].bytes_per_token
    for name, columns in (("decoding_payload", [0, 1]), ("full", [0]), ("tail", [1]), ("tail_slack", [2])):
        found = sum(part[f"{name}_byte_seconds"] for part in table.values())
        assert found == pytest.approx(whole[:, columns].sum())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_never_filled_slack_by_length_is_all_of_it(seed):
    replay, _, facts = toy_server(seed, trouble=0.3)
    table = table_of(replay, facts, np.ones(len(replay.requests.row), bool))
    found = sum(part["tail_slack_never_filled_byte_seconds"] for part in table.values())
    kinds = waste(replay, order_runs(replay), facts, held(replay, facts))
    assert found == pytest.approx(kinds["tail_slack_never_filled"])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.4]))
def test_full_tail_and_prefill_are_what_sequences_hold(seed, trouble):
    replay, _, facts = toy_server(seed, trouble=trouble)
    states = by_state(in_bytes(replay, facts), held(replay, facts))
    column = replay.ledger["logical_tokens"] * facts.groups[0].bytes_per_token
    whole = float(np.sum(column * replay.steps["duration_ns"] / 1e9))
    assert states["full"] + states["tail"] + states["prefill"] == pytest.approx(whole)
    assert states["prefill"] >= -1e-9
    if not trouble:
        assert states["prefill"] == pytest.approx(0, abs=1e-6)


def test_shared_is_what_is_held_more_than_once():
    facts = make_facts()
    ledger = {"payload_tokens": [16, 16], "logical_tokens": [16, 48]}
    replay = make_replay([Line(0, 16, 2, [(0, 2)])], [1000 * MS] * 2, facts, ledger=ledger)
    assert by_state(in_bytes(replay, facts), held(replay, facts))["shared"] == 32 * 64


def test_what_a_whole_answer_reserves_ahead_shrinks_block_by_block():
    from dataclasses import replace

    facts = replace(make_facts(block_size=4, bytes_per_token=1), effective=(("reserve_output", "full"),))
    replay = make_replay([Line(0, 3, 7, [(0, 7)])], [1000 * MS] * 7, facts)
    # Holds 3 .. 9 tokens and three blocks: two blocks ahead while it holds 3 or 4, one up to 8, none at 9.
    assert broken_down(replay, facts).reserved_ahead.tolist() == [8 * 2 + 4 * 4]


def test_lengths_are_binned_by_powers_of_two():
    lines = [Line(0, prompt, 1, [(0, 1)]) for prompt in (1, 2, 3, 4, 15, 16)]
    facts = make_facts()
    table = table_of(make_replay(lines, [MS], facts), facts, np.ones(6, bool))
    assert {name: part["requests"] for name, part in table.items()} == {
        "2-2": 1,
        "3-4": 2,
        "5-8": 1,
        "9-16": 1,
        "17-32": 1,
    }
