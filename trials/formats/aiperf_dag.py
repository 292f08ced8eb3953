"""AIPerf's branching conversations (ai-dynamo/aiperf, `dag_jsonl`): turns, forks and spawned sub-agents.

JSONL, one conversation a line: `{"session_id", "turns": [{"messages", "max_tokens", "delay" (ms), "forks",
"spawns"}]}`. A turn's messages are appended to what was said before. A fork inherits that, the answer included, and
starts when its parent's turn has ended; a spawn starts afresh, and the turn `join_at` (else the next one) waits for
it. Conversations that nobody names are roots.

The format has texts, no token counts and no arrivals: a token is taken as 4 bytes, an answer as long as it may be,
every root arrives at 0, and other stamps say no more than an order.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trials.formats.fields import json_object, need, time_ns, whole
from trials.formats.links import Link
from trials.formats.rows import Row, Source, collect
from trials.trace import Trace, TraceMeta
from trials.units import nearest, shown

BYTES_PER_TOKEN = 4
_TURN_KEYS = {"messages", "max_tokens", "delay", "forks", "spawns", "model", "tools", "extra"}
_KEYS = {"session_id", "turns", "pre_session_spawns", "context_mode"}
_DEEPEST, _MOST_CALLS = 100, 5_000_000
_NOTES = (
    f"no token counts in the source: a token is {BYTES_PER_TOKEN} bytes of text, an answer as long as max_tokens",
    "no arrivals in the source: roots arrive at 0 (`--stagger 60s --seed S` spreads them); replay sessions closed",
)


def read(paths: Sequence[Path]) -> Trace:
    """Files, each complete in itself, -> Trace; TraceError names file, line and reason."""
    reader = _Reader()
    meta = TraceMeta(
        source="aiperf-dag", notes=_NOTES, synthetic=("arrival_ns", "num_prompt_tokens", "num_output_tokens")
    )
    return collect(paths, reader.rows, meta, ordered=False)


@dataclass(frozen=True, slots=True)
class _Branch:
    """Conversations that a turn starts; `join_at`: the turn that waits for them, or -1."""

    children: tuple[str, ...]
    inherits: bool
    join_at: int = -1


@dataclass(frozen=True, slots=True)
class _Turn:
    num_new_tokens: int
    max_tokens: int
    delay_ns: int
    branches: tuple[_Branch, ...]


@dataclass(frozen=True, slots=True)
class _Conversation:
    line: int
    turns: tuple[_Turn, ...]
    before: tuple[str, ...]  # spawned before its first turn
    isolated: bool  # every turn brings its whole prompt


@dataclass(frozen=True, slots=True)
class _At:
    """Where a conversation goes on: after these rows, at this stamp, with this context."""

    after: tuple[int, ...] = ()
    stamp_ns: int = 0
    parent: int = -1
    context_tokens: int = 0


class _Reader:
    """Numbers rows and sessions over all files; one file's conversations at a time."""

    def __init__(self) -> None:
        self._known: dict[str, _Conversation] = {}
        self._number = self._sessions = 0

    def rows(self, source: Source) -> Iterator[Row]:
        self._known = {}
        for line in range(1, len(source.lines) + 1):
            name, conversation = _conversation(source, line)
            if name in self._known:
                raise source.bad(line, f"session_id {shown(name)} stands twice")
            self._known[name] = conversation
        named = self._named(source)
        for name in self._known:
            if name not in named:
                yield from self._expand(source, name, _At(), (name,))
                self._sessions += 1
        if len(named) == len(self._known):
            raise source.bad(1, "no root: every conversation is named by another, so none begins")

    def _named(self, source: Source) -> set[str]:
        """Conversations that others start; refuses names that lead nowhere."""
        named: set[str] = set()
        forked: set[str] = set()
        for conversation in self._known.values():
            branches = [b for turn in conversation.turns for b in turn.branches]
            for branch in [*branches, _Branch(conversation.before, inherits=False)]:
                for child in branch.children:
                    if child not in self._known:
                        raise source.bad(
                            conversation.line, f"names {shown(child)}, which is no session_id here; "
                            f"{nearest(child, list(self._known)[:50])}",
                        )  # fmt: skip
                    if branch.inherits and child in forked:
                        raise source.bad(conversation.line, f"forks {shown(child)}, which another turn forks too")
                    named.add(child)
                    forked |= {child} if branch.inherits else set()
        return named

    def _expand(self, source: Source, name: str, at: _At, path: tuple[str, ...]) -> Generator[Row, None, _At]:
        """The calls of a conversation and of all that it starts; returns where it ends."""
        told = self._known[name]
        joins: dict[int, list[_At]] = {}
        for child in told.before:
            yield from self._child(source, child, _At(at.after, at.stamp_ns), path)
        for index, turn in enumerate(told.turns):
            ends = joins.pop(index, [])
            after = tuple(dict.fromkeys(number for one in (at, *ends) for number in one.after))
            stamp = max(one.stamp_ns for one in (at, *ends)) + turn.delay_ns
            context = 0 if told.isolated else at.context_tokens
            prompt = context + turn.num_new_tokens
            parent = at.parent if context else -1
            link = Link(self._sessions, parent, context, after, turn.delay_ns if after else 0)
            number = self._number
            self._number += 1
            if number >= _MOST_CALLS:
                raise source.bad(told.line, f"over {_MOST_CALLS} calls once every spawn is followed")
            yield Row(told.line, stamp, prompt, turn.max_tokens, link=link)
            at = _At((number,), stamp, number, prompt + turn.max_tokens)
            for branch in turn.branches:
                for child in branch.children:
                    begin = at if branch.inherits else _At(at.after, at.stamp_ns)
                    end = yield from self._child(source, child, begin, path)
                    if branch.join_at >= 0:
                        joins.setdefault(branch.join_at, []).append(end)
        return at

    def _child(self, source: Source, name: str, at: _At, path: tuple[str, ...]) -> Generator[Row, None, _At]:
        if name in path or len(path) > _DEEPEST:
            why = "starts itself" if name in path else f"stands over {_DEEPEST} deep"
            raise source.bad(
                self._known[name].line, f"conversation {shown(name)} {why}: {shown(' -> '.join(path))}"
            )
        return (yield from self._expand(source, name, at, (*path, name)))


