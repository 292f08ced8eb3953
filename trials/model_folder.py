"""A model's folder: its shape by its own config.json, and whether weights lie beside it.

Nothing is loaded, nothing is fetched. A folder without weights is a shape, for which they are drawn from the seed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trials.units import SpecError, shown

SHAPE = (
    "num_layers", "num_kv_heads", "num_query_heads", "head_dim", "hidden_size", "intermediate_size", "vocab_size",
)  # fmt: skip
PLAIN, PICKLED = ".safetensors", (".bin", ".pt", ".pth")
WEIGHTS = (PLAIN, *PICKLED)
_DTYPES = ("float32", "bfloat16", "float16")
_WANTED = {  # ours -> config.json's
    "num_layers": "num_hidden_layers", "num_query_heads": "num_attention_heads", "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size", "vocab_size": "vocab_size",
}  # fmt: skip


def has_weights(folder: str | None) -> bool:
    """Whether there is anything to load. SpecError where there are pickles only: reading one runs what it says."""
    if folder is None:
        return False
    suffixes = {path.suffix for path in Path(folder).iterdir()}
    if PLAIN not in suffixes and suffixes & set(PICKLED):
        raise SpecError(
            f"model.path: {folder} holds pickled weights ({', '.join(sorted(suffixes & set(PICKLED)))}), which are "
            f"programs, not data; convert them to {PLAIN}"
        )
    return PLAIN in suffixes


def folder_config(folder: Path) -> dict[str, Any]:
    """config.json, of a model of text and images its part on text. SpecError where there is none or it is torn."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(
            f"model.path: {folder} holds no config.json; give a folder as it is published, weights or not"
        ) from None
    except (OSError, ValueError) as error:
        raise SpecError(f"model.path: {path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise SpecError(f"model.path: {path} holds {shown(config)}, a mapping is needed")
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def shape_of(folder: Path) -> dict[str, Any]:
    """A ModelSpec's fields by the folder's own word. SpecError names the first key that is missing."""
    config = folder_config(folder)
    shape = {ours: _count(config, theirs, folder) for ours, theirs in _WANTED.items()}
    heads = shape["num_query_heads"]
    shape["num_kv_heads"] = _count(config, "num_key_value_heads", folder, heads)
    shape["head_dim"] = _count(config, "head_dim", folder, shape["hidden_size"] // heads)
    said = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    dtypes = {"dtype": said, "kv_dtype": said} if said in _DTYPES else {}
    return {**shape, **dtypes}


def _count(config: Mapping[str, Any], key: str, folder: Path, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        found = "is missing" if value is None else f"is {shown(value)}"
        raise SpecError(
            f"model.path: {key} in {folder / 'config.json'} {found}; give the shape beside the path: "
            f"{', '.join(SHAPE)}"
        )
    return value


def with_shape(value: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """A `model:` mapping with its path made absolute (relative ones lie in `folder`) and its shape filled in.

    A shape that is given must be the folder's own: else KV bytes would be counted for another model. SpecError.
    """
    path = Path(folder or ".", str(value["path"])).absolute()
    found = {**value, "path": str(path)}
    if all(name in value for name in SHAPE):
        return found  # whoever wrote this has looked, or knows the folder by its shape alone
    if not path.is_dir():
        raise SpecError(f"model.path: {path} is no folder; give one with a config.json, or the shape in its place")
    shape = shape_of(path)
    for name in SHAPE:
        if name in value and value[name] != shape[name]:
            raise SpecError(f"model.{name}: {shown(value[name])} asked, {path / 'config.json'} says {shape[name]}")
    return {**shape, **found}
