"""Who holds which block: what the snapshot says of every state, and which moments are kept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from builders import MS, build_engine, build_trace

from trials.engine import GroupAudit
from trials.load import Offer, offer
from trials.ownership import STATES, ownership
from trials.recording import Replay
from trials.recount import recount
from trials.replay import replay
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.tables import write_ownership
from trials.trace import STARTS, Trace, make_trace


def whole(trace: Trace, **changes: int) -> Offer:
    return replace(offer(trace, TraceSpec(path="x"), Load(rate_scale=1.0), "cold"), **changes)


def states(found) -> list[str]:
    return [STATES[s] for s in found.state]


def test_every_state_is_told_from_tables_and_queues_alone() -> None:
    audit = GroupAudit(
        tables={7: [1, 2, 3], 9: [1, 4, 5]}, held_tokens={7: 10, 9: 6}, free=[6], cached=[0], reserve=[7],
        reserved_ahead={9: 4},
    )  # fmt: skip
    found = ownership(audit, 8, 4)
    assert states(found) == ["cached", "shared", "full", "tail", "tail", "ahead", "free", "reserve"]
    assert found.ref_count.tolist() == [0, 2, 1, 1, 1, 1, 0, 0]
    assert found.fill.tolist() == [0, 4, 4, 2, 2, 0, 0, 0]
    assert found.owners[found.offsets[1] : found.offsets[2]].tolist() == [7, 9]


def test_a_block_in_two_places_or_in_none_is_unlawful_and_the_rest_is_still_told() -> None:
    audit = GroupAudit({1: [0, 9]}, {1: 5}, free=[0, 1], cached=[1], reserve=[])
    assert states(ownership(audit, 4, 4)) == ["unlawful"] * 4
    lost = GroupAudit({1: [0]}, {1: 4}, free=[1], cached=[], reserve=[])
    assert states(ownership(lost, 3, 4)) == ["full", "free", "unlawful"]


def busy() -> Trace:
    return build_trace([40, 40, 40, 40], [30, 30, 30, 30], [0, 1, 2, 3])


def moments(recorded: Replay) -> dict[str, int]:
    return {kept.moment: kept.step for kept in recorded.snapshots}


def test_the_first_failed_admission_is_kept_at_its_step() -> None:
    trace = busy()
    recorded = replay(build_engine(trace, num_blocks=8), trace, whole(trace))
    refused = np.flatnonzero(np.isin(recorded.steps["refusal_cause"], [1, 2, 3, 6]))
    assert moments(recorded)["first_failed_admission"] == refused[0] + 1


def test_a_replay_that_keeps_nobody_out_has_no_such_moment_and_a_peak() -> None:
    trace = busy()
    assert set(moments(replay(build_engine(trace), trace, whole(trace)))) == {"peak"}


def test_the_peak_is_within_a_32nd_of_the_pool_of_the_most_live_blocks() -> None:
    trace = busy()
    engine = build_engine(trace, num_blocks=64)
    recorded = replay(engine, trace, whole(trace))
    (peak,) = (kept for kept in recorded.snapshots if kept.moment == "peak")
    live = recount(peak.groups[0], engine.geometry)["live_blocks"]
    most = int((64 - recorded.ledger["free_blocks"] - recorded.ledger["cached_blocks"]).max())
    assert most - 64 // 32 <= live <= most


def test_a_moment_asked_for_is_the_first_between_steps_at_or_after_it() -> None:
    trace = busy()
    first = replay(build_engine(trace), trace, whole(trace))
    ends = first.end_ns
    asked = int(ends[10]) + 1
    recorded = replay(build_engine(trace), trace, whole(trace, look_ns=asked))
    (kept,) = (k for k in recorded.snapshots if k.moment == "asked")
    assert (kept.step, kept.time_ns) == (12, int(ends[11]))
    assert all(np.array_equal(first.steps[name], recorded.steps[name]) for name in first.steps)


def test_a_moment_in_which_nothing_runs_shows_the_pool_as_it_stands_then() -> None:
    trace = build_trace([20, 20], [3, 3], [0, 1000])
    recorded = replay(build_engine(trace), trace, whole(trace, look_ns=500 * MS))
    (kept,) = (k for k in recorded.snapshots if k.moment == "asked")
    assert (kept.time_ns, kept.groups[0].tables) == (500 * MS, {})


def test_a_moment_behind_the_end_shows_the_drained_pool() -> None:
    trace = busy()
    recorded = replay(build_engine(trace), trace, whole(trace, look_ns=1 << 60))
    (kept,) = (k for k in recorded.snapshots if k.moment == "asked")
    assert (kept.groups[0].tables, kept.time_ns) == ({}, recorded.drain_end_ns)


def test_the_first_broken_law_is_kept_with_the_tables_that_break_it() -> None:
    trace = busy()
    engine = build_engine(trace)
    sound = engine.audit

    def leaking():  # type: ignore[no-untyped-def]
        audit = sound()
        if audit.groups[0].free:
            audit.groups[0].free.pop()
        return audit

    engine.audit = leaking  # type: ignore[method-assign]
    recorded = replay(engine, trace, whole(trace))
    (kept,) = (k for k in recorded.snapshots if k.moment == "broken_law")
    assert recorded.broken_laws
    assert "unlawful" in states(ownership(kept.groups[0], 64, 16))


def test_the_file_has_a_row_a_block_and_its_sums_are_the_recount(tmp_path: Path) -> None:
    prompts, outputs = np.array([40, 40]), np.array([20, 20])
    trace = make_trace(
        np.zeros(2, np.int64), prompts, outputs, parent=np.array([-1, 0]), inherited_tokens=np.array([0, 40]),
        starts=np.array([STARTS["arrival"], STARTS["fork"]]),
    )  # fmt: skip
    engine = build_engine(trace, PoolPolicy(sharing="cow"))
    recorded = replay(engine, trace, whole(trace, look_ns=5 * MS))
    write_ownership([recorded], engine.facts, tmp_path / "ownership.parquet")
    table = pq.read_table(tmp_path / "ownership.parquet").to_pandas()
    asked = table[table["moment"] == "asked"]
    (kept,) = (k for k in recorded.snapshots if k.moment == "asked")
    found = recount(kept.groups[0], engine.geometry)
    assert len(asked) == 64
    assert asked["fill"].sum() == found["payload_tokens"]
    assert (asked["ref_count"] > 0).sum() == found["live_blocks"]
    assert set(asked["state"]) >= {"shared", "tail", "free"}
    assert asked["owners"].map(len).tolist() == asked["ref_count"].tolist()
