"""A replay that is stopped early is stopped because its answer is certain: run to the end it gives the same."""

import random

import numpy as np
import pytest

from tests.builders import MS, build_engine, build_trace
from trials.latency import order_runs
from trials.load import offer
from trials.metrics import measure
from trials.replay import replay
from trials.slo import parse_slo
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.stop_rules import CANNOT_HOLD, HOLDS, StopRule
from trials.trace import make_trace

SLOS = (
    "ttft:p90<60ms",
    "ttft:p99<40ms;itl:p99<3ms",
    "ttft:p50<25ms;tpot:p90<2ms;attainment>=0.6",
    "e2el:p90<150ms",
    "ttft:p95<80ms;itl:p90<2ms;qualify:ttft<60ms;attainment>=70%",
)


def holds(result):
    return result.holds and not result.metrics.backlog_grew


def both(trace, policy, blocks, window, scale, slo_text):
    """The same offer stopped as soon as it is certain, and to its end."""
    engine, slo = build_engine(trace, policy, num_blocks=blocks), parse_slo(slo_text)
    asked = offer(trace, TraceSpec.model_validate({"path": "t", **window}), Load(rate_scale=scale), "steady")
    early = replay(engine, trace, asked, 0, StopRule(trace, asked, slo))
    full = replay(engine, trace, asked)
    return early, measure(early, engine.facts, slo, trace), full, measure(full, engine.facts, slo, trace)


def random_trace(seed, cancels):
    rng = np.random.default_rng(seed)
    count = 120
    gaps = rng.exponential(8.0, count)
    columns = {}
    if cancels:
        columns["cancel_after_ns"] = np.where(rng.random(count) < 0.2, rng.integers(1, 80, count) * MS, -1)
    return make_trace(
        (np.cumsum(gaps) * MS).astype(np.int64), rng.integers(4, 60, count), rng.integers(1, 30, count), **columns
    )


@pytest.mark.parametrize("cancels", [False, True])
def test_verdict_of_a_stopped_replay_is_that_of_the_whole_one(cancels):
    rng = random.Random(7)
    seen = {CANNOT_HOLD: 0, HOLDS: 0, "to the end": 0}
    for seed in range(60):
        trace = random_trace(seed, cancels)
        window = rng.choice([{}, {"window": {"start": "300ms", "duration": "400ms"}, "warmup": "200ms"}])
        policy = PoolPolicy(block_size=4, max_num_seqs=rng.choice([4, 64]), max_num_batched_tokens=64)
        case = (rng.choice([24, 60, 400]), window, rng.choice([0.5, 1.0, 2.0, 5.0]), rng.choice(SLOS))
        early, short, full, whole = both(trace, policy, *case)
        assert holds(short) == holds(whole), (seed, case, early.stopped_early)
        assert full.stopped_early is None
        assert not early.broken_laws
        why = early.stopped_early or "to the end"
        if why.startswith(CANNOT_HOLD):
            assert not holds(whole)
            clause = why.removeprefix(f"{CANNOT_HOLD}: ")
            assert clause == "attainment" or clause in case[3]
        seen[next(name for name in seen if why.startswith(name))] += 1
    assert seen[CANNOT_HOLD] > 10
    assert cancels or seen[HOLDS] > 3
    assert seen["to the end"] > 3


def test_overload_is_given_up_long_before_its_window_ends():
    trace = build_trace([40] * 400, [20] * 400, arrivals_ms=[float(k) for k in range(400)])
    early, _, full, _ = both(trace, PoolPolicy(max_num_seqs=2), 64, {}, 1.0, "ttft:p90<50ms")
    assert early.stopped_early == f"{CANNOT_HOLD}: ttft:p90<50ms"
    assert early.drain_end_ns < full.drain_end_ns / 4


def test_stopped_replay_leaves_the_engine_drained_and_its_columns_in_agreement():
    trace = build_trace([40] * 100, [20] * 100, arrivals_ms=[float(k) for k in range(100)])
    engine, slo = build_engine(trace, PoolPolicy(max_num_seqs=2)), parse_slo("ttft:p90<50ms")
    asked = offer(trace, TraceSpec(path="t"), Load(rate_scale=1.0), "cold")
    early = replay(engine, trace, asked, 0, StopRule(trace, asked, slo))
    order_runs(early)
    assert early.ledger["payload_tokens"][-1] == 0
    engine.start(cold=True)
    engine.check()


def test_requests_that_may_still_be_given_up_are_not_counted_as_missed():
    """All wait too long, but each leaves the population by its own wish before it is answered."""
    trace = make_trace(
        np.arange(40, dtype=np.int64) * MS, np.full(40, 40), np.full(40, 30),
        cancel_after_ns=np.where(np.arange(40) > 0, 30 * MS, -1),
    )  # fmt: skip
    early, short, _, whole = both(trace, PoolPolicy(max_num_seqs=1), 64, {}, 1.0, "ttft:p50<20ms")
    assert early.stopped_early is None
    assert whole.counts.cancelled > 30
    assert holds(short) == holds(whole)
