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


def test_who_compares_its_books_with_the_pool_is_told_the_pool_where_nobody_keeps_them() -> None:
    """What went wrong: engines came to ask the accounts themselves, and were told of none."""
    accounts = watching.Asking(16, 40, 1)
    accounts.ask = lambda: 7
    accounts.claim(3, 0)
    assert accounts.free_blocks + accounts.cached_blocks == 7
    assert accounts.row().payload_tokens == 0


def row_of(share: float, reach: float, pairs: int = 200) -> watching.Row:
    low, high = (share - reach) * 1000, (share + reach) * 1000
    return watching.Row(16, pairs, 1000 + share * 1000, 1000.0, share * 1000, low, high)


@pytest.mark.parametrize(("first", "pairs", "over"), [
    (row_of(0.012, 0.01), 800, False),  # open: measured again, and that answer counts
    (row_of(0.03, 0.01), 200, True),  # decided
    (row_of(0.002, 0.03), 800, False),  # open from below is open too
    (row_of(0.002, 0.003), 200, False),  # decided
])  # fmt: skip
def test_what_the_noise_leaves_open_is_measured_again_with_more_pairs(
    first: watching.Row, pairs: int, over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        watching, "measure", lambda name, size, steps: first if steps == 200 else row_of(0.004, 0.005, steps)
    )
    row = watching.decided("torch_paged", 16, 200)
    assert row.pairs == pairs
    assert (row.share > watching.LIMIT) is over
