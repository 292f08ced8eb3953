"""Mooncake request traces (kvcache-ai/Mooncake, FAST'25): arrivals, lengths and chained prefix ids.

JSONL `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}`. One id stands for 512 tokens
and is a node under the id in front of it; there are ceil(input_length / 512) of them, so the last one usually
covers a partial block. Stamps are quantised (about 3 s in the published files): see `--spread`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trials.formats.fields import ids_of, json_object, need, whole
from trials.formats.hashed import KEYS as _KEYS
from trials.formats.hashed import ids_at, rows_as_json
from trials.formats.losses import Exported, in_ticks, left_behind, write_text
from trials.formats.rows import Row, Source, collect
from trials.trace import Trace, TraceMeta

TOKENS_PER_ID = 512


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason."""
    return collect(paths, _rows, TraceMeta(tokens_per_id=TOKENS_PER_ID, tail_rule="ceil", source="mooncake"))


def write(trace: Trace, path: Path) -> Exported:
    """Every row with 512-token ids, stamps in whole milliseconds."""
    ids, changed = ids_at(trace, TOKENS_PER_ID)
    ms, moved = in_ticks(trace, 10**6)
    write_text(path, rows_as_json(replace(trace, arrival_ns=ms * 10**6), 10**6, ids))
    return Exported((*moved, *changed, *left_behind(trace)))


def _rows(source: Source) -> Iterator[Row]:
    for line in range(1, len(source.lines) + 1):
        found = json_object(source, line)
        need(source, line, found, *_KEYS)
        if len(found) > len(_KEYS):
            source.unread.update(dict.fromkeys(key for key in found if key not in _KEYS))
        prompt = whole(source, line, "input_length", found["input_length"])
        yield Row(
            line,
            whole(source, line, "timestamp", found["timestamp"]) * 10**6,
            prompt,
            whole(source, line, "output_length", found["output_length"]),
            _prefix_ids(source, line, prompt, found["hash_ids"]),
        )


def _prefix_ids(source: Source, line: int, prompt: int, listed: object) -> list[int]:
    found = ids_of(source, line, listed)
    expected = -(-prompt // TOKENS_PER_ID)
    if len(found) != expected:
        raise source.bad(line, f"{len(found)} hash_ids for {prompt} input tokens: at {TOKENS_PER_ID} tokens an id "
                         f"there must be {expected}; do the hashes have another block size?")  # fmt: skip
    return found
