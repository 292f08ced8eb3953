"""The benchmark sees what watching costs: nothing where nothing is added, and what is added where something is."""

import numpy as np
import pytest

from benchmarks import watching
from tests.builders import build_trace
from trials.content import Content
from trials.engine import Work
from trials.engines import simulator
from trials.spec import trial_spec


def test_cost_is_the_median_of_paired_differences_whatever_the_machine_does_beside() -> None:
    rng = np.random.default_rng(3)
    drift = np.linspace(1000, 3000, 500) + rng.normal(0, 20, 500)  # a machine that slows down threefold
    pairs = np.stack([drift * 1.03 + rng.normal(0, 20, 500), drift + rng.normal(0, 20, 500)], axis=1)
    row = watching.summed(16, pairs)
    assert row.difference_us == pytest.approx(60, abs=6)
    assert row.low_us < row.difference_us < row.high_us
    assert row.share > watching.LIMIT
    same = watching.summed(16, np.stack([drift, drift], axis=1))
    assert same.share == 0


def test_switched_off_nothing_is_booked_and_decisions_are_the_same() -> None:
    trace = build_trace([20, 33], [12, 9])
    spec = trial_spec({
        "engine": {"name": "simulator", "step_time": "constant:1000"}, "model": "llama-3.1-8b",
        "pool": {"blocks": 20}, "trace": {"path": "none"}, "slo": "ttft:p99<1s",
    })  # fmt: skip
    tables = []
    for on in (True, False):
        engine = simulator.open(spec, Content(trace))
        engine.start(cold=True)
        watching.own_switch(engine)(on)
        for row in range(2):
            engine.add(Work(row, int(trace.num_prompt_tokens[row]), int(trace.num_output_tokens[row])))
        steps = [engine.step() for _ in range(5)]
        assert all(step is not None and (step.ledger[0].payload_tokens > 0) is on for step in steps)
        tables.append(engine.audit().groups[0].tables)
    assert tables[0] == tables[1]
