"""The trace: what arrives when, how long it is, and which of its tokens it shares. Columnar, int64.

Knows nothing of any public format (`formats/`), of engines or of load. A trace on disk is one parquet file.
"""

import json
import os
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from trials.parquet_footer import FooterError, unpacked_bytes
from trials.ragged import Ints as Ints
from trials.ragged import Ragged as Ragged
from trials.units import SpecError, folder_words

STARTS = {"arrival": 0, "fork": 1, "think": 2}
NONE = -1
TAIL_RULES = ("ceil", "floor")
_MAX_BYTES = 8 << 30  # a trace file larger than this, unpacked, is refused
_MOST_TOKENS = 1 << 31  # of one row: sums over a trace stay far inside int64
_MOST_NS = 1 << 61  # about 73 years

COLUMNS = (
    "arrival_ns", "num_prompt_tokens", "num_output_tokens", "session", "priority", "parent",
    "inherited_tokens", "starts", "think_ns", "cancel_after_ns", "cancel_after_tokens",
)  # fmt: skip
_DEFAULTS = {
    "session": NONE, "priority": 0, "parent": NONE, "inherited_tokens": 0, "starts": STARTS["arrival"],
    "think_ns": 0, "cancel_after_ns": NONE, "cancel_after_tokens": NONE,
}  # fmt: skip


class TraceError(SpecError):
    """A trace cannot be used as it is; the message names the row and the remedy."""


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
        place = np.full(len(self) + 1, NONE, np.int64)  # the last entry is where NONE leads: to NONE
        place[rows] = np.arange(len(rows))
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        columns["parent"] = place[columns["parent"]]
        columns["inherited_tokens"] = np.where(columns["parent"] < 0, 0, columns["inherited_tokens"])
        links = self.after.take(rows)
        moved = place[links.values]
        after = Ragged(links.offsets, moved).keep(moved >= 0)
        orphan = (columns["starts"] == STARTS["fork"]) & (columns["parent"] < 0)
        orphan |= (columns["starts"] == STARTS["think"]) & (after.lengths == 0)
        columns["starts"] = np.where(orphan, STARTS["arrival"], columns["starts"])
        return Trace(**columns, after=after, prefix_ids=self.prefix_ids.take(rows), meta=self.meta)


