"""A whole vLLM in this process: the contract, its own pool's accounts, its words where it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import (
    Driver,
    expected_hits,
    is_empty,
    make_folder,
    make_requests,
    make_session,
    make_spec,
    picks_of,
    run_worker,
    serve,
)

from tests.contracts.engine_laws import LAWS, Laboratory, work
from trials.content import Content
from trials.engine import Engine, EngineDied, Outcome, PoolGeometry, Refused
from trials.engines import vllm
from trials.geometry import pool_geometry
from trials.load import offer
from trials.replay import replay
from trials.spec import Load
from trials.trace import Trace, save_trace
from trials.units import SpecError

vllm.prepare(make_spec("vllm", 32, 40))  # before anything imports torch
from trials.engines import vllm_args, vllm_opening  # noqa: E402

SHARED = [[0, 1, 2, 3, 9], [0, 1, 2, 4], [0, 1, 2, 3], [5, 6], [0, 1, 7], [5, 6]]
PROMPTS, OUTPUTS = [170, 140, 130, 80, 100, 66], [9, 12, 1, 20, 5, 7]
SIZES = (32, 64, 128)
ONCE = Load(rate_scale=1.0)


@pytest.fixture(scope="module")
def shared() -> Trace:
    return make_requests(PROMPTS, OUTPUTS, SHARED, per=32)


def opened(trace: Trace, block_size: int, num_blocks: int, **more: object) -> Engine:
    engine = vllm.open(make_spec("vllm", block_size, num_blocks, **more), Content(trace))  # type: ignore[arg-type]
    assert not isinstance(engine, Refused), engine.words
    return engine


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("block_size", SIZES)
def test_engine_keeps_its_contract(block_size: int, law: Callable[[Laboratory], None]) -> None:
    law(Laboratory("vllm", reserve=1, times=block_size // 4))


def test_the_contract_holds_and_the_model_says_the_same_at_every_block_size(shared: Trace) -> None:
    """Tokens once and in number, accounts at every step, hits of the content tree, and what the model says."""
    said = [_said_at(shared, block_size) for block_size in SIZES]
    assert said[1:] == said[:-1], "what the model says depends on the block size"


def _said_at(shared: Trace, block_size: int) -> dict[int, list[int]]:
    """Row -> what the model said, all rows at once and one by one."""
    engine = opened(shared, block_size, 2048 // block_size)
    said: dict[int, list[int]] = {}
    engine.on_pick = lambda row, token: said.setdefault(row, []).append(token)  # type: ignore[attr-defined]
    driver = serve(engine, shared)
    assert driver.delivered == dict(enumerate(OUTPUTS))
    assert set(driver.outcomes.values()) == {Outcome.COMPLETED}
    assert {row: len(tokens) for row, tokens in said.items()} == driver.delivered
    assert is_empty(engine)

    one_by_one = Driver(engine, shared)
    engine.start(cold=True)
    again, said = said, {}
    engine.on_pick = lambda row, token: said.setdefault(row, []).append(token)  # type: ignore[attr-defined]
    for row in range(len(shared)):
        one_by_one.add([row])
        one_by_one.drain()
    assert one_by_one.hits == expected_hits(Content(shared), shared, range(len(shared)), block_size)
    assert said == again, "what the model says depends on what was shared"
    engine.close()
    return said


def test_overload_cancel_oversize_and_cold_starts_on_one_engine(shared: Trace) -> None:
    trace = make_requests([100, 90, 110, 60, 40, 150, 180], [70, 80, 60, 90, 30, 40, 20])
    engine = opened(trace, 32, 10)
    assert "more than max_model_len 192" in str(engine.add(work(trace, 6)))
    driver = serve(engine, trace, range(4))
    assert driver.preempted
    assert driver.delivered == dict(enumerate(trace.num_output_tokens.tolist()[:4]))
    first = driver.ledger

    engine.start(cold=True)
    assert engine.ledger()[0].free_blocks == 9
    cut = Driver(engine, trace)
    cut.add(range(5))
    for _ in range(8):
        cut.step()
    running = set(engine.audit().groups[0].tables)
    waiting = set(range(5)) - running
    assert running
    assert waiting
    for row in (min(running), max(waiting)):
        cut.flowing.discard(row)
        assert engine.cancel(row) is True
        assert engine.cancel(row) is False
        cut.check()
    with pytest.raises(RuntimeError, match="can only start drained"):
        engine.start(cold=True)
    cut.drain()
    assert len(cut.outcomes) == 3
    assert is_empty(engine)
    assert serve(engine, trace, range(4)).ledger == first, "an earlier replay left something behind"

    asked = offer(trace, make_spec("vllm", 32, 10).trace, Load(rate_scale=1.0), "cold")
    once = replay(engine, trace, asked)
    again = replay(engine, trace, asked.locked(once.requests.met_step, once.requests.cancel_step))
    assert once.void_because == []
    assert once.broken_laws == []
    for name, column in once.ledger.items():
        np.testing.assert_array_equal(again.ledger[name], column, err_msg=name)
    engine.close()


def test_what_runs_is_read_back_and_bytes_are_named(shared: Trace) -> None:
    args = {"prefix_caching_hash_algo": "sha256_cbor", "async_scheduling": True, "compilation_config": {"mode": 0}}
    engine = opened(shared, 32, 40, engine={"args": args}, watermark=0.05)
    knobs = dict(engine.facts.effective)
    assert knobs["attention_backend"] == "CPU_ATTN"
    assert knobs["prefix_caching_hash_algo"] == "sha256_cbor"
    assert knobs["watermark"] == "0.05"
    assert knobs["outputs"] == "recorded"
    assert knobs["async_scheduling"] == knobs["args.async_scheduling"] == "False", "a CPU's vLLM turns it off"
    assert knobs["args.prefix_caching_hash_algo"] == "sha256_cbor"
    assert knobs["args.compilation_config"] == "set"
    assert (knobs["tensor_parallel_size"], knobs["pipeline_parallel_size"]) == ("1", "1")
    (geometry,) = engine.facts.groups
    assert (geometry.num_blocks, geometry.reserve_blocks, geometry.kernel_block_size) == (40, 1, 32)
    assert geometry.reuse_quantum_tokens == 32
    assert engine.audit().groups[0].reserve == [0]
    serve(engine, shared)
    device = engine.audit().device
    assert device.pool == geometry.num_blocks * geometry.block_bytes
    layer = 64 * 32 * (4 + 2 + 2) + 4 * 32 * 64 + 3 * 64 * 96
    assert device.weights >= 4 * (2 * 512 * 64 + 2 * layer)
    assert abs(device.residual) < 64 << 20
    engine.close()


def test_a_turn_repeats_its_parents_answer_as_the_trace_or_the_model_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same ledger either way: what a turn repeats stands in the cache, whoever said it."""
    ledgers = []
    for outputs in ("recorded", "live"):
        with monkeypatch.context() as patched:
            ledgers.append(_ledger_of_turns(outputs, patched))
    assert ledgers[0]
    assert ledgers[0] == ledgers[1]


