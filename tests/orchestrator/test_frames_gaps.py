"""Gaps between tokens beside occupancy and depth: every decoding request of a step counts once."""

import numpy as np
import pandas as pd
import pytest

from orchestrator.frames_gaps import gaps_by_depth, gaps_by_occupancy
from trials.result import Observation

SEEN = Observation(start_ns=0, end_ns=100, num_steps=4, warmup=0, drain_end_ns=200)


def _rows(**columns: list[int]) -> pd.DataFrame:
    zero = dict.fromkeys(("tail_slack", "reserved_ahead", "padding", "remainder", "idle"), 0)
    return pd.DataFrame({**zero, "pool_bytes": 1000, **columns})


def test_a_steps_duration_counts_for_each_request_that_it_gave_a_token() -> None:
    rows = _rows(start_ns=[0, 10], duration_ns=[1_000_000, 9_000_000], num_decodes=[1, 3], decode_blocks=[2, 6],
                 payload=[50, 50])  # fmt: skip
    (only,) = gaps_by_occupancy(rows, SEEN)
    assert (only.low, only.high, only.n) == (0.0, 10.0, 4)
    assert only.p50_ms == 9.0


def test_classes_follow_the_share_of_slots_and_a_full_pool_is_in_the_last() -> None:
    rows = _rows(start_ns=[0, 10, 20], duration_ns=[1_000_000] * 3, num_decodes=[1] * 3, decode_blocks=[1] * 3,
                 payload=[100, 500, 900])  # fmt: skip
    rows["remainder"] = 100  # no slot: a pool is full at 900 of 1000 bytes
    assert [(c.low, c.n) for c in gaps_by_occupancy(rows, SEEN)] == [(10.0, 1), (50.0, 1), (90.0, 1)]


def test_only_decoding_steps_of_the_window_count() -> None:
    rows = _rows(start_ns=[0, 10, 99, 100], duration_ns=[1_000_000] * 4, num_decodes=[0, 1, 1, 1],
                 decode_blocks=[0, 4, 4, 4], payload=[10] * 4)  # fmt: skip
    rows["idle"] = [0, 0, 1, 0]
    (only,) = gaps_by_depth(rows, SEEN)
    assert only.n == 1
    assert only.low <= 4 <= only.high


def test_depth_is_split_in_classes_of_equal_width() -> None:
    rows = _rows(start_ns=list(range(9)), duration_ns=[1_000_000] * 9, num_decodes=[2] * 9,
                 decode_blocks=list(np.arange(0, 18, 2)), payload=[10] * 9)  # fmt: skip
    found = gaps_by_depth(rows, SEEN, classes=4)
    assert [c.low for c in found] == pytest.approx([0, 2, 4, 6])
    assert sum(c.n for c in found) == 18


def test_without_a_decoding_step_there_is_no_class() -> None:
    rows = _rows(start_ns=[0], duration_ns=[1], num_decodes=[0], decode_blocks=[0], payload=[1])
    assert gaps_by_occupancy(rows, SEEN) == gaps_by_depth(rows, SEEN) == []
