"""Engines that break the contract, run as trials: none may win, and what is said names the fault and its sign."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trials.worker
from tests.builders import build_trace
from tests.contracts import misbehaving as m
from trials.engines.identity import own_identity
from trials.result import TrialResult, load_result
from trials.spec import TrialSpec, trial_spec
from trials.trace import save_trace

ROWS = 120
LENGTHS = [(16 * (1 + k % 3) + (k % 2), 3 + k % 5) for k in range(ROWS)]  # some fill their blocks exactly


def asked_of(asked: m.Asked, path: Path, warmup: str) -> TrialSpec:
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "constant:5000"}, "model": "llama-3.1-8b",
        "pool": {"blocks": asked.num_blocks}, "trace": {"path": str(path), "warmup": warmup},
        "phases": ["steady" if warmup != "0s" else "cold"],
        "policy": {"block_size": asked.block_size, "max_num_seqs": asked.max_num_seqs, "max_model_len": 512},
        "slo": "ttft:p99<10s",
    })  # fmt: skip


def trial(
    kind: type[m.Honest], folder: Path, monkeypatch: pytest.MonkeyPatch, warmup: str = "0s", **asked: Any
) -> TrialResult:
    """One whole trial through the worker, with this engine behind the simulator's name; as read back from disk."""
    trace = build_trace([p for p, _ in LENGTHS], [o for _, o in LENGTHS], [10.0 * k for k in range(ROWS)])
    save_trace(trace, folder / "trace.parquet")
    question = m.Asked(**asked)
    spec = asked_of(question, folder / "trace.parquet", warmup)
    module = SimpleNamespace(
        prepare=lambda spec: None, open=lambda spec, content: m.opened(kind, question),
        identity=lambda spec: own_identity(spec, ["engines/simulator.py"], []),
    )  # fmt: skip
    monkeypatch.setattr(trials.worker, "engine_module", lambda name: module)
    trials.worker.run_trial(spec, folder)
    return load_result(folder / "result.json")


def test_the_honest_one_is_eligible_with_one_rank_and_with_two(tmp_path, monkeypatch) -> None:
    for ranks in (1, 2):
        result = trial(m.Honest, tmp_path, monkeypatch, ranks=ranks)
        assert (result.status, result.eligible, result.ineligible_because) == ("complete", True, ())
        assert result.counts.completed == ROWS
        assert result.audited_steps > 2
        assert result.ledger.residual_bytes == 0


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (m.BlockTooMany, "it is to have"),
        (m.LosesBlocks, "ledger rows do not add up to the pool"),
        (m.LosesBlocksSilently, "has 0 owners and is in 0 of the queues"),
        (m.PoolGrows, "ledger rows do not add up to the pool"),
        (m.PoolGrowsSilently, "+131072 bytes are in no account"),
        (m.WorkspaceGrows, f"{200 * m.MIB} bytes on the device are in no account"),
        (m.ClaimsTooMuch, f"-{200 * m.MIB} bytes on the device are in no account"),
        (m.IgnoresSlots, "knob max_num_seqs is recorded as 2 and was not applied"),
        (m.RoundsUpSilently, "it is to have"),
        (m.DeliversTwice, "void: "),
        (m.DeliversOneMore, "void: "),
        (m.CutsShort, "void: "),
        (
            m.BuildsLate,
            "void: 2 compilations or graph captures inside the window, first in step 39, which took 1005",
        ),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else "",
)
def test_a_trial_of_an_engine_that_misbehaves_cannot_win_and_says_why(kind, said, tmp_path, monkeypatch) -> None:
    knobs = {"max_num_seqs": 2} if kind is m.IgnoresSlots else {}
    result = trial(kind, tmp_path, monkeypatch, **knobs)
    assert not result.eligible
    assert [reason for reason in result.ineligible_because if said in reason], result.ineligible_because


def test_the_rank_that_leaks_is_named_and_the_other_is_not(tmp_path, monkeypatch) -> None:
    result = trial(m.SecondRankLeaks, tmp_path, monkeypatch, ranks=2)
    assert not result.eligible
    named = [reason for reason in result.ineligible_because if "rank" in reason]
    assert named
    assert all("rank 1" in reason for reason in named), named


