"""Calibration of engines whose step times are known: the table gives them back, and what a block costs."""

import json

import numpy as np
import pytest

from trials.calibrate import (
    Workload,
    calibrate,
    held_by,
    main,
    planned_for,
    reach_of,
    save_table,
    scatter,
    timed,
    trace_of,
    workloads,
)  # fmt: skip
from trials.content import Content
from trials.engines import simulator
from trials.engines.simulator import Modelled
from trials.generate import Preset, generate
from trials.load import offer
from trials.metrics import measure
from trials.replay import replay
from trials.slo import parse_slo
from trials.spec import Load, trial_spec
from trials.step_tables import load_table, table_time
from trials.table_checks import model_digest, outside, require_engine, require_model
from trials.table_fit import linear
from trials.trace import make_trace, save_trace
from trials.units import SpecError

MODEL = {
    "num_layers": 2, "num_kv_heads": 2, "num_query_heads": 4, "head_dim": 32, "hidden_size": 128,
    "intermediate_size": 256, "vocab_size": 256, "kv_dtype": "float32", "dtype": "float32",
}  # fmt: skip


def lengths(name, rows, seed, prompt=80, output=30):
    return generate(Preset.model_validate({
        "name": name, "rows": rows, "seed": seed, "arrivals": {"kind": "poisson", "rps": 10.0},
        "prompt": {"kind": "lognormal", "mean": prompt, "sigma": 0.5, "min": 4, "max": 200},
        "output": {"kind": "lognormal", "mean": output, "sigma": 0.4, "min": 4, "max": 80},
    }))  # fmt: skip


def spec(step_time="linear:1000,20,5,300,1", size=16, **more):
    return trial_spec({
        "engine": {"name": "simulator", "step_time": step_time}, "model": MODEL, "pool": {"bytes": "4MiB"},
        "policy": {"block_size": size, "max_model_len": 512, "max_num_seqs": 32, "max_num_batched_tokens": 128},
        "trace": {"path": "t"}, "slo": "ttft:p99<500ms", **more,
    })  # fmt: skip


SEEN = lengths("seen", 60, 1)


def test_region_is_what_the_trace_visits_at_saturation():
    reach = reach_of(spec(), SEEN)
    assert reach.longest_prompt == SEEN.num_prompt_tokens.max()
    assert 8 < reach.decodes <= 32
    low, high = reach.contexts
    assert 4 <= low < high <= int((SEEN.num_prompt_tokens + SEEN.num_output_tokens).max())


def test_workloads_cover_the_region_hold_out_a_fifth_and_fit_the_pool():
    reach = reach_of(spec(), SEEN)
    planned = workloads(spec(), reach, seed=0)
    assert {w.requests for w in planned} >= {1, 2, 4, 8, reach.decodes}
    assert max(w.prompt for w in planned if w.requests == 1) == reach.longest_prompt
    assert sum(w.held_out for w in planned) == len(planned) // 5
    assert [w.first_row for w in planned] == np.cumsum([0, *(w.requests for w in planned)])[:-1].tolist()
    roomy, tight = held_by(spec(), planned), held_by(spec(size=128), planned)
    assert set(tight) < set(roomy)
    plan = planned_for(spec(), SEEN)
    assert len(plan.trace) == plan.first_churn_row + 60


def test_every_step_of_a_workload_is_timed_and_its_decodes_come_together():
    work = Workload(6, 40, 20, 0, False)
    trace = trace_of([work], SEEN)
    engine = simulator.open(spec(), Content(trace))
    shapes, spent, attention = timed(engine, [work])
    assert (shapes[:, 0] == 6).sum() >= 8
    assert int(shapes[:, 4].sum()) == 6 * 40
    assert int(shapes[:, 0].sum()) == 6 * 19
    assert (spent > attention).all()


def test_blocks_are_scattered_before_anything_counts():
    """What is handed out after the churn lies in no order; after a cold start it does."""
    trace = trace_of([Workload(1, 120, 2, 0, False)], SEEN)
    engine = simulator.open(spec(size=4), Content(trace))

    def jumps():
        from trials.engine import Work

        engine.add(Work(0, 120, 2))
        engine.step()
        (table,) = engine.audit().groups[0].tables.values()
        while engine.step() is not None:
            pass
        return int((np.abs(np.diff(table)) != 1).sum())

    engine.start(cold=True)
    assert jumps() == 0
    scatter(engine, trace, 1)
    engine.start(cold=False)
    assert jumps() > 5


