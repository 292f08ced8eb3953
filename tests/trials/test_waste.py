"""Waste is what cannot serve declared work; a slot that the request later fills is not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_replays import MS, Line, make_facts, make_replay, toy_server

from trials.engine import Cause
from trials.latency import order_runs
from trials.occupancy import held
from trials.waste import never_filled, waste


def kinds(replay, facts):
    return waste(replay, order_runs(replay), facts, held(replay, facts))


def single(asked, prompt=5, block=4, runs=None, **more):
    """One request alone, 1 s a step, with the ledger that it makes."""
    facts = make_facts(block_size=block, bytes_per_token=1, num_blocks=50)
    line = Line(0, prompt, asked, runs or [(0, asked)], **more)
    held_tokens = np.array([prompt + k for k in range(asked)])
    blocks = -(-held_tokens // block)
    ledger = {"payload_tokens": held_tokens, "logical_tokens": held_tokens, "free_blocks": 50 - blocks,
              "tail_slack_tokens": blocks * block - held_tokens}  # fmt: skip
    return make_replay([line], [1000 * MS] * asked, facts, ledger=ledger), facts


def test_slack_that_the_request_later_fills_is_told_apart():
    # Holds 5, 6, 7, 8, 9, 10 tokens in blocks of 4: slack 3 2 1 0 3 2; ends with 2 slots of the third block empty.
    replay, facts = single(asked=6)
    found = kinds(replay, facts)
    assert found["tail_slack_never_filled"] == 2 * 2
    assert found["tail_slack_filled_later"] == 11 - 4


def test_a_request_that_ends_on_a_full_block_wastes_no_slack():
    replay, facts = single(asked=4)
    found = kinds(replay, facts)
    assert (found["tail_slack_never_filled"], found["tail_slack_filled_later"]) == (0, 6)


def test_a_one_token_answer_wastes_the_tail_of_its_prompt():
    replay, facts = single(asked=1)
    assert kinds(replay, facts)["tail_slack_never_filled"] == 3


def expected_never_filled(replay, served, size):
    """Token-seconds, by walking every step of every stay."""
    total = 0.0
    for one in served:
        for stay in split_by_tokens(one) if one.line.preemptions else [one.stays[0]]:
            final = stay[-1][1]
            blocks = -(-final // size)
            for step, tokens in stay:
                if -(-tokens // size) == blocks:
                    total += (blocks * size - final) * int(replay.steps["duration_ns"][step]) / 1e9
    return total


def split_by_tokens(one):
    """Stretches of steps that gave a token each: what the columns tell of a preempted request."""
    starts = dict(one.line.runs)
    whole = dict(pair for stay in one.stays for pair in stay)
    return [[(s, whole[s]) for s in range(first, first + n)] for first, n in starts.items()]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.4]), st.sampled_from([1, 4, 16]))
def test_never_filled_slots_are_those_of_a_walk_through_every_step(seed, trouble, size):
    replay, served, facts = toy_server(seed, block_size=size, trouble=trouble)
    found = never_filled(replay, order_runs(replay), held(replay, facts), size)
    assert found == pytest.approx(expected_never_filled(replay, served, size), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_filled_and_never_filled_make_the_tail_slack_account(seed):
    replay, _, facts = toy_server(seed, trouble=0.3)
    found = kinds(replay, facts)
    column = replay.ledger["tail_slack_tokens"] * facts.groups[0].bytes_per_token
    whole = float(np.sum(column * replay.steps["duration_ns"] / 1e9))
    assert found["tail_slack_never_filled"] + found["tail_slack_filled_later"] == pytest.approx(whole)
    assert found["tail_slack_filled_later"] >= -1e-9


def queued(cause, waiting=1):
    facts = make_facts(block_size=4, bytes_per_token=1, num_blocks=10)
    steps = {"num_waiting": [waiting] * 2 + [0], "refusal_cause": [int(cause), int(cause), int(cause)]}
    ledger = {"free_blocks": [3, 3, 3], "cached_blocks": [2, 2, 2], "payload_tokens": [20, 20, 20]}
    return kinds(make_replay([Line(0, 5, 3, [(0, 3)])], [1000 * MS] * 3, facts, steps=steps, ledger=ledger), facts)


@pytest.mark.parametrize("cause", [Cause.WATERMARK, Cause.HEAD_OF_LINE, Cause.SLOTS])
def test_free_and_cached_bytes_are_stranded_while_something_waits_that_may_not_take_them(cause):
    found = queued(cause)
    assert found[f"stranded_{cause.name.lower()}"] == 2 * (3 + 2) * 4
    assert sum(value for kind, value in found.items() if kind.startswith("stranded")) == 40


@pytest.mark.parametrize("cause", [Cause.MEMORY, Cause.BUDGET, Cause.NONE])
def test_free_bytes_that_nobody_is_kept_from_are_not_waste(cause):
    assert sum(value for kind, value in queued(cause).items() if kind.startswith("stranded")) == 0


def test_free_bytes_with_nothing_waiting_are_not_waste():
    assert queued(Cause.WATERMARK, waiting=0)["stranded_watermark"] == 0


def test_padding_remainder_and_reserve_are_waste_for_as_long_as_they_stand():
    facts = make_facts(block_size=4, bytes_per_token=8, num_blocks=10, reserve=1, padding=2, extra=5)
    found = kinds(make_replay([Line(0, 5, 2, [(0, 2)])], [1000 * MS] * 2, facts), facts)
    assert (found["padding"], found["remainder"], found["reserve"]) == (2 * 20, 2 * 5, 2 * 32)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9))
def test_total_is_the_sum_of_what_is_waste(seed):
    replay, _, facts = toy_server(seed)
    found = kinds(replay, facts)
    parts = {k: v for k, v in found.items() if k not in ("total", "tail_slack_filled_later")}
    assert found["total"] == pytest.approx(sum(parts.values()))
