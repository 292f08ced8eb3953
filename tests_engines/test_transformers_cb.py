"""transformers' continuous batching as it is: contract, its own pool's accounts, every way it refuses or dies."""

from collections.abc import Callable

import numpy as np
import pytest
from cb_driving import OUTPUTS, opened, sharing_requests
from driving import (
    Driver,
    expected_hits,
    is_empty,
    make_forks,
    make_requests,
    make_session,
    make_spec,
    serve,
)

from tests.contracts.engine_laws import LAWS, Laboratory, work
from trials.content import Content
from trials.engine import Cause, EngineDied, Outcome
from trials.ledger import account_bytes, unbalanced_rows
from trials.load import offer
from trials.replay import replay
from trials.spec import Load
from trials.trace import Trace


@pytest.fixture(scope="module")
def shared() -> Trace:
    return sharing_requests()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_engine_keeps_its_contract(law: Callable[[Laboratory], None]) -> None:
    law(Laboratory("transformers_cb", reserve=2))


@pytest.mark.parametrize("block_size", [4, 7, 16, 64])
def test_every_request_gets_exactly_its_tokens_and_the_accounts_hold_at_every_step(
    shared: Trace, block_size: int
) -> None:
    engine = opened(shared, block_size, 640 // block_size)
    driver = serve(engine, shared)
    assert driver.delivered == dict(enumerate(OUTPUTS))
    assert set(driver.outcomes.values()) == {Outcome.COMPLETED}
    assert is_empty(engine)
    assert engine.facts.groups[0].block_size == block_size
    engine.close()


def test_what_the_model_says_does_not_depend_on_block_size_sharing_or_preemption(shared: Trace) -> None:
    def picks(block_size: int, num_blocks: int, **more: object) -> dict[int, list[int]]:
        engine = opened(shared, block_size, num_blocks, **more)
        said: dict[int, list[int]] = {}
        engine.on_pick = lambda row, token: said.setdefault(row, []).append(token)  # type: ignore[attr-defined]
        driver = serve(engine, shared)
        engine.close()
        picks.preempted = len(driver.preempted)  # type: ignore[attr-defined]
        return said

    plain = picks(16, 60, prefix_caching=False)
    assert len({token for row in plain.values() for token in row}) > 20, "the model says almost nothing"
    assert picks(5, 200) == plain
    assert picks(16, 13) == plain
    assert picks.preempted, "the tight pool did not preempt"  # type: ignore[attr-defined]


@pytest.mark.parametrize("block_size", [4, 16, 24])
def test_hits_are_exactly_the_content_trees(shared: Trace, block_size: int) -> None:
    engine = opened(shared, block_size, 2000 // block_size)
    engine.start(cold=True)
    driver = Driver(engine, shared)
    for row in range(len(shared)):
        driver.add([row])
        driver.drain()
    expected = expected_hits(Content(shared), shared, range(len(shared)), block_size)
    assert driver.hits == expected
    assert any(expected.values())
    engine.close()


def test_equal_prompts_share_their_prompt_and_not_their_answers() -> None:
    trace = make_requests([64] * 4, [40] * 4, [[1, 2, 3, 4]] * 4)
    engine = opened(trace, 8, 200)
    engine.start(cold=True)
    driver = Driver(engine, trace)
    driver.add(range(4))
    for _ in range(36):
        driver.step()
    tables = engine.audit().groups[0].tables
    answers = [set(table[8:]) for table in tables.values()]
    assert len(answers) == 4
    assert sum(len(a) for a in answers) == len(set().union(*answers)), "answers of several requests share a block"
    driver.drain()
    engine.close()


def test_overload_preempts_and_still_delivers_each_token_once() -> None:
    trace = make_requests([60, 50, 70, 40, 55], [60, 70, 50, 80, 65])
    engine = opened(trace, 16, 16)
    driver = serve(engine, trace)
    assert driver.preempted
    assert all(held > 0 for _, held in driver.preempted)
    assert driver.delivered == dict(enumerate(trace.num_output_tokens.tolist()))
    assert is_empty(engine)
    engine.close()


def test_cancelled_requests_are_over_at_once_and_their_blocks_are_back() -> None:
    trace = make_requests([40, 60, 50, 45], [30, 30, 30, 30])
    engine = opened(trace, 8, 100, max_num_seqs=2)
    engine.start(cold=True)
    driver = Driver(engine, trace)
    driver.add(range(4))
    for _ in range(6):
        driver.step()
    running = set(engine.audit().groups[0].tables)
    waiting = set(range(4)) - running
    assert running
    assert waiting
    for row in (min(running), min(waiting)):
        driver.flowing.discard(row)
        assert engine.cancel(row) is True
        assert engine.cancel(row) is False
        assert row not in engine.audit().groups[0].tables
        driver.check()
    driver.drain()
    assert len(driver.outcomes) == 2
    assert engine.cancel(0) is False
    assert is_empty(engine)
    engine.close()


def test_a_fork_that_never_started_can_be_cancelled() -> None:
    trace = make_forks(prompt=30, output=5, inherited=[30])
    engine = opened(trace, 8, 100, max_num_batched_tokens=16, max_num_seqs=4)
    engine.start(cold=True)
    driver = Driver(engine, trace)
    driver.add([0, 1])
    assert driver.step() is not None
    assert engine.cancel(1) is True
    assert engine.cancel(1) is False
    driver.drain()
    assert driver.started == []
    engine.close()


def test_what_can_never_fit_is_refused_before_it_reaches_the_thread_and_the_others_are_served() -> None:
    trace = make_requests([150, 20, 180], [40, 10, 20])
    engine = opened(trace, 16, 12)
    engine.start(cold=True)
    assert "12 blocks of 16 at its end, more than the 10" in str(engine.add(work(trace, 0)))
    assert "more than max_model_len 192" in str(engine.add(work(trace, 2)))
    driver = Driver(engine, trace)
    driver.add([1])
    driver.drain()
    assert driver.delivered == {1: 10}
    engine.close()


def test_a_cold_start_is_proven_and_replays_change_nothing_for_one_another(shared: Trace) -> None:
    engine = opened(shared, 16, 20)
    first = serve(engine, shared).ledger
    assert serve(engine, shared, [5, 3, 1]).ledger != first
    assert serve(engine, shared).ledger == first
    allocator = engine.watch.allocator  # type: ignore[attr-defined]
    engine.start(cold=True)
    assert engine.ledger()[0].free_blocks == allocator.num_blocks
    driver = Driver(engine, shared)
    driver.add([0])
    driver.step()
    with pytest.raises(RuntimeError, match="can only start drained: 1 requests are alive"):
        engine.start(cold=True)
    engine.close()


def test_the_head_of_the_queue_says_why_it_waits() -> None:
    trace = make_requests([100, 100, 30], [60, 60, 5])
    engine = opened(trace, 16, 16)
    engine.start(cold=True)
    driver = Driver(engine, trace)
    driver.add(range(3))
    causes = set()
    while (step := driver.step()) is not None:
        causes.add(step.refusal.cause)
        assert (step.refusal.row == -1) == (step.num_waiting == 0 or step.refusal.cause is Cause.NONE)
    assert causes >= {Cause.NONE, Cause.BUDGET}
    assert causes & {Cause.MEMORY, Cause.PREEMPTED}
    engine.close()


def test_a_replay_locked_to_its_steps_repeats_the_ledger_byte_for_byte(shared: Trace) -> None:
    spec = make_spec("transformers_cb", 16, 20)
    engine = opened(shared, 16, 20)
    asked = offer(shared, spec.trace, Load(rate_scale=1.0), "cold")
    first = replay(engine, shared, asked)
    again = replay(engine, shared, asked.locked(first.requests.met_step, first.requests.cancel_step))
    assert again.clock == "steps"
    assert first.void_because == []
    assert first.broken_laws == []
    for name, column in first.ledger.items():
        np.testing.assert_array_equal(again.ledger[name], column, err_msg=name)
    assert len(unbalanced_rows(account_bytes(first.ledger, engine.facts.groups))) == 0
    engine.close()


@pytest.mark.parametrize("outputs", ["recorded", "live"])
def test_a_turn_repeats_its_parents_answer_as_the_trace_or_the_model_has_it(
    outputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = make_session([(40, 30), (10, 20), (5, 4)])
    played = {"sessions": "closed", "outputs": outputs}
    engine = opened(trace, 16, 40, played=played)
    assert dict(engine.facts.effective)["outputs"] == outputs
    asked: dict[int, list[int]] = {}
    add = engine.manager.add_request  # type: ignore[attr-defined]

    def added(prompt: list[int], request_id: str, **named: object) -> object:
        asked[int(request_id)] = list(prompt)
        return add(prompt, request_id=request_id, **named)

    monkeypatch.setattr(engine.manager, "add_request", added)  # type: ignore[attr-defined]
    said: dict[int, list[int]] = {}
    engine.on_pick = lambda row, token: said.setdefault(row, []).append(token)  # type: ignore[attr-defined]
    asked_of = make_spec("transformers_cb", 16, 40, played=played).trace
    done = replay(engine, trace, offer(trace, asked_of, Load(rate_scale=1.0), "cold"))
    assert done.void_because == []
    recorded = Content(trace).row_tokens(0, 512).tolist()[40:]
    assert said[0] != recorded
    assert asked[1][:70] == asked[0] + (said[0] if outputs == "live" else recorded)
    assert asked[2][:80] == asked[1]
    assert done.requests.cached_tokens.tolist() == [0, 64, 96]
    engine.close()


def test_a_dead_serving_thread_is_told_with_its_own_error(shared: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(shared, 16, 40)
    engine.start(cold=True)
    driver = Driver(engine, shared)
    driver.add([0, 1])
    driver.step()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("the kernel divided by nothing")

    monkeypatch.setattr(engine.processor.model_runner, "compute_batch", broken)  # type: ignore[attr-defined]
    with pytest.raises(EngineDied, match="ZeroDivisionError: the kernel divided by nothing") as died:
        engine.step()
    assert isinstance(died.value.__cause__, ZeroDivisionError)
    engine.close()
    engine.close()


def test_one_request_that_fails_is_failed_and_not_delivered(shared: Trace) -> None:
    engine = opened(shared, 16, 40)
    engine.start(cold=True)
    engine.add(work(shared, 0))
    engine.manager.input_queue.queue[0].logit_processor_kwargs["no_such"] = 1  # type: ignore[attr-defined]
    driver = Driver(engine, shared)
    driver.add([1])
    driver.drain()
    assert driver.outcomes[0] is Outcome.FAILED
    assert driver.outcomes[1] is Outcome.COMPLETED
    assert driver.delivered.get(0, 0) == 0
    engine.close()
