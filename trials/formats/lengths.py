"""Plain lists of lengths, JSONL or CSV with a header, with or without arrivals.

Names read: prompt `input_toks` or `num_prompt_tokens`; output `output_toks` or `num_output_tokens`; arrival (ns)
`arrival_time_ns` or `arrival_ns`. The first of each pair is what LLMServingSim writes. Other columns are not read,
and the notes say so. Without arrivals every row arrives at 0, which suits a closed load only.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from trials.formats.fields import csv_records, json_object, whole
from trials.formats.rows import Row, Source, collect
from trials.trace import Trace, TraceMeta

_NAMES = {
    "prompt": ("input_toks", "num_prompt_tokens"),
    "output": ("output_toks", "num_output_tokens"),
    "arrival": ("arrival_time_ns", "arrival_ns"),
}


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason. All rows have arrivals, or none has."""
    return collect(paths, _rows, TraceMeta(source="lengths"))


def _rows(source: Source) -> Iterator[Row]:
    for line, found in _records(source):
        prompt, output, arrival = _columns(source, line, found)
        yield Row(
            line,
            whole(source, line, arrival, found[arrival]) if arrival is not None else None,
            whole(source, line, prompt, found[prompt]),
            whole(source, line, output, found[output]),
        )


def _columns(source: Source, line: int, names: Collection[str]) -> tuple[str, str, str | None]:
    """Which of the names hold prompt, output and arrival (None where there is no arrival)."""
    prompt, output, arrival = (_pick(source, line, what, names) for what in _NAMES)
    if prompt is None or output is None:
        wanted = " or ".join(_NAMES["prompt" if prompt is None else "output"])
        there = ", ".join(name[:40] for name in list(names)[:8]) or "nothing"
        raise source.bad(line, f"{wanted} is needed; found {there}")
    return prompt, output, arrival


def _pick(source: Source, line: int, what: str, found: Collection[str]) -> str | None:
    """The column that holds `what`, or None; two are one too many."""
    names = [name for name in _NAMES[what] if name in found]
    if len(names) > 1:
        raise source.bad(line, f"{' and '.join(names)} both give the {what}; take one out")
    return names[0] if names else None


def _records(source: Source) -> Iterator[tuple[int, Mapping[str, object]]]:
    """(line, record) of either kind; a file whose first row opens with a brace is JSONL."""
    known = {name for names in _NAMES.values() for name in names}
    records = _json_records if source.lines[0].lstrip().startswith("{") else _csv_records
    for line, found in records(source):
        if not known.issuperset(found):
            source.unread.update(dict.fromkeys(key for key in found if key not in known))
        yield line, found


def _json_records(source: Source) -> Iterator[tuple[int, Mapping[str, object]]]:
    for line in range(1, len(source.lines) + 1):
        yield line, json_object(source, line)


def _csv_records(source: Source) -> Iterator[tuple[int, Mapping[str, object]]]:
    yield from csv_records(source, lambda header: _columns(source, 1, header))
