"""The trace: what arrives when, how long it is, and which of its tokens it shares. Columnar, int64.

Knows nothing of any public format (`formats/`), of engines or of load. A trace on disk is one parquet file.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Ints = NDArray[np.int64]

STARTS = {"arrival": 0, "fork": 1, "think": 2}
NONE = -1
_MAX_BYTES = 8 << 30  # a trace file larger than this, unpacked, is refused

COLUMNS = (
    "arrival_ns", "num_prompt_tokens", "num_output_tokens", "session", "priority", "parent",
    "inherited_tokens", "starts", "think_ns", "cancel_after_ns", "cancel_after_tokens",
)  # fmt: skip
_DEFAULTS = {
    "session": NONE, "priority": 0, "parent": NONE, "inherited_tokens": 0, "starts": STARTS["arrival"],
    "think_ns": 0, "cancel_after_ns": NONE, "cancel_after_tokens": NONE,
}  # fmt: skip


class TraceError(ValueError):
    """A trace cannot be used as it is; the message names the row and the remedy."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """A list of integers a row: row r holds values[offsets[r]:offsets[r + 1]]."""

    offsets: Ints
    values: Ints

    @classmethod
    def empty(cls, rows: int) -> "Ragged":
        return cls(np.zeros(rows + 1, np.int64), np.zeros(0, np.int64))

    @classmethod
    def of(cls, lists: list[list[int]]) -> "Ragged":
        lengths = np.fromiter((len(x) for x in lists), np.int64, len(lists))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        values = np.fromiter((v for x in lists for v in x), np.int64, int(offsets[-1]))
        return cls(offsets, values)

    def row(self, index: int) -> Ints:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def take(self, rows: Ints) -> "Ragged":
        return Ragged.of([self.row(int(r)).tolist() for r in rows])


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """`tokens_per_id` and `tail_rule` belong to the content; the rest is provenance and is not hashed."""

    tokens_per_id: int = 0  # 0: no prefix ids
    tail_rule: str = "ceil"  # ceil: the last id covers a partial block; floor: the partial tail has no id
    synthetic: tuple[str, ...] = ()  # columns that were not observed
    name: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()  # what the import left out or could not know


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows in arrival order. Shapes: every column [R] int64; `after` and `prefix_ids` ragged over R.

    parent: row whose context the first `inherited_tokens` tokens repeat, or -1. starts: at its arrival, when
    the parent holds inherited_tokens (fork), or think_ns after all rows in `after` ended (think).
    cancel_*: -1 = never.
    """

    arrival_ns: Ints
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    session: Ints
    priority: Ints
    parent: Ints
    inherited_tokens: Ints
    starts: Ints
    think_ns: Ints
    cancel_after_ns: Ints
    cancel_after_tokens: Ints
    after: Ragged
    prefix_ids: Ragged
    meta: TraceMeta = field(default_factory=TraceMeta)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def take(self, rows: Ints) -> "Trace":
        """The given rows, in that order; links to rows that are left out are cut (parent and after -> none)."""
        place = np.full(len(self) + 1, NONE, np.int64)
        place[rows] = np.arange(len(rows))
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        columns["parent"] = place[columns["parent"]]
        columns["inherited_tokens"] = np.where(columns["parent"] < 0, 0, columns["inherited_tokens"])
        after = [[int(place[a]) for a in self.after.row(int(r)) if place[a] >= 0] for r in rows]
        orphan = (columns["starts"] == STARTS["fork"]) & (columns["parent"] < 0)
        orphan |= (columns["starts"] == STARTS["think"]) & np.array([not a for a in after], bool)
        columns["starts"] = np.where(orphan, STARTS["arrival"], columns["starts"])
        return Trace(**columns, after=Ragged.of(after), prefix_ids=self.prefix_ids.take(rows), meta=self.meta)


def make_trace(
    arrival_ns: Ints,
    num_prompt_tokens: Ints,
    num_output_tokens: Ints,
    prefix_ids: Ragged | None = None,
    meta: TraceMeta | None = None,
    **columns: Ints,
) -> Trace:
    """Build and validate a trace; columns left out take their defaults."""
    n = len(arrival_ns)
    unknown = set(columns) - set(_DEFAULTS) - {"after"}
    if unknown:
        raise TraceError(f"unknown trace columns: {', '.join(sorted(unknown))}")
    full = {name: columns.get(name, np.full(n, default, np.int64)) for name, default in _DEFAULTS.items()}
    as_int = {name: np.ascontiguousarray(value, np.int64) for name, value in full.items()}
    trace = Trace(
        arrival_ns=np.ascontiguousarray(arrival_ns, np.int64),
        num_prompt_tokens=np.ascontiguousarray(num_prompt_tokens, np.int64),
        num_output_tokens=np.ascontiguousarray(num_output_tokens, np.int64),
        after=Ragged.empty(n),
        prefix_ids=prefix_ids if prefix_ids is not None else Ragged.empty(n),
        meta=meta or TraceMeta(),
        **as_int,
    )
    validate(trace)
    return trace


