"""Capacity: the same windows, median and range, what stands beside it, and a block size's best in closed form."""

import math
from itertools import pairwise

import numpy as np
import pytest

from search_spaces.race import race
from tests.builders import MS, build_engine, build_trace
from trials.bracket import rungs
from trials.capacity import combined, load_of, parts_of
from trials.engine import StepShape
from trials.ladder import Replays, run
from trials.result import CapacityPart
from trials.spec import PoolPolicy, trial_spec
from trials.trace import make_trace

D_MS = 20


def constant(shape: StepShape) -> tuple[int, int]:
    return D_MS * MS, 0


def spec(measure, slo="ttft:p90<60ms", **changes):
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "constant:20000"}, "model": "llama-3.1-8b",
        "pool": {"blocks": 64}, "trace": {"path": "t"}, "slo": slo, "measure": measure,
        "phases": ["cold"], **changes,
    })  # fmt: skip


def found(trace, asked):
    engine = build_engine(trace, PoolPolicy(max_num_seqs=1), step_time=constant)
    outcome = run(engine, trace, asked, lambda text: None)
    assert outcome.capacity is not None
    return outcome


def uneven():
    """Three stretches of 5 s at 20, 10 and 40 requests a second, at a server that takes 50 a second."""
    gaps = [50.0] * 100 + [100.0] * 50 + [25.0] * 201
    at = np.concatenate([[0.0], np.cumsum(gaps)[:-1]]).tolist()
    return build_trace([8] * len(at), [1] * len(at), arrivals_ms=at)


def test_each_window_is_searched_for_itself_and_the_median_decides():
    outcome = found(uneven(), spec({"ladder": {"low": 0.25, "high": 16, "within": 0.02, "windows": 3}}))
    capacity = outcome.capacity
    assert [p.value for p in capacity.parts] == pytest.approx([2.5, 5.0, 1.25], rel=0.06)
    assert [p.requests for p in capacity.parts] == [100, 50, 201]
    values = sorted(p.value for p in capacity.parts)
    assert (capacity.low, capacity.value, capacity.high) == tuple(values)
    assert capacity.decides == 0
    assert outcome.capacity_load == capacity.value
    assert outcome.replays[outcome.decides].result.load == f"rate_scale={capacity.value:g}"
    assert f"{values[0]:g} to {values[2]:g} over 3 windows" in capacity.words


def test_windows_are_disjoint_and_cover_what_was_asked():
    trace = uneven()
    asked = spec(
        {"ladder": {"low": 1, "high": 2, "windows": 4}},
        trace={"path": "t", "window": {"start": "2s", "duration": "10s"}, "warmup": "1s"},
    )
    windows = [part.window for part in parts_of(trace, asked)]
    assert windows[0].start == 2_000_000_000
    assert all(a.start + a.duration == b.start for a, b in pairwise(windows))
    assert windows[-1].start + windows[-1].duration == 12_000_000_000
    assert parts_of(trace, spec({"ladder": {"low": 1, "high": 2}}))[0].window is None


def test_where_nothing_failed_the_capacity_is_at_least_the_last_load():
    trace = build_trace([8] * 60, [1] * 60, arrivals_ms=[1000.0 * k for k in range(60)])
    capacity = found(trace, spec({"ladder": {"low": 1, "high": 4}})).capacity
    assert capacity.at_least
    assert capacity.value == 4
    assert capacity.words == ">= 4 x; nothing tried failed"


def test_deciding_replay_ran_to_its_end_and_its_neighbours_were_measured():
    outcome = found(uneven(), spec({"ladder": {"low": 0.25, "high": 16, "within": 0.05}}))
    (part,) = outcome.capacity.parts
    loads = {float(m.result.load.partition("=")[2]): m for m in outcome.replays}
    assert len(loads) == len(outcome.replays)
    assert loads[part.value].replay.stopped_early is None
    assert not loads[part.beyond].result.holds or loads[part.beyond].result.metrics.backlog_grew
    assert loads[part.below].result.holds
    assert part.stopped_early > 0
    assert part.engine_s > 0


