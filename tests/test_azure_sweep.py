"""The README's example on the real trace: all of it, every block size, every control, every ledger exact."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 180  # for both rates together, on two cores that do nothing else


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_the_whole_azure_trace_runs_at_both_rates_with_exact_ledgers(real_traces: Path, tmp_path: Path) -> None:
    source = real_traces / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
    (tmp_path / "azure.yaml").write_text((ROOT / "examples" / "azure.yaml").read_text())
    _kvknee(tmp_path, "trace", "import", "azure", str(source), "-o", "azure_conv.parquet")
    began = time.monotonic()
    for rate in ("1", "2"):
        answer = _kvknee(
            tmp_path, "run", "azure.yaml", "--set", f"measure.load.rate_scale={rate}", "-o", f"x{rate}", "--json"
        )
        found = json.loads(answer)
        assert not found["unbalanced_trials"]
        written = (tmp_path / f"x{rate}" / "summary.csv").read_text().splitlines()
        rows = [row for row in written if ",survival," not in row]
        assert len(rows) == 1 + 9 + 5
        assert found["outcome"]["survival"][-1]["survived"]
        assert all(",19366," in row for row in rows[1:])
        assert {c["block_size"] for c in found["outcome"]["candidates"] if c["in_space"]} == {
            1 << e for e in range(9)
        }
    took_s = time.monotonic() - began
    assert took_s < SECONDS * max(1.0, os.getloadavg()[0] / 2), f"both rates took {took_s:.0f} s"


def _kvknee(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", *arguments], cwd=folder, capture_output=True, text=True,
        timeout=600, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
