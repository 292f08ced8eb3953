"""A load to beat: one failed replay rejects, a load that holds is searched from, and hints move the cost alone."""

import numpy as np
import pytest

from tests.builders import MS, build_engine, build_trace
from trials.engine import StepShape
from trials.ladder import run
from trials.spec import PoolPolicy, trial_spec
from trials.units import SpecError
from trials.worker import ineligible

D_MS = 20


def constant(shape: StepShape) -> tuple[int, int]:
    return D_MS * MS, 0


def spec(**ladder):
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "constant:20000"}, "model": "llama-3.1-8b",
        "pool": {"blocks": 64}, "trace": {"path": "t"}, "slo": "ttft:p90<60ms", "phases": ["cold"],
        "measure": {"ladder": {"low": 0.25, "high": 16, "within": 0.02, **ladder}},
    })  # fmt: skip


def found(trace, **ladder):
    engine = build_engine(trace, PoolPolicy(max_num_seqs=1), step_time=constant)
    return run(engine, trace, spec(**ladder), lambda text: None), engine.facts


def uneven():
    """Three stretches of 5 s at 20, 10 and 40 requests a second, at a server that takes 50 a second."""
    gaps = [50.0] * 100 + [100.0] * 50 + [25.0] * 201
    at = np.concatenate([[0.0], np.cumsum(gaps)[:-1]]).tolist()
    return build_trace([8] * len(at), [1] * len(at), arrivals_ms=at)


def engine_s(outcome):
    return sum(p.engine_s for p in outcome.capacity.parts)


WHOLE, _ = found(uneven())


def test_a_load_to_beat_that_does_not_hold_rejects_after_one_replay():
    beat = WHOLE.capacity_load * 1.03
    outcome, facts = found(uneven(), beat=beat)
    assert len(outcome.replays) == 1
    assert outcome.capacity_load is None
    assert outcome.capacity.value is None
    assert outcome.capacity.less_than >= beat
    assert outcome.capacity.words.startswith(f"< {outcome.capacity.less_than:g} x: the load to beat does not hold")
    assert engine_s(outcome) < 0.4 * engine_s(WHOLE)
    assert ineligible(outcome, facts) == []


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 1.0])
def test_a_load_to_beat_that_holds_gives_the_same_capacity_as_no_race(share):
    outcome, _ = found(uneven(), beat=WHOLE.capacity_load * share)
    assert outcome.capacity_load == WHOLE.capacity_load
    assert outcome.capacity.less_than is None
    assert outcome.replays[outcome.decides].replay.stopped_early is None


@pytest.mark.parametrize("near", [0.25, 1.0, 1.2, 1.4, 5.0, 16])
def test_a_hint_moves_the_cost_and_not_the_answer(near):
    outcome, _ = found(uneven(), near=near)
    assert outcome.capacity_load == WHOLE.capacity_load


def test_a_good_hint_costs_less():
    outcome, _ = found(uneven(), near=WHOLE.capacity_load)
    assert engine_s(outcome) < 0.8 * engine_s(WHOLE)


def test_a_load_to_beat_between_two_rungs_is_the_upper_one():
    between = WHOLE.capacity_load * 1.005
    outcome, _ = found(uneven(), beat=between)
    assert outcome.capacity.less_than > between


def test_of_several_windows_as_many_may_fail_as_the_median_forgives():
    """The three stretches hold 2.5, 5 and 1.25; their median is 2.5."""
    whole, _ = found(uneven(), windows=3)
    held, _ = found(uneven(), windows=3, beat=2.0)
    assert held.capacity_load == whole.capacity_load
    lost, _ = found(uneven(), windows=3, beat=3.5)
    assert (lost.capacity_load, len(lost.capacity.parts)) == (None, 3)
    assert [p.value is not None for p in lost.capacity.parts] == [False, True, False]
    early, _ = found(uneven(), windows=3, beat=8.0)
    assert len(early.capacity.parts) == 2  # two of three failed: the third cannot help


@pytest.mark.parametrize("asked", [{"beat": 17}, {"beat": 0.1}, {"over": "pool_bytes", "beat": 1}])
def test_a_load_to_beat_that_no_rung_can_answer_is_refused(asked):
    with pytest.raises(SpecError, match="beat"):
        spec(**asked)


def test_too_few_requests_are_said_of_a_challenger_too():
    trace = build_trace([8] * 5, [1] * 5, arrivals_ms=[10.0 * k for k in range(5)])
    outcome, facts = found(trace, beat=8.0)
    assert outcome.capacity.less_than is not None
    assert any("too few" in why for why in ineligible(outcome, facts))
