"""What verbs print for people."""

from pathlib import Path

import pytest

from orchestrator.tables import _from_here, outcome_lines
from search_spaces.outcome import Outcome


def test_files_are_named_as_they_can_be_typed_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(_from_here(tmp_path / "runs" / "azure" / "recipe.yaml")) == "runs/azure/recipe.yaml"
    monkeypatch.chdir("/")
    assert _from_here(tmp_path / "recipe.yaml") == (tmp_path / "recipe.yaml").relative_to("/")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert _from_here(tmp_path / "recipe.yaml") == tmp_path / "recipe.yaml"


def test_a_tied_set_of_many_is_named_by_its_first_and_how_many_more() -> None:
    labels = tuple(f"block_size={1 << n}" for n in range(40))
    outcome = Outcome(
        kind="flat",
        sentence="flat",
        objective="capacity_load",
        tied=labels,
        min_gain=0.02,
        num_repeats=3,
        noise="so",
    )
    assert outcome_lines(outcome)[1] == f"tied set: {', '.join(labels[:6])} and 34 more  (so)"
