"""Frames of a sweep, and time-weighted bins of a ledger."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_sweep import SIZES, build

from orchestrator.folder import SweepFolder
from orchestrator.frames import (
    bin_ledger,
    deciding_rows,
    ledger_frame,
    read_columns,
    requests_frame,
    trials_frame,
)
from trials.ledger import ACCOUNTS
from trials.result import Effective
from trials.units import SpecError


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    return build(tmp_path_factory.mktemp("frames") / "sweep")


def _effective(num_blocks: int = 10, block_size: int = 4) -> Effective:
    return Effective(block_size=block_size, kernel_block_size=block_size, num_blocks=num_blocks, reserve_blocks=0,
                     pool_bytes=430, bytes_per_token=10, reuse_quantum_tokens=block_size)  # fmt: skip


def _ledger(
    starts: list[int], lengths: list[int], payload: list[int], idle: list[int] | None = None
) -> pd.DataFrame:
    """A pool of 10 blocks of 4 tokens of 10 bytes, and 30 bytes that make no block."""
    zero = np.zeros(len(starts), np.int64)
    frame = pd.DataFrame({"start_ns": starts, "duration_ns": lengths} | dict.fromkeys(ACCOUNTS, zero))
    frame["payload"], frame["remainder"], frame["pool_bytes"] = payload, 30, 430
    frame["free"] = 400 - frame["payload"]
    frame["idle"] = idle or [0] * len(starts)
    return frame


def test_one_row_a_trial_with_its_metrics_and_accounts(sweep: SweepFolder) -> None:
    frame = trials_frame(sweep.load_trials())
    assert len(frame) == 2 * len(SIZES) + 1
    assert frame["block_size"].tolist() == [*SIZES, *SIZES, 512]
    assert (frame[[f"mean_{a}_bytes" for a in ACCOUNTS]].sum(axis=1) - frame["mean_pool_bytes"]).abs().max() < 1


def test_a_trial_without_a_result_keeps_its_row(sweep: SweepFolder, tmp_path: Path) -> None:
    shutil.copytree(sweep.path, tmp_path / "sweep")
    spoilt = SweepFolder(tmp_path / "sweep")
    (spoilt.attempt(0, 1) / "result.json").write_text('{"status": "compl')
    frame = trials_frame(spoilt.load_trials())
    assert len(frame) == 2 * len(SIZES) + 1
    assert pd.isna(frame.loc[0, "block_size"])


def test_ledger_and_request_rows_name_their_trial(sweep: SweepFolder) -> None:
    rows = ledger_frame(sweep)
    assert sorted(rows["trial"].unique()) == list(range(2 * len(SIZES) + 1))
    assert (sum(rows[a] for a in ACCOUNTS) == rows["pool_bytes"]).all()
    assert requests_frame(sweep).groupby(["trial", "phase"]).size().unique().tolist() == [24]


def test_only_the_replay_that_decides_is_drawn(sweep: SweepFolder) -> None:
    record = sweep.load_trials()[0]
    assert record.result is not None
    assert record.folder is not None
    rows = deciding_rows(read_columns(record.folder / "ledger.parquet"), record.result)
    assert rows["phase"].unique().tolist() == ["steady"]


def test_bins_are_time_means_and_keep_the_integral() -> None:
    frame = _ledger([0, 10, 100], [10, 90, 900], [400, 0, 100])
    binned = bin_ledger(frame, _effective(), bins=2)
    assert binned is not None
    assert binned.accounts["payload"].tolist() == [(400 * 10 + 0 * 90 + 100 * 400) / 500, 100.0]
    assert binned.mean("payload") == pytest.approx((400 * 10 + 100 * 900) / 1000)


def test_few_rows_keep_their_own_edges() -> None:
    binned = bin_ledger(_ledger([0, 10, 100], [10, 90, 900], [400, 0, 100]), _effective(), 240)
    assert binned is not None
    assert binned.edges_s.tolist() == [0.0, 1e-8, 1e-7, 1e-6]
    assert binned.accounts["payload"].tolist() == [400, 0, 100]


def test_accounts_of_every_bin_add_up_to_the_pool() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 50, 5000)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    binned = bin_ledger(_ledger(list(starts), list(lengths), list(rng.integers(0, 400, 5000))), _effective(), 600)
    assert binned is not None
    assert len(binned.edges_s) - 1 == 600
    assert sum(binned.accounts[a] for a in ACCOUNTS) == pytest.approx(np.full(600, 430.0))


def test_tokens_and_slots_leave_the_remainder_out() -> None:
    frame = _ledger([0], [10], [200])
    frame["tail_slack"], frame["free"] = 40, 160
    binned = bin_ledger(frame, _effective(), 240)
    assert binned is not None
    assert (binned.live_tokens[0], binned.allocated_slots[0], binned.pool_slots) == (20.0, 24.0, 40)


def test_idle_spans_are_no_steps() -> None:
    binned = bin_ledger(_ledger([0, 5_000_000], [5_000_000, 9_000_000_000], [0, 0], [0, 1]), _effective(), 240)
    assert binned is not None
    assert binned.step_ms_max[0] == 5.0
    assert np.isnan(binned.step_ms_max[1])


def test_a_replay_in_which_no_time_passed_has_no_bins() -> None:
    assert bin_ledger(_ledger([0], [0], [0]), _effective(), 240) is None
    assert bin_ledger(_ledger([], [], []), _effective(), 240) is None


def test_an_absent_or_broken_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"ledger\.parquet: no such file"):
        read_columns(tmp_path / "ledger.parquet")
    (tmp_path / "ledger.parquet").write_bytes(b"not parquet")
    with pytest.raises(SpecError, match=r"ledger\.parquet: damaged: not a parquet .*; restore it from a copy"):
        read_columns(tmp_path / "ledger.parquet")
