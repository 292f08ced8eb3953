"""A model's folder is read for its shape, and what it lacks or contradicts is said."""

import json
from pathlib import Path
from typing import Any

import pytest

from trials.fingerprint import spec_hash
from trials.model_folder import has_weights, shape_of
from trials.spec import TrialSpec, load_trial_spec, trial_spec
from trials.units import SpecError

CONFIG = {
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 64,
    "intermediate_size": 96, "vocab_size": 512, "torch_dtype": "float32",
}  # fmt: skip
SPEC = """
engine: {{name: simulator, step_time: "constant:1000"}}
model: {model}
pool: {{blocks: 10}}
trace: {{path: t.parquet}}
slo: "ttft:p99<1s"
"""


def folder_of(place: Path, **changes: Any) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return place


def read(folder: Path, model: str) -> TrialSpec:
    (folder / "spec.yaml").write_text(SPEC.format(model=model), encoding="utf-8")
    return load_trial_spec(folder / "spec.yaml")


def test_the_shape_is_the_folders_own_and_a_relative_path_lies_beside_the_spec(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "models" / "tiny")
    model = read(tmp_path, "{path: models/tiny}").model
    assert (model.num_layers, model.num_kv_heads, model.num_query_heads, model.head_dim) == (2, 2, 4, 16)
    assert (model.hidden_size, model.intermediate_size, model.vocab_size) == (64, 96, 512)
    assert (model.dtype, model.kv_dtype, model.path) == ("float32", "float32", str(folder))


def test_older_and_nested_configs_are_read(tmp_path: Path) -> None:
    plain = shape_of(folder_of(tmp_path / "a", num_key_value_heads=None, head_dim=None, torch_dtype="int8"))
    assert (plain["num_kv_heads"], plain["head_dim"]) == (4, 16)
    assert "dtype" not in plain, "a dtype that is none of ours is left to the spec's default"
    (tmp_path / "b").mkdir()
    text = {"architectures": ["X"], "text_config": CONFIG, "vision_config": {"hidden_size": 7}}
    (tmp_path / "b" / "config.json").write_text(json.dumps(text), encoding="utf-8")
    assert shape_of(tmp_path / "b")["hidden_size"] == 64


def test_a_dtype_of_the_spec_stands_before_the_folders(tmp_path: Path) -> None:
    folder_of(tmp_path / "tiny")
    model = read(tmp_path, "{path: tiny, dtype: bfloat16, kv_dtype: fp8}").model
    assert (model.dtype, model.kv_dtype) == ("bfloat16", "fp8")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("{path: nowhere}", "nowhere is no folder"),
        ("{path: empty}", "holds no config.json"),
        ("{path: torn}", "cannot be read as JSON"),
        ("{path: list}", "a mapping is needed"),
        ("{path: short}", "num_attention_heads in"),
        ("{path: zero}", "vocab_size in"),
        ("{path: tiny, num_layers: 3}", "model.num_layers: 3 asked"),
    ],
)
def test_what_cannot_be_used_is_said_with_the_key(model: str, said: str, tmp_path: Path) -> None:
    folder_of(tmp_path / "tiny")
    folder_of(tmp_path / "short", num_attention_heads=None)
    folder_of(tmp_path / "zero", vocab_size=0)
    for name, text in (("empty", None), ("torn", "{"), ("list", "[]")):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=said):
        read(tmp_path, model)


def test_a_whole_shape_needs_no_folder_and_reads_back_anywhere(tmp_path: Path) -> None:
    """What a worker is given on another machine: the path there, the shape already known."""
    folder_of(tmp_path / "tiny")
    spec = read(tmp_path, "{path: tiny}")
    (tmp_path / "tiny" / "config.json").unlink()
    assert TrialSpec.model_validate_json(spec.model_dump_json()) == spec
    assert trial_spec(json.loads(spec.model_dump_json())) == spec


def test_where_the_folder_lies_is_no_part_of_the_question(tmp_path: Path) -> None:
    folder_of(tmp_path / "here" / "tiny")
    folder_of(tmp_path / "there" / "tiny")
    here, there = (read(tmp_path, f"{{path: {place}/tiny}}") for place in ("here", "there"))
    assert here != there
    assert spec_hash(here, "t") == spec_hash(there, "t")


def test_weights_are_what_lies_beside_the_config(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tiny")
    assert not has_weights(str(folder))
    assert not has_weights(None)
    (folder / "model.bin").write_bytes(b"x")
    with pytest.raises(SpecError, match="pickled weights"):
        has_weights(str(folder))
    (folder / "model.safetensors").write_bytes(b"x")
    assert has_weights(str(folder))
