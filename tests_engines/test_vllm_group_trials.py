"""Ranks and whole trials of models of several KV groups: one ledger a rank, the same bytes again, a leak named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grouped import POLICY, SHAPES, STEP_TIME, Watched, spec_of

import trials.engines.stand_in as stand_in
from tests.builders import build_trace
from tests.contracts.engine_laws import MODEL, load_of
from trials.engines.stand_in_ranks import Rank
from trials.ledger import ACCOUNTS
from trials.recording import LEDGER_COLUMNS
from trials.result import TrialResult, load_result
from trials.spec import trial_spec
from trials.trace import Trace, save_trace
from trials.worker import run_trial


@pytest.mark.parametrize("shape", ["sliding", "states", "latent"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_rank_has_a_ledger_of_its_own_heads(shape: str, ranks: int) -> None:
    """2 KV heads: two ranks have one each, four have a copy; a latent is whole on every rank."""
    trace = load_of(7)
    one = Watched(spec_of(shape), trace)
    whole = one.engine.facts.groups[one.engine.facts.token_group].bytes_per_token
    one.engine.close()
    watched = Watched(spec_of(shape, ranks=ranks), trace)
    facts = watched.engine.facts
    assert facts.ranks == ranks
    assert facts.groups[facts.token_group].bytes_per_token == (whole if shape == "latent" else whole // 2)
    watched.add(*range(len(trace))).drain()
    watched.adds_up()
    rows = np.array(watched.rows).reshape(-1, len(facts.groups), ranks, len(LEDGER_COLUMNS))
    assert (rows[:, :, :, 1] == np.arange(ranks)).all()
    assert (rows[:, :, :1, 2:] == rows[:, :, :, 2:]).all(), "ranks hold the same blocks"
    watched.engine.close()


class Forgetful(Rank):
    """A rank that keeps the blocks of each third request that is over."""

    over = 0

    def let_go(self, name: str) -> None:
        type(self).over += 1
        if self.over % 3:
            super().let_go(name)


def trial(folder: Path, model: Any, trace: Trace, ranks: int = 1, **more: Any) -> TrialResult:
    """One whole trial in this process; as read back from disk."""
    save_trace(trace, folder / "t.parquet")
    run_trial(trial_spec({
        "engine": {"name": "vllm_scheduler", "step_time": more.pop("step_time", STEP_TIME),
                   "tensor_parallel_size": ranks},
        "model": model, "pool": more.pop("pool", {"blocks": 120}),
        "policy": POLICY | more,
        "trace": {"path": str(folder / "t.parquet")}, "slo": "ttft:p99<60s", "phases": ["cold"],
    }), folder)  # fmt: skip
    return load_result(folder / "result.json")


def small(shape: str) -> dict[str, Any]:
    return {**{name: value for name, value in MODEL.items() if name != "num_layers"}, "layers": SHAPES[shape]}


@pytest.mark.parametrize("shape", ["sliding", "latent"])
def test_one_leaking_rank_makes_the_trial_ineligible_and_is_named_with_its_residual(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = load_of(7, 40)
    honest = trial(tmp_path, small(shape), trace, ranks=2)
    assert honest.eligible, honest.ineligible_because
    assert honest.ledger.pool_residuals == {}
    made: list[Rank] = []
    Forgetful.over = 0

    def rank() -> Rank:
        made.append(Forgetful() if len(made) == 1 else Rank())
        return made[-1]

    monkeypatch.setattr(stand_in, "Rank", rank)
    result = trial(tmp_path, small(shape), trace, ranks=2)
    assert not result.eligible
    named = [reason for reason in result.ineligible_because if "rank" in reason]
    assert named
    assert all("rank 1" in reason for reason in named), named
    (said,) = [reason for reason in named if "ledger rows do not add up to the pool" in reason]
    ((pool, residual),) = result.ledger.pool_residuals.items()
    assert "rank 1" in pool
    assert residual > 0
    assert f"{residual:+} bytes" in said


def test_a_hybrid_models_trial_shows_its_groups_and_they_add_up_to_the_whole(tmp_path: Path) -> None:
    """bamba-9b: a state of 2,147,840 bytes makes a block of 528 tokens of whoever asks 16, in eleven groups."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(200, 4000, 40).tolist()
    ids = [[10 * (i % 3) + k for k in range(n // 512)] if i % 2 else [] for i, n in enumerate(lengths)]
    trace = build_trace(lengths, rng.integers(5, 60, 40).tolist(), [80.0 * i for i in range(40)], ids, 512)
    result = trial(
        tmp_path, "bamba-9b", trace, pool={"bytes": "1.2GiB"}, step_time="roofline:h100-sxm", block_size=16,
        max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=2048,
    )  # fmt: skip
    assert result.eligible, result.ineligible_because
    effective = result.effective
    assert effective is not None
    assert (effective.block_size, effective.reuse_quantum_tokens, effective.knobs["block_size"]) == (
        528,
        528,
        "528",
    )
    assert result.requested["policy"]["block_size"] == 16
    assert [group.kind for group in effective.groups] == ["mamba"] * 10 + ["full"]
    assert sum(group.num_layers for group in effective.groups) == 32
    assert result.ledger.pool_slots == 0, "no number of tokens is what a pool of several groups holds"
    for name in ACCOUNTS:
        parts = [group.time_mean[name] for group in result.ledger.groups]
        assert sum(parts) == pytest.approx(result.ledger.time_mean[name]), name
        assert sum(group.peak[name] for group in result.ledger.groups) == getattr(result.ledger.peak, name)
    assert sum(result.ledger.peak.model_dump()[name] for name in ACCOUNTS) == result.ledger.peak.pool_bytes
    assert result.ledger.time_mean["padding"] > 0
    assert result.metrics.waste_byte_seconds["padding"] > 0
    assert 0 < result.metrics.admitted_concurrency.peak < 64, "concurrency is what the trace reached"
    states = result.ledger.by_state
    held = states["full"] + states["tail"] + states["prefill"] - states["shared"]
    begin, end = result.replays[0].observation.start_ns, result.replays[0].observation.end_ns
    assert held == pytest.approx(result.ledger.time_mean["payload"] * (end - begin) / 1e9)
    assert states["full"] > 0
    assert states["prefill"] >= 0


def test_a_hybrid_trial_is_the_same_byte_for_byte_when_it_is_run_again(tmp_path: Path) -> None:
    texts = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        trial(folder, small("states"), load_of(7, 40), ranks=2)
        texts.append((folder / "result.json").read_bytes())
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["status"] == "complete"


def test_a_plain_model_keeps_its_geometry_and_its_digest_of_rows(tmp_path: Path) -> None:
    """One group on one rank: nothing of groups is written, so that ledgers of before can be compared."""
    result = trial(tmp_path, MODEL, load_of(3))
    assert result.effective is not None
    assert (result.effective.groups, result.ledger.groups, result.effective.ranks) == ((), (), 1)
    assert result.ledger.pool_slots == 120 * 8
