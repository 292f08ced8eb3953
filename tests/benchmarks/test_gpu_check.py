"""The script that a bare GPU machine runs: rehearsed here, with nothing installed that such a machine lacks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_check, gpu_decode
from tests.contracts import engine_laws

ROOT = Path(__file__).resolve().parents[2]
BARE = """
import runpy, sys
ABSENT = {"ray", "mlflow", "optuna", "typer", "rich", "pandas", "matplotlib", "numba", "llvmlite", "psutil",
          "pytest", "hypothesis", "vllm", "transformers", "pynvml"}
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent)
sys.argv = ["gpu_check.py", *sys.argv[1:]]
runpy.run_path("benchmarks/gpu_check.py", run_name="__main__")
"""


def test_a_bare_machine_rehearses_the_whole_path(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, "--cpu"], cwd=ROOT, capture_output=True, text=True, timeout=250,
        env={**os.environ, "OUT": str(tmp_path / "out")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "REHEARSAL" in done.stdout
    report = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert report["rehearsal"] is True
    assert [law["law"] for law in report["laws"]] == [law.__name__ for law in engine_laws.LAWS]
    assert not any(law["error"] for law in report["laws"])
    assert report["failed"] == report["not_run"] == []
    assert report["copy_bytes_per_s"] > 1e8
    for sequences, context in gpu_check.SMALL:
        rows = [row for row in report["decode"] if (row["sequences"], row["context"]) == (sequences, context)]
        sizes = {row["block_size"] for row in rows if row["kernel"] == "gather"}
        assert sizes == {b for b in gpu_decode.BLOCKS if b < context}
        assert {row["kernel"] for row in rows} == {"gather", "gather, one block", "contiguous, torch"}
        assert all(row["median_ms"] > 0 and row["max_error"] < 1e-4 for row in rows)


def run(monkeypatch: pytest.MonkeyPatch, path: Path, *more: str) -> tuple[int, dict]:
    monkeypatch.setattr("sys.argv", ["gpu_check.py", "--json", str(path), *more])
    code = gpu_check.main()
    return code, json.loads(path.read_text()) if path.exists() else {}


def test_without_a_gpu_it_says_so_and_checks_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(monkeypatch, tmp_path / "found.json") == (2, {})
    assert "torch sees no CUDA device here, so nothing was checked" in capsys.readouterr().err


def breaks(lab: object) -> None:
    raise AssertionError("a token was delivered twice")


def test_a_broken_law_fails_the_check_and_the_rest_is_still_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine_laws, "LAWS", (breaks, lambda lab: None))
    monkeypatch.setattr(gpu_check, "SMALL", ((1, 8),))
    code, report = run(monkeypatch, tmp_path / "found.json", "--cpu")
    assert code == 1
    assert report["failed"] == ["gather: breaks: AssertionError: a token was delivered twice"]
    assert [law["error"] == "" for law in report["laws"]] == [False, True]
    assert report["decode"]


def test_what_time_did_not_allow_is_named_and_no_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, report = run(monkeypatch, tmp_path / "found.json", "--cpu", "--minutes", "0")
    assert code == 1
    assert len(report["not_run"]) == len(engine_laws.LAWS) + len(gpu_check.SMALL)
    assert report["laws"] == report["decode"] == []


def test_a_kernel_that_computes_something_else_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine_laws, "LAWS", ())
    monkeypatch.setattr(gpu_check, "SMALL", ((2, 16),))
    right = gpu_decode.Decodes.table
    monkeypatch.setattr(gpu_decode.Decodes, "table", lambda self, size: right(self, size)[::-1].copy())
    seen = gpu_decode.Decodes.error

    def against_another_table(self: gpu_decode.Decodes, size: int, call: object, scattered: bool = True) -> float:
        with monkeypatch.context() as patch:
            patch.setattr(gpu_decode.Decodes, "table", right)
            return seen(self, size, call, scattered)  # type: ignore[arg-type]

    monkeypatch.setattr(gpu_decode.Decodes, "error", against_another_table)
    code, report = run(monkeypatch, tmp_path / "found.json", "--cpu")
    assert code == 1
    assert {row["kernel"] for row in report["decode"]} == {"contiguous, torch"}
    assert all("differs from float32" in words for words in report["failed"])


def test_unknown_kernels_are_answered_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_check.py", "--kernels", "flash"])
    with pytest.raises(SystemExit) as stopped:
        gpu_check.main()
    assert stopped.value.code == 2
    assert "known: flashinfer, torch_varlen, gather" in capsys.readouterr().err