def _ledger_of_turns(outputs: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Three turns of a conversation: what each repeats is checked, and the ledger's columns are given back."""
    trace = make_session([(40, 30), (10, 20), (5, 4)])
    played = {"sessions": "closed", "outputs": outputs}
    engine = opened(trace, 32, 40, played=played)
    assert dict(engine.facts.effective)["outputs"] == outputs
    asked: dict[int, list[int]] = {}
    said: dict[int, list[int]] = {}
    add, step = engine._llm.add_request, engine._llm.step  # type: ignore[attr-defined]

    def added(name: str, prompt: dict[str, list[int]], *more: object, **named: object) -> object:
        asked[int(name)] = list(prompt["prompt_token_ids"])
        return add(name, prompt, *more, **named)

    def stepped() -> list[object]:
        found = step()
        for output in found:
            said.setdefault(int(output.request_id), []).extend(output.outputs[0].token_ids)
        return found

    monkeypatch.setattr(engine._llm, "add_request", added)  # type: ignore[attr-defined]
    monkeypatch.setattr(engine._llm, "step", stepped)  # type: ignore[attr-defined]
    done = replay(engine, trace, offer(trace, make_spec("vllm", 32, 40, played=played).trace, ONCE, "cold"))
    assert done.void_because == []
    recorded = Content(trace).row_tokens(0, 512).tolist()[40:]
    assert (said[0] == recorded) == (outputs == "recorded")
    assert asked[1][:70] == asked[0] + said[0]
    assert asked[2][:100] == asked[1] + said[1]
    assert done.requests.cached_tokens.tolist() == [0, 64, 96]
    engine.close()
    return {name: column.tolist() for name, column in done.ledger.items()}


@pytest.mark.parametrize("weights", [True, False])
def test_a_folder_is_loaded_with_its_weights_or_as_a_shape(weights: bool, tmp_path: Path) -> None:
    trace = make_requests([50, 70], [12, 9])
    folder = make_folder(tmp_path / "model", weights)
    engine = opened(trace, 32, 40, model={"path": str(folder)})
    said: dict[int, list[int]] = {}
    engine.on_pick = lambda row, token: said.setdefault(row, []).append(token)  # type: ignore[attr-defined]
    driver = serve(engine, trace)
    assert driver.delivered == {0: 12, 1: 9}
    if weights:
        assert said == {row: picks_of(folder, trace, row) for row in range(2)}, "other weights than the folder's"
    else:
        assert {row: len(tokens) for row, tokens in said.items()} == driver.delivered
    engine.close()


def test_a_step_says_what_was_compiled_in_it_and_the_replay_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    trace = make_requests([50, 60], [9, 12])
    engine = opened(trace, 32, 40)
    asked = offer(trace, make_spec("vllm", 32, 40).trace, ONCE, "cold")
    assert replay(engine, trace, asked).void_because == []
    execute, steps = engine._execute, []  # type: ignore[attr-defined]

    def late(*arguments: object, **named: object) -> object:
        steps.append(1)
        if len(steps) == 4:
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
        return execute(*arguments, **named)

    monkeypatch.setattr(engine, "_execute", late)
    (why,) = replay(engine, trace, asked).void_because
    assert "1 compilations or graph captures inside the window, first in step 3," in why
    engine.close()


def test_captured_sizes_are_warmed_as_prompts_and_as_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU captures nothing; the steps that would be run are these."""
    spec = make_spec("vllm", 32, 40)
    geometry = pool_geometry(spec)
    assert isinstance(geometry, PoolGeometry)
    llm = vllm_args.open_llm(spec, geometry)
    core = llm.engine_core.engine_core
    execute, ran = core.model_executor.execute_model, []

    def seen(output: Any, non_block: bool = False) -> object:
        if output.total_num_scheduled_tokens:
            ran.append((len(output.num_scheduled_tokens), output.total_num_scheduled_tokens))
        return execute(output, non_block=non_block)

    monkeypatch.setattr(core.model_executor, "execute_model", seen)
    vllm_opening.every_captured_size(llm, geometry, [1, 2, 8, 64, 128])
    assert (1, 64) in ran, "the largest chunk: a prompt of as many tokens as a step may hold"
    assert (1, 128) not in ran
    assert [step for step in ran if step[0] == 8] == [(8, 8)] * 3, "eight one-token prompts, then their decodes"
    assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 39
    vllm_opening.shut(llm)


def test_a_step_that_fails_is_told_with_vllms_own_error(shared: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(shared, 32, 40)
    engine.start(cold=True)
    engine.add(work(shared, 0))

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the kernel divided by nothing")

    monkeypatch.setattr(engine, "_execute", broken)
    with pytest.raises(EngineDied, match="ZeroDivisionError: the kernel divided by nothing"):
        engine.step()
    engine.close()
    engine.close()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"block_size": 16}, "No common block size for 16 (CPU_ATTN: [MultipleOf(32)])"),
        ({"num_blocks": 4}, "vLLM will not start"),
        ({"engine": {"args": {"prefix_caching_hash_algo": "no_such"}}}, "no_such"),
        ({"engine": {"args": {"gpu_memory_utilisation": 0.5}}}, "gpu_memory_utilization"),
        ({"engine": {"args": {"block_size": 64}}}, "block_size follow from pool"),
        ({"engine": {"args": {"quantization": "no_such"}}}, "no_such"),
        ({"engine": {"args": {"pipeline_parallel_size": 2}}}, "pipeline_parallel_size follow from"),
        ({"engine": {"args": {"enforce_eager": "maybe"}}}, "enforce_eager: true or false is needed"),
        ({"engine": {"args": {"max_num_active_seqs": "many"}}}, "--max-num-active-seqs: Value many cannot be"),
        ({"engine": {"args": {"compilation_config": {"mod": 0}}}}, "Unexpected keyword argument"),
        ({"engine": {"args": {"_api_process_rank": 1}}}, "no argument '_api_process_rank'"),
    ],
)  # fmt: skip
def test_what_it_will_not_run_is_refused_in_its_own_words(
    shared: Trace, more: dict[str, object], words: str
) -> None:
    asked: dict[str, object] = {"block_size": 32, "num_blocks": 40} | more
    refused = vllm.open(make_spec("vllm", **asked), Content(shared))  # type: ignore[arg-type]
    assert isinstance(refused, Refused)
    assert words in refused.words


def test_identity_holds_files_versions_and_the_resolved_config_and_no_candidate() -> None:
    base = vllm.identity(make_spec("vllm", 32, 40))
    assert "vllm/v1/core/block_pool.py" in base["installed"]
    assert "vllm/v1/attention/backends/cpu_attn.py" in base["installed"]
    assert base["config"]["resolved"]["scheduler_config"]["policy"] == "fcfs"
    assert vllm.identity(make_spec("vllm", 128, 9, prefix_caching=False, max_model_len=64)) == base
    other = vllm.identity(make_spec("vllm", 32, 40, engine={"args": {"prefix_caching_hash_algo": "sha256_cbor"}}))
    assert other["config"]["resolved"]["cache_config"]["prefix_caching_hash_algo"] == "sha256_cbor"


def test_the_domain_is_what_the_attention_backend_says() -> None:
    domain = vllm.accepts(make_spec("vllm", 32, 40))
    assert domain.source == "CPU_ATTN"
    assert [size for size in (1, 16, 32, 48, 64, 96, 128, 256) if domain.accepts(size)] == [32, 64, 96, 128, 256]
    assert "eviction" in domain.not_applicable
    with pytest.raises(SpecError, match="no argument 'blok_size'"):
        vllm.accepts(make_spec("vllm", 32, 40, engine={"args": {"blok_size": 1}}))


def test_the_worker_runs_a_trial_under_this_interpreter(shared: Trace, tmp_path: Path) -> None:
    save_trace(shared, tmp_path / "t.parquet")
    ended = run_worker(make_spec("vllm", 64, 40, str(tmp_path / "t.parquet")), tmp_path)
    assert ended.returncode == 0, ended.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "complete"
    assert result["ineligible_because"] == []
    assert result["evidence"] == "measured"
    assert result["effective"]["block_size"] == 64
    assert result["counts"]["completed"] == 6
    started = json.loads((tmp_path / "attempt.json").read_text())["engine_start"]
    assert started["load_s"] > 0
    assert started["warmup_s"] > 0
    assert (started["compile_s"], started["capture_s"]) == (0, 0), "a CPU's vLLM runs eagerly unless it is asked"
