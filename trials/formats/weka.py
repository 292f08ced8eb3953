"""Agent sessions of kv-cache-tester (WEKA; callanjfox/kv-cache-tester): turns, sub-agents, 64-token prefix ids.

One JSON document a session (or one a line): `block_size`, `hash_id_scope` "local", `requests[]` each `{t (s), in,
out, hash_ids, api_time (s)}` or `{type: "subagent", t, duration_ms, requests[]}`. floor(in / block_size) ids a
request; ids are the session's own and are numbered anew here, so that no sharing arises between sessions.

A sub-agent's `t` is when it ENDED; the stamps inside count from when it began:

    absolute = t - duration_ms / 1000 + its own t

Sessions have no common clock: all begin at 0 unless they are staggered.
"""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trials.fingerprint import digest
from trials.formats.fields import ids_of, json_documents, need, time_ns, whole
from trials.formats.links import Link
from trials.formats.rows import Row, Source, collect, noted, read_source
from trials.trace import Trace, TraceMeta
from trials.units import shown

_KEYS = ("t", "in", "out", "hash_ids")
_ROUNDED_NS = 10**9  # stamps are whole seconds: what ended within a second behind them may have come before
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class _Call:
    """A request: its row number, when it began and ended, and its ids as the session names them."""

    number: int
    begin_ns: int
    end_ns: int
    ids: list[int]


@dataclass(frozen=True, slots=True)
class _Agent:
    """A sub-agent that is over: its last call, and when its mark stands."""

    last: _Call
    end_ns: int


def read(paths: Sequence[Path]) -> Trace:
    """Sessions -> Trace in order of time; TraceError names file, request (depth first, from 1) and reason."""
    per = 0
    if paths:
        first = read_source(paths[0])
        per = _block_size(first, json_documents(first)[0][1])
    reader = _Reader(per)
    meta = TraceMeta(tokens_per_id=per, tail_rule="floor", source="weka")
    trace = collect(paths, reader.rows, meta, "request", ordered=False)
    return noted(trace, *reader.notes())


def _block_size(source: Source, session: Mapping[str, object], line: int = 1) -> int:
    for key in ("block_size", "requests"):
        if key not in session:
            raise source.bad(line, f"{key} missing; a session has block_size, requests", "line")
    per = session["block_size"]
    if type(per) is not int or per < 1:
        raise source.bad(line, f"block_size is {shown(per)}: a whole number from 1 is needed", "line")
    if session.get("hash_id_scope", "local") != "local":
        raise source.bad(line, f"hash_id_scope is {shown(session['hash_id_scope'])}: only 'local' is read", "line")
    return per


