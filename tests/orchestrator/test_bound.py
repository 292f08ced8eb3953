"""What could be gained: the mechanism that limits is named, and no block size that is measured gains more."""

import json

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.bound import bound, bound_spec
from orchestrator.bound_answer import WITHIN
from orchestrator.cli import app
from trials.bracket import rungs, search
from trials.capacity import load_of
from trials.content import Content
from trials.engine import Refused
from trials.engines import simulator
from trials.ladder import Replays
from trials.load import offer
from trials.relaxed import MECHANISMS, relaxed_engine
from trials.replay import replay
from trials.spec import Ladder, Load, trial_spec
from trials.trace import TraceMeta, make_trace, save_trace
from trials.units import SpecError

TINY = {
    "num_layers": 2, "num_kv_heads": 1, "num_query_heads": 1, "head_dim": 16, "hidden_size": 16,
    "intermediate_size": 16, "vocab_size": 32, "kv_dtype": "float16",
}  # fmt: skip
TOKEN = 2 * 2 * 16 * 2  # bytes


def spec(step_time="linear:1000,1", tokens=1024, slo="ttft:p90<30ms;tpot:p90<50ms", pool=None, **policy):
    return trial_spec({
        "engine": {"name": "simulator", "step_time": step_time}, "model": TINY,
        "pool": {"bytes": tokens * TOKEN, **(pool or {})}, "policy": {"max_model_len": 1024, **policy},
        "trace": {"path": "t"}, "slo": slo, "phases": ["cold"],
    })  # fmt: skip


def trace(prompt, output, count=100, gap_ms=1.0, seed=1):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(prompt[0], prompt[1] + 1, count), rng.integers(output[0], output[1] + 1, count)
    return make_trace(np.cumsum(rng.exponential(gap_ms * 1e6, count)).astype(np.int64), *lengths)


def short():
    """Some 40 tokens each: a block of 256 is mostly slack."""
    return trace((16, 32), (8, 24))


def prompts():
    """Long prompts, two tokens of answer: nothing but prefill, in an ample pool."""
    return trace((400, 600), (2, 2), gap_ms=5.0)


def test_of_copies_laid_over_one_another_no_more_requests_are_replayed_than_asked():
    """What went wrong: the window was cut on the trace alone, and held four times as many of the copies."""
    own = spec(block_size=256)
    laid = own.model_copy(update={"trace": own.trace.model_copy(update={"superpose": 4})})
    assert bound(laid, short(), num_requests=60).requests == 60


def test_on_short_sequences_in_a_tight_pool_tail_slack_is_named():
    found = bound(spec(block_size=256), short())
    assert found.limited_by == "tail_slack"
    assert found.block_size_gain > 0.5
    assert "another block size can gain" in found.words
    assert "what limits you is the tail slack of 256-token blocks" in found.words


def test_where_only_the_token_budget_limits_it_is_named_and_no_block_size_gains():
    found = bound(spec(tokens=400_000, max_num_batched_tokens=256), prompts())
    assert found.limited_by == "token_budget"
    assert found.block_size_gain <= 0.02
    assert found.words.startswith("no block size can gain more than 0.5% here; ")
    assert "what limits you is the 256-token chunk (a budget of " in found.words


def test_where_nothing_can_be_gained_the_engine_is_the_limit():
    """Every token costs the same, and memory is ample."""
    asked = spec("linear:10,300", tokens=100_000, slo="ttft:p90<30ms;e2el:p90<60ms")
    found = bound(asked, trace((16, 16), (8, 8), count=100))
    assert found.limited_by == "speed"
    assert found.words == "no block size can gain more than 0.5% here; what limits you is the engine's speed"
    assert found.replays < 40


def test_a_window_that_is_too_short_is_said():
    found = bound(spec("constant:1000", tokens=100_000, slo="ttft:p90<30ms"), trace((16, 16), (8, 8), count=100))
    assert found.needs_requests > 1000
    assert f"a window to judge by needs at least {found.needs_requests}" in found.words


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"block_size": 8, "watermark": 0.6}, "watermark"),
        ({"step_time": "linear:1000,1,0,20000", "tokens": 8000, "block_size": 1, "max_num_seqs": 24}, "block_term"),
        ({"tokens": 1600, "block_size": 8, "pool": {"tables_inside": True}, "max_num_seqs": 100}, "block_tables"),
    ],
)
def test_each_mechanism_is_named_where_it_is_what_costs_most(changes, limit):
    found = bound(spec(**changes), short())
    assert found.limited_by == limit, list(found.lines)


