"""What an installed engine is: one byte shows, the folder does not, and nothing is imported for it."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from trials.engines import installed
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


def test_a_models_folder_counts_by_config_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    (tmp_path / "notes.txt").write_text("x")
    model = PRESETS["llama-3.1-8b"].model_copy(update={"path": str(tmp_path)})
    found = model_digests(model)
    assert set(found) == {"config.json", "model.safetensors"}
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    assert model_digests(model)["model.safetensors"] != found["model.safetensors"]
    monkeypatch.setattr(installed, "_WHOLE_BYTES", 4)
    assert model_digests(model)["model.safetensors"].endswith(" of the first MiB, 5 bytes")
    assert model_digests(PRESETS["llama-3.1-8b"]) == {}


def test_a_folder_that_is_not_here_is_absent_and_no_crash(tmp_path: Path) -> None:
    model = PRESETS["llama-3.1-8b"].model_copy(update={"path": str(tmp_path / "elsewhere")})
    assert model_digests(model) == {"folder": "absent"}


def test_a_file_that_was_changed_is_read_again(tmp_path: Path) -> None:
    """Digests are kept within a process, by the file's size and time of change."""
    one = digests_at(tmp_path / "a", "1")
    path = tmp_path / "a" / NAME / "core" / "pool.py"
    before = path.stat().st_mtime_ns
    path.write_text("FREE = 2")
    os.utime(path, ns=(before + 1, before + 1))
    sys.path.insert(0, str(tmp_path / "a"))
    importlib.invalidate_caches()
    try:
        assert installed_digests(NAME, ["core/*.py"])[f"{NAME}/core/pool.py"] != one[f"{NAME}/core/pool.py"]
    finally:
        sys.path.remove(str(tmp_path / "a"))
