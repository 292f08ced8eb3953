"""Accounts of the pool over the window, exact to the byte, and the digest that runs are compared by."""

import numpy as np
import pytest
from toy_replays import MS, Line, make_facts, make_replay, toy_server

from trials.engine import PoolGeometry
from trials.occupancy import count_unbalanced, held, ledger, rows_digest

STEP = 1000 * MS


def pool_of_twelve(payload, slack, cached=(), **more):
    """12 blocks of 16 tokens at 64 B."""
    facts = make_facts(block_size=16, bytes_per_token=64, num_blocks=12)
    n = len(payload)
    cached = np.array(cached or [0] * n)
    live = (np.array(payload) + np.array(slack)) // 16
    columns = {"payload_tokens": payload, "logical_tokens": payload, "tail_slack_tokens": slack,
               "cached_blocks": cached, "free_blocks": 12 - live - cached}  # fmt: skip
    return make_replay([Line(0, 1, n, [(0, n)])], [STEP] * n, facts, ledger=columns, **more), facts


def test_four_sequences_of_17_tokens_fill_the_pool_to_the_byte():
    replay, facts = pool_of_twelve([68], [60])
    found = ledger(replay, facts, held(replay, facts))
    peak = found.peak
    assert (peak.payload, peak.tail_slack, peak.free, peak.pool_bytes) == (4352, 3840, 4096, 12288)
    assert (found.unbalanced_rows, found.peak_step) == (0, 0)
    assert found.useful_pool_ratio == 4352 / 12288
    assert found.slots_per_live_token == 128 / 68
    assert found.pool_slots == 192


def test_sixteen_gibibytes_hold_the_published_number_of_tokens():
    size = 57_344 * 16
    group = PoolGeometry(16, (16 << 30) // size, 0, 57_344, 0, 16 << 30, 16, 16)
    assert group.num_blocks * group.block_size == 299_584
    assert 0 <= group.remainder_bytes < group.block_bytes


def test_time_means_weigh_by_what_lies_inside_the_window():
    replay, facts = pool_of_twelve([16, 32, 48], [0, 0, 0], window_ns=(STEP // 2, 2 * STEP + STEP // 4))
    found = ledger(replay, facts, held(replay, facts))
    assert found.time_mean["payload"] == pytest.approx((0.5 * 16 + 1 * 32 + 0.25 * 48) / 1.75 * 64)
    assert found.physical_live_tokens.peak == 48
    assert held(replay, facts).seconds == 1.75


def test_the_peak_is_the_window_s_own():
    replay, facts = pool_of_twelve([160, 32, 16], [0, 0, 0], window_ns=(STEP, 3 * STEP))
    found = ledger(replay, facts, held(replay, facts))
    assert (found.peak_step, found.peak.payload) == (1, 32 * 64)


def test_the_peak_is_of_claimed_bytes_and_not_of_written_ones():
    replay, facts = pool_of_twelve([80, 66, 16], [0, 62, 0])
    assert ledger(replay, facts, held(replay, facts)).peak_step == 1


def test_a_window_without_rows_has_no_peak():
    replay, facts = pool_of_twelve([16], [0], window_ns=(5 * STEP, 6 * STEP))
    found = ledger(replay, facts, held(replay, facts))
    assert (found.peak_step, found.time_mean["payload"], found.logical_live_tokens.mean) == (-1, 0, 0)


def test_idle_spans_count_as_time():
    facts = make_facts(num_blocks=12)
    replay = make_replay([Line(0, 1, 1, [(0, 1)])], [STEP, 3 * STEP], facts, idle=[1],
                         ledger={"payload_tokens": [16, 0], "free_blocks": [11, 12]})  # fmt: skip
    assert ledger(replay, facts, held(replay, facts)).physical_live_tokens.mean == 4


@pytest.mark.parametrize("column", ["payload_tokens", "tail_slack_tokens", "reserved_ahead_tokens", "cached_blocks",
                                    "free_blocks", "reserve_blocks"])  # fmt: skip
def test_one_token_or_block_too_many_in_any_account_is_an_unbalanced_row(column):
    replay, facts = pool_of_twelve([68, 68], [60, 60])
    assert count_unbalanced(replay, facts) == 0
    replay.ledger[column][1] += 1
    assert count_unbalanced(replay, facts) == 1


def test_an_excess_of_one_rank_does_not_hide_another_s_want():
    replay, _ = pool_of_twelve([68, 68], [60, 60])
    facts = make_facts(block_size=16, bytes_per_token=64, num_blocks=12, ranks=2)
    replay.steps = {name: column[:1] for name, column in replay.steps.items()}
    assert count_unbalanced(replay, facts) == 0
    replay.ledger["free_blocks"] += np.array([1, -1])
    assert count_unbalanced(replay, facts) == 2


def test_a_ledger_of_another_length_than_the_steps_is_refused():
    replay, facts = pool_of_twelve([68, 68], [60, 60])
    replay.ledger = {name: column[:1] for name, column in replay.ledger.items()}
    with pytest.raises(ValueError, match="1 rows for 2 steps"):
        held(replay, facts)


def test_the_digest_is_of_every_account_and_event_and_of_no_time():
    replay, _, facts = toy_server(3)
    first = rows_digest(replay, facts)
    replay.steps["duration_ns"] += 5
    assert rows_digest(replay, facts) == first
    for name, column in replay.ledger.items():
        column[-1] += 1
        assert rows_digest(replay, facts) != first, name
        column[-1] -= 1
    assert rows_digest(replay, make_facts(block_size=4, num_blocks=4001)) != first


def test_what_no_account_explains_is_shown_and_signed():
    replay, facts = pool_of_twelve([68], [60])
    replay.device = {"pool": 100, "observed": 90, "residual": -10}
    found = ledger(replay, facts, held(replay, facts))
    assert (found.residual_bytes, found.device["pool"]) == (-10, 100)
