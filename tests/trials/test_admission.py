"""Whether the head of the queue fits, what it gets, and what is said where it does not."""

import numpy as np
import pytest

from tests.builders import build_engine, build_trace, copies_of, policy_case, works_of
from trials.engine import Cause, Refusal, Step
from trials.engines.own import PagedEngine
from trials.spec import PoolPolicy
from trials.trace import Ragged, Trace, TraceMeta, make_trace


def loaded(trace: Trace, num_blocks: int, **policy: object) -> PagedEngine:
    knobs = PoolPolicy.model_validate({"block_size": 4} | policy)
    engine = build_engine(trace, knobs, num_blocks, remembering=True)
    for work in works_of(trace):
        assert engine.add(work) is None
    return engine


def stepped(engine: PagedEngine) -> Step:
    step = engine.step()
    assert step is not None
    engine.check()
    return step


def twins(prompt: int, num: int, output: int = 1) -> Trace:
    return build_trace([prompt] * num, [output] * num, ids=[[7]] * num, tokens_per_id=prompt)


# ---- what must fit
@pytest.mark.parametrize(
    ("knobs", "fits"),
    [
        ({}, 5),  # the whole prompt
        ({"reserve_prompt": False}, 2),  # the first chunk
        ({"reserve_output": "full"}, 8),  # prompt and declared output but its last token
        ({"reserve_output": "full", "reserve_prompt": False}, 8),
    ],
)
def test_what_must_be_there_when_a_request_comes_in(knobs: dict[str, object], fits: int) -> None:
    """20 tokens and 13 to come, 8 a step, at block 4: beside 10 blocks of a running request."""
    trace = build_trace([40, 20], [1, 13])
    for missing in (0, 1):
        policy = {"max_num_batched_tokens": 48, "long_prefill_token_threshold": 8, "prefix_caching": False}
        engine = build_engine(trace, PoolPolicy.model_validate({"block_size": 4} | policy | knobs), 40 + fits)
        held = engine._pool.take(30 + missing)
        first, second = works_of(trace)
        engine._scheduler.add(first)
        engine._scheduler.add(second)
        plan = engine._scheduler.schedule()
        rows = [chunk.run.row for chunk in plan.chunks]
        reserved = 10 if "reserve_output" in knobs else 2  # the first takes chunk by chunk unless it reserves
        left = 40 + fits - 30 - missing - reserved
        assert rows == ([0, 1] if left >= fits else [0])
        engine._scheduler.cancel(0)
        engine._scheduler.cancel(1)
        engine._pool.release(held, 0, 0)


def test_admitted_request_takes_only_what_this_step_computes_unless_output_is_reserved() -> None:
    for reserve, taken in (("none", 2), ("full", 8)):
        engine = loaded(build_trace([20], [13]), 10, reserve_output=reserve, max_num_batched_tokens=8)
        assert stepped(engine).ledger[0].allocated_blocks == taken


def test_reserved_ahead_is_what_lies_beyond_the_tail_block() -> None:
    """Eight blocks of 4 are claimed; 8, 16, 20 tokens are held, then one more a step."""
    engine = loaded(build_trace([20], [13]), 10, reserve_output="full", max_num_batched_tokens=8)
    rows = [stepped(engine).ledger[0] for _ in range(5)]
    assert [row.payload_tokens for row in rows] == [8, 16, 20, 21, 22]
    assert [row.reserved_ahead_tokens for row in rows] == [24, 16, 12, 8, 8]
    assert [row.tail_slack_tokens for row in rows] == [0, 0, 0, 3, 2]
    audit = engine.audit().groups[0]
    assert audit.reserved_ahead == {0: 8}


# ---- why not
def refusal(engine: PagedEngine, steps: int = 1) -> Refusal:
    for _ in range(steps):
        step = stepped(engine)
    return step.refusal


def test_refusal_names_row_cause_and_blocks() -> None:
    assert refusal(loaded(build_trace([20, 24], [9, 9]), 10)) == Refusal(Cause.MEMORY, 1, 6)
    assert refusal(loaded(build_trace([20, 16], [9, 9]), 10, watermark=0.2)) == Refusal(Cause.WATERMARK, 1, 4)
    assert refusal(loaded(build_trace([20, 4], [9, 9]), 10, max_num_seqs=1)) == Refusal(Cause.SLOTS, 1, 0)
    assert refusal(loaded(build_trace([20, 4], [9, 9]), 10, max_num_batched_tokens=20)) == Refusal(
        Cause.BUDGET, 1, 0
    )
    assert refusal(loaded(build_trace([20, 24, 8], [9, 9, 9]), 10)) == Refusal(Cause.HEAD_OF_LINE, 1, 6)
    assert refusal(loaded(build_trace([20], [9]), 10)).cause is Cause.NONE


