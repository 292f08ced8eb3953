"""BLIS traces, versions 2 and 3 (inference-sim/inference-sim): arrivals, sessions, shared prefixes, deadlines.

A YAML header and a CSV, named in this order; a CSV alone is read as one without a header would be. Columns are
found by name. As BLIS replays them: `input_tokens` does not count the shared `prefix_length` of a `prefix_group`;
`server_input_tokens` goes before it where there is no prefix; under `session_context_growth: accumulate` it is what
a round adds to the prompt and answer before it, and `input_tokens_reset` is the whole prompt after a compaction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trials.documents import parse_yaml
from trials.formats.fields import csv_records, need, time_ns, whole
from trials.formats.links import Link
from trials.formats.rows import Row, Source, collect, noted
from trials.trace import Trace, TraceError, TraceMeta
from trials.units import SpecError, shown

_NEEDED = ("arrival_time_us", "input_tokens", "output_tokens")
_READ = {
    *_NEEDED, "request_id", "session_id", "round_index", "prefix_group", "prefix_length", "server_input_tokens",
    "deadline_us", "status", "input_tokens_reset", "think_time_us", "last_chunk_time_us", "vllm_priority",
}  # fmt: skip
_TIMES = {"send_time_us", "first_chunk_time_us", "num_chunks", "error_message", "finish_reason", "streaming"}
_FAILED = {"error", "incomplete"}


def read(paths: Sequence[Path]) -> Trace:
    """Header and rows -> Trace in order of time; TraceError names file, line and reason."""
    reader = _Reader()
    trace = collect(paths, reader.rows, TraceMeta(source="blis"), ordered=False)
    return noted(trace, *reader.notes())


@dataclass(frozen=True, slots=True)
class _Round:
    """The last round of a session: row number, tokens that it leaves behind, when it was asked for and answered."""

    number: int
    session: int
    index: int
    context_tokens: int
    asked_ns: int
    ended_ns: int  # -1: not recorded


class _Reader:
    """Numbers rows; remembers the header, the last round of each session and the first row of each prefix."""

    def __init__(self) -> None:
        self._accumulates = self._headed = False
        self._rounds: dict[str, _Round] = {}
        self._prefixes: dict[str, tuple[int, int]] = {}  # group -> (row number of its first row, tokens)
        self._number = self._timeouts = self._deadlines = self._gaps = 0

    def notes(self) -> Iterator[str]:
        if not self._headed:
            yield "read without a header: rounds of a session are taken to carry their whole prompt"
        if self._timeouts:
            yield f"rows that timed out: {self._timeouts}, each cancelled at its deadline"
        if self._deadlines:
            yield f"rows that met their deadline: {self._deadlines}; it is no cancel and is not kept"
        if self._gaps:
            yield f"think times that are gaps between arrivals: {self._gaps}; each holds the answer's own time too"

    def rows(self, source: Source) -> Iterator[Row]:
        if not {"input_tokens", "output_tokens"} <= set(source.lines[0].split(",")) and ":" in source.lines[0]:
            self._read_header(source)
            return
        records = []
        for line, found in csv_records(source, lambda header: _check(source, header)):
            stamp = time_ns(source, line, "arrival_time_us", found["arrival_time_us"], 1_000)
            records.append((stamp, line, found))
        for stamp, line, found in sorted(records, key=lambda record: record[:2]):
            yield self._row(source, line, stamp, found)
            self._number += 1

    def _read_header(self, source: Source) -> None:
        try:
            header = parse_yaml("\n".join(source.lines), str(source.path))
        except SpecError as error:
            raise TraceError(f"{source.path}, line 1: no header and no rows of BLIS: {error}") from None
        version, unit = header.get("trace_version"), header.get("time_unit", "us")
        if version not in (2, 3) or unit not in ("us", "microseconds"):
            raise source.bad(
                1, f"trace_version {shown(version)} with time_unit {shown(unit)}: 2 or 3 in us are read"
            )
        growth = header.get("session_context_growth") or ""
        if growth not in ("", "accumulate"):
            raise source.bad(1, f"session_context_growth {shown(growth)}: accumulate is read, or none")
        self._accumulates, self._headed = growth == "accumulate", True

    def _row(self, source: Source, line: int, stamp: int, found: Mapping[str, str]) -> Row:
        output = whole(source, line, "output_tokens", found["output_tokens"])
        prefix = self._prefix(source, line, found)
        before = self._before(source, line, found)
        grown = before is not None and self._accumulates
        reset = found.get("input_tokens_reset", "").strip()
        if reset:
            prompt, grown = whole(source, line, "input_tokens_reset", reset), False
        else:
            prompt = self._own_tokens(source, line, found)
            prompt += before.context_tokens if before is not None and grown else prefix
        parent, inherited = (
            (before.number, before.context_tokens) if before and grown else self._opening(found, prefix)
        )
        link = Link(
            session=-1 if not found.get("session_id") else self._session(found["session_id"], before),
            parent=parent,
            inherited_tokens=inherited,
            after=(before.number,) if before is not None else (),
            think_ns=self._think(source, line, found, stamp, before),
            priority=_number(source, line, found, "vllm_priority"),
            cancel_after_ns=self._cancel(source, line, found, stamp),
        )
        self._remember(source, line, found, link, (stamp, prompt + output))
        return Row(line, stamp, prompt, output, link=link, failed=found.get("status", "") in _FAILED)

    def _own_tokens(self, source: Source, line: int, found: Mapping[str, str]) -> int:
        counted = _number(source, line, found, "server_input_tokens")
        if counted > 0 and not found.get("prefix_group") and not self._accumulates:
            return counted
        return whole(source, line, "input_tokens", found["input_tokens"])

    def _prefix(self, source: Source, line: int, found: Mapping[str, str]) -> int:
        """Tokens that the row shares with its prefix group."""
        group = found.get("prefix_group", "")
        if not group:
            return 0
        length = _number(source, line, found, "prefix_length")
        if length < 0:
            raise source.bad(line, f"prefix_length is {length}: at least 0 is needed")
        return self._prefixes.get(group, (0, length))[1]

    def _opening(self, found: Mapping[str, str], prefix: int) -> tuple[int, int]:
        """(parent, inherited tokens) of a row that opens with its group's prefix: the group's first row has it."""
        group = found.get("prefix_group", "")
        if not group or not prefix:
            return -1, 0
        if group not in self._prefixes:
            self._prefixes[group] = self._number, prefix
            return -1, 0
        return self._prefixes[group]

    def _before(self, source: Source, line: int, found: Mapping[str, str]) -> _Round | None:
        session = found.get("session_id", "")
        if not session:
            return None
        index, before = _number(source, line, found, "round_index"), self._rounds.get(session)
        expected = before.index + 1 if before is not None else 0
        if index != expected:
            raise source.bad(line, f"round_index {index} of session {shown(session)}, where {expected} is due: "
                             "rounds arrive one after the other, and none is missing")  # fmt: skip
        return before

    def _session(self, name: str, before: _Round | None) -> int:
        return before.session if before is not None else len(self._rounds)

    def _think(self, source: Source, line: int, found: Mapping[str, str], stamp: int, before: _Round | None) -> int:
        if before is None:
            return 0
        if found.get("think_time_us", "").strip():
            return max(time_ns(source, line, "think_time_us", found["think_time_us"], 1_000), 0)
        if before.ended_ns >= 0:
            return max(stamp - before.ended_ns, 0)
        self._gaps += 1
        return max(stamp - before.asked_ns, 0)

    def _cancel(self, source: Source, line: int, found: Mapping[str, str], stamp: int) -> int:
        deadline = _number(source, line, found, "deadline_us")
        if deadline <= 0:
            return -1
        if found.get("status") != "timeout":
            self._deadlines += 1
            return -1
        self._timeouts += 1
        return max(deadline * 1_000 - stamp, 0)

    def _remember(
        self, source: Source, line: int, found: Mapping[str, str], link: Link, left: tuple[int, int]
    ) -> None:
        if link.session >= 0:
            stamp, context = left
            last = _number(source, line, found, "last_chunk_time_us")
            index = _number(source, line, found, "round_index")
            ended = last * 1_000 if last > 0 else -1
            self._rounds[found["session_id"]] = _Round(self._number, link.session, index, context, stamp, ended)


def _number(source: Source, line: int, found: Mapping[str, str], name: str) -> int:
    """A whole number; 0 where the column or its value is absent."""
    text = found.get(name, "").strip()
    return whole(source, line, name, text) if text else 0


def _check(source: Source, header: list[str]) -> None:
    need(source, 1, dict.fromkeys(header), *_NEEDED)
    source.unread.update(dict.fromkeys(name for name in header if name not in _READ | _TIMES))