def _column(name: str, value: ArrayLike) -> Ints:
    """int64, contiguous, one entry a row; anything that would have to be cut to fit is refused."""
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TraceError(f"column {name}: whole numbers, one a row, are needed; got {array.dtype} {array.shape}")
    if array.dtype == np.uint64 and len(array) and int(array.max()) > np.iinfo(np.int64).max:
        raise TraceError(f"column {name}: {int(array.max())} does not fit 64 bits with a sign")
    return np.ascontiguousarray(array, np.int64)


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
    unknown = set(columns) - set(_DEFAULTS)
    if unknown:
        raise TraceError(f"unknown trace columns: {', '.join(sorted(unknown))}; known: {', '.join(_DEFAULTS)}")
    full = {name: columns.get(name, np.full(n, default, np.int64)) for name, default in _DEFAULTS.items()}
    trace = Trace(
        arrival_ns=_column("arrival_ns", arrival_ns),
        num_prompt_tokens=_column("num_prompt_tokens", num_prompt_tokens),
        num_output_tokens=_column("num_output_tokens", num_output_tokens),
        after=Ragged.empty(n),
        prefix_ids=prefix_ids if prefix_ids is not None else Ragged.empty(n),
        meta=meta or TraceMeta(),
        **{name: _column(name, value) for name, value in full.items()},
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
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        raise TraceError(f"row {int(rows[0])}{more}: {what}; {remedy}")


def validate(trace: Trace) -> None:
    """Raise TraceError on the first rule that a row breaks. Rows count from 0."""
    n = len(trace)
    if n == 0:
        raise TraceError("the trace has no rows; import a file that has at least one request")
    for name in COLUMNS:
        if getattr(trace, name).shape != (n,):
            raise TraceError(f"column {name} has {len(getattr(trace, name))} entries for {n} rows")
    for name in ("after", "prefix_ids"):
        _check_offsets(name, getattr(trace, name), n)
    _check_times_and_lengths(trace)
    _check_links(trace)
    _check_prefix_ids(trace)


def _check_offsets(name: str, ragged: Ragged, rows: int) -> None:
    offsets, end = ragged.offsets, len(ragged.values)
    if offsets.shape != (rows + 1,) or ragged.values.ndim != 1:
        raise TraceError(f"{name} has {len(offsets)} offsets for {rows} rows; {rows + 1} are needed")
    if offsets[0] != 0 or offsets[-1] != end or bool((np.diff(offsets) < 0).any()):
        raise TraceError(f"{name}: offsets must rise from 0 to {end}; the file is damaged, import the trace again")


def _check_times_and_lengths(trace: Trace) -> None:
    arrival = trace.arrival_ns
    _refuse((arrival < 0) | (arrival > _MOST_NS), "arrival time out of range",
            f"times are ns from the trace's start, 0 to {_MOST_NS}")  # fmt: skip
    _refuse(np.diff(arrival, prepend=arrival[:1]) < 0, "arrives before the row in front of it",
            "sort the source by time")  # fmt: skip
    for name, what in (("num_prompt_tokens", "a prompt"), ("num_output_tokens", "an answer")):
        tokens = getattr(trace, name)
        _refuse(tokens < 1, f"{what} needs at least one token", "drop or mend the source row")
        _refuse(tokens > _MOST_TOKENS, f"{what} of more than {_MOST_TOKENS} tokens", "mend the source row")
    _refuse((trace.think_ns < 0) | (trace.think_ns > _MOST_NS), "think time out of range", "use 0 or more ns")
    for name in ("cancel_after_ns", "cancel_after_tokens", "session"):
        _refuse(getattr(trace, name) < NONE, f"{name} below -1", "use -1 for none")


def _check_links(trace: Trace) -> None:
    rows = np.arange(len(trace))
    _refuse(trace.parent >= rows, "its parent does not stand before it", "order rows parents first")
    _refuse(trace.parent < NONE, "unknown parent", "use -1 for none")
    _refuse((trace.starts < 0) | (trace.starts > 2), "unknown start rule", "use arrival, fork or think")
    _refuse((trace.inherited_tokens < 0) | (trace.inherited_tokens > trace.num_prompt_tokens),
            "inherits more tokens than its prompt has, or fewer than none",
            "inherited tokens are the leading part of the prompt")  # fmt: skip
    _refuse((trace.inherited_tokens > 0) & (trace.parent < 0), "inherits tokens from nobody", "name its parent")
    _refuse((trace.starts == STARTS["fork"]) & (trace.parent < 0), "forks from nobody", "name its parent")
    _refuse((trace.starts == STARTS["think"]) & (trace.after.lengths == 0), "waits for nobody",
            "name the rows that it starts after")  # fmt: skip
    waiting = np.repeat(rows, trace.after.lengths)
    wrong = (trace.after.values < 0) | (trace.after.values >= waiting)
    bad = np.bincount(waiting[wrong], minlength=len(rows)) > 0
    _refuse(bad, "starts after a row that does not stand before it",
            "order rows by cause")  # fmt: skip


def _check_prefix_ids(trace: Trace) -> None:
    per, rule = trace.meta.tokens_per_id, trace.meta.tail_rule
    if rule not in TAIL_RULES or not 0 <= per <= _MOST_TOKENS:
        raise TraceError(f"tail rule {rule!r} with {per} tokens an id; known rules: {', '.join(TAIL_RULES)}")
    if not len(trace.prefix_ids.values):
        return
    if per < 1:
        raise TraceError("prefix ids need tokens_per_id >= 1: how many tokens one id stands for")
    most = (trace.num_prompt_tokens + (per - 1 if rule == "ceil" else 0)) // per
    _refuse(trace.prefix_ids.lengths > most, f"has more prefix ids than its prompt holds at {per} tokens an id",
            "check tokens_per_id and the tail rule")  # fmt: skip


def write_whole(path: Path, write: Callable[[Path], object], durable: bool = True) -> None:
    """Call `write(temporary_path)`, which fills that file, then rename: the file is there whole or not at all.

    `durable` False: the disk is not waited for, and a power cut may leave it empty, or its forerunner.
    """
    try:
        handle, name = _temporary(path)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        write(Path(name))
        if durable:
            os.fsync(handle)
        os.fchmod(handle, 0o644)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)  # what the user asked for, not the temporary name
        raise
    finally:
        os.close(handle)


def _temporary(path: Path) -> tuple[int, str]:
    """An empty file beside `path`, whose folder is made where it is not there: most often it is."""
    try:
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")


_META = b"kvknee.trace"  # key of the description in the parquet file's metadata
_RAGGED = ("after", "prefix_ids")
_REMEDY = "make it anew with `kvknee trace import`"