def test_too_few_requests_to_see_the_percentile_is_said_with_the_number():
    trace = build_trace([8] * 30, [1] * 30, arrivals_ms=[100.0 * k for k in range(30)])
    outcome = found(trace, spec({"ladder": {"low": 1, "high": 4}}, slo="ttft:p99<60ms"))
    assert outcome.capacity_load is None
    assert outcome.capacity.needs_requests == 100
    assert "30 in the window, it needs at least 100 requests" in outcome.capacity.words
    assert "trace.superpose to 4" in outcome.capacity.words


def test_a_window_that_ends_before_its_requests_are_served_was_never_in_balance():
    """40 requests in 40 ms that take 20 ms each, all at once: nothing fails, and nothing is learnt."""
    trace = build_trace([8] * 40, [40] * 40, arrivals_ms=[float(k) for k in range(40)])
    engine = build_engine(trace, PoolPolicy(), step_time=constant)
    outcome = run(engine, trace, spec({"ladder": {"low": 1, "high": 2}}), lambda text: None)
    assert outcome.capacity_load is None
    assert outcome.capacity.needs_requests > 400


def part(value, beyond=9.0):
    return CapacityPart(
        start_ns=0, end_ns=1, requests=100, value=value, beyond=beyond, below=None, binding="x", replays=1,
        stopped_early=0, engine_s=1.0,
    )  # fmt: skip


def test_a_window_on_which_nothing_holds_counts_as_the_least():
    both = combined("rps", 9, [part(3.0), part(None), part(2.0)])
    assert (both.value, both.low, both.high, both.decides) == (2.0, None, 3.0, 2)
    assert combined("rps", 9, [part(None), part(4.0)]).value is None


def test_of_pools_the_larger_is_the_worse():
    three = combined("pool_bytes", 1, [part(300.0), part(100.0), part(200.0)])
    assert (three.value, three.low, three.high) == (200.0, 100.0, 300.0)
    assert combined("pool_bytes", 1, [part(300.0), part(None), part(200.0)]).value == 300.0


# ---- a + c_blk T / B with slack cost lambda B
def synthetic(size: int, per_block_ns: float, per_slot_ns: float):
    """A kernel that pays for each block that it walks and for each slot of a tail block that holds nothing.

    A tail is half empty on average, so a sequence of T tokens costs c T / B + (c + lambda' B) / 2 a step: with
    lambda = lambda' / 2 that is the closed form, least at B = sqrt(c T / lambda).
    """

    def step(shape: StepShape) -> tuple[int, int]:
        slack = shape.decode_blocks * size - shape.decode_context
        attention = int(per_block_ns * shape.decode_blocks + per_slot_ns * slack)
        return 200_000 + attention, attention

    return step


@pytest.mark.parametrize(("per_block", "root"), [(20_000.0, 9.0), (20_000.0, 28.0), (40_000.0, 70.0)])
def test_the_search_lands_on_the_power_of_two_next_to_the_square_root(per_block, root):
    rng = np.random.default_rng(3)
    tokens, count = 256, 80
    prompts = rng.integers(tokens - 64, tokens + 64, count)  # all rests modulo a block alike
    trace = make_trace(np.cumsum(rng.exponential(20e6, count)).astype(np.int64), prompts, np.full(count, 12))
    per_slot = 2 * per_block * (tokens + 6) / root**2
    asked = spec(
        {"ladder": {"low": 0.02, "high": 64, "within": 0.02}}, slo="ttft:p90<100ms;tpot:p90<4ms;attainment>=0.8"
    )
    values, sizes = rungs(asked.measure.ladder), (16, 1, 2, 4, 8, 32, 64, 128, 256)
    replays = {}
    for size in sizes:
        engine = build_engine(
            trace, PoolPolicy(block_size=size, prefix_caching=False), num_blocks=-(-80_000 // size),
            step_time=synthetic(size, per_block, per_slot),
        )  # fmt: skip
        replays[size] = Replays(engine, trace, asked, lambda text: None)
    raced = race(
        len(sizes),
        lambda k, rung: replays[sizes[k]].passes(load_of("rate_scale", values[rung]), "cold"),
        len(values),
    )
    assert sizes[raced.winner] == 1 << round(math.log2(root))
