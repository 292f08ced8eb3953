"""What every reader shares: text read strictly, and rows that keep the place they came from until all is checked.

Nothing is clipped. Rows are reordered only where a format keeps one session behind the other. Rows with 0 output
tokens are recorded failures: they are left out, counted and listed in the notes. Anything else that is not a
request is refused with file, line (from 1) and reason.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trials.fingerprint import digest
from trials.formats.fields import json_object as json_object
from trials.formats.fields import whole as whole
from trials.formats.links import Link, with_sessions
from trials.formats.source import Source as Source
from trials.trace import Ragged, Trace, TraceError, TraceMeta, make_trace
from trials.units import folder_words

_MOST_BYTES = 4 << 30  # of one source file
_LONGEST_NS = 70 * 365 * 86_400 * 10**9
_MOST_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True)
class Row:
    """One request as its source has it; `stamp_ns` None where the source knows no arrivals.

    Rows are numbered from 0 over all files as they are yielded; a link names others by that number.
    """

    line: int
    stamp_ns: int | None
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_ids: Sequence[int] = ()
    link: Link | None = None
    failed: bool = False  # the source says so by other means than 0 output tokens


def read_source(path: Path, unit: str = "line") -> Source:
    """TraceError where the file is absent, empty, binary or not UTF-8."""
    try:
        if path.is_dir():
            raise TraceError(folder_words(path, "a trace file of another tool"))
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
    return Source(path, lines, digest(data), unit=unit)


@dataclass(slots=True)
class _Collected:
    """Columns as they grow, over all files."""

    ordered: bool
    stamps: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    prefix_ids: list[Sequence[int]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    links: list[Link | None] = field(default_factory=list)  # of all rows, failures included
    timed: bool | None = None  # None: no row yet
    first_stamp_ns: int = 0
    last_stamp_ns: int = 0

    def add(self, source: Source, row: Row) -> bool:
        """Check and keep a row; False where it is a recorded failure."""
        failed = row.failed or row.num_output_tokens == 0
        if row.num_prompt_tokens < (0 if failed else 1) or row.num_output_tokens < 0:
            raise source.bad(row.line, f"{row.num_prompt_tokens} prompt and {row.num_output_tokens} output tokens: "
                             "a prompt has at least one, an output cannot be negative")  # fmt: skip
        if max(row.num_prompt_tokens, row.num_output_tokens) > _MOST_TOKENS:
            raise source.bad(row.line, f"a length of more than {_MOST_TOKENS} tokens; are the columns in order?")
        self._check_stamp(source, row)
        self.links.append(row.link)
        if failed:
            return False
        self.numbers.append(len(self.links) - 1)
        self.stamps.append(row.stamp_ns or 0)
        self.prompts.append(row.num_prompt_tokens)
        self.outputs.append(row.num_output_tokens)
        self.prefix_ids.append(row.prefix_ids)
        return True

    def _check_stamp(self, source: Source, row: Row) -> None:
        """Arrivals in all rows or in none; where rows must be in order, none before the one in front of it."""
        stamp = row.stamp_ns or 0
        if self.timed is None:
            self.timed, self.first_stamp_ns, self.last_stamp_ns = row.stamp_ns is not None, stamp, stamp
        if self.timed != (row.stamp_ns is not None):
            raise source.bad(row.line, "some rows have an arrival and some have none; give all or none")
        if self.ordered and stamp < self.last_stamp_ns:
            late = self.last_stamp_ns - stamp
            raise source.bad(row.line, f"arrives {late} ns before the row in front of it; sort the source by time")
        self.first_stamp_ns = min(self.first_stamp_ns, stamp)
        self.last_stamp_ns = max(self.last_stamp_ns, stamp)
        if self.last_stamp_ns - self.first_stamp_ns > _LONGEST_NS:
            raise source.bad(row.line, "arrives over 70 years after the first row; are the stamps in another unit?")

    def trace(self, meta: TraceMeta) -> Trace:
        """What was kept, in order of time; rows of one stamp as they were read."""
        order = np.argsort(np.array(self.stamps, np.int64), kind="stable")
        rows = order.tolist()
        trace = make_trace(
            np.array(self.stamps, np.int64)[order] - (self.first_stamp_ns if self.timed else 0),
            np.array(self.prompts, np.int64)[order],
            np.array(self.outputs, np.int64)[order],
            Ragged.of([list(self.prefix_ids[k]) for k in rows]) if any(self.prefix_ids) else None,
            meta,
        )
        if not any(self.links):
            return trace
        return with_sessions(trace, self.links, [self.numbers[k] for k in rows])


def collect(
    paths: Sequence[Path],
    rows_of: Callable[[Source], Iterator[Row]],
    meta: TraceMeta,
    unit: str = "line",
    ordered: bool = True,
) -> Trace:
    """One trace from files in the given order; times in ns from the first row.

    `meta` gives tokens_per_id, tail rule, notes, columns that were not observed, and as `source` the format's
    name. `ordered`: rows stand in order of time over all files; else they are put so.
    """
    if not paths:
        raise TraceError("no file named; name at least one")
    kept, notes, sources = _Collected(ordered), list(meta.notes), []
    for path in paths:
        source = read_source(path, unit)
        failed: dict[str, list[int]] = {"with 0 output tokens": [], "whose status is an error": []}
        for row in rows_of(source):
            if not kept.add(source, row):
                failed["whose status is an error" if row.num_output_tokens else "with 0 output tokens"].append(
                    row.line
                )
        sources.append(f"{path.name} sha256:{source.sha256}")
        notes += [_left_out(path.name, places, what, unit) for what, places in failed.items() if places]
        if source.unread:
            notes.append(f"{path.name}: not read: {', '.join(name[:40] for name in list(source.unread)[:20])}")
    if not kept.prompts:
        raise TraceError(f"{paths[0]}: no request in it: no row has an output token")
    synthetic = _describe_arrivals(kept, notes)
    about = TraceMeta(
        tokens_per_id=meta.tokens_per_id, tail_rule=meta.tail_rule,
        synthetic=tuple(dict.fromkeys((*synthetic, *meta.synthetic))), name=paths[0].stem,
        source=f"{meta.source}: {', '.join(sources)}", notes=tuple(notes),
    )  # fmt: skip
    return kept.trace(about)


def _left_out(name: str, places: Sequence[int], what: str, unit: str) -> str:
    s = "s" if len(places) > 1 else ""
    return f"{name}: {len(places)} row{s} {what} left out, as recorded failures: {unit}{s} {ranges(sorted(places))}"


def _describe_arrivals(kept: _Collected, notes: list[str]) -> tuple[str, ...]:
    """The columns that were not observed; what a user must know of arrivals goes to `notes`."""
    if not kept.timed:
        notes.append("the source has no arrivals: every row arrives at 0, so only a closed load (concurrency) fits")
        return ("arrival_ns",)
    if kept.first_stamp_ns:
        notes.append(f"times count from the first row, which stands at {kept.first_stamp_ns} ns in the source")
    distinct = np.unique(np.array(kept.stamps, np.int64))
    if len(distinct) > 1 and 2 * len(distinct) <= len(kept.stamps) and not any(kept.links):
        gap = float(np.median(np.diff(distinct))) / 1e9
        notes.append(f"arrivals are quantised: {len(kept.stamps)} rows on {len(distinct)} stamps, {gap:g} s apart "
                     f"(median); `--spread {gap:g}s --seed S` spreads them")  # fmt: skip
    return ()


def noted(trace: Trace, *notes: str) -> Trace:
    """The trace with more notes; empty ones are left out."""
    return replace(trace, meta=replace(trace.meta, notes=(*trace.meta.notes, *(note for note in notes if note))))


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as `3, 7-9`."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in parts)
