"""A sweep that ranks by capacity, from YAML to a recipe that reproduces."""

import json

import numpy as np
import yaml
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.folder import SweepFolder
from trials.trace import make_trace, save_trace

SWEEP = {
    "name": "capacity", "engine": {"name": "simulator", "step_time": "linear:2000,20"},
    "model": {"num_layers": 1, "num_kv_heads": 1, "num_query_heads": 1, "head_dim": 8, "hidden_size": 8,
              "intermediate_size": 8, "vocab_size": 8, "kv_dtype": "float16"},
    "pool": {"bytes": 64 * 1024}, "policy": {"max_model_len": 512, "prefix_caching": False},
    "trace": {"path": "t.parquet", "window": {"start": "0s", "duration": "2s"}},
    "slo": "ttft:p90<40ms;tpot:p90<30ms", "phases": ["cold"],
    "measure": {"ladder": {"low": 0.1, "high": 40, "within": 0.05}}, "objective": "capacity_load",
    "space": {"vary": {"policy.block_size": {"one_of": [8, 256]}}}, "repeats": 3, "controls": [], "race": False,
    "executor": {"kind": "process", "slots": 2}, "tracking": None,
}  # fmt: skip


def test_capacity_ranks_candidates_and_the_recipe_reproduces(tmp_path):
    """A pool of 2,048 tokens takes eight blocks of 256, or forty requests in small ones."""
    rng, rows = np.random.default_rng(4), 840
    at = np.cumsum(rng.exponential(10e6, rows)).astype(np.int64)
    save_trace(make_trace(at, rng.integers(20, 40, rows), rng.integers(8, 24, rows)), tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SWEEP))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.stderr
    outcome = json.loads(done.stdout)["outcome"]
    assert outcome["winner"] == "block_size=8"
    loads = {c["label"]: c["values"] for c in outcome["candidates"]}
    pairs = zip(loads["block_size=8"], loads["block_size=256"], strict=True)
    assert all(small > 1.5 * large for small, large in pairs)
    assert any(note.startswith("bound (modelled, ") for note in outcome["notes"])
    records = SweepFolder(tmp_path / "out").load_trials()
    for record in records:
        if record.card.role == "survival":
            continue
        (part,) = record.result.capacity.parts
        assert part.value == record.result.metrics.capacity_load
        assert part.beyond <= part.value * 1.051
        assert record.result.replays[record.result.decides].stopped_early is None
    again = CliRunner().invoke(app, ["reproduce", str(tmp_path / "out" / "recipe.yaml")])
    assert again.exit_code == 0, again.stdout


def test_a_race_finds_the_same_and_says_what_it_does_not_know(tmp_path):
    """Through the CLI, with real trials: 256 is rejected by one replay, and its later windows are never run."""
    rng, rows = np.random.default_rng(4), 840
    at = np.cumsum(rng.exponential(10e6, rows)).astype(np.int64)
    save_trace(make_trace(at, rng.integers(20, 40, rows), rng.integers(8, 24, rows)), tmp_path / "t.parquet")
    asked = {**SWEEP, "race": True, "executor": {"kind": "process", "slots": 1}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(asked))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.stderr
    outcome = json.loads(done.stdout)["outcome"]
    assert outcome["winner"] == "block_size=8"
    loser = next(c for c in outcome["candidates"] if c["label"] == "block_size=256")
    assert loser["value"] is None
    assert loser["less_than"] > 0
    records = [r for r in SweepFolder(tmp_path / "out").load_trials() if r.card.role is None]
    assert [r.state for r in records] == ["complete", "complete", "complete", "raced", "complete", "raced"]
    (part,) = records[1].result.capacity.parts
    assert part.replays == 1
    again = CliRunner().invoke(app, ["reproduce", str(tmp_path / "out" / "recipe.yaml")])
    assert again.exit_code == 0, again.stdout
