"""What a trial's replays are, which decides, and that a capacity is a load that was measured to hold."""

import gc
from typing import Any

import numpy as np
import pytest

from tests.builders import build_engine, build_trace
from trials.content import Content
from trials.engine import DeviceBytes
from trials.engines.own import PagedEngine
from trials.engines.simulator import Modelled
from trials.ladder import Outcome, run
from trials.model import PRESETS
from trials.plan import Plan
from trials.roofline import step_time
from trials.spec import PoolPolicy, TrialSpec, trial_spec
from trials.trace import Trace, make_trace

D_MS = 20.0  # what the single server takes for a request
SINGLE = PoolPolicy(max_num_seqs=1)


class Counts(Modelled):
    """A server that takes D_MS for every step; counts its replays."""

    def __init__(self) -> None:
        super().__init__(step_time("constant:20000", PRESETS["llama-3.1-8b"], 16), DeviceBytes())
        self.replays = 0
        self.collected = 0

    def reset(self) -> None:
        self.replays += 1

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        self.collected += gc.isenabled()
        return super().execute(plan)


def server(trace: Trace) -> tuple[PagedEngine, Counts]:
    plain, execution = build_engine(trace, SINGLE), Counts()
    return PagedEngine(plain.facts, SINGLE, Content(trace), execution), execution


def spec(measure: dict[str, Any], slo: str = "ttft:p99<30ms", **changes: Any) -> TrialSpec:
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "constant:20000"}, "model": "llama-3.1-8b",
        "pool": {"blocks": 64}, "trace": {"path": "t"}, "slo": slo, "measure": measure, **changes,
    })  # fmt: skip


def even(count: int, gap_ms: float) -> Trace:
    """One-token answers at equal gaps: each is one step of the server."""
    return build_trace([8] * count, [1] * count, arrivals_ms=[gap_ms * k for k in range(count)])


def measured(trace: Trace, asked: TrialSpec) -> tuple[Outcome, Counts, list[str]]:
    engine, execution = server(trace)
    said: list[str] = []
    return run(engine, trace, asked, said.append), execution, said


# ---- a server whose answer is known
@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
def test_mean_ttft_of_random_arrivals_at_a_single_server_is_that_of_queueing_theory(utilisation: float) -> None:
    """M/D/1: mean TTFT = D + R D^2 / (2 (1 - R D)), within five standard errors of 40 batch means."""
    count, seconds = 20_000, D_MS / 1e3
    rate = utilisation / seconds
    gaps = np.random.default_rng(5).exponential(1e9 / rate, count)
    trace = make_trace(np.cumsum(gaps).astype(np.int64), np.full(count, 8), np.ones(count, np.int64))
    outcome, _, _ = measured(trace, spec({"load": {"rate_scale": 1.0}}, phases=["cold"]))
    requests = outcome.replays[0].replay.requests
    ttft = (requests.first_token_ns - requests.arrival_ns) / 1e9
    actual = (count - 1) / ((trace.arrival_ns[-1] - trace.arrival_ns[0]) / 1e9)
    expected = seconds + actual * seconds**2 / (2 * (1 - actual * seconds))
    batches = ttft.reshape(40, -1).mean(axis=1)
    error = float(batches.std(ddof=1)) / 40**0.5
    assert abs(ttft.mean() - expected) < 5 * error
    assert error < expected / 10
    mean_ms = outcome.replays[0].result.metrics.ttft_ms.mean
    assert mean_ms == pytest.approx(ttft.mean() * 1e3, rel=1e-9)


def holds_by_arithmetic(rps: float, count: int) -> bool:
    """Equal gaps at a server that takes D: request k waits k (D - gap); nearest from a linear p99 < 30 ms."""
    waits = np.arange(count) * max(0.0, D_MS - 1e3 / rps)
    return float(np.percentile(D_MS + waits, 99)) <= 30.0


@pytest.mark.parametrize("within", [0.2, 0.02])
def test_capacity_is_the_known_one_to_within_what_was_asked(within: float) -> None:
    count = 400
    trace = even(count, 100.0)
    outcome, _, _ = measured(trace, spec({"ladder": {"over": "rps", "low": 5, "high": 400, "within": within}}))
    found = outcome.capacity_load
    assert found is not None
    assert holds_by_arithmetic(found, count)
    assert not holds_by_arithmetic(found * (1 + within), count)
    assert found == pytest.approx(50.0, rel=within)


def test_capacity_was_measured_to_hold_and_its_neighbour_beyond_not_to() -> None:
    trace = even(300, 100.0)
    asked = spec({"ladder": {"over": "rate_scale", "low": 0.5, "high": 40, "within": 0.05}})
    outcome, execution, _ = measured(trace, asked)
    decides = outcome.replays[outcome.decides]
    assert decides.result.load == f"rate_scale={outcome.capacity_load:g}"
    assert decides.result.holds
    assert not decides.result.metrics.backlog_grew
    loads = {float(m.result.load.partition("=")[2]): m.result for m in outcome.replays}
    beyond = min(load for load in loads if load > (outcome.capacity_load or 0))
    assert beyond / (outcome.capacity_load or 1) <= 1.05
    assert not (loads[beyond].holds and not loads[beyond].metrics.backlog_grew)
    assert execution.replays == len(outcome.replays) == len(loads)


