"""A trial's spec: every bad input is answered with the key, what stood there and what to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from trials.spec import TrialSpec, load_trial_spec, read_yaml, trial_spec
from trials.units import SpecError

GOOD: dict[str, Any] = {
    "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"},
    "model": "llama-3.1-8b",
    "pool": {"bytes": "16GiB"},
    "trace": {"path": "a.parquet", "window": {"start": "300s", "duration": "180s"}, "warmup": "60s"},
    "slo": "ttft:p99<500ms;itl:p99<50ms",
}
TINY = {
    "num_layers": 2, "num_kv_heads": 2, "num_query_heads": 4, "head_dim": 8, "hidden_size": 32,
    "intermediate_size": 64, "vocab_size": 128,
}  # fmt: skip


def spec(**changes: Any) -> TrialSpec:
    return trial_spec({**GOOD, **changes}, "spec.yaml")


def test_defaults_are_those_of_vllm() -> None:
    policy = spec().policy
    assert (policy.block_size, policy.prefix_caching, policy.max_num_batched_tokens) == (16, True, 2048)
    assert spec().phases == ("cold", "steady")
    assert spec().measure.load is not None
    assert spec().measure.load.label == "rate_scale=1"


def test_quantities_become_integers() -> None:
    found = spec(policy={"max_model_len": "8k"})
    assert found.pool.bytes == 16 << 30
    assert found.policy.max_model_len == 8_000
    assert found.trace.window is not None
    assert (found.trace.window.start, found.trace.window.duration) == (300 * 10**9, 180 * 10**9)
    assert spec(pool={"blocks": "1k", "reserve_blocks": 1}).pool.blocks == 1_000


def test_a_dumped_spec_reads_back_equal() -> None:
    found = spec(model=TINY, measure={"ladder": {"low": 0.5, "high": 4}})
    assert trial_spec(json.loads(found.model_dump_json())) == found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"polcy": {}}, "polcy: unknown key; did you mean 'policy'? known: engine, measure, model,"),
        ({"policy": {"blok_size": 3}}, "policy.blok_size: unknown key; did you mean 'block_size'? known: "),
        ({"trace": {"path": "x", "window": {"strat": "0s", "duration": "1s"}}}, "trace.window.strat: unknown key; "
         "did you mean 'start'? known: duration, start"),
        ({"measure": {"load": {"rate": 1}}}, "measure.load.rate: unknown key; did you mean 'rate_scale'?"),
        ({"space": "block_size"}, "space: unknown key; "),
        ({"engine": {"name": "vlm"}}, "engine: engine 'vlm' does not exist; "),
        ({"engine": {"name": "simulator"}}, "engine simulator needs step_time, for example roofline:h100-sxm"),
        ({"engine": {}}, "engine.name: this key is needed"),
        ({"policy": {"block_size": 0}}, "policy.block_size: must be at least 1; found 0"),
        ({"policy": {"block_size": -1}}, "policy.block_size: must be at least 1; found -1"),
        ({"policy": {"block_size": 3.5}}, "policy.block_size: a whole number is needed; found 3.5"),
        ({"policy": {"block_size": "abc"}}, "policy.block_size: a whole number is needed; found 'abc'"),
        ({"policy": {"block_size": True}}, "policy.block_size: a whole number is needed; found True"),
        ({"policy": {"block_size": None}}, "policy.block_size: a whole number is needed; found None"),
        ({"policy": {"block_size": 1 << 30}}, "policy.block_size: must be at most 1048576; found 1073741824"),
        ({"policy": {"layout": "flat"}}, "policy.layout: must be 'paged', 'contiguous' or 'virtual'; found 'flat'"),
        ({"policy": {"max_num_seqs": True}}, "policy.max_num_seqs: count: True is not a quantity"),
        ({"policy": {"watermark": True}}, "policy.watermark: a number is needed; found True"),
        ({"policy": 3}, "policy: a mapping of keys is needed; found 3"),
        ({"pool": {}}, "pool needs exactly one of bytes, blocks, device_budget; got none"),
        ({"pool": {"bytes": "1GiB", "blocks": 4}}, "pool needs exactly one of bytes, blocks, device_budget; got "
         "bytes, blocks"),
        ({"pool": {"bytes": "16G"}}, "pool.bytes: bytes: '16G' has the unknown or ambiguous unit 'G'; one of B"),
        ({"pool": {"bytes": "-1GiB"}}, "pool.bytes: must be above 0; found '-1GiB'"),
        ({"pool": {"blocks": 0}}, "pool.blocks: must be above 0; found 0"),
        ({"pool": {"blocks": 2.5}}, "pool.blocks: count: 2.5 is not a whole number"),
        ({"pool": {"blocks": 5, "reserve_blocks": True}}, "reserve_blocks: a whole number is needed; found True"),
        ({"slo": 5}, "slo: a text is needed; found 5"),
        ({"slo": "itl:p99<50ms", "measure": {"ladder": {"low": 1, "high": 2}}}, "has no ttft or e2el clause"),
        ({"measure": {"load": {}}}, "load needs exactly one of rate_scale, rps, concurrency; got none"),
        ({"measure": {"load": {"rps": 1, "concurrency": 2}}}, "got rps, concurrency"),
        ({"measure": {"load": {"rps": float("inf")}}}, "measure.load.rps: a finite number is needed; found inf"),
        ({"measure": {"load": {"rps": float("nan")}}}, "measure.load.rps: "),
        ({"measure": {"load": {"rate_scale": 0}}}, "measure.load.rate_scale: must be above 0; found 0"),
        ({"measure": {"ladder": {"low": 3, "high": 2}}}, "ladder: high 2 is below low 3"),
        ({"measure": {}}, "measure needs exactly one of load, ladder"),
        ({"trace": {"path": "x", "window": {"duration": "180"}}}, "window.duration: duration: '180' has no unit"),
        ({"trace": {"path": "x", "window": {"duration": "0s"}}}, "trace.window.duration: must be above 0"),
        ({"trace": {"path": "x", "warmup": "-1s"}}, "trace.warmup: must be at least 0; found '-1s'"),
        ({"trace": {}}, "trace.path: this key is needed"),
        ({"model": "lama"}, "model 'lama' does not exist; "),
        ({"model": {**TINY, "num_query_heads": 3}}, "num_query_heads 3 is not a multiple of num_kv_heads 2"),
        ({"model": {**TINY, "head_dim": 0}}, "model.head_dim: must be above 0; found 0"),
        ({"phases": []}, "phases must name cold, steady or both, once each; got []"),
        ({"phases": ["cold", "cold"]}, "once each; got ['cold', 'cold']"),
        ({"phases": ["warm"]}, "phases.0: must be 'cold' or 'steady'; found 'warm'"),
        ({"seed": True}, "seed: a whole number is needed; found True"),
        ({"repeat": -1}, "repeat: must be at least 0; found -1"),
    ],
)  # fmt: skip
def test_bad_input_names_the_key_and_what_to_do(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**changes)
    assert str(caught.value).startswith("spec.yaml:\n  ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("slo", "wrong"),
    [
        ("ttft:p99<500ms;itl:p9x<50ms", "x<50ms"),
        ("tfft:p99<500ms", "tfft"),
        ("ttft:p99<500ms; itk:p99<50ms", "itk"),
        ("ttft:p99<500", "500"),
        ("ttft<500ms", "<500ms"),
        ("ttft:p101<500ms", "101"),
        ("ttft:p99>500ms", ">500ms"),
        ("ttft:p99<500ms; attainment>=.", "."),
        ("ttft:p99<1.2.3ms", "1.2.3ms"),
    ],
)
def test_a_typo_in_the_slo_has_a_caret_under_it(slo: str, wrong: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(slo=slo)
    lines = str(caught.value).splitlines()
    caret = next(i for i, line in enumerate(lines) if line.strip() == "^")
    assert lines[caret - 1].strip() == slo
    assert lines[caret - 1][lines[caret].index("^") :].startswith(wrong)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        spec(policy={"block_size": 0, "evict": 1}, seed="x")
    assert str(caught.value).count("\n  ") == 3


def test_values_in_messages_stay_short() -> None:
    with pytest.raises(SpecError) as caught:
        spec(policy={"max_model_len": "x" * 10_000, "block_size": {"a": list(range(10_000))}})
    assert len(str(caught.value)) < 500


def test_loaded_paths_are_relative_to_the_spec_and_become_absolute(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "spec.yaml"
    path.parent.mkdir()
    engine = {"name": "simulator", "step_time": "table:times.json"}
    path.write_text(json.dumps({**GOOD, "engine": engine, "trace": {"path": "../t.parquet"}}))
    found = load_trial_spec(path)
    assert found.trace.path == str(tmp_path / "t.parquet")
    assert found.engine.step_time == f"table:{tmp_path / 'deep' / 'times.json'}"


def test_a_file_that_is_no_spec_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.yaml: no such file"):
        load_trial_spec(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(SpecError, match=r"list\.yaml: a mapping of keys is needed"):
        read_yaml(tmp_path / "list.yaml")


@pytest.mark.parametrize("change", [{"policy": {"block_size": 32}}, {"seed": 1}])
def test_specs_are_frozen(change: dict[str, Any]) -> None:
    found = spec(**change)
    with pytest.raises(ValueError, match="frozen"):
        found.seed = 9  # type: ignore[misc]
