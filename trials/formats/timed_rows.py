"""Reads Mooncake-like rows of other tools: the unit of stamps is theirs, the size of an id follows from lengths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trials.formats.fields import ids_of, json_object, need, time_ns, whole
from trials.formats.hashed import KEYS, tokens_an_id
from trials.formats.links import Link
from trials.formats.rows import Row, Source, collect, noted
from trials.trace import Trace, TraceError, TraceMeta, validate
from trials.units import shown

_MOST_PER_ID = 1 << 31  # until it is known


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a tool writes its rows."""

    name: str
    unit_ns: int
    usual_tokens_per_id: int
    refused: tuple[str, ...] = ()  # keys of rows that have no token counts


def read_rows(paths: Sequence[Path], dialect: Dialect) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason. `hash_ids` stand in all rows or in none."""
    reader = _Reader(dialect)
    trace = collect(paths, reader.rows, TraceMeta(tokens_per_id=1, tail_rule="ceil", source=dialect.name))
    if not reader.counts:
        return replace(trace, meta=replace(trace.meta, tokens_per_id=0))
    per = tokens_an_id(np.array(reader.prompts), np.array(reader.counts), dialect.usual_tokens_per_id)
    if per is None:
        raise TraceError(f"{paths[0]}: how many tokens an id has cannot be told from the lengths: no size fits all "
                         "rows, or several do; write it as mooncake rows of 512")  # fmt: skip
    sized = replace(trace, meta=replace(trace.meta, tokens_per_id=per))
    validate(sized)
    return noted(sized, f"an id has {per} tokens, as the lengths tell")


class _Reader:
    """Lengths and counts of ids, over all files."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.prompts: list[int] = []
        self.counts: list[int] = []
        self._with_ids: bool | None = None

    def rows(self, source: Source) -> Iterator[Row]:
        dialect = self._dialect
        for line in range(1, len(source.lines) + 1):
            found = json_object(source, line, exact=True)
            odd = [key for key in dialect.refused if key in found]
            if odd:
                raise source.bad(line, f"{odd[0]} has no token counts: rows with input_length are read")
            need(source, line, found, "timestamp", "input_length", "output_length")
            source.unread.update(dict.fromkeys(key for key in found if key not in (*KEYS, "extra")))
            prompt = whole(source, line, "input_length", found["input_length"])
            yield Row(
                line,
                time_ns(source, line, "timestamp", found["timestamp"], dialect.unit_ns),
                prompt,
                whole(source, line, "output_length", found["output_length"]),
                self._ids(source, line, prompt, found.get("hash_ids")),
                _priority(source, line, found.get("extra")),
            )

    def _ids(self, source: Source, line: int, prompt: int, listed: object) -> list[int]:
        if self._with_ids is None:
            self._with_ids = listed is not None
        if self._with_ids != (listed is not None):
            raise source.bad(line, "some rows have hash_ids and some have none; give all or none")
        if listed is None:
            return []
        found = ids_of(source, line, listed)
        if not 0 < len(found) <= max(prompt, 1):
            raise source.bad(line, f"{len(found)} hash_ids for {prompt} input tokens")
        self.prompts.append(prompt)
        self.counts.append(len(found))
        return found


def _priority(source: Source, line: int, extra: object) -> Link | None:
    """Of a row that carries one for the server."""
    if extra is None:
        return None
    if not isinstance(extra, dict):
        raise source.bad(line, f"extra is {shown(extra)}: an object is needed")
    source.unread.update(dict.fromkeys(f"extra.{key}" for key in extra if key != "priority"))
    if "priority" not in extra:
        return None
    return Link(priority=whole(source, line, "priority", extra["priority"]))