def _checksum(trace: Trace) -> int:
    """Of all that the trace hash covers. Pages of the file carry their own; this one also covers its footer."""
    found = zlib.crc32(f"{trace.meta.tokens_per_id}:{trace.meta.tail_rule}".encode())
    ragged = (array for name in _RAGGED for array in (getattr(trace, name).offsets, getattr(trace, name).values))
    for array in (*(getattr(trace, name) for name in COLUMNS), *ragged):
        found = zlib.crc32(np.ascontiguousarray(array, "<i8").tobytes(), found)
    return found


def save_trace(trace: Trace, path: Path) -> None:
    """Write the trace as parquet, whole or not at all."""
    columns = {name: pa.array(getattr(trace, name)) for name in COLUMNS}
    for name in _RAGGED:
        ragged: Ragged = getattr(trace, name)
        columns[name] = pa.LargeListArray.from_arrays(pa.array(ragged.offsets), pa.array(ragged.values))
    about = {**asdict(trace.meta), "checksum": _checksum(trace)}
    table = pa.table(columns).replace_schema_metadata({_META: json.dumps(about)})
    write_whole(
        path, lambda temporary: pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
    )


def _read_table(path: Path, max_bytes: int) -> pa.Table:
    """The columns of a trace, nothing else of the file. What the footer announces is bounded before it is read."""
    try:
        unpacked = unpacked_bytes(path)
        if unpacked > max_bytes:
            raise TraceError(f"{path}: {unpacked} bytes unpacked, more than the limit of {max_bytes}")
        file = pq.ParquetFile(path, page_checksum_verification=True)
        missing = [c for c in (*COLUMNS, *_RAGGED) if c not in file.schema_arrow.names]
        if missing:
            raise TraceError(f"{path}: not a trace of kvknee, columns missing: {', '.join(missing)}; {_REMEDY}")
        return file.read(columns=[*COLUMNS, *_RAGGED])
    except FileNotFoundError:
        raise TraceError(f"{path}: no such trace; make one with `kvknee trace import`") from None
    except IsADirectoryError:
        raise TraceError(folder_words(path, "a trace (parquet)", ".parquet")) from None
    except (OSError, pa.ArrowException, UnicodeDecodeError, FooterError) as error:
        raise TraceError(f"{path}: not a whole trace file (parquet): {str(error)[:200]}; {_REMEDY}") from None


def _one_array(column: pa.ChunkedArray, kind: pa.DataType, where: str) -> pa.Array:
    if column.type != kind:
        raise TraceError(f"{where}: {kind} is needed, found {column.type}; {_REMEDY}")
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], kind)
    if array.null_count:
        raise TraceError(f"{where}: {array.null_count} rows have no value; {_REMEDY}")
    return array


def _ragged(column: pa.ChunkedArray, where: str) -> Ragged:
    array = _one_array(column, pa.large_list(pa.int64()), where)
    values = array.flatten()
    if values.null_count:
        raise TraceError(f"{where}: {values.null_count} entries have no value; {_REMEDY}")
    offsets = np.asarray(array.offsets, np.int64)
    return Ragged(offsets - offsets[0], np.asarray(values, np.int64))


def _meta(table: pa.Table, path: Path) -> tuple[TraceMeta, int]:
    """The description of the trace, and the checksum of what it should hold."""
    try:
        found = json.loads((table.schema.metadata or {})[_META])
        checksum = found.pop("checksum")
        lists = {name: tuple(str(x) for x in found[name]) for name in ("synthetic", "notes")}
        meta = TraceMeta(**{**found, **lists})
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise TraceError(f"{path}: its description is missing or damaged; {_REMEDY}") from None
    texts = (meta.tail_rule, meta.name, meta.source)
    if type(meta.tokens_per_id) is not int or not all(isinstance(t, str) for t in texts):
        raise TraceError(f"{path}: its description is damaged; {_REMEDY}")
    return meta, checksum


def load_trace(path: Path, max_bytes: int = _MAX_BYTES) -> Trace:
    """Read and validate a trace file. TraceError where it is absent, truncated, damaged or of another kind."""
    table = _read_table(path, max_bytes)
    columns = {n: np.asarray(_one_array(table[n], pa.int64(), f"{path}: column {n}"), np.int64) for n in COLUMNS}
    after, prefix_ids = (_ragged(table[name], f"{path}: column {name}") for name in _RAGGED)
    meta, checksum = _meta(table, path)
    trace = Trace(**columns, after=after, prefix_ids=prefix_ids, meta=meta)
    try:
        validate(trace)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    if _checksum(trace) != checksum:
        raise TraceError(f"{path}: its content is not what was written; {_REMEDY}")
    return trace
