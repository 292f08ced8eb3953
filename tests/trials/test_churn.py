"""The life of blocks from columns alone, against a watch that sees every block in every step."""

import numpy as np
import pytest
from builders import MS, build_engine, build_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_replays import make_facts, toy_server

from trials.churn import broken_flow, held_ns, reuse_gap_ns
from trials.latency import order_runs
from trials.load import offer
from trials.metrics import measure
from trials.replay import replay
from trials.segments import segments
from trials.slo import parse_slo
from trials.spec import Load, PoolPolicy, TraceSpec

SLO = parse_slo("ttft:p99<100s")


class Watched:
    """An engine that notes, after every step, which blocks are live and which are cached."""

    def __init__(self, engine):
        self.engine, self.facts, self.start_up = engine, engine.facts, engine.start_up
        self.live, self.cached, self.clock = [], [], []

    def step(self):
        step = self.engine.step()
        if step is not None:
            group = self.engine.audit().groups[0]
            self.live.append({b for table in group.tables.values() for b in table})
            self.cached.append(set(group.cached))
            self.clock.append(step.duration_ns)
        return step

    def __getattr__(self, name):
        return getattr(self.engine, name)


def served(trace, policy=None, num_blocks=64):
    engine = build_engine(trace, policy, num_blocks=num_blocks)
    recorded = replay(engine, trace, offer(trace, TraceSpec(path="x"), Load(rate_scale=1.0), "cold"))
    return recorded, engine.facts


