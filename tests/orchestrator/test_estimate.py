"""What a sweep would cost is told from its arrivals."""

from pathlib import Path

import pytest
import yaml
from made_sweep import make_trace_file

from orchestrator.estimate import estimate, shown_s
from orchestrator.resolve import load_sweep

SWEEP = """engine: {name: simulator, step_time: roofline:h100-sxm}
model: llama-3.1-8b
pool: {bytes: 64MiB}
policy: {max_model_len: 512}
trace: {path: t.parquet, window: {start: 0s, duration: 100ms}}
slo: "ttft:p99<500ms;itl:p99<50ms"
space: {vary: {policy.block_size: {one_of: [8, 16]}}}
repeats: 2
controls: [contiguous]
"""


def _sweep(folder: Path, **more: object):
    make_trace_file(folder / "t.parquet", rows=40)
    (folder / "s.yaml").write_text(yaml.safe_dump(yaml.safe_load(SWEEP) | more))
    return load_sweep(folder / "s.yaml")


def test_a_load_twice_as_fast_takes_half_the_time(tmp_path: Path) -> None:
    once = estimate(_sweep(tmp_path, measure={"load": {"rate_scale": 1.0}}))
    twice = estimate(_sweep(tmp_path, measure={"load": {"rate_scale": 2.0}}))
    assert once.trials == 2 * 2 + 2
    assert once.replays_per_trial == 2
    assert twice.engine_s == pytest.approx(once.engine_s / 2)


def test_by_arrivals_a_cold_replay_takes_its_window(tmp_path: Path) -> None:
    found = estimate(_sweep(tmp_path, phases=["cold"]))
    assert found.engine_s == pytest.approx(6 * 0.1)
    assert "6 trials of about 1 replay, 1 s of simulated time by arrivals" in found.words


def test_a_ladder_is_searched_in_about_the_logarithm_of_its_rungs(tmp_path: Path) -> None:
    ladder = {"over": "rate_scale", "low": 1, "high": 4, "within": 0.05}
    found = estimate(_sweep(tmp_path, objective="capacity_load", measure={"ladder": ladder}))
    assert found.replays_per_trial == 2 + 5  # 30 rungs
    assert not found.closed


def test_a_closed_load_has_no_time_before_it_ran(tmp_path: Path) -> None:
    found = estimate(_sweep(tmp_path, measure={"load": {"concurrency": 4}}))
    assert found.closed
    assert "measure one with `kvknee trial`" in found.words


def test_times_are_shown_as_people_say_them() -> None:
    assert [shown_s(s) for s in (95, 720, 3 * 3600)] == ["95 s", "12 min", "3.0 h"]
