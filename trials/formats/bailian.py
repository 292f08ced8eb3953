"""Qwen-Bailian usage traces (alibaba-edu/qwen-bailian-usagetraces-anon): turns and 16-token prefix ids.

JSONL `{"chat_id", "parent_chat_id" (-1: none), "timestamp" (s), "input_length", "output_length", "type", "turn",
"hash_ids"}`, ceil(input_length / 16) ids a row. The last id of a prompt that does not fill it is hashed with
padding and may change once the answer starts: it is no shared content and is left out here, so that the trace
follows the floor rule.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from trials.formats.fields import ids_of, json_object, need, time_ns, whole
from trials.formats.links import Link
from trials.formats.rows import Row, Source, collect, noted
from trials.trace import Trace, TraceMeta

TOKENS_PER_ID = 16
_KEYS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")
_KNOWN = {*_KEYS, "turn", "type"}
_THINK = "think time is the gap between the arrivals of two turns: it holds the answer's own time too"


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason."""
    reader = _Reader()
    trace = collect(paths, reader.rows, TraceMeta(tokens_per_id=TOKENS_PER_ID, tail_rule="floor", source="bailian"))
    return noted(
        trace,
        f"last ids of partly filled blocks, left out: {reader.padded}; padded, so never shared"
        if reader.padded
        else "",
        f"turns whose parent is not in the files: {reader.absent}; each begins a session" if reader.absent else "",
        _THINK if reader.turns else "",
    )


class _Reader:
    """Counts rows and remembers every chat, over all files."""

    def __init__(self) -> None:
        self.padded = self.absent = self.turns = 0
        self._chats: dict[int, tuple[int, int, int, list[int]]] = {}  # chat -> (row number, session, stamp, ids)
        self._number = self._sessions = 0

    def rows(self, source: Source) -> Iterator[Row]:
        for line in range(1, len(source.lines) + 1):
            found = json_object(source, line)
            need(source, line, found, *_KEYS)
            if not _KNOWN.issuperset(found):
                source.unread.update(dict.fromkeys(key for key in found if key not in _KNOWN))
            stamp = time_ns(source, line, "timestamp", found["timestamp"])
            prompt = whole(source, line, "input_length", found["input_length"])
            ids = self._full_ids(source, line, prompt, found["hash_ids"])
            link = self._link(source, line, stamp, ids, found)
            output = whole(source, line, "output_length", found["output_length"])
            yield Row(line, stamp, prompt, output, ids, link)
            self._number += 1

    def _full_ids(self, source: Source, line: int, prompt: int, listed: object) -> list[int]:
        found = ids_of(source, line, listed)
        expected = -(-max(prompt, 0) // TOKENS_PER_ID)
        if len(found) != expected:
            raise source.bad(line, f"{len(found)} hash_ids for {prompt} input tokens: at {TOKENS_PER_ID} tokens an "
                             f"id there must be {expected}; do the hashes have another block size?")  # fmt: skip
        full = max(prompt, 0) // TOKENS_PER_ID
        self.padded += expected - full
        return found[:full]

    def _link(self, source: Source, line: int, stamp: int, ids: list[int], found: dict[str, object]) -> Link:
        chat, parent = (whole(source, line, key, found[key]) for key in ("chat_id", "parent_chat_id"))
        if chat in self._chats:
            raise source.bad(line, f"chat_id {chat} stands twice; each chat is one row")
        before = self._chats.get(parent) if parent != -1 else None
        if before is None:
            self.absent += parent != -1
            session, self._sessions = self._sessions, self._sessions + 1
            link = Link(session)
        else:
            self.turns += 1
            number, session, asked, its_ids = before
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, its_ids, strict=False)))
            link = Link(session, number, common * TOKENS_PER_ID, (number,), max(stamp - asked, 0))
        self._chats[chat] = self._number, session, stamp, ids
        return link
