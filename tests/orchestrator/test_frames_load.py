"""orchestrator.load: a sweep's tables, tidy and true to the result files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_sweep import WINNER, build, measure_again

import orchestrator
from orchestrator.frames_load import SweepFrames, with_times
from trials.engine import Outcome
from trials.ledger import ACCOUNTS
from trials.units import SpecError


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepFrames:
    return orchestrator.load(build(tmp_path_factory.mktemp("load") / "sweep").path)


def test_trials_carry_the_candidate_and_whether_it_is_chosen(sweep: SweepFrames) -> None:
    chosen = sweep.trials[sweep.trials["chosen"]]
    assert chosen["candidate"].unique().tolist() == [f"block {WINNER}"]
    assert chosen["trial"].tolist() == [2, 5]
    assert sweep.outcome is not None
    assert sweep.trials["trial"].is_unique


def test_a_trial_beside_the_search_has_its_candidates_label_and_a_role(tmp_path: Path) -> None:
    folder = build(tmp_path / "sweep")
    measure_again(folder, 7, 2, "confirm")
    measure_again(folder, 8, 6, "survival")
    sweep = orchestrator.load(folder.path)
    found = sweep.trials.set_index("trial").loc[[2, 7, 8], ["candidate", "role"]].to_numpy().tolist()
    label = f"block {WINNER}"
    assert found == [[label, ""], [label, "confirm"], ["contiguous", "survival"]]
    for frame in (sweep.replays, sweep.requests, sweep.ledger):
        assert dict(zip(frame["trial"], frame["role"], strict=True))[8] == "survival"
        assert set(frame.loc[frame["trial"] < 7, "role"]) == {""}
    folder.knee_json.unlink()
    running = orchestrator.load(folder.path).trials.set_index("trial")["candidate"]
    assert running.loc[[2, 7, 8]].tolist() == ["block_size=64", "block_size=64", "contiguous"]


def test_one_row_a_replay_and_one_of_each_trial_decides(sweep: SweepFrames) -> None:
    assert sweep.replays.groupby("trial").size().unique().tolist() == [2]
    decides = sweep.replays[sweep.replays["decides"]]
    assert decides["phase"].unique().tolist() == ["steady"]
    merged = decides.merge(sweep.trials, on="trial", suffixes=("", "_of_trial"))
    assert (merged["ttft_p99_ms"] == merged["ttft_p99_ms_of_trial"]).all()


def test_times_of_requests_give_the_percentiles_of_the_result(sweep: SweepFrames) -> None:
    for record in sweep.records:
        assert record.result is not None
        rows = sweep.requests[(sweep.requests["trial"] == record.number) & (sweep.requests["phase"] == "steady")]
        counted = rows[rows["offered"]]
        assert counted["served"].all()
        for name in ("ttft_ms", "tpot_ms", "e2el_ms"):
            seen = getattr(record.result.metrics, name)
            assert np.percentile(counted[name].dropna(), 99) == pytest.approx(seen.p99, rel=1e-9)
            assert counted[name].count() == seen.n


def test_the_ledger_adds_up_in_every_row(sweep: SweepFrames) -> None:
    assert (sum(sweep.ledger[a] for a in ACCOUNTS) == sweep.ledger["pool_bytes"]).all()


def test_a_request_that_was_not_served_has_no_times() -> None:
    frame = pd.DataFrame({
        "outcome": [int(Outcome.COMPLETED), int(Outcome.COMPLETED), int(Outcome.CANCELLED), int(Outcome.FAILED)],
        "counted": [1, 1, 1, 0], "num_output_tokens": [1, 4, 4, 4], "num_delivered": [1, 3, 2, 0],
        "arrival_ns": 0, "first_token_ns": 2_000_000, "last_token_ns": 2_000_000,
    })  # fmt: skip
    timed = with_times(frame)
    assert timed["outcome"].tolist() == ["completed", "completed", "cancelled", "failed"]
    assert timed["offered"].tolist() == [True, True, False, False]
    assert timed["served"].tolist() == [True, False, False, False]
    assert timed["ttft_ms"].notna().tolist() == [True, False, False, False]
    assert timed["tpot_ms"].isna().all()  # one token has no gap


def test_a_sweep_before_its_first_trial_has_empty_frames(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("name: empty\n")
    sweep = orchestrator.load(str(tmp_path))
    assert sweep.outcome is None
    assert [len(f) for f in (sweep.trials, sweep.replays, sweep.requests, sweep.ledger)] == [0, 0, 0, 0]


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not the folder of a sweep"):
        orchestrator.load(tmp_path)
