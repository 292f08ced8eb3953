"""BurstGPT traces (HPMLL/BurstGPT): arrivals with bursts and failures, lengths, in one file sessions; no prefixes.

CSV `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`; newer files put `Session ID,Elapsed
time` behind the stamp: columns are found by name. Stamps are seconds from the first midnight, whole in older
files, so that rows tie. Rows with 0 response tokens are failures.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from trials.formats.fields import csv_records, need, time_ns, whole
from trials.formats.links import Link
from trials.formats.rows import Row, Source, collect, noted
from trials.trace import Trace, TraceMeta

_NEEDED = ("Timestamp", "Request tokens", "Response tokens")
_KNOWN = {*_NEEDED, "Total tokens", "Session ID", "Elapsed time"}
_SESSIONS = (
    "turns of a session follow one another; what their prompts have in common is not in the source, so they share "
    "nothing"
)
_NO_END = "think time is the gap between arrivals: without Elapsed time it holds the answer's own time too"


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason."""
    reader = _Reader()
    trace = collect(paths, reader.rows, TraceMeta(source="burstgpt"))
    return noted(trace, _SESSIONS if reader.last else "", _NO_END if reader.last and not reader.timed else "")


class _Reader:
    """Counts rows and remembers the last of each session, over all files."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, int]] = {}  # session -> (row number, when it ended)
        self.timed = False
        self._sessions: dict[str, int] = {}
        self._number = 0

    def rows(self, source: Source) -> Iterator[Row]:
        for line, found in csv_records(source, lambda header: _check(source, header)):
            stamp = time_ns(source, line, "Timestamp", found["Timestamp"])
            yield Row(
                line,
                stamp,
                whole(source, line, "Request tokens", found["Request tokens"]),
                whole(source, line, "Response tokens", found["Response tokens"]),
                link=self._link(source, line, stamp, found),
            )
            self._number += 1

    def _link(self, source: Source, line: int, stamp: int, found: dict[str, str]) -> Link | None:
        name = found.get("Session ID", "").strip()
        if not name:
            return None
        elapsed = found.get("Elapsed time", "").strip()
        took = time_ns(source, line, "Elapsed time", elapsed) if elapsed else 0
        self.timed |= bool(elapsed)
        session = self._sessions.setdefault(name, len(self._sessions))
        before = self.last.get(name)
        self.last[name] = self._number, stamp + max(took, 0)
        if before is None:
            return Link(session)
        return Link(session, after=(before[0],), think_ns=max(stamp - before[1], 0))


def _check(source: Source, header: list[str]) -> None:
    need(source, 1, dict.fromkeys(header), *_NEEDED)
    source.unread.update(dict.fromkeys(name for name in header if name not in _KNOWN))
