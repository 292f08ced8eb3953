"""The parquet files of a trial: every replay's rows, told apart, adding up; and a schedule read back from them."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.builders import build_engine, build_trace
from trials.engines.own import PagedEngine
from trials.ledger import ACCOUNTS
from trials.load import offer
from trials.recording import STEP_COLUMNS, Replay
from trials.replay import replay
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.tables import read_locks, write_ledger, write_requests
from trials.trace import Trace, write_whole
from trials.units import SpecError


def two_replays() -> tuple[Trace, PagedEngine, list[Replay]]:
    trace = build_trace([9, 30, 12], [5, 20, 2], arrivals_ms=[0, 3, 90])
    engine = build_engine(trace, PoolPolicy(block_size=4), num_blocks=13, reserve_blocks=1)
    out = []
    for phase, load in (("cold", Load(rate_scale=1.0)), ("steady", Load(concurrency=1))):
        out.append(replay(engine, trace, offer(trace, TraceSpec(path="t"), load, phase)))
    return trace, engine, out


def test_ledger_rows_add_up_to_the_pool_and_carry_their_replay(tmp_path: Path) -> None:
    _, engine, recorded = two_replays()
    write_ledger(recorded, engine.facts, tmp_path / "ledger.parquet")
    table = pq.read_table(tmp_path / "ledger.parquet").to_pydict()
    rows = [len(r.steps["start_ns"]) for r in recorded]
    assert table["phase"] == ["cold"] * rows[0] + ["steady"] * rows[1]
    assert table["load"] == ["rate_scale=1"] * rows[0] + ["concurrency=1"] * rows[1]
    assert table["step"] == [*range(rows[0]), *range(rows[1])]
    sums = np.sum([table[name] for name in ACCOUNTS], axis=0)
    assert (sums == 13 * 4 * 64).all()
    assert set(table["pool_bytes"]) == {13 * 4 * 64}
    assert set(STEP_COLUMNS) <= set(table)
    for name in ("duration_ns", "num_running"):
        assert table[name] == [x for r in recorded for x in r.steps[name].tolist()]
    assert table["allocated_blocks"] == [x for r in recorded for x in r.ledger["allocated_blocks"].tolist()]


def test_requests_have_a_row_each_a_replay(tmp_path: Path) -> None:
    _, _, recorded = two_replays()
    write_requests(recorded, tmp_path / "requests.parquet")
    table = pq.read_table(tmp_path / "requests.parquet").to_pydict()
    assert table["row"] == [0, 1, 2] * 2
    for name in ("first_token_ns", "end_ns", "outcome", "met_step", "counted"):
        assert table[name] == [x for r in recorded for x in getattr(r.requests, name).tolist()]


def test_schedule_read_back_replays_the_same_ledger(tmp_path: Path) -> None:
    trace, engine, recorded = two_replays()
    write_requests(recorded, tmp_path / "requests.parquet")
    locks = read_locks(tmp_path / "requests.parquet")
    assert sorted(locks) == [("cold", "rate_scale=1"), ("steady", "concurrency=1")]
    for past, load in zip(recorded, (Load(rate_scale=1.0), Load(concurrency=1)), strict=True):
        lock = locks[past.phase, load.label]
        asked = offer(trace, TraceSpec(path="t"), load, past.phase)
        again = replay(engine, trace, asked.locked(*_columns(lock)))
        assert {n: c.tolist() for n, c in again.ledger.items()} == {n: c.tolist() for n, c in past.ledger.items()}


def _columns(lock: object) -> tuple[np.ndarray, ...]:
    """What `Offer.locked` takes, in its order."""
    return tuple(getattr(lock, name) for name in ("met_step", "cancel_step", "arrival_ns"))


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and no more", "ledger"])
def test_file_that_is_no_schedule_is_refused_by_name(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "odd.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "ledger":
        _, engine, recorded = two_replays()
        write_ledger(recorded, engine.facts, path)
    with pytest.raises(SpecError, match=r"odd\.parquet: not a schedule to lock to"):
        read_locks(path)


def test_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def breaks(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(tmp_path / "ledger.parquet", breaks)
    assert not list(tmp_path.iterdir())