def test_load_at_which_the_backlog_grows_does_not_hold_although_the_slo_does() -> None:
    trace = even(300, 100.0)
    asked = spec({"ladder": {"over": "rps", "low": 10, "high": 100, "within": 0.05}}, slo="ttft:p99<1000s")
    outcome, _, _ = measured(trace, asked)
    assert outcome.capacity_load is not None
    assert outcome.capacity_load < 60
    assert outcome.capacity is not None
    (part,) = outcome.capacity.parts
    beyond = next(m for m in outcome.replays if m.result.load == f"rps={part.beyond:g}")
    assert beyond.result.holds
    assert beyond.result.metrics.backlog_grew
    assert part.binding == "backlog"


def test_no_load_that_holds_is_none_and_the_lowest_decides() -> None:
    trace = even(100, 100.0)
    outcome, _, said = measured(trace, spec({"ladder": {"low": 20, "high": 40}}))
    decides = outcome.replays[outcome.decides]
    assert (outcome.capacity_load, decides.result.load) == (None, "rate_scale=20")
    assert decides.result.stopped_early is None
    assert said[-1] == "capacity: no load of the ladder holds: attainment binds"


def test_highest_load_that_still_holds_is_the_capacity() -> None:
    trace = even(100, 1000.0)
    outcome, _, _ = measured(trace, spec({"ladder": {"low": 1, "high": 10}}))
    assert outcome.capacity_load == 10
    assert outcome.replays[outcome.decides].result.load == "rate_scale=10"
    assert len(outcome.replays) == 2


def test_ladder_of_one_load_measures_it_once() -> None:
    """It was measured twice, and two replays of one load in one file cannot be told apart by a lock."""
    trace = even(200, 1000.0)
    outcome, execution, _ = measured(
        trace, spec({"ladder": {"low": 2, "high": 2}}, trace={"path": "t", "warmup": "5s"})
    )
    assert outcome.capacity_load == 2
    assert len(outcome.replays) == execution.replays == 1


def test_concurrency_is_searched_in_whole_numbers() -> None:
    trace = build_trace([8] * 60, [1] * 60)
    outcome, _, _ = measured(
        trace, spec({"ladder": {"over": "concurrency", "low": 1, "high": 9, "within": 0.01}}, slo="ttft:p90<70ms")
    )
    labels = [m.result.load for m in outcome.replays]
    assert all(float(label.partition("=")[2]).is_integer() for label in labels)
    assert len(set(labels)) == len(labels)
    assert outcome.capacity_load == 3  # the third in the queue of a single server waits 2 D and takes D: 60 ms


# ---- phases
def window(start: str, duration: str, warmup: str) -> dict[str, Any]:
    return {"path": "t", "window": {"start": start, "duration": duration}, "warmup": warmup}


def test_steady_decides_and_cold_counts_the_same_requests() -> None:
    trace = even(100, 100.0)
    outcome, execution, _ = measured(trace, spec({"load": {"rate_scale": 1}}, trace=window("4s", "3s", "2s")))
    assert [m.result.phase for m in outcome.replays] == ["cold", "steady"]
    assert outcome.decides == 1
    assert execution.replays == 2
    counted = [m.replay.requests.row[m.replay.requests.counted > 0].tolist() for m in outcome.replays]
    assert counted[0] == counted[1] == list(range(40, 70))


def test_steady_before_cold_is_not_taken_for_it() -> None:
    """A modelled cold replay was taken to be the steady one before it, warm-up and all."""
    trace = even(100, 100.0)
    asked = spec({"load": {"rate_scale": 1}}, trace=window("4s", "3s", "2s"), phases=["steady", "cold"])
    outcome, execution, _ = measured(trace, asked)
    assert execution.replays == 2
    assert [m.result.observation.warmup for m in outcome.replays] == [20, 0]
    assert outcome.decides == 0


def test_modelled_phases_that_offer_the_same_are_replayed_once() -> None:
    trace = even(100, 100.0)
    outcome, execution, _ = measured(trace, spec({"load": {"rate_scale": 1}}))
    assert execution.replays == 1
    assert (
        [m.result.phase for m in outcome.replays] == [m.replay.phase for m in outcome.replays] == ["cold", "steady"]
    )
    assert outcome.replays[0].result.metrics == outcome.replays[1].result.metrics


@pytest.mark.parametrize(("phases", "decides"), [(["cold"], 0), (["steady"], 0), (["steady", "cold"], 0)])
def test_steady_decides_where_it_is_measured(phases: list[str], decides: int) -> None:
    outcome, _, _ = measured(even(20, 100.0), spec({"load": {"rate_scale": 1}}, phases=phases))
    assert outcome.decides == decides


def test_nothing_is_collected_inside_a_replay_and_everything_after_it() -> None:
    assert gc.isenabled()
    _, execution, _ = measured(even(20, 100.0), spec({"load": {"rate_scale": 1}}))
    assert execution.collected == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
