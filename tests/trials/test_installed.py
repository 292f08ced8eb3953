"""What an installed engine is: one byte shows, the folder does not, and nothing is imported for it."""

import importlib
import sys
from pathlib import Path

from trials.engines.installed import installed_digests, installed_folder, model_digests
from trials.model import PRESETS

NAME = "made_engine_of_mine"


def digests_at(folder: Path, byte: str) -> dict[str, str]:
    package = folder / NAME
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('must not be imported')")
    (package / "core" / "pool.py").write_text(f"FREE = {byte}")
    (package / "core" / "readme.txt").write_text(str(folder))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return installed_digests(NAME, ["core/**/*.py", "*.py"])
    finally:
        sys.path.remove(str(folder))


def test_one_changed_byte_shows_and_a_moved_environment_does_not(tmp_path: Path) -> None:
    one = digests_at(tmp_path / "a", "1")
    assert set(one) == {f"{NAME}/__init__.py", f"{NAME}/core/pool.py"}
    assert digests_at(tmp_path / "elsewhere" / "b", "1") == one
    other = digests_at(tmp_path / "c", "2")
    assert {name for name in one if one[name] != other[name]} == {f"{NAME}/core/pool.py"}
    assert NAME not in sys.modules


def test_what_is_not_installed_is_absent() -> None:
    assert installed_folder("no_such_engine_at_all") is None
    assert installed_digests("no_such_engine_at_all", ["*.py"]) == {"no_such_engine_at_all": "absent"}


def test_a_models_folder_counts_by_config_and_weights_by_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    (tmp_path / "notes.txt").write_text("x")
    model = PRESETS["llama-3.1-8b"]
    found = model_digests(model.model_copy(update={"path": str(tmp_path)}))
    assert set(found) == {"config.json", "model.safetensors"}
    assert found["model.safetensors"] == "4 bytes"
    assert model_digests(model) == {}
