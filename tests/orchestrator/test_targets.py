"""Where a verb is told to write is checked before anything runs: a name is text, a file is no folder."""

import os
from pathlib import Path

import pytest
from fake_rooms import SWEEP, write_trace
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.config import SWEEP_ONLY
from orchestrator.reproduce import place
from orchestrator.targets import target_file, target_folder
from trials.units import SpecError

ODD = os.fsdecode(b"bad\xff")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_trace(tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text(SWEEP)
    lone = [line for line in SWEEP.splitlines() if line.partition(":")[0] not in SWEEP_ONLY]
    (tmp_path / "t.yaml").write_text("\n".join(lone))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*typed: str) -> str:
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 2, done.output
    return done.stderr


@pytest.mark.parametrize(
    "typed",
    [
        ("trial", "t.yaml"), ("run", "s.yaml"), ("run", "s.yaml", "--dry-run"),
        ("diff", "t.yaml", "t.yaml", "--trace", "t.parquet"), ("trace", "generate", "chat"),
    ],
)  # fmt: skip
def test_a_name_that_is_no_text_is_refused_before_anything_is_made(typed: tuple[str, ...], here: Path) -> None:
    before = sorted(here.iterdir())
    said = refused(*typed, "-o", ODD)
    assert f"the output '{here}/bad\\udcff': holds bytes that are no UTF-8" in said
    assert "rename it, or choose another" in said
    assert sorted(here.iterdir()) == before


def test_a_folder_above_counts_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = here / ODD
    odd.mkdir()
    for name in ("s.yaml", "t.yaml", "t.parquet"):
        (here / name).rename(odd / name)
    monkeypatch.chdir(odd)
    assert "the output" in refused("trial", "t.yaml")
    assert "trace.path" in refused("run", "s.yaml", "-o", str(here / "out"))
    assert "no UTF-8" in refused("trial", "t.yaml", "-o", str(here / "out"))
    assert not (here / "out").exists()


def test_what_two_runs_leave_to_compare_has_a_name_that_is_text(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no UTF-8"), place(tmp_path / ODD):
        pass
    assert not list(tmp_path.iterdir())


def test_a_file_where_a_folder_goes_and_a_folder_where_a_file_goes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="a file stands there; name a folder with -o"):
        target_folder(tmp_path / "file")
    with pytest.raises(SpecError, match=r"this is a folder, and a file to write is needed; .*/NAME"):
        target_file(tmp_path)
    assert target_folder(tmp_path / "new" / "deep") == tmp_path / "new" / "deep"
    target_file(tmp_path / "new.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
