"""The parquet files of a trial: requests and ledger, replay after replay, told apart by phase and load."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trials.engine import EngineFacts, GroupAudit, PoolGeometry
from trials.ladder import Locks
from trials.ledger import account_bytes
from trials.load import Lock
from trials.ownership import STATES, mentioned, ownership
from trials.parquet_footer import FooterError, bounded
from trials.pressure import admissible_tokens
from trials.recording import LEDGER_COLUMNS, STEP_COLUMNS, Replay, Requests, Snapshot
from trials.trace import write_whole
from trials.units import SpecError

EVENTS = ("allocated_blocks", "released_blocks", "evicted_blocks", "copied_blocks")


def _labelled(columns: dict[str, pa.Array], recorded: Replay, count: int) -> pa.Table:
    def label(text: str) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))

    return pa.table({"phase": label(recorded.phase), "load": label(recorded.load), **columns})


def _write(tables: list[pa.Table], path: Path) -> None:
    whole = pa.concat_tables([t.cast(_plain(t.schema)) for t in tables])
    write_whole(path, lambda temporary: pq.write_table(whole, temporary, compression="zstd"))


def _plain(schema: pa.Schema) -> pa.Schema:
    """Labels as plain strings, so that tables with different labels can follow each other."""
    return pa.schema([f.with_type(pa.string()) if pa.types.is_dictionary(f.type) else f for f in schema])


def write_requests(recorded: list[Replay], path: Path) -> None:
    """One row a request a replay: all of recording.Requests, times in engine ns."""
    names = [f.name for f in fields(Requests)]
    tables = [
        _labelled({n: pa.array(getattr(r.requests, n)) for n in names}, r, len(r.requests.row)) for r in recorded
    ]
    _write(tables, path)


def write_ledger(recorded: list[Replay], facts: EngineFacts, path: Path) -> None:
    """One row a step a replay: times, what the step did, byte accounts and block events, summed over groups."""
    per_step = len(facts.groups) * facts.ranks
    tables = []
    for one in recorded:
        accounts = account_bytes(one.ledger, facts.groups, facts.ranks, facts.shared_pool)
        count = len(one.steps["start_ns"])
        raw = {
            name: one.ledger[name].reshape(count, per_step).sum(axis=1)
            for name in LEDGER_COLUMNS
            if name not in ("group", "rank")
        }
        columns = {
            "step": pa.array(np.arange(count)),
            **{name: pa.array(one.steps[name]) for name in STEP_COLUMNS},
            **{name: pa.array(values) for name, values in accounts.items()},
            **{name: pa.array(values) for name, values in raw.items()},
            "largest_admissible_tokens": pa.array(admissible_tokens(one, facts)),
            **_by_lane(one, facts),
        }
        tables.append(_labelled(columns, one, count))
    _write(tables, path)


def _by_lane(recorded: Replay, facts: EngineFacts) -> dict[str, pa.Array]:
    """Of several: the raw columns of each (group, rank), named `group0_rank0_payload_tokens` and so on."""
    lanes = len(facts.groups) * facts.ranks
    return {
        f"group{lane // facts.ranks}_rank{lane % facts.ranks}_{name}": pa.array(recorded.ledger[name][lane::lanes])
        for lane in range(lanes if lanes > 1 else 0) for name in LEDGER_COLUMNS if name not in ("group", "rank")
    }  # fmt: skip


def write_ownership(recorded: list[Replay], facts: EngineFacts, path: Path) -> None:
    """One row a block of every moment that a replay kept: its owners (rows of the trace), its tokens, its state.

    `step` counts the rows of ledger.parquet in front of the moment.
    """
    tables = [_labelled(*_blocks(r, kept, facts)) for r in recorded for kept in r.snapshots]
    _write(tables, path)


def _own_blocks(groups: Sequence[GroupAudit], number: int, geometry: PoolGeometry) -> NDArray[np.int64]:
    """Blocks of a shared pool that this group has; the first also shows those that none of them has."""
    known = [mentioned(group, geometry.num_blocks) for group in groups]
    mine = known[number] | (~np.any(known, axis=0) if number == 0 else False)
    return np.flatnonzero(mine)


def _words(index: NDArray[np.int8], words: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(index), pa.array(list(words)))


def _blocks(recorded: Replay, kept: Snapshot, facts: EngineFacts) -> tuple[dict[str, pa.Array], Replay, int]:
    columns: dict[str, list[pa.Array]] = {}
    total = 0
    for number, group in enumerate(kept.groups):
        geometry = facts.groups[number // facts.ranks]
        blocks = np.arange(geometry.num_blocks)
        if facts.shared_pool:
            blocks = _own_blocks(kept.groups[number % facts.ranks :: facts.ranks], number // facts.ranks, geometry)
        whole = ownership(group, geometry.num_blocks, geometry.block_size, geometry.keeps_states)
        found = whole.of(blocks) if facts.shared_pool else whole
        count = len(blocks)
        total += count
        part = {
            "moment": _words(np.zeros(count, np.int8), (kept.moment,)),
            "step": pa.array(np.full(count, kept.step, np.int64)),
            "time_ns": pa.array(np.full(count, kept.time_ns, np.int64)),
            "group": pa.array(np.full(count, number // facts.ranks, np.int64)),
            "rank": pa.array(np.full(count, number % facts.ranks, np.int64)),
            "block": pa.array(blocks),
            "owners": pa.LargeListArray.from_arrays(pa.array(found.offsets), pa.array(found.owners)),
            "ref_count": pa.array(found.ref_count),
            "fill": pa.array(found.fill),
            "state": _words(found.state, STATES),
        }
        for name, values in part.items():
            columns.setdefault(name, []).append(values)
    return {name: pa.concat_arrays(parts) for name, parts in columns.items()}, recorded, total


def read_locks(path: Path) -> Locks:
    """Which step each arrival and cancel met, of every replay in a requests.parquet. SpecError if it is none."""
    names = ["phase", "load", "row", "met_step", "cancel_step", "arrival_ns"]
    try:
        table = pq.read_table(bounded(path), columns=names)
        columns = [np.ascontiguousarray(table[name].to_numpy(), np.int64) for name in names[3:]]
    except (OSError, KeyError, pa.ArrowException, FooterError) as error:
        raise SpecError(f"{path}: not a schedule to lock to (requests.parquet): {error}") from None
    locks: Locks = {}
    phases, loads = np.asarray(table["phase"].to_pylist()), np.asarray(table["load"].to_pylist())
    for phase, load in sorted(set(zip(phases.tolist(), loads.tolist(), strict=True))):
        chosen = (phases == phase) & (loads == load)
        locks[(phase, load)] = Lock(*(column[chosen] for column in columns))
    return locks