def with_links(trace: Trace, after: Ragged) -> Trace:
    """The same trace with its `after` lists."""
    linked = replace(trace, after=after)
    validate(linked)
    return linked


def _refuse(bad: NDArray[np.bool_], what: str, remedy: str) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        raise TraceError(f"row {int(rows[0])} (and {len(rows) - 1} more): {what}; {remedy}")


def validate(trace: Trace) -> None:
    """Raise TraceError on the first rule that a row breaks."""
    n = len(trace)
    if n == 0:
        raise TraceError("the trace has no rows; import a file that has at least one request")
    for name in COLUMNS:
        if len(getattr(trace, name)) != n:
            raise TraceError(f"column {name} has {len(getattr(trace, name))} entries for {n} rows")
    _refuse(trace.arrival_ns < 0, "negative arrival time", "times count from the trace's start")
    _refuse(np.diff(trace.arrival_ns, prepend=trace.arrival_ns[:1]) < 0,
            "arrives before the row in front of it", "sort the source by time")  # fmt: skip
    _refuse(trace.num_prompt_tokens < 1, "a prompt needs at least one token", "drop or mend the source row")
    _refuse(trace.num_output_tokens < 1, "an answer needs at least one token", "drop or mend the source row")
    _refuse(trace.parent >= np.arange(n), "its parent does not stand before it", "order rows parents first")
    _refuse((trace.starts < 0) | (trace.starts > 2), "unknown start rule", "use arrival, fork or think")
    _refuse(trace.inherited_tokens > trace.num_prompt_tokens, "inherits more tokens than its prompt has",
            "inherited tokens are the leading part of the prompt")  # fmt: skip
    lengths = np.diff(trace.prefix_ids.offsets)
    if lengths.any():
        per = trace.meta.tokens_per_id
        if per < 1:
            raise TraceError("prefix ids need tokens_per_id >= 1: how many tokens one id stands for")
        round_up = per - 1 if trace.meta.tail_rule == "ceil" else 0
        most = (trace.num_prompt_tokens + round_up) // per
        _refuse(lengths > most, f"has more prefix ids than its prompt holds at {per} tokens an id",
                "check tokens_per_id and the tail rule")  # fmt: skip


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary_path)`, then rename: the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(name))
        with open(name, "rb+") as done:
            os.fsync(done.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def save_trace(trace: Trace, path: Path) -> None:
    """Write the trace as parquet, whole or not at all."""
    columns = {name: pa.array(getattr(trace, name)) for name in COLUMNS}
    for name in ("after", "prefix_ids"):
        ragged: Ragged = getattr(trace, name)
        columns[name] = pa.LargeListArray.from_arrays(pa.array(ragged.offsets), pa.array(ragged.values))
    meta = trace.meta
    notes = {
        "kvknee.tokens_per_id": str(meta.tokens_per_id), "kvknee.tail_rule": meta.tail_rule,
        "kvknee.synthetic": "\n".join(meta.synthetic), "kvknee.name": meta.name,
        "kvknee.source": meta.source, "kvknee.notes": "\n".join(meta.notes),
    }  # fmt: skip
    table = pa.table(columns).replace_schema_metadata(notes)
    write_whole(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def _read_table(path: Path) -> pa.Table:
    try:
        file = pq.ParquetFile(path)
        unpacked = sum(file.metadata.row_group(g).total_byte_size for g in range(file.metadata.num_row_groups))
        if unpacked > _MAX_BYTES:
            raise TraceError(f"{path}: {unpacked} bytes unpacked, more than the limit of {_MAX_BYTES}")
        return file.read()
    except FileNotFoundError:
        raise TraceError(f"{path}: no such trace; make one with `kvknee trace import`") from None
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"{path}: not a trace file (parquet): {error}") from None


def load_trace(path: Path) -> Trace:
    """Read and validate a trace file. TraceError where it is absent, truncated or of another kind."""
    table = _read_table(path)
    missing = [c for c in (*COLUMNS, "after", "prefix_ids") if c not in table.column_names]
    if missing:
        raise TraceError(f"{path}: columns missing: {', '.join(missing)}; import it with `kvknee trace import`")
    notes = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    columns = {n: table[n].combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64) for n in COLUMNS}
    ragged = {}
    for name in ("after", "prefix_ids"):
        array = table[name].combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        ragged[name] = Ragged(
            np.asarray(array.offsets, np.int64) - int(array.offsets[0].as_py() if len(array) else 0),
            np.asarray(array.flatten(), np.int64),
        )
    lines = {k: tuple(x for x in notes.get(f"kvknee.{k}", "").split("\n") if x) for k in ("synthetic", "notes")}
    meta = TraceMeta(
        tokens_per_id=int(notes.get("kvknee.tokens_per_id", "0")),
        tail_rule=notes.get("kvknee.tail_rule", "ceil"),
        name=notes.get("kvknee.name", ""), source=notes.get("kvknee.source", ""), **lines,
    )  # fmt: skip
    trace = Trace(**columns, after=ragged["after"], prefix_ids=ragged["prefix_ids"], meta=meta)
    validate(trace)
    return trace