@pytest.mark.parametrize("per_block", [300.0, 0.0])
def test_price_of_a_block_is_found_and_may_be_none(per_block):
    table = calibrate(spec(f"linear:1000,20,5,{per_block:g},1"), SEEN, [4, 16, 64], rounds=1)
    assert table.block_term.ns_per_block == pytest.approx(per_block, abs=1e-6)
    assert f"{table.block_term.ns_per_block:.4g} ns a block" in table.block_term.words
    held = next(r for r in table.residuals if r.kind == "all" and r.held_out)
    assert held.p90_abs < 0.005
    assert abs(held.of_total) < 0.002


def test_one_block_size_cannot_tell_blocks_from_tokens():
    table = calibrate(spec(), SEEN, [16], rounds=1)
    assert table.block_term.ns_per_block is None
    assert "one block size" in table.block_term.words


@pytest.mark.parametrize("size", [4, 8, 16, 64])
def test_an_unseen_trace_is_predicted_also_between_measured_block_sizes(size, tmp_path):
    """Block 8 was not measured: it lies between 4 and 16 as a price per block does."""
    save_table(calibrate(spec(), SEEN, [4, 16, 64], rounds=1), tmp_path / "t.json")
    unseen = lengths("unseen", 60, 9, prompt=100, output=40)
    found = []
    for step_time in ("linear:1000,20,5,300,1", f"table:{tmp_path / 't.json'}"):
        own = spec(step_time, size)
        engine = simulator.open(own, Content(unseen))
        recorded = replay(engine, unseen, offer(unseen, own.trace, Load(concurrency=32), "cold"))
        result = measure(recorded, engine.facts, parse_slo(own.slo), unseen)
        found.append((result.metrics.tpot_ms.mean, recorded.drain_end_ns))
    assert found[1] == pytest.approx(found[0], rel=0.01)


class NotTold(Modelled):
    def execute(self, plan):
        return super().execute(plan)[0], None


def test_an_engine_that_does_not_tell_attention_apart_is_calibrated_too(monkeypatch):
    monkeypatch.setattr(simulator, "Modelled", NotTold)
    table = calibrate(spec(), SEEN, [4, 16, 64], rounds=1)
    held = next(r for r in table.residuals if r.kind == "all" and r.held_out)
    assert held.p90_abs < 0.05


class Noisy(Modelled):
    """Off by a few percent, and now and then interrupted."""

    rng = np.random.default_rng(0)

    def execute(self, plan):
        whole, attention = super().execute(plan)
        factor = 1 + 0.03 * self.rng.standard_normal() + (3.0 if self.rng.random() < 0.03 else 0.0)
        return int(whole * factor), int(attention * factor)


def test_noise_and_interruptions_do_not_reach_the_table(monkeypatch):
    monkeypatch.setattr(simulator, "Modelled", Noisy)
    table = calibrate(spec(), SEEN, [4, 16, 64], rounds=3)
    assert table.block_term.ns_per_block == pytest.approx(300, rel=0.15)
    assert abs(next(r for r in table.residuals if r.kind == "all" and r.held_out).median) < 0.02


def test_rounds_that_take_other_steps_are_refused(monkeypatch):
    from trials import calibrate as room

    true, calls = room.timed, []

    def other(engine, planned):
        shapes, spent, attention = true(engine, planned)
        calls.append(1)
        return (shapes + len(calls) - 1, spent, attention)

    monkeypatch.setattr(room, "timed", other)
    with pytest.raises(SpecError, match="took other steps"):
        calibrate(spec(), SEEN, [16], rounds=2)


def test_what_the_pool_cannot_hold_is_refused_in_words():
    small = spec(pool={"bytes": 300 * 1024})  # 300 tokens: two requests by fours, four blocks of 64
    with pytest.raises(SpecError, match="block size 128: the pool does not hold two requests"):
        calibrate(small, SEEN, [4, 128], rounds=1)
    with pytest.raises(SpecError, match="at block size 512: the pool has room for 0 blocks"):
        calibrate(small, SEEN, [4, 512], rounds=1)


