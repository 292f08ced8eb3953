"""Azure LLM inference traces of 2023 and 2024 (Azure/AzurePublicDataset): arrivals and lengths, no prefixes.

CSV `TIMESTAMP,ContextTokens,GeneratedTokens`. Stamps `YYYY-MM-DD HH:MM:SS.fffffff` carry 100 ns ticks, which fit
neither strptime nor a float: they are read as integers. Lines end in CRLF, the last one in nothing.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path

from trials.formats.rows import Row, Source, collect, whole
from trials.trace import Trace, TraceMeta

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_DAY_NS = 86_400 * 10**9
_STAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(?:\+00:00|Z)?"
)


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason."""
    return collect(paths, _rows, TraceMeta(source="azure"))


def _rows(source: Source) -> Iterator[Row]:
    if source.lines[0].strip() != HEADER:
        raise source.bad(1, f"the header must be {HEADER}; found {source.lines[0][:80]!r}")
    for line, text in enumerate(source.lines[1:], start=2):
        cells = text.split(",")
        if len(cells) != 3:
            raise source.bad(line, f"{len(cells)} columns instead of 3; is the file cut short?")
        stamp, prompt, output = cells
        yield Row(
            line,
            _stamp_ns(source, line, stamp),
            whole(source, line, "ContextTokens", prompt),
            whole(source, line, "GeneratedTokens", output),
        )


@cache
def _day_ns(text: str) -> int:
    """Midnight of `YYYY-MM-DD` as ns since the year 1970; ValueError where there is no such day."""
    return (date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()) * _DAY_NS


def _stamp_ns(source: Source, line: int, text: str) -> int:
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        raise source.bad(line, f"TIMESTAMP {text[:60]!r} is not like 2023-11-16 18:00:00.1234500 (UTC)")
    day, hours, minutes, seconds, fraction = match.groups()
    if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
        raise source.bad(line, f"TIMESTAMP {text!r}: there is no such time of day")
    try:
        midnight = _day_ns(day)
    except ValueError:
        raise source.bad(line, f"TIMESTAMP {text!r}: there is no such day") from None
    whole_s = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return midnight + whole_s * 10**9 + int((fraction or "").ljust(9, "0"))
