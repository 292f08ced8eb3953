"""The fast path against the plain one, and the rules that a server's users would notice."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.builders import build_engine, build_trace, copies_of, works_of
from tests.reference import PlainEngine
from trials.content import Content
from trials.engine import Cause, Outcome, Step, Work
from trials.engines.own import PagedEngine
from trials.spec import PoolPolicy
from trials.trace import Trace


def random_case(seed: int) -> tuple[Trace, PoolPolicy, int, int]:
    """A small load that crosses boundaries, shares prefixes, runs short of blocks, budget and slots."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 3, 4, 8, 16])
    count = rng.randint(3, 14)
    per = rng.choice([2, 5, 8])
    prompts = [rng.randint(1, 40) for _ in range(count)]
    outputs = [rng.choice([1, 2, rng.randint(1, 30)]) for _ in range(count)]
    ids = None
    if rng.random() < 0.7:
        ids = [[rng.choice([0, 0, 1]) + 10 * k for k in range(-(-p // per))] for p in prompts]
    trace = build_trace(prompts, outputs, ids=ids, tokens_per_id=per)
    longest = max(p + o for p, o in zip(prompts, outputs, strict=True))
    reserve = rng.choice([0, 0, 1])
    need = -(-longest // size) + reserve
    policy = PoolPolicy(
        block_size=size, prefix_caching=rng.random() < 0.8, watermark=rng.choice([0.0, 0.0, 0.1]),
        reserve_prompt=rng.random() < 0.7, max_num_seqs=rng.choice([2, 4, 64]),
        max_num_batched_tokens=rng.choice([3, 8, 24, 200]),
        long_prefill_token_threshold=rng.choice([0, 0, 0, 5]),
    )  # fmt: skip
    return trace, policy, rng.randint(need, need * 3), reserve


def compare(
    engine: PagedEngine, plain: PlainEngine, seed: int, trace: Trace, cancels: float = 0.05
) -> Counter[str]:
    """Drive both with the same arrivals and cancels; everything must agree after every step. What was seen."""
    rng = random.Random(seed + 1)
    pending = works_of(trace)
    seen: Counter[str] = Counter()
    bound = 0
    while pending or plain.live:
        for _ in range(rng.choice([0, 1, 1, 2])):
            if pending:
                work = pending.pop(0)
                assert engine.add(work) is None
                plain.take_on(work)
        if rng.random() < cancels and (alive := [s.row for s in plain.live]):
            row = rng.choice(alive)
            assert engine.cancel(row)
            assert plain.cancel(row)
            seen["cancelled"] += 1
        if not plain.live:
            assert engine.step() is None
            continue
        said = plain.step()
        step = engine.step()
        assert step is not None
        same_step(engine, plain, step, said, where := f"seed {seed} step {seen['steps']}")
        assert step.burst_blocks <= bound, where
        bound = step.bound_blocks
        seen["steps"] += 1
        seen["preempted"] += len(step.preempted)
        seen["hit"] += sum(hit for _, hit in step.admitted)
        seen["evicted"] += step.ledger[0].evicted_blocks
        seen["copied"] += step.ledger[0].copied_blocks
        seen["forked"] += len(step.started)
        seen["shared"] += len({row for row, _ in step.admitted} & set(step.started))
        assert seen["steps"] < 5000, where
    assert engine.step() is None
    return seen


def same_step(engine: PagedEngine, plain: PlainEngine, step: Step, said: dict[str, Any], where: str) -> None:
    """Times, block ids, queue orders, preemptions, accounts, events and copies of one step."""
    assert step.shape == said["shape"], where
    assert list(step.preempted) == said["preempted"], where
    assert list(step.admitted) == said["admitted"], where
    assert list(step.started) == said["started"], where
    assert [row for row, _ in step.ended] == said["finished"], where
    assert list(copies_of(engine)) == said["copies"], where
    for name, value in said["accounts"].items():
        assert getattr(step.ledger[0], name) == value, f"{where}: {name}"
    if engine._policy.sharing == "cow":
        assert (step.burst_blocks, step.bound_blocks) == (said["burst"], plain.bound()), where
    else:
        assert (step.burst_blocks, step.bound_blocks) == (0, 0), where
    engine.check()
    audit = engine.audit().groups[0]
    assert audit.tables == {s.row: s.blocks for s in plain.running}, where
    assert audit.held_tokens == {s.row: s.computed for s in plain.running}, where
    assert list(audit.tables) == [s.row for s in plain.running], where
    assert [*audit.free, *audit.cached] == plain.pool.queue, where
    assert [run.row for run in engine._scheduler.admission.queue] == [s.row for s in plain.waiting], where
    assert step.num_waiting == len(plain.waiting), where
    assert step.waiting_tokens == sum(s.known for s in plain.waiting), where


@pytest.mark.parametrize("part", range(8))
def test_fast_path_equals_the_plain_one_in_every_block_and_preemption(part: int) -> None:
    """2,000 random small specs, block ids and queue order included."""
    steps = 0
    for seed in range(part * 250, (part + 1) * 250):
        trace, policy, blocks, reserve = random_case(seed)
        engine = build_engine(trace, policy, blocks, reserve)
        plain = PlainEngine(policy, blocks, reserve, Content(trace))
        steps += compare(engine, plain, seed, trace)["steps"]
    assert steps > 5000


def drain(engine: PagedEngine) -> list[tuple[int, Outcome]]:
    ended: list[tuple[int, Outcome]] = []
    while (step := engine.step()) is not None:
        ended += step.ended
        engine.check()
    return ended


def test_what_can_never_fit_is_refused_at_once_and_what_queues_behind_it_runs() -> None:
    """5 blocks of 4 with one reserved: 16 held tokens complete, 17 are refused with the reason."""
    trace = build_trace([10, 10, 10], [7, 8, 7])
    engine = build_engine(trace, PoolPolicy(block_size=4), num_blocks=5, reserve_blocks=1)
    assert engine.add(Work(0, 10, 7)) is None
    reason = engine.add(Work(1, 10, 8))
    assert reason is not None
    assert "17 tokens = 5 blocks of 4" in reason
    assert "more than the 4" in reason
    assert engine.add(Work(2, 10, 7)) is None
    assert [row for row, _ in drain(engine)] == [0, 2]


def test_longer_than_the_context_is_refused() -> None:
    trace = build_trace([100], [30])
    engine = build_engine(trace, PoolPolicy(max_model_len=128))
    assert "max_model_len 128" in str(engine.add(Work(0, 100, 30)))


def test_victim_is_the_last_admitted_and_goes_to_the_front_of_the_queue() -> None:
    trace = build_trace([8, 8, 4], [20, 20, 4])
    engine = build_engine(trace, PoolPolicy(block_size=4, reserve_prompt=True), num_blocks=7)
    for row, prompt, output in ((0, 8, 20), (1, 8, 20), (2, 4, 4)):
        engine.add(Work(row, prompt, output))
    preempted: list[int] = []
    order: list[int] = []
    while (step := engine.step()) is not None:
        preempted += [row for row, _ in step.preempted]
        order += [row for row, _ in step.admitted]
        engine.check()
    assert preempted[0] == 1 or preempted[0] == 2
    assert 0 not in preempted
    first = preempted[0]
    assert order.index(first) < len(order) - 1 - order[::-1].index(first)


def test_step_that_preempts_admits_nobody() -> None:
    for seed in range(200):
        trace, policy, blocks, reserve = random_case(seed)
        engine = build_engine(trace, policy, blocks, reserve)
        for row in range(len(trace)):
            engine.add(Work(row, int(trace.num_prompt_tokens[row]), int(trace.num_output_tokens[row])))
        while (step := engine.step()) is not None:
            assert not (step.preempted and step.admitted)
            if step.preempted and step.num_waiting:
                assert step.refusal.cause is Cause.PREEMPTED


def test_repeated_prompt_hits_whole_blocks_and_never_its_last_token() -> None:
    """The same 32-token prompt twice at block 16: 16 tokens saved, never 32; a 33-token one saves 32."""
    for prompt, saved in ((32, 16), (33, 32), (16, 0), (17, 16)):
        trace = build_trace([prompt, prompt], [1, 1], ids=[[7] * 1, [7] * 1], tokens_per_id=prompt)
        engine = build_engine(trace, PoolPolicy(block_size=16))
        engine.add(Work(0, prompt, 1))
        drain(engine)
        engine.add(Work(1, prompt, 1))
        step = engine.step()
        assert step is not None
        assert list(step.admitted) == [(1, saved)]


def test_later_admission_of_the_same_step_finds_the_blocks_of_an_earlier_one() -> None:
    """Three 64-token twins at block 16: hits 0, 48, 48 in one step; 6 blocks instead of 12."""
    trace = build_trace([64] * 3, [2] * 3, ids=[[1, 2, 3, 4]] * 3)
    engine = build_engine(trace, PoolPolicy(block_size=16))
    for row in range(3):
        engine.add(Work(row, 64, 2))
    step = engine.step()
    assert step is not None
    assert list(step.admitted) == [(0, 0), (1, 48), (2, 48)]
    assert step.ledger[0].allocated_blocks == 6


@pytest.mark.parametrize("answer", [16, 17, 18])
def test_last_sampled_token_never_takes_a_slot(answer: int) -> None:
    """Prompt 32 and 16, 17 or 18 answer tokens at block 16 end with 3, 3 and 4 blocks held: ceil((n - 1) / 16)."""
    trace = build_trace([32], [answer])
    engine = build_engine(trace, PoolPolicy(block_size=16))
    engine.add(Work(0, 32, answer))
    most = 0
    while (step := engine.step()) is not None:
        most = max(most, 64 - step.ledger[0].free_blocks - step.ledger[0].cached_blocks)
    assert most == -(-(32 + answer - 1) // 16)


def test_cancelled_request_gives_its_blocks_back_before_the_next_step_and_only_once() -> None:
    trace = build_trace([20, 20], [10, 10])
    engine = build_engine(trace, PoolPolicy(block_size=4), num_blocks=32)
    engine.add(Work(0, 20, 10))
    engine.add(Work(1, 20, 10))
    engine.step()
    assert engine.cancel(0)
    assert not engine.cancel(0)
    assert not engine.cancel(99)
    engine.check()
    assert list(engine.audit().groups[0].tables) == [1]
    assert [row for row, _ in drain(engine)] == [1]
    assert not engine.cancel(1)