# ---- what a table says of itself
@pytest.fixture(scope="module")
def table():
    return calibrate(spec(), SEEN, [4, 16, 64], rounds=1, date="2030-01-01")


def test_table_names_its_engine_model_and_date(table):
    assert table.measured == "2030-01-01"
    require_engine(table, table.engine_hash)
    require_model(table, spec().model)
    with pytest.raises(SpecError, match="another engine, or the same one changed since"):
        require_engine(table, "0" * 64)
    with pytest.raises(SpecError, match="another model"):
        require_model(table, spec(model={**MODEL, "num_layers": 3}).model)
    assert model_digest(spec().model) == model_digest(spec().model.model_copy(update={"name": "other"}))


def test_simulator_refuses_a_table_of_another_model_or_engine(table, tmp_path):
    save_table(table, tmp_path / "t.json")
    path = f"table:{tmp_path / 't.json'}"
    content = Content(SEEN)
    with pytest.raises(SpecError, match="another model"):
        simulator.open(spec(path, model={**MODEL, "num_layers": 3}), content)
    stands = {"name": "simulator", "step_time": path, "args": {"stands_for": "1" * 64}}
    with pytest.raises(SpecError, match="is to stand for 111111111111"):
        simulator.open(spec(engine=stands), content)
    simulator.open(spec(engine={**stands, "args": {"stands_for": table.engine_hash}}), content)
    with pytest.raises(SpecError, match="a table, not roofline"):
        simulator.open(spec(engine={**stands, "step_time": "roofline:l4"}), content)


def test_steps_beyond_the_region_are_named_with_how_far(table):
    long = make_trace(np.zeros(8, np.int64), np.full(8, 400), np.full(8, 8))
    own = spec()
    engine = simulator.open(own, Content(long))
    steps = replay(engine, long, offer(long, own.trace, Load(concurrency=4), "cold")).steps
    said = outside(table, steps, 16)
    assert "mean context up to 40" in said
    assert f"measured to {table.region.mean_context:g}" in said
    inside = replay(
        simulator.open(own, Content(SEEN)), SEEN, offer(SEEN, own.trace, Load(concurrency=32), "cold")
    ).steps
    assert outside(table, inside, 16) == ""
    assert "block size 128, measured 4 to 64" in outside(table, inside, 128)
    assert outside(table.model_copy(update={"region": None}), steps, 16) == ""


def test_without_its_block_term_small_blocks_cost_what_the_largest_do(table):
    from trials.engine import StepShape

    shape = StepShape(8, 800, 200, 0, 0, 0, 0, 8)
    small, large = table_time(table, 64, 4), table_time(table, 64, 64)
    assert small(shape)[0] > large(shape)[0]
    assert table_time(table, 64, 4, block_term=False)(shape) == large(shape)


def test_linear_fit_drops_what_sticks_out_and_keeps_terms_from_going_negative():
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 100, 400)
    features = np.stack([np.ones(400), x, rng.uniform(0, 1, 400)], axis=1)
    ns = 50 + 3 * x
    ns[::20] *= 10
    line = linear(features, ns)
    assert line.values[:2] == pytest.approx([50, 3], rel=1e-3)
    assert line.values[2] >= 0
    falling = linear(features, 50 + 3 * x - 0.5 * features[:, 2], signed=True)
    assert falling.values[2] == pytest.approx(-0.5, rel=1e-3)


def test_process_writes_a_table_or_says_why_not(tmp_path, capsys):
    save_trace(SEEN, tmp_path / "t.parquet")
    own = spec(trace={"path": str(tmp_path / "t.parquet")})
    (tmp_path / "s.json").write_text(own.model_dump_json())
    assert main([str(tmp_path / "s.json"), str(tmp_path / "table.json"), "4,16", "1"]) == 0
    assert load_table(tmp_path / "table.json").region.block_sizes == (4, 16)
    assert json.loads((tmp_path / "table.json").read_text())["measured"].endswith("Z")
    assert main([str(tmp_path / "s.json"), str(tmp_path / "none.json"), "8192", "1"]) == 2
    assert "error: " in capsys.readouterr().err
    assert not (tmp_path / "none.json").exists()
    assert main(["one"]) == 2
