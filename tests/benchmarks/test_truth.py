"""The benchmark answers with what the tables say, and fails when the real run lies elsewhere."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import public_traces, truth
from tests.trials.made_run import write_run
from trials.kernel_tables import KernelTables
from trials.published_run import read_run


def simulated(folder: Path) -> truth.Latencies:
    run = read_run(folder)
    return truth.latencies(truth.simulate(run, KernelTables.read(folder, run.model.num_layers, run.captured)))


def test_first_token_of_a_lone_request_comes_after_its_one_chunk(tmp_path) -> None:
    write_run(tmp_path)
    tables = KernelTables.read(tmp_path, 32, (1, 4, 8))
    step_us = tables.dense_us(40) + 11 + 32 * tables.chunk_us([(0, 40)], 0, 0.0)
    assert simulated(tmp_path).ttft[0] == pytest.approx(step_us / 1e6, rel=1e-5)


def test_scheduling_ahead_delays_who_comes_in_a_step_by_that_step_and_nobody_else(tmp_path) -> None:
    write_run(tmp_path / "plain")
    write_run(tmp_path / "ahead", async_scheduling=True)
    for name in ("plain", "ahead"):  # the second comes 1 ms after the first, in the middle of its prefill
        path = tmp_path / name / "requests.jsonl"
        path.write_text(path.read_text().replace("1001.0", "1000.001"))
    plain, ahead = simulated(tmp_path / "plain"), simulated(tmp_path / "ahead")
    assert ahead.ttft[0] == plain.ttft[0]
    assert ahead.ttft[1] > plain.ttft[1]


def test_a_run_that_was_served_otherwise_is_missed(tmp_path, monkeypatch, capsys) -> None:
    write_run(tmp_path)
    monkeypatch.setattr("sys.argv", ["truth.py", str(tmp_path)])
    assert truth.main() == 1
    said = capsys.readouterr().out
    assert "MISSED" in said
    assert "coefficients " in said


def test_one_changed_coefficient_changes_the_digest(tmp_path) -> None:
    write_run(tmp_path)
    before = truth.coefficients(KernelTables.read(tmp_path, 32))
    path = tmp_path / "per_sequence.csv"
    path.write_text(path.read_text().replace("sampler,16,1", "sampler,16,2"))
    assert truth.coefficients(KernelTables.read(tmp_path, 32)) != before


def test_what_one_percent_would_move_is_shown_and_enters_nothing(tmp_path, capsys) -> None:
    write_run(tmp_path)
    plain = truth.compare(tmp_path, None, 60)
    shown = truth.compare(tmp_path, None, 60, sensitive=True)
    assert shown["mean_off"] == plain["mean_off"] == shown["sensitivity"]["as published"]
    faster, slower = shown["sensitivity"]["steps 1 % faster"], shown["sensitivity"]["0.1 ms more a step"]
    assert faster["ttft"] < shown["mean_off"]["ttft"] < slower["ttft"]
    assert (1 + faster["tpot"]) / (1 + plain["mean_off"]["tpot"]) == pytest.approx(0.99, rel=1e-3)
    assert "steps 1 % faster" in capsys.readouterr().out


@pytest.mark.parametrize("name", [public_traces.RUN])
def test_published_run_is_met_within_the_limits(name: str, capsys) -> None:
    runs = public_traces.folder(public_traces.RUNS)
    if runs is None:
        pytest.skip(f"{public_traces.RUNS} names no folder with {public_traces.RUN_WHERE}")
    found = truth.compare(runs / name, None, 60)
    assert found["missed"] == []
    assert np.abs(list(found["mean_off"].values())).max() < 0.02
