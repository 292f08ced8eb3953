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
    "trace": {"path": "t.parquet"}, "slo": "ttft:p90<40ms;tpot:p90<30ms", "phases": ["cold"],
    "measure": {"ladder": {"low": 0.1, "high": 40, "within": 0.05}}, "objective": "capacity_load",
    "space": {"vary": {"policy.block_size": {"one_of": [8, 256]}}}, "repeats": 3, "controls": [],
    "executor": {"kind": "process", "slots": 2}, "tracking": None,
}  # fmt: skip


def test_capacity_ranks_candidates_and_the_recipe_reproduces(tmp_path):
    """A pool of 2,048 tokens takes eight blocks of 256, or forty requests in small ones."""
    rng = np.random.default_rng(4)
    at = np.cumsum(rng.exponential(10e6, 240)).astype(np.int64)
    save_trace(make_trace(at, rng.integers(20, 40, 240), rng.integers(8, 24, 240)), tmp_path / "t.parquet")
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
        (part,) = record.result.capacity.parts
        assert part.value == record.result.metrics.capacity_load
        assert part.beyond <= part.value * 1.051
        assert record.result.replays[record.result.decides].stopped_early is None
    again = CliRunner().invoke(app, ["reproduce", str(tmp_path / "out" / "recipe.yaml")])
    assert again.exit_code == 0, again.stdout