def test_head_of_line_counts_what_those_behind_would_reserve() -> None:
    """Row 2 has a prompt of two blocks, but would claim six with its output: it would not fit either."""
    trace = build_trace([20, 24, 8], [1, 1, 17])
    assert refusal(loaded(trace, 10)).cause is Cause.HEAD_OF_LINE
    assert refusal(loaded(trace, 10, reserve_output="full")).cause is Cause.MEMORY


def test_row_that_comes_again_after_a_cancel_is_judged_like_any_other() -> None:
    """Two lives of one row with one prompt could not be put in order."""
    trace = build_trace([20, 24, 24], [9, 9, 9])
    engine = loaded(trace, 10)
    stepped(engine)
    for _ in range(3):
        assert engine.cancel(2)
        assert engine.add(works_of(trace)[2]) is None
        assert stepped(engine).refusal.row == 1


# ---- what is found
@pytest.mark.parametrize(("prompt", "saved"), [(31, 16), (32, 16), (33, 32), (48, 32), (49, 48)])
def test_whole_blocks_are_found_up_to_the_last_token(prompt: int, saved: int) -> None:
    trace = twins(prompt, 2)
    engine = build_engine(trace, PoolPolicy(block_size=16))
    first, second = works_of(trace)
    engine.add(first)
    stepped(engine)
    engine.add(second)
    assert list(stepped(engine).admitted) == [(1, saved)]


@pytest.mark.parametrize(("prompt", "saved"), [(31, 30), (32, 31), (33, 32), (48, 47), (14, 0), (15, 14)])
def test_partial_match_finds_all_but_the_last_token_of_full_blocks(prompt: int, saved: int) -> None:
    """The first of two answer tokens completes the last block of 15 and of 31; that of 14 is never full."""
    trace = twins(prompt, 2, output=2)
    engine = build_engine(trace, PoolPolicy(block_size=16, prefix_match="partial"), remembering=True)
    first, second = works_of(trace)
    engine.add(first)
    while engine.step() is not None:
        pass
    engine.add(second)
    assert list(stepped(engine).admitted) == [(1, saved)]


def test_partial_match_takes_the_block_with_most_in_common() -> None:
    """Behind a common block of 8, others begin alike for 2, 7 and 7 tokens; the older of the best is copied."""
    ids = Ragged.of([[1, 2, 90], [1, 2, 3, 91], [1, 2, 3, 92], [1, 2, 3, 93]])
    meta = TraceMeta(tokens_per_id=5, tail_rule="floor")
    trace = make_trace(np.zeros(4, np.int64), np.full(4, 40), np.full(4, 1), ids, meta)
    engine = build_engine(trace, PoolPolicy(block_size=8, prefix_match="partial"), remembering=True)
    works = works_of(trace)
    blocks = {}
    for work in works[:3]:
        engine.add(work)
        stepped(engine)
        blocks[work.row] = engine._pool.index.blocks()[-5:]
    engine.add(works[3])
    step = stepped(engine)
    assert list(step.admitted) == [(3, 15)]  # 8 found, 7 copied: ids 1, 2, 3 are 15 tokens
    ((source, _),) = copies_of(engine)
    assert source in blocks[1]


def test_copy_that_would_not_fit_is_not_made() -> None:
    """Two blocks of 16, both cached: to copy from the second it would have to stay while a third is taken. The
    request was refused for ever."""
    trace = twins(32, 2)
    engine = build_engine(trace, PoolPolicy(block_size=16, prefix_match="partial"), num_blocks=2, remembering=True)
    first, second = works_of(trace)
    engine.add(first)
    stepped(engine)
    engine.add(second)
    step = stepped(engine)
    assert list(step.admitted) == [(1, 16)]
    assert [row for row, _ in step.ended] == [1]


def test_block_that_was_copied_from_keeps_its_depth_for_length_aware_eviction() -> None:
    """It was put back as if it stood first in its sequence."""
    trace = twins(32, 2)
    engine = build_engine(trace, PoolPolicy(block_size=16, prefix_match="partial", eviction="length_aware"))
    first, second = works_of(trace)
    engine.add(first)
    stepped(engine)
    opening, behind = engine.audit().groups[0].cached[::-1]
    engine.add(second)
    stepped(engine)
    cached = engine.audit().groups[0].cached
    assert cached.index(behind) < cached.index(opening)


def test_lookup_that_does_not_lead_to_admission_leaves_no_trace() -> None:
    for seed in range(40):
        case = policy_case(seed, prefix_caching=True)
        engine = case.engine()
        for work in works_of(case.trace):
            engine.add(work)
        while engine.step() is not None:
            pool, admission = engine._pool, engine._scheduler.admission
            before = pool.free_ids(), pool.cached_ids(), dict(pool._holders), pool.epoch, pool.available
            if admission.num_waiting:
                admission.judge(admission.queue.head(), 8, len(engine._scheduler.serving.running))
            assert before == (pool.free_ids(), pool.cached_ids(), dict(pool._holders), pool.epoch, pool.available)