@pytest.mark.parametrize(
    ("kind", "residual"), [(m.SecondRankLeaks, -ROWS // 10 * 16), (m.SecondRankClaimsTwice, ROWS)]
)
def test_the_pool_of_a_rank_that_does_not_add_up_is_shown_with_its_sign(
    kind, residual, tmp_path, monkeypatch
) -> None:
    """A block of 16 tokens lost with each tenth request; a token booked twice with each."""
    result = trial(kind, tmp_path, monkeypatch, ranks=2)
    expected = residual * m.BYTES_PER_TOKEN
    assert result.ledger.pool_residuals == {"group 0 rank 1": expected}
    (said,) = [reason for reason in result.ineligible_because if "do not add up" in reason]
    assert f"rank 1: {expected:+} bytes" in said
    honest = trial(m.Honest, tmp_path, monkeypatch, ranks=2)
    assert honest.ledger.pool_residuals == {}
    assert [(part.group, part.rank) for part in honest.ledger.groups] == [(0, 0), (0, 1)]
    assert sum(part.time_mean["payload"] for part in honest.ledger.groups) == honest.ledger.time_mean["payload"]


def test_a_rank_whose_device_grows_is_found_though_all_ranks_together_hide_it(tmp_path, monkeypatch) -> None:
    result = trial(m.SecondRankGrows, tmp_path, monkeypatch, ranks=2)
    assert abs(result.ledger.residual_bytes) < 0.02 * result.ledger.device["observed"]
    assert [device["residual"] for device in result.ledger.rank_devices] == [0, 65 * m.MIB]
    said = f"{65 * m.MIB} bytes on the device of rank 1 are in no account"
    assert [reason for reason in result.ineligible_because if said in reason], result.ineligible_because


def test_residual_is_kept_with_its_sign_and_in_no_account(tmp_path, monkeypatch) -> None:
    for kind, residual in ((m.WorkspaceGrows, 200 * m.MIB), (m.ClaimsTooMuch, -200 * m.MIB)):
        ledger = trial(kind, tmp_path, monkeypatch).ledger
        assert ledger.residual_bytes == ledger.device["residual"] == residual
        named = ("pool", "block_tables", "weights", "workspace", "allocator_reserve")
        assert sum(ledger.device[name] for name in named) + residual == ledger.device["observed"]


def test_lengths_that_were_not_delivered_as_asked_are_failures_with_the_first_row_named(
    tmp_path, monkeypatch
) -> None:
    """Rows 3, 10, 17 ...: of 4 to 7 tokens each one has one too many, or too few."""
    wrong = len(range(3, ROWS, 7))
    for kind, by in ((m.DeliversTwice, 1), (m.DeliversOneMore, 1), (m.CutsShort, -1)):
        result = trial(kind, tmp_path, monkeypatch)
        long_enough = [k for k in range(3, ROWS, 7) if kind is not m.DeliversTwice or LENGTHS[k][1] > 2]
        assert len(long_enough) == wrong
        asked = LENGTHS[3][1]
        assert f"first row 3: {asked + by} tokens for {asked}" in result.replays[0].void_because[0]
        assert result.counts.failed == wrong
        assert result.counts.completed == ROWS - wrong


def test_a_requested_8_that_becomes_16_is_credited_to_16(tmp_path, monkeypatch) -> None:
    result = trial(m.RoundsUp, tmp_path, monkeypatch, block_size=8, num_blocks=120)
    assert result.eligible, result.ineligible_because
    assert result.requested["policy"]["block_size"] == 8
    assert (result.effective.block_size, result.effective.num_blocks) == (16, 60)
    honest = trial(m.Honest, tmp_path, monkeypatch)
    assert result.ledger.time_mean == honest.ledger.time_mean


def test_what_is_compiled_before_the_window_voids_nothing_and_what_reaches_into_it_does(
    tmp_path, monkeypatch
) -> None:
    """A compilation from 10 ms to 1015 ms, beside windows that open at 1.1 s and at 1 s."""
    early = trial(m.BuildsEarly, tmp_path, monkeypatch, warmup="1100ms")
    assert early.eligible, early.ineligible_because
    reaching = trial(m.BuildsEarly, tmp_path, monkeypatch, warmup="1s")
    assert [why for why in reaching.ineligible_because if "void: 2 compilations" in why]
    assert reaching.replays[0].void_because
