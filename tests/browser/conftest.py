"""What the browser looks at: a sweep that was really run, in a Chromium of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import chromium
import numpy as np
import pytest
import yaml

from trials.trace import make_trace, save_trace

_SWEEP = {
    "name": "swept",
    "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"},
    "model": "llama-3.1-8b",
    "pool": {"bytes": "192MiB"},
    "policy": {"block_size": 16, "max_model_len": 512},
    "slo": "ttft:p90<500ms;itl:p90<50ms",
    "measure": {"load": {"rate_scale": 1.0}},
    "space": "block_size",
    "repeats": 2,
}


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small simulated sweep, run by the command line: report, MLflow and all."""
    home = tmp_path_factory.mktemp("browser")
    rng = np.random.default_rng(5)
    rows = 160
    arrival_ns = np.cumsum(rng.exponential(60e6, rows)).astype(np.int64)
    lengths = rng.integers(10, 300, rows), rng.integers(2, 60, rows)
    save_trace(make_trace(arrival_ns, *lengths), home / "made.parquet")
    asked = _SWEEP | {"trace": {"path": "made.parquet"}}
    (home / "sweep.yaml").write_text(yaml.safe_dump(asked), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "run", "sweep.yaml", "-o", "swept"], cwd=home, timeout=280,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert (home / "swept" / "report.html").is_file(), done.stdout + done.stderr
    return home / "swept"


@pytest.fixture
def tab() -> Iterator[chromium.Tab]:
    """An empty tab; without a Chromium a failure in CI and a named skip elsewhere."""
    if chromium.found() is None:
        reason = "no chromium on the path: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with chromium.browser() as one:
        yield one


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go, for people to look at: KVKNEE_PICTURES, else a temporary folder."""
    asked = os.environ.get("KVKNEE_PICTURES")
    return Path(asked) if asked else tmp_path_factory.mktemp("pictures")
