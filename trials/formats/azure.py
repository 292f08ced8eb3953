"""Azure LLM inference traces of 2023 and 2024 (Azure/AzurePublicDataset): arrivals and lengths, no prefixes.

CSV `TIMESTAMP,ContextTokens,GeneratedTokens`. Stamps `YYYY-MM-DD HH:MM:SS.fffffff` carry 100 ns ticks, which fit
neither strptime nor a float: they are read as integers. Lines end in CRLF, the last one in nothing.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from trials.formats.fields import utc_ns, whole
from trials.formats.rows import Row, Source, collect
from trials.trace import Trace, TraceMeta

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


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
            utc_ns(source, line, "TIMESTAMP", stamp),
            whole(source, line, "ContextTokens", prompt),
            whole(source, line, "GeneratedTokens", output),
        )