def test_reuse_quantum_is_named_where_prefixes_end_inside_blocks():
    """Three quarters of each prompt are shared, but the shared part is shorter than a block."""
    rng = np.random.default_rng(2)
    count = 150
    ids = np.tile(np.arange(6), count)
    from trials.ragged import Ragged

    shared = make_trace(
        np.cumsum(rng.exponential(5e6, count)).astype(np.int64), np.full(count, 128), np.full(count, 4),
        prefix_ids=Ragged(np.arange(0, 6 * count + 1, 6), ids), meta=TraceMeta(16, "floor"),
    )  # fmt: skip
    found = bound(spec("linear:100,100", tokens=40_000, block_size=128), shared)
    assert found.limited_by == "reuse_quantum"
    assert found.block_size_gain > 1


def test_no_block_size_that_is_measured_gains_more_than_the_bound():
    asked, requests = spec(block_size=64), short()
    found = bound(asked, requests)
    values = rungs(Ladder(over="rate_scale", low=1 / 256, high=256, within=WITHIN))
    content, start = Content(requests), min(range(len(values)), key=lambda k: abs(values[k] - found.default))
    for size in (1, 4, 16, 256):
        own = asked.model_copy(update={"policy": asked.policy.model_copy(update={"block_size": size})})
        engine = simulator.open(own, content)
        assert not isinstance(engine, Refused)
        replays = Replays(engine, requests, own, lambda text: None)
        bracket = search(
            lambda rung, r=replays: r.passes(load_of("rate_scale", values[rung]), "cold"), len(values), start, 64
        )
        assert values[bracket.best] <= found.default * (1 + found.block_size_gain) * (1 + 2 * WITHIN)


@pytest.mark.parametrize("off", [(), *((name,) for name in MECHANISMS), MECHANISMS])
def test_relaxed_engines_serve_everything_and_keep_their_books(off):
    asked = spec(block_size=16, tokens=600, watermark=0.1)
    requests = short()
    engine = relaxed_engine(asked, requests, Content(requests), off)
    assert not isinstance(engine, Refused)
    recorded = replay(engine, requests, offer(requests, asked.trace, Load(rate_scale=4.0), "cold"))
    assert recorded.broken_laws == []
    assert (recorded.requests.outcome == 0).all()
    engine.check()
    if "preemption" in off:
        assert recorded.requests.preemptions.sum() == 0


def test_nothing_switched_off_is_the_simulator_itself():
    asked, requests = spec(block_size=16, tokens=600), short()
    plain = relaxed_engine(asked, requests, Content(requests), ())
    real = simulator.open(asked, Content(requests))
    made = offer(requests, asked.trace, Load(rate_scale=4.0), "cold")
    one, other = replay(plain, requests, made), replay(real, requests, made)
    assert one.requests.preemptions.sum() > 0
    assert all((one.steps[name] == other.steps[name]).all() for name in one.steps)
    assert all((one.ledger[name] == other.ledger[name]).all() for name in one.ledger)


def test_a_load_that_never_holds_is_said():
    found = bound(spec("linear:300000,1"), short())
    assert found.default is None
    assert found.words.startswith("no load holds here (ttft:p90<30ms)")


def test_what_cannot_be_bounded_is_refused_in_words():
    with pytest.raises(SpecError, match="no ttft or e2el clause"):
        bound(spec(slo="itl:p99<50ms"), short())
    with pytest.raises(SpecError, match="mechanism 'slack'"):
        relaxed_engine(spec(), short(), Content(short()), ("slack",))


def test_the_verb_answers_in_words_and_in_one_document(tmp_path):
    save_trace(short(), tmp_path / "t.parquet")
    data = spec(block_size=256).model_dump(mode="json", exclude_none=True) | {"space": "block_size", "repeats": 2}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(data))
    verb = ["bound", str(tmp_path / "t.parquet"), "--engine", str(tmp_path / "sweep.yaml"), "--requests", "60"]
    done = CliRunner().invoke(app, [*verb, "--json"])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["limited_by"], document["requests"]) == ("tail_slack", 60)
    wrong = CliRunner().invoke(app, [*verb, "--set", "slo=itl:p99<50ms"])
    assert wrong.exit_code == 2
    assert "no ttft or e2el clause" in wrong.stderr


def test_a_measured_engine_needs_a_step_time_to_be_bounded(tmp_path):
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump({
        "engine": {"name": "torch_paged"}, "model": TINY, "pool": {"bytes": 65536}, "slo": "ttft:p90<1s",
    }))  # fmt: skip
    with pytest.raises(SpecError, match="name a step time"):
        bound_spec(str(tmp_path / "trial.yaml"), tmp_path / "t.parquet", ())
    named = bound_spec(str(tmp_path / "trial.yaml"), tmp_path / "t.parquet", ["engine.step_time=roofline:l4"])
    assert named.engine.step_time == "roofline:l4"
    assert bound_spec("roofline:h100-sxm", tmp_path / "t.parquet", ()).engine.name == "simulator"
