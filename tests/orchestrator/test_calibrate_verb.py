"""The verb that measures a real engine: a table that the simulator takes, and words for what cannot be measured."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.calibrate import default_sizes, table_lines
from orchestrator.cli import app
from trials.spec import trial_spec
from trials.step_tables import load_table
from trials.trace import make_trace, save_trace

ENGINE = {
    "engine": {"name": "torch_paged", "clock": "cpu"},
    "model": {"num_layers": 1, "num_kv_heads": 1, "num_query_heads": 2, "head_dim": 16, "hidden_size": 32,
              "intermediate_size": 32, "vocab_size": 64, "kv_dtype": "float32", "dtype": "float32"},
    "pool": {"bytes": "256KiB"}, "trace": {"path": "t.parquet"}, "slo": "ttft:p99<10s",
    "policy": {"max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 64},
}  # fmt: skip


@pytest.fixture
def engine_file(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    trace = make_trace(np.arange(30) * 10**7, rng.integers(8, 64, 30), rng.integers(4, 20, 30))
    save_trace(trace, tmp_path / "t.parquet")
    (tmp_path / "engine.yaml").write_text(yaml.safe_dump(ENGINE))
    return tmp_path / "engine.yaml"


def test_a_real_engine_is_measured_and_the_simulator_takes_its_table(engine_file, tmp_path):
    out = tmp_path / "table.json"
    verb = ["calibrate", str(engine_file), "-o", str(out), "--block-sizes", "4,16", "--rounds", "1", "--json"]
    done = CliRunner().invoke(app, verb)
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["region"]["block_sizes"] == [4, 16]
    table = load_table(out)
    assert table.device
    assert table.block_term.ns_per_block is not None
    assert any(line.startswith("price of a block: ") for line in table_lines(table))
    spec = {**ENGINE, "engine": {"name": "simulator", "step_time": f"table:{out}"}, "phases": ["cold"]}
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump(spec))
    trial = CliRunner().invoke(
        app, ["trial", str(tmp_path / "trial.yaml"), "-o", str(tmp_path / "out"), "--json",
              "--set", "policy.block_size=32"],
    )  # fmt: skip
    assert trial.exit_code == 0, trial.stderr
    result = json.loads(trial.stdout)["result"]
    assert result["evidence"] == "modelled"
    assert any("block size 32, measured 4 to 16" in warning for warning in result["warnings"])


def test_what_cannot_be_measured_is_refused_and_nothing_is_written_over(engine_file, tmp_path):
    modelled = CliRunner().invoke(
        app, ["calibrate", str(engine_file), "-o", str(tmp_path / "x.json"),
              "--set", "engine={name: simulator, step_time: 'roofline:l4'}"],
    )  # fmt: skip
    assert modelled.exit_code == 2
    assert "no step times of its own" in modelled.stderr
    (tmp_path / "notes.json").write_text("{}")
    kept = CliRunner().invoke(app, ["calibrate", str(engine_file), "-o", str(tmp_path / "notes.json")])
    assert kept.exit_code == 2
    assert (tmp_path / "notes.json").read_text() == "{}"


def test_default_block_sizes_lie_around_the_trials_own():
    spec = trial_spec(ENGINE)
    assert default_sizes(spec) == [4, 16, 64]
    one = spec.model_copy(update={"policy": spec.policy.model_copy(update={"block_size": 1})})
    assert default_sizes(one) == [1, 4]
