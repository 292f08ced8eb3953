"""A static batch knows slack from lengths alone, and nothing of churn."""

import numpy as np
import pytest
from builders import build_engine, build_trace

from trials.load import offer
from trials.metrics import measure
from trials.replay import replay
from trials.result import Effective
from trials.slo import parse_slo
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.static_batch import LEDGER_COLUMNS, REQUEST_COLUMNS, Lifecycle, compare_static, lifecycle


def effective(num_blocks: int, size: int = 16) -> Effective:
    return Effective(
        block_size=size, kernel_block_size=size, num_blocks=num_blocks, reserve_blocks=0,
        pool_bytes=num_blocks * size * 64, bytes_per_token=64, reuse_quantum_tokens=size,
    )  # fmt: skip


def compared(prompts: list[int], outputs: list[int], num_blocks: int) -> dict[str, tuple[float, float]]:
    trace = build_trace(prompts, outputs, [5.0 * k for k in range(len(prompts))])
    engine = build_engine(trace, PoolPolicy(max_model_len=512), num_blocks=num_blocks)
    recorded = replay(engine, trace, offer(trace, TraceSpec(path="x"), Load(rate_scale=1.0), "cold"))
    life = lifecycle(
        {name: getattr(recorded.requests, name) for name in REQUEST_COLUMNS},
        {name: (recorded.steps | recorded.ledger)[name] for name in LEDGER_COLUMNS},
    )
    shown = measure(recorded, engine.facts, parse_slo("ttft:p99<100s"))
    return {row.name: (row.static, row.lifecycle) for row in compare_static(life, effective(num_blocks), shown)}


def test_a_roomy_pool_hands_out_exactly_what_the_batch_claims() -> None:
    found = compared([20, 33, 48], [5, 16, 1], num_blocks=64)
    blocks = sum(-(-n // 16) for n in (24, 48, 48))
    assert found["blocks handed out"] == found["blocks let go"] == (blocks, blocks)
    assert found["tail slack of claimed slots"][0] == pytest.approx(1 - 120 / (blocks * 16))
    assert found["preemptions"] == (0, 0)


def test_a_tight_pool_shows_churn_that_the_batch_has_none_of() -> None:
    found = compared([60] * 6, [80] * 6, num_blocks=14)
    for name in ("preemptions", "tokens computed again", "failed admissions"):
        assert found[name][0] == 0
        assert found[name][1] > 0, name
    assert found["blocks handed out"][1] > found["blocks handed out"][0]


def test_requests_at_once_are_whole_ones() -> None:
    assert compared([60] * 2, [5] * 2, num_blocks=14)["requests in the pool at once"][0] == 14 // 4


def test_where_nothing_was_served_there_is_nothing_to_pack() -> None:
    trace = build_trace([20], [5])
    engine = build_engine(trace)
    recorded = replay(engine, trace, offer(trace, TraceSpec(path="x"), Load(rate_scale=1.0), "cold"))
    shown = measure(recorded, engine.facts, parse_slo("ttft:p99<100s"))
    assert compare_static(Lifecycle(np.zeros(0, np.int64), {}, 0, 0, 0), effective(64), shown) == ()
