"""vLLM's own scheduler behind the contract: the laws of every engine, and what is particular to this one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.agreement_loads import Case
from benchmarks.agreement_pair import lockstep
from benchmarks.agreement_rules import control_cases
from tests.builders import build_trace
from tests.contracts.engine_laws import LAWS, POLICY, Driven, Laboratory, load_of, work
from trials.content import Content
from trials.engine import Cause, Engine, Refused, Work
from trials.engines import domain_of, vllm_scheduler
from trials.spec import PoolPolicy, trial_spec
from trials.trace import save_trace

ROOT = Path(__file__).resolve().parents[1]
STEP_TIME = "linear:4000,40,10"
LAB = Laboratory("vllm_scheduler", reserve=1, extra={"step_time": STEP_TIME})


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_engine_keeps_its_contract(law) -> None:
    law(LAB)


def words_of(opened: Engine | Refused) -> str:
    assert isinstance(opened, Refused), "it was meant to be refused"
    return opened.words


def test_pool_must_hold_one_context_beside_the_null_block() -> None:
    """8 blocks of 16 are too few for 128 tokens, since one is vLLM's own; 9 do."""
    trace = build_trace([64, 64], [64, 64])
    spec = LAB.spec(7, block_size=16, max_model_len=128)
    assert "128" in words_of(vllm_scheduler.open(spec, Content(trace)))
    driven = Driven(LAB.open(trace, 8, block_size=16, max_model_len=128), trace)
    driven.add(0, 1)
    driven.drain()
    assert driven.delivered == {0: 64, 1: 64}
    driven.engine.close()


def test_arguments_that_contradict_the_candidate_are_refused_and_unknown_ones_too() -> None:
    trace = build_trace([10], [5])
    for args, said in (({"block_size": 32}, "block_size"), ({"no_such_argument": 1}, "no_such_argument")):
        lab = Laboratory("vllm_scheduler", 1, {"step_time": STEP_TIME, "args": args})
        assert said in words_of(vllm_scheduler.open(lab.spec(30), Content(trace)))


