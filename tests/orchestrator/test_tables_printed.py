"""What verbs print for people."""

from pathlib import Path

import pytest

from orchestrator.tables import _from_here


def test_files_are_named_as_they_can_be_typed_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(_from_here(tmp_path / "runs" / "azure" / "recipe.yaml")) == "runs/azure/recipe.yaml"
    monkeypatch.chdir("/")
    assert _from_here(tmp_path / "recipe.yaml") == (tmp_path / "recipe.yaml").relative_to("/")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert _from_here(tmp_path / "recipe.yaml") == tmp_path / "recipe.yaml"
