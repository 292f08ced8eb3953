"""Who was kept out, at how many free bytes, and that waste is only what a failed admission explains."""

from dataclasses import replace

import numpy as np
import pytest
from builders import build_engine, build_trace
from hypothesis import given
from hypothesis import strategies as st
from toy_replays import MS, Line, make_facts, make_replay

from trials.engine import Cause
from trials.load import offer
from trials.occupancy import held
from trials.pressure import (
    admissible_tokens,
    bin_edges,
    bin_of,
    first_failed,
    largest_admissible,
    pressure_bins,
    unexplained_waste,
)
from trials.replay import replay as run_replay
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.waste import stranded

STEP = 10 * MS
FACTS = make_facts(block_size=4, bytes_per_token=2)  # blocks of 8 bytes


def replay_of(ledger=None, window_ns=None, idle=(), facts=FACTS, **steps):
    lines = [Line(0, 8, 4, [(0, 4)])]
    return make_replay(lines, [STEP] * 5, facts, window_ns, idle=idle, steps=steps, ledger=ledger)


def seen(replay, facts=FACTS):
    return held(replay, facts)


@given(st.integers(0, 2**52))
def test_every_byte_count_lies_in_its_bin_whatever_the_pool(num_bytes):
    low, high = bin_edges(int(bin_of(np.array([num_bytes]))[0]))
    assert low <= num_bytes <= high


@pytest.mark.parametrize("exponent", range(1, 50))
def test_bins_follow_each_other_without_gap(exponent):
    assert bin_edges(exponent)[0] == bin_edges(exponent - 1)[1] + 1


CAUSES = [Cause.MEMORY, Cause.WATERMARK, Cause.WATERMARK, Cause.NONE, Cause.SLOTS]
ROOM = {"free_blocks": [1, 2, 2, 4, 4], "cached_blocks": [0, 0, 0, 0, 4]}


def test_failed_admissions_stand_by_the_bytes_that_were_free_or_cached():
    replay = replay_of(ROOM, refusal_cause=[int(c) for c in CAUSES], num_waiting=[1, 1, 1, 0, 1])
    bins = {(b.low_bytes, b.high_bytes): b for b in pressure_bins(replay, seen(replay))}
    assert {edges: b.steps for edges, b in bins.items()} == {(5, 8): 1, (9, 16): 2, (17, 32): 1, (33, 64): 1}
    assert bins[5, 8].failed == {"memory": 1}
    assert bins[9, 16].failed == {"watermark": 2}
    assert (bins[9, 16].share, bins[17, 32].share, bins[17, 32].failed) == (1.0, 0.0, {})
    assert bins[5, 8].stranded_byte_seconds == {}
    assert bins[9, 16].stranded_byte_seconds == {"watermark": pytest.approx(2 * 16 * 0.01)}
    assert bins[33, 64].stranded_byte_seconds == {"slots": pytest.approx(64 * 0.01)}


def test_idle_rows_and_rows_outside_the_window_are_in_no_bin():
    causes = [int(c) for c in CAUSES]
    replay = replay_of(ROOM, (STEP, 5 * STEP), idle=[4], refusal_cause=causes, num_waiting=[1, 1, 1, 0, 1])
    assert sum(b.steps for b in pressure_bins(replay, seen(replay))) == 3


def test_stranded_waste_is_what_the_bins_explain():
    replay = replay_of(ROOM, refusal_cause=[int(c) for c in CAUSES], num_waiting=[1, 1, 1, 0, 1])
    bins = pressure_bins(replay, seen(replay))
    assert unexplained_waste(stranded(replay, seen(replay)), bins) == []


def test_free_blocks_called_waste_without_a_failed_admission_are_found_out():
    replay = replay_of(ROOM, refusal_cause=[0] * 5)
    bins = pressure_bins(replay, seen(replay))
    said = unexplained_waste({"stranded_scattered": 1.5, "padding": 3.0}, bins)
    assert said == ["waste stranded_scattered: 1.5 byte-seconds, failed admissions explain 0"]


def test_the_first_failed_admission_says_who_wanted_what_and_what_there_was():
    causes = [int(c) for c in (Cause.BUDGET, Cause.PREEMPTED, Cause.WATERMARK, Cause.MEMORY, Cause.NONE)]
    replay = replay_of(ROOM, refusal_cause=causes, refusal_row=[7, 7, 8, 9, -1], refusal_blocks=[0, 0, 2, 5, 0])
    found = first_failed(replay, seen(replay))
    assert found is not None
    assert (found.row, found.step, found.cause, found.wanted_blocks) == (8, 2, "watermark", 2)
    assert (found.free_blocks, found.cached_blocks) == (2, 0)
    assert first_failed(replay_of(), seen(replay_of())) is None


def test_the_largest_admissible_request_takes_free_and_cached_blocks_but_for_the_watermark():
    replay = replay_of(ROOM, num_running=[1, 1, 0, 1, 1])
    assert admissible_tokens(replay, FACTS).tolist() == [4, 8, 8, 16, 32]
    assert largest_admissible(replay, replace(FACTS, max_model_len=20), seen(replay)) == {"min": 4, "max": 20}
    marked = replace(FACTS, effective=(("watermark", "0.029"),))  # 2 of 100 blocks, rounded down
    assert admissible_tokens(replay, marked).tolist() == [0, 0, 8, 8, 24]


@pytest.mark.parametrize("watermark", [0.0, 0.3])
def test_a_prompt_of_the_largest_admissible_size_is_admitted_and_one_token_more_is_not(watermark):
    policy = PoolPolicy(block_size=4, prefix_caching=False, watermark=watermark, max_model_len=512)
    first = build_trace([30, 4], [40, 1], [0, 5])
    engine = build_engine(first, policy, num_blocks=24)
    asked = offer(first, TraceSpec(path="x"), Load(rate_scale=1.0), "cold")
    recorded = run_replay(engine, first, asked)
    at = int(np.flatnonzero(recorded.requests.met_step[1] <= np.arange(len(recorded.steps["idle"])))[0]) - 1
    room = int(admissible_tokens(recorded, engine.facts)[at])
    for prompt, admitted in ((room, True), (room + 1, False)):
        trace = build_trace([30, prompt], [40, 1], [0, 5])
        again = run_replay(build_engine(trace, policy, num_blocks=24), trace, asked)
        step = int(again.requests.met_step[1])
        assert (again.requests.admitted_ns[1] == again.steps["start_ns"][step]) == admitted