def _conversation(source: Source, line: int) -> tuple[str, _Conversation]:
    found = json_object(source, line)
    if found.get("orchestrator"):
        raise source.bad(line, "orchestrators send no requests and are not read; write their children as roots")
    need(source, line, found, "session_id", "turns")
    source.unread.update(dict.fromkeys(key for key in found if key not in _KEYS))
    name, turns = found["session_id"], found["turns"]
    if not isinstance(name, str) or not isinstance(turns, list) or not turns:
        raise source.bad(line, "session_id is a text, and turns a list of at least one turn")
    mode = found.get("context_mode")
    told = _Conversation(
        line,
        tuple(_turn(source, line, index, len(turns), turn) for index, turn in enumerate(turns)),
        _names(source, line, "pre_session_spawns", found.get("pre_session_spawns", [])),
        mode == "message_array_with_responses",
    )
    return name, told


def _turn(source: Source, line: int, index: int, count: int, found: object) -> _Turn:
    if not isinstance(found, dict):
        raise source.bad(line, f"turns[{index}] is {shown(found)}: an object is needed")
    if "max_tokens" not in found:
        raise source.bad(line, f"turns[{index}] has no max_tokens, and nothing else says how long its answer is")
    need(source, line, found, "messages")
    source.unread.update(dict.fromkeys(key for key in found if key not in _TURN_KEYS))
    branches = _forks(source, line, found.get("forks", [])) + _spawns(
        source, line, (index, count), found.get("spawns", [])
    )
    return _Turn(
        _tokens(source, line, found["messages"]),
        whole(source, line, "max_tokens", found["max_tokens"]),
        max(time_ns(source, line, "delay", found.get("delay") or 0, 10**6), 0),
        branches,
    )


def _tokens(source: Source, line: int, messages: object) -> int:
    """Tokens of a turn's own messages: at least one."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise source.bad(line, f"messages is {shown(messages)}: a list of objects with a role is needed")
    size = 0
    for message in messages:
        content = message.get("content") or ""
        size += len((content if isinstance(content, str) else json.dumps(content)).encode("utf-8", "replace"))
        size += len(json.dumps(message["tool_calls"])) if message.get("tool_calls") else 0
    return max(-(-size // BYTES_PER_TOKEN), 1)


def _names(source: Source, line: int, what: str, found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise source.bad(line, f"{what} is {shown(found)}: a list of session ids is needed")
    return tuple(found)


def _forks(source: Source, line: int, found: object) -> tuple[_Branch, ...]:
    """`["c"]` or `[{"child": "c", "background": true}]`: nobody waits for either."""
    entries = found if isinstance(found, list) else [found]
    names = [entry.get("child") if isinstance(entry, dict) else entry for entry in entries]
    children = _names(source, line, "forks", names)
    return (_Branch(children, inherits=True),) if children else ()


def _spawns(source: Source, line: int, turn: tuple[int, int], found: object) -> tuple[_Branch, ...]:
    """`["c"]`, joined by the next turn, or `[{"children": ["c"], "join_at": 2}]`. `turn`: (index, of how many)."""
    index, count = turn
    out = []
    for entry in found if isinstance(found, list) else [found]:
        if isinstance(entry, dict):
            children = _names(source, line, "spawns.children", entry.get("children"))
            join = whole(source, line, "join_at", entry["join_at"]) if "join_at" in entry else index + 1
            if "join_at" in entry and not index < join < count:
                raise source.bad(line, f"join_at {join} in turn {index} of {count}: a later turn is needed")
        else:
            children, join = _names(source, line, "spawns", [entry]), index + 1
        out.append(_Branch(children, inherits=False, join_at=join if join < count else -1))
    return tuple(out)
