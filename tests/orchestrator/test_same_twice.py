"""The same sweep twice, and once killed at three places and resumed: the same trials, values and winner.

Real drivers in processes of their own, ended by SIGKILL; one trial at a time. A search by TPE that races for
capacity, then held-out windows and survival: everything that a resumed sweep has to go on with.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from orchestrator.folder import SweepFolder
from trials.trace import make_trace, save_trace

ROOT = Path(__file__).resolve().parents[2]
SWEEP = """
name: twice
engine: {name: simulator, step_time: "linear:2000,20"}
model: {num_layers: 1, num_kv_heads: 1, num_query_heads: 1, head_dim: 8, hidden_size: 8, intermediate_size: 8,
        vocab_size: 8, kv_dtype: float16}
pool: {bytes: 64KiB}
policy: {max_model_len: 512, prefix_caching: false}
trace: {path: t.parquet, window: {start: 0s, duration: 2s}}
slo: "ttft:p90<40ms;tpot:p90<30ms"
phases: [cold]
measure: {ladder: {low: 0.1, high: 40, within: 0.05}}
objective: capacity_load
space: {vary: {policy.block_size: {powers_of_two: [1, 256]}, policy.max_num_seqs: {powers_of_two: [4, 64]}}}
sampler: tpe
trials: 8
repeats: 2
controls: [vendor_default]
executor: process
tracking: null
seed: 5
"""


@pytest.fixture
def asked(tmp_path):
    rng, rows = np.random.default_rng(4), 660
    at = np.cumsum(rng.exponential(10e6, rows)).astype(np.int64)
    save_trace(make_trace(at, rng.integers(20, 40, rows), rng.integers(8, 24, rows)), tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text(SWEEP)
    return tmp_path / "s.yaml"


def start(asked, out):
    command = [sys.executable, "-m", "orchestrator.cli", "run", str(asked), "-o", str(out), "--max-concurrent", "1"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*command, "--json"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(driver):
    out, err = driver.communicate(timeout=240)
    assert driver.returncode == 0, err
    return json.loads(out)["outcome"]


def killed_at(asked, out, number, attempt):
    """Ended without warning as soon as this attempt has begun."""
    driver, begun = start(asked, out), SweepFolder(out).attempt(number, attempt)
    until = time.monotonic() + 120
    while not begun.is_dir() and driver.poll() is None:
        assert time.monotonic() < until, f"trial {number} never began"
        time.sleep(0.01)
    assert driver.poll() is None, driver.communicate()[1]
    driver.kill()
    driver.communicate(timeout=60)


def trials(out):
    """All that a trial is, but for where and how often it was attempted."""
    return [
        (r.number, r.control, r.card.role, r.card.of, r.params, r.repeat, r.state, r.card.reason, r.card.spec_hash,
         r.card.reused_from, r.result.model_dump() if r.result else None)
        for r in SweepFolder(out).load_trials()
    ]  # fmt: skip


@pytest.mark.slow
def test_a_sweep_killed_at_three_places_ends_as_one_that_was_not_and_as_another_one(asked, tmp_path):
    first = ended(start(asked, tmp_path / "first"))
    again = ended(start(asked, tmp_path / "again"))
    assert again == first
    assert trials(tmp_path / "again") == trials(tmp_path / "first")
    whole = SweepFolder(tmp_path / "first").load_trials()
    ran = [r.number for r in whole if r.attempts]
    beside = [r.number for r in whole if r.card.role in ("confirm", "survival")]
    assert {r.state for r in whole} >= {"complete", "raced"}
    broken = tmp_path / "broken"
    for number in (ran[1], ran[len(ran) // 2], beside[0]):
        killed_at(asked, broken, number, 1)
    assert ended(start(asked, broken)) == first
    assert trials(broken) == trials(tmp_path / "first")
    attempts = [len(r.attempts) for r in SweepFolder(broken).load_trials() if r.attempts]
    assert sum(attempts) >= len(attempts)
    left = (tmp_path / "first" / "knee.json").read_bytes()
    assert (broken / "knee.json").read_bytes() == left
