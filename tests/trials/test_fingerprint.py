"""Hashes depend on content alone."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trials.fingerprint import (
    canonical_json,
    changed_parts,
    distribution_versions,
    engine_hash,
    environment,
    file_digest,
    source_digests,
    spec_hash,
    trace_hash,
)
from trials.spec import TrialSpec, load_trial_spec, trial_spec
from trials.trace import COLUMNS, Ragged, Trace, TraceMeta, make_trace, save_trace

ROOT = Path(__file__).parents[2]
SPEC: dict[str, Any] = {
    "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"},
    "model": "llama-3.1-8b",
    "pool": {"bytes": "16GiB"},
    "trace": {"path": "a.parquet", "window": {"start": "0s", "duration": "60s"}},
    "slo": "ttft:p99<500ms;itl:p99<50ms",
}


def small_trace() -> Trace:
    return make_trace(
        np.array([0, 1_000_000, 2_000_000]), np.array([5, 6, 9]), np.array([1, 2, 3]),
        Ragged.of([[1], [], [1, 2]]), TraceMeta(4, "floor", name="n", source="s", notes=("x",)),
    )  # fmt: skip


def spec(**changes: Any) -> TrialSpec:
    return trial_spec({**SPEC, **changes})


# --- canonical JSON


def test_canonical_json_sorts_keys_and_writes_no_spaces() -> None:
    assert canonical_json({"b": [1, 2.5, "é"], "a": {"y": None, "x": True}}) == (
        '{"a":{"x":true,"y":null},"b":[1,2.5,"\\u00e9"]}'
    )


def test_one_and_one_point_zero_are_the_same_and_true_is_not() -> None:
    assert canonical_json([1.0, -0.0]) == canonical_json([1, 0])
    assert canonical_json(True) != canonical_json(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")]])
def test_what_json_has_no_number_for_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(value)


def test_keys_that_become_the_same_text_are_refused() -> None:
    with pytest.raises(ValueError, match="'1' stands twice"):
        canonical_json({1: "a", "1": "b"})


# --- trace hash


def test_name_source_notes_and_marks_do_not_count() -> None:
    trace = small_trace()
    other = replace(trace, meta=TraceMeta(4, "floor", ("arrival_ns",), "other", "elsewhere", ("y", "z")))
    assert trace_hash(other) == trace_hash(trace)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_counts(name: str) -> None:
    trace = small_trace()
    column = getattr(trace, name).copy()
    column[-1] += 1
    assert trace_hash(replace(trace, **{name: column})) != trace_hash(trace)


def test_one_microsecond_in_one_stamp_counts() -> None:
    trace = small_trace()
    moved = trace.arrival_ns.copy()
    moved[1] += 1_000
    assert trace_hash(replace(trace, arrival_ns=moved)) != trace_hash(trace)


@pytest.mark.parametrize(
    "change",
    [
        {"prefix_ids": Ragged.of([[1], [1], [2]])},
        {"prefix_ids": Ragged.of([[1], [], [1, 3]])},
        {"prefix_ids": Ragged.of([[], [1], [1, 2]])},
        {"after": Ragged.of([[], [0], []])},
        {"meta": TraceMeta(2, "floor")},
        {"meta": TraceMeta(4, "ceil")},
    ],
)
def test_lists_granularity_and_tail_rule_count(change: dict[str, Any]) -> None:
    assert trace_hash(replace(small_trace(), **change)) != trace_hash(small_trace())


def test_the_hash_of_a_known_trace_is_a_known_number() -> None:
    """Pins the byte layout: a change of numpy, Python or platform must not move it."""
    assert trace_hash(small_trace()) == ("a81233adea6affed134fbaa57377e60f6b73c1531f7819f798da31760f4b848f")


# --- spec hash


def test_the_hash_of_a_known_spec_is_the_same_in_any_key_order() -> None:
    turned = dict(reversed(list(SPEC.items())))
    turned["trace"] = {"window": {"duration": "60s", "start": "0s"}, "path": "a.parquet"}
    assert spec_hash(trial_spec(turned), "t") == spec_hash(spec(), "t")


def test_locators_do_not_count_and_content_does() -> None:
    moved = spec(
        trace={**SPEC["trace"], "path": "/elsewhere/b.parquet"},
        engine={**SPEC["engine"], "python": "/venv/bin/python"},
    )
    assert spec_hash(moved, "t") == spec_hash(spec(), "t")
    assert spec_hash(spec(), "another trace") != spec_hash(spec(), "t")


def test_equal_quantities_in_other_words_are_equal() -> None:
    assert spec_hash(spec(pool={"bytes": 16 << 30}), "t") == spec_hash(spec(), "t")
    window = {"path": "x", "window": {"start": 0, "duration": "1min"}}
    assert spec_hash(spec(trace=window), "t") == spec_hash(spec(), "t")


@pytest.mark.parametrize(
    "change",
    [
        {"pool": {"bytes": "8GiB"}},
        {"policy": {"block_size": 32}},
        {"seed": 1},
        {"repeat": 1},
        {"slo": "ttft:p99<501ms;itl:p99<50ms"},
        {"model": "qwen3-8b"},
        {"phases": ["cold"]},
        {"measure": {"load": {"rate_scale": 2.0}}},
        {"trace": {"path": "a.parquet", "window": {"start": "1s", "duration": "60s"}}},
        {"trace": {**SPEC["trace"], "outputs": "live"}},
        {"engine": {**SPEC["engine"], "pipeline_parallel_size": 2}},
    ],
)
def test_everything_that_decides_the_outcome_counts(change: dict[str, Any]) -> None:
    assert spec_hash(spec(**change), "t") != spec_hash(spec(), "t")


def test_a_step_table_counts_by_content_and_its_path_does_not() -> None:
    near = spec(engine={"name": "simulator", "step_time": "table:/here/t.json"})
    far = spec(engine={"name": "simulator", "step_time": "table:/there/u.json"})
    assert spec_hash(near, "t", "table 1") == spec_hash(far, "t", "table 1")
    assert spec_hash(near, "t", "table 1") != spec_hash(near, "t", "table 2")
    with pytest.raises(ValueError, match="digest of the table"):
        spec_hash(near, "t")


def test_where_a_table_lies_is_read_and_written_in_one_place() -> None:
    near = spec(engine={"name": "simulator", "step_time": "table:/here/t.json"}).engine
    assert near.table == Path("/here/t.json")
    assert near.with_table("/there/u.json").table == Path("/there/u.json")
    assert "table" not in near.model_dump(), "a locator that is hashed twice"
    for other in ("roofline:h100-sxm", "linear:1,2"):
        assert near.model_copy(update={"step_time": other}).table is None


# --- engine hash


def test_one_byte_of_a_deciding_file_changes_the_engine_hash_and_names_the_part(tmp_path: Path) -> None:
    names = ["block_pool.py", "engine.py"]
    for name in ("here", "there"):
        shutil.copytree(ROOT / "trials", tmp_path / name / "trials", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "there" / "trials" / "block_pool.py").open("ab") as file:
        file.write(b"\n")
    code = f"import json; from trials.fingerprint import source_digests; print(json.dumps(source_digests({names})))"
    here, there = (
        json.loads(subprocess.run([sys.executable, "-c", code], cwd=tmp_path / name, capture_output=True,
                                  text=True, check=True).stdout)
        for name in ("here", "there")
    )  # fmt: skip
    assert here == source_digests(names)
    assert engine_hash({"files": here}) != engine_hash({"files": there})
    changed = changed_parts({"files": here}, {"files": there})
    assert changed == [
        f"files.trials/block_pool.py: {here['trials/block_pool.py']} -> {there['trials/block_pool.py']}"
    ]


def test_changed_parts_names_leaves_and_what_is_absent() -> None:
    assert changed_parts({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4}, "e": 5}) == [
        "b.c: 2 -> 4",
        "b.d: 3 -> absent",
        "e: absent -> 5",
    ]
    assert changed_parts({"a": {"x": 1}}, {"a": {"x": 1}}) == []


def test_versions_of_distributions_and_absence() -> None:
    found = distribution_versions(["numpy", "no-such-distribution"])
    assert found == {"no-such-distribution": "absent", "numpy": np.__version__}
    assert {"python", "machine", "torch"} <= set(environment())


def test_file_digest_is_sha256_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert file_digest(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# --- across processes

_ALL = """
import sys
from pathlib import Path
from trials.fingerprint import engine_hash, source_digests, spec_hash, trace_hash
from trials.spec import load_trial_spec
from trials.trace import load_trace
trace = load_trace(Path(sys.argv[1]))
spec = load_trial_spec(Path(sys.argv[2]))
print(trace_hash(trace), spec_hash(spec, trace_hash(trace)), engine_hash(source_digests({"engine.py", "trace.py"})))
"""


def test_hashes_are_equal_in_every_process_folder_file_name_and_key_order(tmp_path: Path) -> None:
    answers = set()
    for index, seed in enumerate(("0", "1", None)):
        folder = tmp_path / f"folder{index}"
        save_trace(small_trace(), folder / f"name{index}.parquet")
        data = {**SPEC, "trace": {**SPEC["trace"], "path": f"name{index}.parquet"}}
        ordered = data if index else dict(reversed(list(data.items())))
        (folder / "spec.yaml").write_text(json.dumps(ordered))
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
        environ |= {"PYTHONPATH": str(ROOT)} | ({"PYTHONHASHSEED": seed} if seed is not None else {})
        command = [sys.executable, "-c", _ALL, str(folder / f"name{index}.parquet"), str(folder / "spec.yaml")]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
        answers.add(done.stdout)
    assert len(answers) == 1
    here = load_trial_spec(tmp_path / "folder1" / "spec.yaml")
    assert answers == {
        f"{trace_hash(small_trace())} {spec_hash(here, trace_hash(small_trace()))} "
        f"{engine_hash(source_digests(['trace.py', 'engine.py']))}\n"
    }
