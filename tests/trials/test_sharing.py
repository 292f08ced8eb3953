"""What sharing saves, and what it costs when many write at once: bound, burst, logical and physical tokens."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import build_engine, policy_case, works_of
from tests.trials.test_forks import samples, serve
from trials.load import offer
from trials.recording import Replay
from trials.replay import replay
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.trace import Trace


def replayed(trace: Trace, policy: PoolPolicy, num_blocks: int = 64) -> Replay:
    engine = build_engine(trace, policy, num_blocks)
    recorded = replay(engine, trace, offer(trace, TraceSpec(path="t"), Load(rate_scale=1.0), "cold"))
    assert recorded.failed is None
    assert not recorded.broken_laws
    return recorded


def test_no_step_bursts_beyond_the_bound_of_the_step_before() -> None:
    """In the columns of a replay, over random loads; and the bound is met with equality often enough to be one."""
    met = bursts = 0
    for seed in range(400):
        case = policy_case(seed, sharing="cow")
        recorded = replayed(case.trace, case.policy, case.num_blocks)
        burst, bound = recorded.steps["burst_blocks"], recorded.steps["bound_blocks"]
        assert (burst[1:] <= bound[:-1]).all()
        assert not len(burst) or burst[0] == 0
        bursts += int((burst > 0).sum())
        met += int(((burst[1:] == bound[:-1]) & (burst[1:] > 0)).sum())
    assert bursts > 300
    assert met > bursts // 2


def test_burst_is_copies_and_the_blocks_that_children_open() -> None:
    """Five children at block 4 from 18 tokens: 4 copies and one write in place, then 5 blocks every 4th step."""
    recorded = replayed(samples(18, [1] + [12] * 5), PoolPolicy(block_size=4, sharing="cow"))
    assert recorded.steps["burst_blocks"].tolist()[:11] == [0, 4, 0, 5, 0, 0, 0, 5, 0, 0, 0]
    assert recorded.ledger["copied_blocks"].sum() == 4


@pytest.mark.parametrize("sharing", ["cow", "prefix"])
def test_bound_and_burst_are_of_copy_on_write_only(sharing: str) -> None:
    policy = PoolPolicy.model_validate({"block_size": 4, "sharing": sharing})
    recorded = replayed(samples(18, [12] * 4), policy)
    assert bool(recorded.steps["bound_blocks"].any()) == (sharing == "cow")
    assert bool(recorded.steps["burst_blocks"].any()) == (sharing == "cow")
    assert bool(recorded.ledger["copied_blocks"].any()) == (sharing == "cow")


def test_sharing_looks_free_until_many_children_diverge_together() -> None:
    """40 children on two blocks: 3 % of the pool is held, and the bound says at once that 40 more do not fit."""
    engine = serve(samples(20, [1] + [9] * 40), num_blocks=32)
    step = engine.step()
    assert step is not None
    available = step.ledger[0].free_blocks + step.ledger[0].cached_blocks
    assert available == 30
    assert step.bound_blocks == 39 > available
    step = engine.step()
    assert step is not None
    assert step.preempted


@given(
    prompt=st.integers(1, 50),
    outputs=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    size=st.integers(1, 17),
    caching=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_samples_of_one_prompt_hold_it_once_and_each_its_own_answer(
    prompt: int, outputs: list[int], size: int, caching: bool
) -> None:
    """Ample pool: blocks taken are those of the prompt once, and of each child what it writes beyond full blocks.

    Payload counts a shared token once, logical once a holder; every token is computed exactly once.
    """
    trace = samples(prompt, outputs)
    policy = PoolPolicy(block_size=size, sharing="cow", prefix_caching=caching, max_num_batched_tokens=100)
    recorded = replayed(trace, policy, num_blocks=800)
    last = np.array(outputs) + prompt - 1
    full = prompt // size
    own = np.maximum(-(-last // size) - full, 0)
    writers = int((np.array(outputs) > 1).sum())
    tail = prompt % size > 0
    copies = max(0, writers - 1) if tail else 0
    if tail and len(outputs) > 1 and writers:
        assert recorded.ledger["copied_blocks"].sum() == copies
    in_prompt = -(-prompt // size)
    expected = in_prompt + int((own - tail).sum()) + copies
    assert recorded.ledger["allocated_blocks"].sum() == expected
    computed = recorded.steps["chunk_tokens"].sum() + recorded.steps["num_decodes"].sum()
    assert computed == prompt + sum(outputs) - len(outputs)
    assert (recorded.ledger["logical_tokens"] >= recorded.ledger["payload_tokens"]).all()
    assert recorded.requests.num_delivered.tolist() == outputs


def test_cow_computes_a_shared_tail_once_and_prefix_sharing_once_a_sample() -> None:
    """Four samples of 30 tokens at block 16: 30 tokens, or 30 and three tails of 14."""
    chunk_tokens = {}
    for sharing in ("cow", "prefix"):
        policy = PoolPolicy.model_validate({"block_size": 16, "sharing": sharing})
        recorded = replayed(samples(30, [8] * 4), policy)
        chunk_tokens[sharing] = int(recorded.steps["chunk_tokens"].sum())
    assert chunk_tokens == {"cow": 30, "prefix": 30 + 3 * 14}


def test_partial_matching_copies_only_what_was_written_before_the_step() -> None:
    """Twins that come in one step: the second finds the full block that the first is about to compute, but cannot
    copy from the one behind it, which is empty still. Coming a step later, it can."""
    from trials.trace import Ragged, TraceMeta, make_trace

    trace = make_trace(
        np.array([0, 0, 1]), np.array([32, 32, 32]), np.array([4, 4, 4]), Ragged.of([[7]] * 3),
        TraceMeta(tokens_per_id=32),
    )  # fmt: skip
    engine = build_engine(trace, PoolPolicy(block_size=16, prefix_match="partial"))
    first, second, later = works_of(trace)
    engine.add(first)
    engine.add(second)
    step = engine.step()
    assert step is not None
    assert list(step.admitted) == [(0, 0), (1, 16)]
    engine.add(later)
    step = engine.step()
    assert step is not None
    assert list(step.admitted) == [(2, 31)]


def test_every_order_of_cancels_leaves_no_block_behind() -> None:
    """A family of forks of forks, cancelled one a step in random orders from random steps on."""
    rng = random.Random(3)
    for seed in range(60):
        case = policy_case(seed, sharing="cow")
        engine = case.engine()
        for work in works_of(case.trace):
            engine.add(work)
        for _ in range(rng.randint(0, 12)):
            engine.step()
        rows = list(range(len(case.trace)))
        rng.shuffle(rows)
        for row in rows:
            engine.cancel(row)
            engine.check()
            if rng.random() < 0.7:
                engine.step()
                engine.check()
        for row in rows:
            engine.cancel(row)
        assert engine.step() is None
        assert not engine.audit().groups[0].tables