def test_knobs_that_vllm_does_not_have_are_named_and_its_own_value_is_told() -> None:
    engine = LAB.open(build_trace([10], [5]), 30, eviction="lfu", free_order="head_first")
    knobs = dict(engine.facts.effective)
    assert (knobs["eviction"], knobs["free_order"]) == ("lru", "tail_first")
    assert {"eviction", "free_order", "victim"} <= set(engine.facts.not_applicable)
    assert set(domain_of(LAB.spec(30)).not_applicable) == set(engine.facts.not_applicable) - {
        "copied_bytes",
        "outputs",
    }
    assert domain_of(LAB.spec(30)).accepts(7)
    engine.close()


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 20, 96])
def test_any_block_size_gives_the_same_tokens_and_a_tail_below_one_block(block_size: int) -> None:
    trace = load_of(3)
    driven = Driven(LAB.open(trace, 2 * 96 // block_size + 1, block_size=block_size), trace)
    driven.add(*range(len(trace)))
    while (step := driven.step()) is not None:
        assert step.ledger[0].tail_slack_tokens <= step.num_running * (block_size - 1)
    assert driven.delivered == dict(enumerate(trace.num_output_tokens.tolist()))
    driven.engine.close()


def test_twins_of_one_step_meet_in_the_prefix_cache() -> None:
    """Three 64-token twins at block 16: hits 0, 48, 48 in one step, 6 blocks instead of 12."""
    trace = build_trace([64] * 3, [2] * 3, ids=[[1, 2, 3, 4]] * 3)
    engine = LAB.open(trace, 30, block_size=16, max_num_batched_tokens=256)
    engine.start(cold=True)
    for row in range(3):
        engine.add(work(trace, row))
    step = engine.step()
    assert step is not None
    assert list(step.admitted) == [(0, 0), (1, 48), (2, 48)]
    assert step.ledger[0].allocated_blocks == 6
    engine.close()


def test_head_of_the_queue_says_why_it_waits() -> None:
    """Slots taken, the budget used up, then 90 tokens at the head that do not fit while 4 behind them would."""
    trace = build_trace([40, 40, 90, 4], [30, 30, 5, 2])
    causes = []
    for policy in ({"max_num_seqs": 1}, {"max_num_batched_tokens": 16}, {"max_num_batched_tokens": 256}):
        engine = LAB.open(trace, 26, **policy)
        engine.start(cold=True)
        for row in range(4):
            engine.add(work(trace, row))
        step = engine.step()
        step = engine.step() if policy.get("max_num_seqs") else step
        assert step is not None
        causes.append(step.refusal)
        engine.close()
    assert [refusal.cause for refusal in causes] == [Cause.SLOTS, Cause.BUDGET, Cause.HEAD_OF_LINE]
    assert causes[2].row == 2
    assert causes[2].wanted_blocks == 23


def test_fork_starts_when_its_parent_holds_what_it_inherits_and_meets_it_in_the_cache() -> None:
    trace = build_trace([60, 60], [8, 4], ids=[[1, 2, 3, 4]] * 2)
    driven = Driven(LAB.open(trace, 64), trace)
    driven.add(0)
    assert driven.engine.add(Work(1, 60, 4, parent=0, inherited_tokens=60)) is None
    started = []
    while (step := driven.step()) is not None:
        started.append(list(step.started))
    assert started[0] == []
    assert started[1] == [1], "32 of 60 tokens are computed in the first step, all of them in the second"
    assert driven.hits[1] == 56
    assert driven.delivered == {0: 8, 1: 4}
    driven.engine.close()


@pytest.mark.parametrize("made", control_cases(), ids=lambda made: f"load{made.seed}")
def test_ours_agrees_with_vllm_after_every_step(made: Case) -> None:
    """Sharing, quoting, preempting, aborting: tokens, order, block ids, free queue, hits and ledger."""
    tally = lockstep(made)
    assert tally.first == ""
    assert tally.steps > 500
    assert tally.finished > 50


def worker(spec: dict[str, object], out: Path, package: Path) -> dict[str, object]:
    """One trial in a clean process that has only trials/ on its path."""
    out.mkdir()
    path = out / "spec.json"
    path.write_text(trial_spec(spec).model_dump_json(), encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "HOME": str(out), "PYTHONPATH": str(package), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "trials.worker", str(path), str(out)],
        cwd=out, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((out / "result.json").read_text(encoding="utf-8"))


def test_whole_trial_equals_the_simulators_in_every_figure(tmp_path: Path) -> None:
    """The same spec through the worker, by vLLM's scheduler and by ours: ledger, counts and latencies are equal."""
    shutil.copytree(ROOT / "trials", tmp_path / "package" / "trials", ignore=shutil.ignore_patterns("__pycache__"))
    save_trace(load_of(7, 60), tmp_path / "t.parquet")
    common = {
        "model": {**LAB.spec(30).model.model_dump(), "name": "small"}, "policy": {**POLICY, "watermark": 0.05},
        "trace": {"path": str(tmp_path / "t.parquet")}, "slo": "ttft:p99<2s;itl:p99<200ms", "phases": ["cold"],
    }  # fmt: skip
    results = [
        worker(
            {
                **common, "engine": {"name": name, "step_time": STEP_TIME},
                "pool": {"blocks": 36, "reserve_blocks": reserve},
            },
            tmp_path / name, tmp_path / "package",
        )
        for name, reserve in (("vllm_scheduler", 0), ("simulator", 1))
    ]  # fmt: skip
    theirs, ours = results
    assert theirs["status"] == ours["status"] == "complete", theirs["reason"]
    assert theirs["evidence"] == ours["evidence"] == "modelled"
    assert theirs["counts"]["completed"] == 60
    assert theirs["metrics"]["num_preemptions"] > 0
    assert theirs["audited_steps"] > 0
    assert (theirs["metrics"].pop("copied_bytes"), ours["metrics"].pop("copied_bytes")) == (None, 0)
    for part in ("counts", "metrics", "ledger"):
        assert theirs[part] == ours[part], part
    assert theirs["hashes"]["engine"] != ours["hashes"]["engine"]


def test_tokens_are_the_traces_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM is told and what it is given are the content's tokens: sharing is exactly the trace's."""
    trace = build_trace([20, 20], [6, 6], ids=[[1, 2], [1, 3]])
    content = Content(trace)
    engine = vllm_scheduler.open(LAB.spec(30), content)
    assert not isinstance(engine, Refused)
    engine.start(cold=True)
    for row in range(2):
        engine.add(work(trace, row))
    known: dict[int, list[int]] = {}
    while engine.step() is not None:
        for request in engine.scheduler.requests.values():  # type: ignore[attr-defined]
            known[int(request.request_id)] = list(request.all_token_ids)
    from trials.engines.vllm_core import VOCABULARY

    for row in range(2):
        said = np.asarray(known[row])
        assert np.array_equal(said, content.row_tokens(row, VOCABULARY)[: len(said)])
        assert len(said) == 25
    assert known[0][:16] == known[1][:16]
    assert known[0][16] != known[1][16]
    engine.close()


def test_defaults_of_the_policy_are_vllms() -> None:
    engine = LAB.open(build_trace([10], [5]), 30)
    asked = PoolPolicy().model_dump(mode="json")
    knobs = dict(engine.facts.effective)
    same = {n: v for n, v in asked.items() if n in knobs and n not in POLICY}
    assert {n: str(v) for n, v in same.items()} == {n: knobs[n] for n in same}
    assert len(same) >= 10
    engine.close()