class _Reader:
    """Numbers rows, sessions and ids over all files."""

    def __init__(self, tokens_per_id: int) -> None:
        self._per = tokens_per_id
        self._copies: list[str] = []
        self._seen: set[str] = set()
        self._ids: dict[int, int] = {}  # the session's name of an id -> ours
        self._number = self._place = self._sessions = self._num_ids = 0
        self._timeless = self._overlapping = self._unmeasured = self._agents = 0

    def notes(self) -> Iterator[str]:
        if self._sessions > 1:
            yield (
                f"{self._sessions} sessions, all beginning at 0: they have no common clock; "
                "`--stagger 60s --seed S` spreads their starts"
            )
        if self._copies:
            yield f"exact copies of other sessions, left out: {len(self._copies)} ({', '.join(self._copies)})"
        if self._agents:
            yield f"sub-agents: {self._agents}, each begun after the turn in front of it"
        if self._unmeasured:
            yield f"sub-agents without a duration: {self._unmeasured}, begun at their mark, waited for by nobody"
        if self._timeless:
            yield f"requests without api_time: {self._timeless}; the think time behind each holds its own time too"
        if self._overlapping:
            yield f"requests begun before the one in front had ended: {self._overlapping}; they do not wait for it"
        yield "inherited tokens are a lower bound: what is shared beyond the last full id is not in the source"

    def rows(self, source: Source) -> Iterator[Row]:
        documents = json_documents(source)
        self._place = 0
        for line, session in documents:
            per = _block_size(source, session, line)
            if per != self._per:
                raise source.bad(
                    line, f"block_size {per} behind sessions of {self._per}; import them apart", "line"
                )
            same = digest(json.dumps(session["requests"], sort_keys=True).encode())
            if same in self._seen:
                self._copies.append(source.path.name if len(documents) == 1 else f"{source.path.name}:{line}")
                continue
            self._seen.add(same)
            self._ids = {}
            yield from self._thread(source, session["requests"], 0, None, 0)
            self._sessions += 1

    def _thread(
        self, source: Source, requests: object, begin_ns: int, spawner: _Call | None, depth: int
    ) -> Generator[Row, None, _Call | None]:
        """The calls of one agent, its sub-agents' in place; returns the last. Stamps count from `begin_ns`."""
        if not isinstance(requests, list):
            raise source.bad(self._place + 1, f"requests is {shown(requests)}: a list is needed")
        if depth > _DEEPEST:
            raise source.bad(self._place + 1, f"sub-agents are nested over {_DEEPEST} deep")
        done: list[_Call] = []
        agents: list[_Agent] = []
        for found in requests:
            if not isinstance(found, dict):
                raise source.bad(self._place + 1, f"a request is an object, found {shown(found)}")
            if found.get("type") == "subagent":
                agent = yield from self._agent(
                    source, found, begin_ns, done or ([spawner] if spawner else []), depth
                )
                agents += [agent] if agent is not None else []
                continue
            self._place += 1
            call = self._call(source, found, begin_ns)
            if done and call.begin_ns < done[-1].begin_ns:
                raise source.bad(self._place, "begins before the request in front of it; sort the requests by t")
            over = [a for a in agents if a.end_ns <= call.begin_ns and a.last.begin_ns <= call.begin_ns]
            agents = [a for a in agents if a not in over]
            waits = self._waits(call, done) + [a.last for a in over]
            yield self._row(source, found, call, done, waits or ([spawner] if spawner else []))
            done.append(call)
        return done[-1] if done else None

    def _agent(
        self, source: Source, found: Mapping[str, object], begin_ns: int, done: Sequence[_Call], depth: int
    ) -> Generator[Row, None, _Agent | None]:
        """A sub-agent's calls; returns it where somebody may wait for it."""
        need(source, self._place + 1, found, "t", "requests")
        self._agents += 1
        mark = begin_ns + time_ns(source, self._place + 1, "t", found["t"])
        duration = found.get("duration_ms")
        if duration is None:
            self._unmeasured += 1
            start = mark
        else:
            start = mark - time_ns(source, self._place + 1, "duration_ms", duration, 10**6)
        before = [call for call in done if call.begin_ns <= start]
        last = yield from self._thread(source, found["requests"], start, before[-1] if before else None, depth + 1)
        return _Agent(last, mark) if last is not None and duration is not None else None

    def _call(self, source: Source, found: Mapping[str, object], begin_ns: int) -> _Call:
        need(source, self._place, found, *_KEYS)
        begin = begin_ns + time_ns(source, self._place, "t", found["t"])
        took = found.get("api_time")
        end = begin + (max(time_ns(source, self._place, "api_time", took), 0) if took is not None else 0)
        self._timeless += took is None
        number, self._number = self._number, self._number + 1
        return _Call(number, begin, end, ids_of(source, self._place, found["hash_ids"]))

    def _waits(self, call: _Call, done: Sequence[_Call]) -> list[_Call]:
        """The turn in front of the call, or the last that was over by then."""
        ended = [c for c in done[-1:] if c.end_ns <= call.begin_ns + _ROUNDED_NS]
        if done and not ended:
            self._overlapping += 1
            ended = [c for c in done if c.end_ns <= call.begin_ns][-1:]
        return ended

    def _row(
        self, source: Source, found: Mapping[str, object], call: _Call, done: Sequence[_Call], waits: list[_Call]
    ) -> Row:
        prompt = whole(source, self._place, "in", found["in"])
        expected = max(prompt, 0) // self._per
        if len(call.ids) != expected:
            raise source.bad(self._place, f"{len(call.ids)} hash_ids for {prompt} input tokens: at {self._per} "
                             f"tokens an id there must be {expected}")  # fmt: skip
        common = _common(call.ids, done[-1].ids) * self._per if done else 0
        link = Link(
            session=self._sessions,
            parent=done[-1].number if common else -1,
            inherited_tokens=common,
            after=tuple(c.number for c in waits),
            think_ns=max(call.begin_ns - max((c.end_ns for c in waits), default=call.begin_ns), 0),
        )
        return Row(
            self._place, call.begin_ns, prompt, whole(source, self._place, "out", found["out"]),
            [self._global(i) for i in call.ids], link,
        )  # fmt: skip

    def _global(self, name: int) -> int:
        """Our number of a session's id."""
        known = self._ids.get(name)
        if known is None:
            known = self._ids[name] = self._num_ids
            self._num_ids += 1
        return known


def _common(ids: list[int], others: list[int]) -> int:
    """How many leading ids are the same."""
    low, high = 0, min(len(ids), len(others))
    if ids[:high] == others[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if ids[:middle] == others[:middle]:
            low = middle
        else:
            high = middle
    return low
