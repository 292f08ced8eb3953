"""A recipe is still valid, or what moved is named and the sweep must run again: exit 0 or 4."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_sweep import build, make_trace_file
from typer.testing import CliRunner

from orchestrator.check import check, describe_engine
from orchestrator.cli import app
from orchestrator.recipe import load_recipe, write_recipe
from trials.trace import load_trace, make_trace, save_trace
from trials.units import SpecError


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_recipe(build(tmp_path_factory.mktemp("check") / "sweep").path)
    assert made is not None
    return made


def same_engine(path: Path):
    stored = load_recipe(path)
    return lambda spec: {"engine_hash": stored.hashes.engine, "identity": stored.engine_identity}


def longer(path: Path) -> Path:
    trace, out = load_trace(path), path.with_name("long.parquet")
    save_trace(make_trace(trace.arrival_ns, trace.num_prompt_tokens * 3, trace.num_output_tokens), out)
    return out


def test_the_same_workload_on_the_same_engine_is_still_valid(recipe: Path) -> None:
    found = check(recipe, make_trace_file(recipe.parent / "again.parquet", seed=5), same_engine(recipe))
    assert found.exit_code == 0, found.lines
    assert found.lines[-1].startswith("still valid: ")
    assert not any(p.moved for p in found.properties)
    assert {p.unit for p in found.properties} == {"relative", "KS", "share"}


def test_longer_prompts_are_named_and_the_sweep_must_run_again(recipe: Path) -> None:
    found = check(recipe, longer(make_trace_file(recipe.parent / "other.parquet", seed=5)), same_engine(recipe))
    assert found.exit_code == 4
    assert found.lines[-1] == "stale: prompt tokens moved; the sweep must be run again on the new trace"


def test_another_engine_is_named_by_the_part_that_differs(recipe: Path) -> None:
    stored = load_recipe(recipe)
    files = dict(stored.engine_identity["files"]) | {"trials/scheduler.py": "0" * 64}
    other = {"engine_hash": "1" * 64, "identity": {**stored.engine_identity, "files": files}}
    found = check(recipe, stored.trace.find(recipe.parent), lambda spec: other)
    assert found.exit_code == 4
    assert len(found.engine_moved) == 1
    assert "trials/scheduler.py" in found.engine_moved[0]
    assert "the engine moved" in found.lines[-1]


def test_an_engine_that_cannot_be_asked_is_not_vouched_for(recipe: Path) -> None:
    def silent(spec):
        raise SpecError("no such library")

    found = check(recipe, load_recipe(recipe).trace.find(recipe.parent), silent)
    assert (found.exit_code, found.engine_unknown) == (4, "no such library")


def test_a_recipe_without_a_shape_is_checked_by_its_trace(recipe: Path, tmp_path: Path) -> None:
    data = yaml.safe_load(recipe.read_text())
    trace = load_recipe(recipe).trace.find(recipe.parent)
    del data["workload"]["shape"]
    old = recipe.with_name("old.yaml")
    old.write_text(yaml.safe_dump(data))
    assert check(old, trace, same_engine(recipe)).exit_code == 0
    data["workload"]["shape"] = {"rows": "many"}
    old.write_text(yaml.safe_dump(data))
    with pytest.raises(SpecError, match=r"workload\.shape"):
        check(old, trace, same_engine(recipe))


def test_the_engine_is_asked_in_a_process_of_its_own(recipe: Path) -> None:
    stored = load_recipe(recipe)
    here = describe_engine(stored.spec)
    assert set(here) >= {"engine_hash", "identity"}
    assert here["identity"]["config"] == json.loads(json.dumps(stored.engine_identity["config"]))
    with pytest.raises(SpecError, match="cannot be asked"):
        describe_engine(stored.spec.model_copy(update={
            "engine": stored.spec.engine.model_copy(update={"python": "/nowhere/python"})
        }))  # fmt: skip


def test_the_verb_ends_with_4_and_one_document(recipe: Path) -> None:
    trace = longer(make_trace_file(recipe.parent / "third.parquet", seed=5))
    done = CliRunner().invoke(app, ["check", str(recipe), "--trace", str(trace), "--json"])
    assert done.exit_code == 4, done.stderr
    document = json.loads(done.stdout)
    assert [p["name"] for p in document["properties"] if p["moved"]] == ["prompt tokens"]
    absent = CliRunner().invoke(app, ["check", str(recipe), "--trace", str(trace.with_name("none.parquet"))])
    assert absent.exit_code == 2


def test_rows_that_arrive_at_once_have_no_rate_to_compare(recipe: Path) -> None:
    trace = load_trace(load_recipe(recipe).trace.find(recipe.parent))
    path = recipe.parent / "at_once.parquet"
    save_trace(make_trace(np.zeros_like(trace.arrival_ns), trace.num_prompt_tokens, trace.num_output_tokens), path)
    rate = check(recipe, path, same_engine(recipe)).properties[0]
    assert (rate.distance, rate.now) == (None, "all at once")
