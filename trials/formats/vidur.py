"""vidur's processed traces (microsoft/vidur): lengths, with or without arrivals, no prefixes.

CSV `arrived_at,num_prefill_tokens,num_decode_tokens`, arrivals in seconds from 0. Files without `arrived_at` carry
lengths alone, for closed loads; their other columns follow from the lengths and are not read.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from trials.formats.fields import csv_records, need, time_ns, whole
from trials.formats.rows import Row, Source, collect
from trials.trace import Trace, TraceMeta

_LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
_DERIVED = {"num_total_tokens", "pd_ratio"}


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason."""
    return collect(paths, _rows, TraceMeta(source="vidur"))


def _rows(source: Source) -> Iterator[Row]:
    for line, found in csv_records(source, lambda header: _check(source, header)):
        yield Row(
            line,
            time_ns(source, line, "arrived_at", found["arrived_at"]) if "arrived_at" in found else None,
            whole(source, line, "num_prefill_tokens", found["num_prefill_tokens"]),
            whole(source, line, "num_decode_tokens", found["num_decode_tokens"]),
        )


def _check(source: Source, header: list[str]) -> None:
    need(source, 1, dict.fromkeys(header), *_LENGTHS)
    source.unread.update(dict.fromkeys(n for n in header if n not in {*_LENGTHS, *_DERIVED, "arrived_at"}))
