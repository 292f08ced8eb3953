"""Who ran and who was kept out, over the window."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_replays import MS, Line, make_facts, make_replay, toy_server

from trials import activity
from trials.engine import Cause
from trials.occupancy import held

STEP = 10 * MS


def replay_of(num_steps=4, lines=None, window_ns=None, idle=(), ledger=None, **steps):
    return make_replay(lines or [Line(0, 8, num_steps, [(0, num_steps)])], [STEP] * num_steps, make_facts(),
                       window_ns=window_ns, idle=idle, steps=steps, ledger=ledger)  # fmt: skip


def seen(replay):
    return held(replay, make_facts())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_qualified_concurrency_is_that_of_every_nanosecond(seed):
    replay, _, _ = toy_server(seed, num_requests=5)
    requests = replay.requests
    good = np.arange(5) % 2 == 0
    begin, finish = replay.window_ns = (100 * MS, 350 * MS)
    spans = [(requests.admitted_ns[k], requests.last_token_ns[k]) for k in np.flatnonzero(good)]
    edges = sorted({begin, finish, *(int(np.clip(t, begin, finish)) for span in spans for t in span)})
    pieces = [(b - a, sum(up <= a and b <= down for up, down in spans)) for a, b in itertools.pairwise(edges)]
    found = activity.qualified_concurrency(replay, good)
    assert found.mean == pytest.approx(sum(t * n for t, n in pieces) / (finish - begin))
    assert found.peak == max(n for _, n in pieces)


def test_nobody_qualified_is_a_concurrency_of_zero():
    found = activity.qualified_concurrency(replay_of(), np.array([False]))
    assert (found.mean, found.peak) == (0, 0)


def test_block_events_are_those_of_rows_that_begin_inside_the_window():
    ledger = {"allocated_blocks": [1, 2, 4, 8], "evicted_blocks": [1, 0, 0, 1]}
    found = activity.block_events(replay_of(window_ns=(STEP, 3 * STEP), ledger=ledger))
    assert found == {"allocated": 6, "released": 0, "evicted": 0, "copied": 0}


def test_failed_admissions_are_steps_by_cause():
    causes = [Cause.MEMORY, Cause.MEMORY, Cause.WATERMARK, Cause.NONE, Cause.SLOTS]
    replay = replay_of(5, idle=[4], lines=[Line(0, 8, 4, [(0, 4)])], refusal_cause=[int(c) for c in causes])
    assert activity.failed_admissions(replay, seen(replay)) == {"memory": 2, "watermark": 1}


def test_attention_share_leaves_out_steps_that_do_not_tell():
    replay = replay_of(attention_ns=[4 * MS, -1, 2 * MS, -1])
    assert activity.attention_share(replay, seen(replay)) == 0.3
    assert activity.attention_share(replay_of(), seen(replay_of())) is None


def test_block_table_depth_is_blocks_of_a_decoding_sequence():
    replay = replay_of(num_decodes=[0, 2, 2, 4], decode_blocks=[0, 6, 10, 4])
    found = activity.block_table_depth(replay, seen(replay))
    assert (found.mean, found.peak) == (3, 5)


def test_hit_rate_weighs_tokens_of_counted_requests_that_were_admitted():
    lines = [Line(0, 100, 1, [(0, 1)], cached=64), Line(0, 28, 1, [(0, 1)]), Line(0, 500, 1, []),
             Line(0, 100, 1, [(0, 1)], cached=99, counted=0)]  # fmt: skip
    assert activity.hit_rate(replay_of(1, lines).requests) == 64 / 128


def test_map_calls_are_the_pages_of_the_blocks_handed_out_and_only_where_pages_are_mapped():
    facts = replace(make_facts(block_size=16, bytes_per_token=64, padding=24), effective=(("layout", "paged"),))
    assert activity.map_calls(facts, 5) is None
    virtual = replace(facts, effective=(("layout", "virtual"), ("page_bytes", str((16 * 64 + 24) // 4))))
    assert activity.map_calls(virtual, 5) == 5 * 4
