"""What every reader shares: text read strictly, and rows that keep the line they came from until all is checked.

Nothing is clipped or reordered. Rows with 0 output tokens are recorded failures: they are left out, counted and
listed in the notes. Anything else that is not a request is refused with file, line (from 1) and reason.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trials.fingerprint import digest
from trials.trace import Ints, Ragged, Trace, TraceError, TraceMeta, make_trace
from trials.units import shown

_MOST_BYTES = 4 << 30  # of one source file
_LONGEST_NS = 70 * 365 * 86_400 * 10**9
_MOST_DIGITS = 19  # of an integer: ns since 1970 take 19
_MOST_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True)
class Source:
    """One text file: lines without their ends, trailing empty lines left out."""

    path: Path
    lines: list[str]
    sha256: str
    unread: dict[str, None] = field(default_factory=dict)  # columns that the reader does not know, in order met

    def bad(self, line: int, reason: str) -> TraceError:
        """The refusal of a line, which counts from 1."""
        return TraceError(f"{self.path}, line {line}: {reason}")


@dataclass(frozen=True, slots=True)
class Row:
    """One request as its source has it; `stamp_ns` None where the source knows no arrivals."""

    line: int
    stamp_ns: int | None
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_ids: Sequence[int] = ()


def read_source(path: Path) -> Source:
    """TraceError where the file is absent, empty, binary or not UTF-8."""
    try:
        if path.exists() and not path.is_file():
            raise TraceError(f"{path}: not a regular file; name the trace file itself")
        if path.stat().st_size > _MOST_BYTES:
            raise TraceError(f"{path}: larger than {_MOST_BYTES} bytes; split it and name the parts in order")
        data = path.read_bytes()
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if b"\0" in data:
        raise TraceError(f"{path}: binary, not text; unpack it first, or check the format")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text (byte {error.start}); unpack or recode it first") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise TraceError(f"{path}: empty; a trace needs at least one request")
    return Source(path, lines, digest(data))


def json_object(source: Source, line: int) -> dict[str, object]:
    """The JSON object on a line (from 1)."""
    try:
        found = json.loads(source.lines[line - 1])
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", "too deep or too long a number")
        raise source.bad(line, f"not a JSON object: {why}; is the file cut short?") from None
    if not isinstance(found, dict):
        raise source.bad(line, f"a JSON object is needed, found {shown(found)}")
    return found


def whole(source: Source, line: int, name: str, value: object) -> int:
    """A whole number, from JSON or from text; fractions, texts, true and absent values are refused."""
    if type(value) is int and abs(value) < 10**_MOST_DIGITS:
        return value
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS:
            return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    raise source.bad(line, f"{name} is {shown(value)}: a whole number of at most {_MOST_DIGITS} digits is needed")


@dataclass(slots=True)
class _Collected:
    """Columns as they grow, over all files."""

    stamps: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    prefix_ids: list[Sequence[int]] = field(default_factory=list)
    timed: bool | None = None  # None: no row yet
    first_stamp_ns: int = 0
    last_stamp_ns: int = 0

    def add(self, source: Source, row: Row) -> bool:
        """Check and keep a row; False where it is a recorded failure."""
        if row.num_prompt_tokens < 1 or row.num_output_tokens < 0:
            raise source.bad(row.line, f"{row.num_prompt_tokens} prompt and {row.num_output_tokens} output tokens: "
                             "a prompt has at least one, an output cannot be negative")  # fmt: skip
        if max(row.num_prompt_tokens, row.num_output_tokens) > _MOST_TOKENS:
            raise source.bad(row.line, f"a length of more than {_MOST_TOKENS} tokens; are the columns in order?")
        self._check_stamp(source, row)
        if row.num_output_tokens == 0:
            return False
        self.stamps.append(row.stamp_ns or 0)
        self.prompts.append(row.num_prompt_tokens)
        self.outputs.append(row.num_output_tokens)
        self.prefix_ids.append(row.prefix_ids)
        return True

    def _check_stamp(self, source: Source, row: Row) -> None:
        """Arrivals in all rows or in none, and none before the one in front of it."""
        if self.timed is None:
            self.timed, self.first_stamp_ns = row.stamp_ns is not None, row.stamp_ns or 0
            self.last_stamp_ns = self.first_stamp_ns
        if self.timed != (row.stamp_ns is not None):
            raise source.bad(row.line, "some rows have an arrival and some have none; give all or none")
        stamp = row.stamp_ns or 0
        if stamp < self.last_stamp_ns:
            late = self.last_stamp_ns - stamp
            raise source.bad(row.line, f"arrives {late} ns before the row in front of it; sort the source by time")
        if stamp - self.first_stamp_ns > _LONGEST_NS:
            raise source.bad(row.line, "arrives over 70 years after the first row; are the stamps in another unit?")
        self.last_stamp_ns = stamp


def collect(paths: Sequence[Path], rows_of: Callable[[Source], Iterator[Row]], meta: TraceMeta) -> Trace:
    """One trace from files in the given order; times in ns from the first row of the first file.

    `meta` gives tokens_per_id, tail rule, notes, and as `source` the format's name.
    """
    if not paths:
        raise TraceError("no file named; name at least one")
    kept, notes, sources = _Collected(), list(meta.notes), []
    for path in paths:
        source = read_source(path)
        failed = [row.line for row in rows_of(source) if not kept.add(source, row)]
        sources.append(f"{path.name} sha256:{source.sha256}")
        if failed:
            s = "s" if len(failed) > 1 else ""
            notes.append(f"{path.name}: {len(failed)} row{s} with 0 output tokens left out, as recorded failures: "
                         f"line{s} {ranges(failed)}")  # fmt: skip
        if source.unread:
            notes.append(f"{path.name}: not read: {', '.join(name[:40] for name in list(source.unread)[:20])}")
    if not kept.prompts:
        raise TraceError(f"{paths[0]}: no request in it: no row has an output token")
    arrival, synthetic = _arrivals(kept, notes)
    return make_trace(
        arrival,
        np.array(kept.prompts, np.int64),
        np.array(kept.outputs, np.int64),
        Ragged.of([list(ids) for ids in kept.prefix_ids]) if any(kept.prefix_ids) else None,
        TraceMeta(
            tokens_per_id=meta.tokens_per_id, tail_rule=meta.tail_rule, synthetic=synthetic, name=paths[0].stem,
            source=f"{meta.source}: {', '.join(sources)}", notes=tuple(notes),
        ),
    )  # fmt: skip


def _arrivals(kept: _Collected, notes: list[str]) -> tuple[Ints, tuple[str, ...]]:
    """Arrival column in ns, and the columns that were not observed; what a user must know goes to `notes`."""
    if not kept.timed:
        notes.append("the source has no arrivals: every row arrives at 0, so only a closed load (concurrency) fits")
        return np.zeros(len(kept.stamps), np.int64), ("arrival_ns",)
    if kept.first_stamp_ns:
        notes.append(f"times count from the first row, which stands at {kept.first_stamp_ns} ns in the source")
    arrival = np.array([stamp - kept.first_stamp_ns for stamp in kept.stamps], np.int64)
    distinct = np.unique(arrival)
    if len(distinct) > 1 and 2 * len(distinct) <= len(arrival):
        gap = float(np.median(np.diff(distinct))) / 1e9
        notes.append(f"arrivals are quantised: {len(arrival)} rows on {len(distinct)} stamps, {gap:g} s apart "
                     f"(median); `--spread {gap:g}s --seed S` spreads them")  # fmt: skip
    return arrival, ()


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as `3, 7-9`."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in parts)
