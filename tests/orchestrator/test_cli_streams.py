"""A verb started with closed streams answers as any other, and nothing is printed into its files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_rooms import SWEEP, write_trace
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.config import SWEEP_ONLY

ROOT = Path(__file__).resolve().parents[2]


def with_closed(streams: str, folder: Path, *arguments: str) -> int:
    """The exit code of a verb that was started without these."""
    command = f'exec "$0" -P -c "$1" "${{@:2}}" {streams}'
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from orchestrator.cli import main; main()"
    return subprocess.run(["bash", "-c", command, sys.executable, script, *arguments], cwd=folder).returncode


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_answer(tmp_path: Path, streams: str) -> None:
    write_trace(tmp_path / "t.parquet")
    assert with_closed(streams, tmp_path, "trace", "describe", "t.parquet") == 0
    assert with_closed(streams, tmp_path, "trace", "describe", "absent.parquet", "--json") == 2


def test_a_trial_without_streams_leaves_whole_files(tmp_path: Path) -> None:
    data = {k: v for k, v in yaml.safe_load(SWEEP).items() if k not in SWEEP_ONLY}
    write_trace(tmp_path / "t.parquet")
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump(data))
    assert with_closed("<&- >&- 2>&-", tmp_path, "trial", "trial.yaml", "-o", "out") == 0
    for name in ("spec.json", "result.json", "attempt.json"):
        assert isinstance(json.loads((tmp_path / "out" / name).read_text()), dict)


def test_a_name_that_is_no_utf8_is_refused_in_words(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.parquet")
    odd = (tmp_path / "t.parquet").rename(tmp_path / os.fsdecode(b"\xff.parquet"))
    said = CliRunner().invoke(app, ["trace", "describe", str(odd), "--json"])
    assert said.exit_code == 2
    assert "no UTF-8" in json.loads(said.stdout)["error"]