def busy(seed, sharing=True):
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.integers(20, 90, 14), rng.integers(1, 60, 14)
    ids = [[0, 1 + int(k % 3), 10 + k][: -(-int(p) // 32)] for k, p in enumerate(prompts)] if sharing else None
    at = np.sort(rng.integers(0, 200, 14)).astype(float).tolist()
    return build_trace(prompts.tolist(), outputs.tolist(), at, ids, tokens_per_id=32)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([12, 24, 64]), st.booleans(), st.sampled_from(["prefix", "cow"]))
def test_events_explain_every_change_in_live_blocks(seed, num_blocks, caching, sharing):
    policy = PoolPolicy(block_size=16, prefix_caching=caching, sharing=sharing, max_model_len=160)
    recorded, facts = served(busy(seed), policy, num_blocks)
    assert broken_flow(recorded, facts) == []


@pytest.mark.parametrize("column", ["allocated_blocks", "released_blocks"])
def test_one_event_too_few_is_noticed_in_its_row(column):
    recorded, facts = served(busy(3, sharing=False), PoolPolicy(prefix_caching=False))
    at = int(np.flatnonzero(recorded.ledger[column])[1])
    recorded.ledger[column][at] -= 1
    said = broken_flow(recorded, facts)[0]
    assert f"in row {at}," in said


def test_blocks_that_turn_over_unseen_are_missed_in_the_sum():
    """Two requests after each other in one block: nothing jumps, and yet two lives were one."""
    recorded, facts = served(build_trace([8, 8], [2, 2], [0, 50]), PoolPolicy(max_model_len=16), num_blocks=1)
    assert recorded.ledger["allocated_blocks"].sum() == 2
    for column in ("allocated_blocks", "released_blocks"):
        recorded.ledger[column][np.flatnonzero(recorded.ledger[column])[1 if column[0] == "a" else 0]] -= 1
    assert broken_flow(recorded, facts) == [
        "block flow: 1 blocks were handed out, requests that ended took 2 at least"
    ]


def test_blocks_held_after_the_drain_are_noticed():
    recorded, facts = served(busy(3, sharing=False), PoolPolicy(prefix_caching=False))
    recorded.ledger["free_blocks"][-1] -= 2
    assert any("2 blocks are still held after the drain" in said for said in broken_flow(recorded, facts))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([14, 64]))
def test_mean_life_is_the_time_of_live_blocks_per_life(seed, num_blocks):
    trace = busy(seed)
    recorded, facts = served(trace, PoolPolicy(max_model_len=160), num_blocks)
    found = measure(recorded, facts, SLO, trace).metrics.churn
    live = num_blocks - recorded.ledger["free_blocks"] - recorded.ledger["cached_blocks"]
    lasted = recorded.steps["duration_ns"]
    assert found.lives == recorded.ledger["allocated_blocks"].sum() + found.revived_blocks
    assert found.block_lifetime_ms == pytest.approx(float((live * lasted).sum()) / found.lives / 1e6)


def test_a_block_that_is_found_again_begins_a_new_life():
    # One prompt of two blocks, asked for again long after it ended: its first block is found, the second computed.
    trace = build_trace([32, 32], [1, 1], [0, 100], [[0, 1], [0, 1]])
    recorded, facts = served(trace)
    found = measure(recorded, facts, SLO, trace).metrics.churn
    assert (found.lives, found.revived_blocks) == (4, 1)
    gap = int(recorded.requests.admitted_ns[1] - recorded.requests.end_ns[0])
    assert reuse_gap_ns(recorded, trace).tolist() == [gap]
    assert found.reuse_gap_ms.n == 1
    assert found.reuse_gap_ms.max == gap / MS


def test_a_hit_on_content_that_somebody_holds_has_no_gap():
    trace = build_trace([32, 32, 32], [50, 1, 1], [0, 5, 100], [[0, 1]] * 3)
    recorded, _ = served(trace)
    ends = recorded.requests.end_ns
    gaps = reuse_gap_ns(recorded, trace)
    assert gaps.tolist() == [int(recorded.requests.admitted_ns[2] - ends[:2].max())]


def test_the_gap_runs_from_the_last_of_several_holders():
    trace = build_trace([32, 32, 32], [5, 9, 1], [0, 0, 500], [[0, 1]] * 3)
    recorded, _ = served(trace)
    last = int(recorded.requests.end_ns[:2].max())
    assert reuse_gap_ns(recorded, trace).tolist()[-1] == int(recorded.requests.admitted_ns[2]) - last


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_blocks_of_a_request_are_held_from_their_step_to_its_end(seed):
    """No sharing and no preemption: every block of every table, watched one by one."""
    trace = busy(seed, sharing=False)
    engine = Watched(build_engine(trace, PoolPolicy(prefix_caching=False), num_blocks=200))
    recorded = replay(engine, trace, offer(trace, TraceSpec(path="x"), Load(rate_scale=1.0), "cold"))
    requests, size = recorded.requests, 16
    expected = []
    row, first, num = recorded.runs
    for k in range(len(requests.row)):
        prompt, got = int(requests.num_prompt_tokens[k]), int(requests.num_delivered[k])
        steps = [s for r, f, n in zip(row, first, num, strict=True) if r == k for s in range(f, f + n)]
        for block in range(-(-(prompt + got - 1) // size)):
            taken = requests.admitted_ns[k]
            if block * size >= prompt:
                taken = recorded.steps["start_ns"][steps[block * size + 1 - prompt]]
            expected.append(int(requests.end_ns[k] - taken))
    runs = order_runs(recorded)
    found = held_ns(recorded, runs, segments(recorded, runs, size))
    assert sorted(found.tolist()) == sorted(expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([1, 4, 16]))
def test_every_stay_in_the_pool_counts_its_blocks_once(seed, size):
    recorded, served_by, _ = toy_server(seed, trouble=0.4, block_size=size)
    runs = order_runs(recorded)
    found = held_ns(recorded, runs, segments(recorded, runs, size))
    preempted = recorded.requests.preemptions > 0
    expected = 0
    for k, one in enumerate(served_by):
        if preempted[k]:
            expected += sum(-(-(one.line.prompt + self_before(one, f) + n - 1) // size) for f, n in one.line.runs)
        else:
            expected += -(-(one.line.prompt + len(one.tokens_ns) - 1) // size)
    assert len(found) == expected
    assert (found >= 0).all()


def self_before(one, first):
    return sum(n for f, n in one.line.runs if f < first)


def test_stretches_of_the_window_hold_every_step_and_event_once():
    trace = busy(11)
    recorded, facts = served(trace)
    metrics = measure(recorded, facts, SLO, trace).metrics
    assert len(metrics.churn.stretches) == 16
    assert sum(s.allocated_blocks for s in metrics.churn.stretches) == metrics.alloc_events
    assert sum(s.evicted_blocks for s in metrics.churn.stretches) == metrics.evict_events
    assert sum(s.step_ms.n for s in metrics.churn.stretches) == sum(s.steps for s in metrics.churn.stretches)


def test_occupancy_is_live_blocks_of_those_that_can_be_handed_out():
    recorded, facts = served(build_trace([30], [1]), num_blocks=8)
    found = measure(recorded, facts, SLO).metrics.occupancy
    assert (found.mean, found.peak) == (2 / 8, 2 / 8)


def test_an_engine_that_does_not_tell_events_is_not_held_to_them():
    from dataclasses import replace

    recorded, _, _ = toy_server(1)
    facts = replace(make_facts(block_size=4, num_blocks=4000, bytes_per_token=3, reserve=2, padding=5, extra=7),
                    unknown_columns=("released_blocks",))  # fmt: skip
    assert broken_flow(recorded, facts) == []
    assert measure(recorded, facts, SLO).metrics.churn.block_lifetime_ms is None
