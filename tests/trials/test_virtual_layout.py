"""Layout virtual end to end: a page of tokens a block, rounding in the ledger, nothing shared, calls counted."""

import numpy as np
import pytest

from trials.content import Content
from trials.engine import Refused
from trials.engines import simulator, torch_engine
from trials.ladder import run
from trials.spec import TrialSpec, trial_spec
from trials.trace import STARTS, Trace, make_trace
from trials.worker import effective, ineligible

TINY = {
    "num_layers": 2, "num_kv_heads": 1, "num_query_heads": 1, "head_dim": 16, "hidden_size": 16,
    "intermediate_size": 32, "vocab_size": 100, "dtype": "float32", "kv_dtype": "float32",
}  # fmt: skip


def forked() -> Trace:
    return make_trace(
        np.zeros(3, np.int64), np.array([20, 20, 20]), np.array([9, 9, 9]), parent=np.array([-1, 0, 0]),
        inherited_tokens=np.array([0, 20, 20]),
        starts=np.array([STARTS["arrival"], STARTS["fork"], STARTS["fork"]]),
    )  # fmt: skip


def spec(engine: str = "simulator", **policy: object) -> TrialSpec:
    """A token of a layer's K takes 64 bytes: a page of 500 bytes holds 7 and leaves 52, 208 a block."""
    return trial_spec({
        "engine": {"name": engine, "step_time": "constant:1000"}, "model": TINY, "pool": {"bytes": 50_000},
        "policy": {"layout": "virtual", "page_bytes": 500, "max_model_len": 64, **policy}, "trace": {"path": "t"},
        "slo": "ttft:p99<1h", "phases": ["cold"],
    })  # fmt: skip


@pytest.mark.parametrize("sharing", ["prefix", "cow"])
def test_a_virtual_trial_accounts_for_every_byte_shares_nothing_and_counts_its_map_calls(sharing: str) -> None:
    trace, asked = forked(), spec(sharing=sharing)
    engine = simulator.open(asked, Content(trace))
    assert not isinstance(engine, Refused)
    outcome = run(engine, trace, asked, lambda text: None)
    (one,) = outcome.replays
    assert ineligible(outcome, engine.facts) == []
    blocks = 50_000 // (4 * 500)
    assert one.result.ledger.peak.padding == blocks * 208
    assert one.result.ledger.peak.remainder == 50_000 - blocks * 2000
    metrics = one.result.metrics
    assert (metrics.net_shared_bytes_saved, metrics.copy_events, metrics.prefix_hit_rate) == (0, 0, 0)
    assert metrics.alloc_events == 3 * -(-28 // 7)
    assert metrics.map_calls == 2 * 2 * metrics.alloc_events
    assert metrics.waste_byte_seconds["padding"] > 0
    found = effective(engine.facts, asked)
    assert (found.block_size, found.layout, found.knobs["prefix_caching"]) == (7, "virtual", "False")


def test_real_tensors_refuse_the_virtual_layout_in_words() -> None:
    found = torch_engine.open(spec("torch_paged"), Content(forked()))
    assert isinstance(found, Refused)
    assert "layout virtual" in found.words
