"""Azure LLM inference traces of 2023 and 2024 (Azure/AzurePublicDataset): arrivals and lengths, no prefixes.

CSV `TIMESTAMP,ContextTokens,GeneratedTokens`. Stamps `YYYY-MM-DD HH:MM:SS.fffffff` carry 100 ns ticks, which fit
neither strptime nor a float: they are read as integers. Lines end in CRLF, the last one in nothing.
"""

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from trials.formats.fields import utc_ns, whole
from trials.formats.losses import Exported, in_ticks, left_behind, without_ids, write_text
from trials.formats.rows import Row, Source, collect
from trials.trace import Trace, TraceMeta

_TICK_NS = 100
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason."""
    return collect(paths, _rows, TraceMeta(source="azure"))


def write(trace: Trace, path: Path) -> Exported:
    """Rows as Azure publishes them: 100 ns ticks, here from 1970; CRLF behind all rows but the last."""
    ticks, moved = in_ticks(trace, _TICK_NS)
    columns = zip(ticks.tolist(), trace.num_prompt_tokens.tolist(), trace.num_output_tokens.tolist(), strict=True)
    lines = [HEADER, *(f"{_stamp(tick)},{prompt},{output}" for tick, prompt, output in columns)]
    write_text(path, ["\r\n".join(lines)], end="")
    return Exported((*moved, *without_ids(trace), *left_behind(trace)))


def _stamp(tick: int) -> str:
    """100 ns ticks since 1970 as a date with 7 digits of a second."""
    seconds, fraction = divmod(tick, 10**9 // _TICK_NS)
    days, second = divmod(seconds, 86_400)
    day = date.fromordinal(date(1970, 1, 1).toordinal() + days)
    return f"{day} {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{fraction:07d}"


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
