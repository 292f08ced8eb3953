"""OpenTelemetry spans by the GenAI conventions: LLM calls, their order from the tree of spans, parallel branches.

A JSON document, or one a line: `{"trace_id", "spans": [{"span_id", "parent_span_id", "start_time", "end_time",
"attributes"}]}` as inference-perf replays it, or OTLP's `resourceSpans`. A call is a span with token counts
(`gen_ai.usage.input_tokens`, or `prompt_tokens`) and no such span below it. Among the children of a span, whoever
began after others had ended follows the last of those; whoever overlaps them is a parallel branch; who is first
follows what its parent follows. Traces of one `gen_ai.conversation.id` follow one another.

Aborted calls often leave no span: cancels are not in such a trace.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

from trials.formats.fields import json_documents, time_ns, utc_ns, whole
from trials.formats.links import Link
from trials.formats.rows import Row, Source, collect, noted
from trials.trace import Trace, TraceMeta
from trials.units import shown

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_SESSION = ("gen_ai.conversation.id", "session.id")
_BEGIN = ("start_time", "startTimeUnixNano", "start_time_unix_nano")
_END = ("end_time", "endTimeUnixNano", "end_time_unix_nano")
_DEEPEST = 200


def read(paths: Sequence[Path]) -> Trace:
    """Spans -> Trace of their LLM calls, in order of time; TraceError names file, span (from 1) and reason."""
    reader = _Reader()
    trace = collect(paths, reader.rows, TraceMeta(source="otel"), "span", ordered=False)
    shared = int((trace.inherited_tokens > 0).sum())
    return noted(
        trace,
        f"spans with token counts around others that have them: {reader.wrappers}; they are no calls of their own"
        if reader.wrappers
        else "",
        f"calls that go on from the messages of an earlier call of their session: {shared}; others share nothing",
        "calls that were aborted may have left no span",
    )


@dataclass(slots=True, eq=False)
class _Span:
    """A node of the tree. `number`: the row of its call; -1 where it is none."""

    place: int
    begin_ns: int
    end_ns: int
    parent: str
    attributes: Mapping[str, object]
    failed: bool
    children: list["_Span"] = field(default_factory=list)
    number: int = -1

    @property
    def counted(self) -> bool:
        """Whether it is a call of a model that answers."""
        if self.attributes.get("gen_ai.operation.name") == "embeddings":
            return False
        return any(key in self.attributes for key in _INPUT)


class _Reader:
    """Numbers rows, sessions and spans over all files."""

    def __init__(self) -> None:
        self.wrappers = 0
        self._sessions: dict[str, tuple[int, list[_Span]]] = {}  # conversation -> (session, what it ended with)
        self._contents: dict[int, _Contents] = {}
        self._number = 0

    def rows(self, source: Source) -> Iterator[Row]:
        spans: list[tuple[str, str, _Span]] = []
        place = 0
        for line, document in json_documents(source):
            for trace_id, found in _listed(source, line, document):
                place += 1
                spans.append((trace_id, *_span(source, place, found)))
        traces: dict[str, dict[str, _Span]] = {}
        for trace_id, name, span in spans:
            known = traces.setdefault(trace_id, {})
            if name in known:
                raise source.bad(span.place, f"span_id {shown(name)} stands twice")
            known[name] = span
        roots = {trace_id: _tree(source, known) for trace_id, known in traces.items()}
        for trace_id in sorted(roots, key=lambda name: (roots[name][0].begin_ns, roots[name][0].place)):
            yield from self._trace(source, trace_id, roots[trace_id], list(traces[trace_id].values()))

    def _trace(self, source: Source, trace_id: str, roots: list[_Span], spans: list[_Span]) -> Iterator[Row]:
        named = [str(span.attributes[key]) for span in spans for key in _SESSION if key in span.attributes]
        name = named[0] if named else f"trace {trace_id}"
        session, before = self._sessions.get(name, (len(self._sessions), []))
        before = [call for call in before if call.end_ns <= roots[0].begin_ns]
        rows: list[Row] = []
        ends = self._follow(source, roots, before, session, rows)
        self._sessions[name] = session, ends
        yield from rows

    def _follow(
        self, source: Source, spans: list[_Span], before: list[_Span], session: int, rows: list[Row], depth: int = 0
    ) -> list[_Span]:
        """Calls below these siblings, in order of their start, into `rows`; returns what they end with."""
        if depth > _DEEPEST:
            raise source.bad(spans[0].place, f"spans are nested over {_DEEPEST} deep")
        ends: dict[int, list[_Span]] = {}
        front = _Front(spans)
        for index, span in enumerate(spans):
            over = front.at(span.begin_ns)
            causes = _union(ends[i] for i in over) if over else before
            ends[index] = self._one(source, span, causes, session, rows, depth)
            front.begin(index)
        return _union(ends[i] for i in front.at(None))

    def _one(
        self, source: Source, span: _Span, causes: list[_Span], session: int, rows: list[Row], depth: int
    ) -> list[_Span]:
        first = len(rows)
        ends = self._follow(source, span.children, causes, session, rows, depth + 1) if span.children else causes
        if len(rows) > first:
            self.wrappers += span.counted
            return ends
        if not span.counted:
            return causes
        rows.append(self._row(source, span, causes, session))
        return [span]

    def _row(self, source: Source, span: _Span, causes: list[_Span], session: int) -> Row:
        prompt, output = (_count(source, span, keys) for keys in (_INPUT, _OUTPUT))
        span.number, self._number = self._number, self._number + 1
        parent, inherited = self._contents.setdefault(session, _Contents()).meet(span, prompt, output)
        ended = max((call.end_ns for call in causes), default=span.begin_ns)
        link = Link(
            session, parent, inherited, tuple(call.number for call in causes), max(span.begin_ns - ended, 0)
        )
        return Row(span.place, span.begin_ns, prompt, output, link=link, failed=span.failed)


class _Front:
    """Of siblings, in order of their start: those that are over at a time and that no other of them came after."""

    def __init__(self, spans: Sequence[_Span]) -> None:
        self._spans = spans
        self._active: list[tuple[int, int]] = []  # heap of (end, index)
        self._front: list[int] = []
        self._latest = -1  # latest start of all that are over

    def begin(self, index: int) -> None:
        heappush(self._active, (self._spans[index].end_ns, index))

    def at(self, now_ns: int | None) -> list[int]:
        """`now_ns` rises from call to call; None: all are over."""
        while self._active and (now_ns is None or self._active[0][0] <= now_ns):
            index = heappop(self._active)[1]
            self._latest = max(self._latest, self._spans[index].begin_ns)
            self._front = [i for i in self._front if self._spans[i].end_ns > self._latest] + [index]
        return self._front


def _union(lists: Iterable[list[_Span]]) -> list[_Span]:
    return list(dict.fromkeys(span for one in lists for span in one))


def _messages(found: object) -> list[str]:
    """Messages, each as one text; none where they are not there. Why an answer stopped is no part of it."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            return []
    if not isinstance(found, list):
        return []
    plain = [{k: v for k, v in m.items() if k != "finish_reason"} if isinstance(m, dict) else m for m in found]
    return [json.dumps(message, sort_keys=True) for message in plain]


class _Contents:
    """What has been said in a session: digest of a list of messages -> (row, when it was over, tokens)."""

    def __init__(self) -> None:
        self._said: dict[bytes, tuple[int, int, int]] = {}

    def meet(self, span: _Span, prompt: int, output: int) -> tuple[int, int]:
        """(row, tokens) of the longest list that this call's messages begin with, or (-1, 0); then adds its own."""
        state, found = hashlib.sha256(), (-1, 0)
        messages = _messages(span.attributes.get("gen_ai.input.messages"))
        if not messages:
            return found
        for message in messages:
            state.update(message.encode() + b"\n")
            number, end_ns, tokens = self._said.get(state.digest(), (-1, 0, 0))
            if number >= 0 and end_ns <= span.begin_ns:
                found = number, min(tokens, prompt)
        self._said.setdefault(state.digest(), (span.number, span.end_ns, prompt))
        answer = _messages(span.attributes.get("gen_ai.output.messages"))
        for message in answer:
            state.update(message.encode() + b"\n")
        if answer:
            self._said.setdefault(state.digest(), (span.number, span.end_ns, prompt + output))
        return found


def _listed(source: Source, line: int, document: Mapping[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """(trace id, span) of a document of either kind."""
    groups = document.get("resourceSpans")
    if isinstance(groups, list):
        scopes = [s for g in groups if isinstance(g, dict) for s in g.get("scopeSpans", []) if isinstance(s, dict)]
        spans = [span for scope in scopes for span in scope.get("spans", [])]
    elif isinstance(document.get("spans"), list):
        spans = list(document["spans"])  # type: ignore[call-overload]
    else:
        there = ", ".join(key[:40] for key in list(document)[:8]) or "nothing"
        raise source.bad(line, f"spans or resourceSpans is needed; found {there}", "line")
    for span in spans:
        if not isinstance(span, dict):
            raise source.bad(line, f"a span is an object, found {shown(span)}", "line")
        own = span.get("trace_id") or span.get("traceId") or document.get("trace_id")
        yield (str(own) if own else f"line {line}"), span


def _span(source: Source, place: int, found: Mapping[str, object]) -> tuple[str, _Span]:
    name = found.get("span_id") or found.get("spanId")
    if not isinstance(name, str):
        raise source.bad(place, f"span_id is {shown(name)}: a text is needed")
    begin, end = (_time(source, place, found, keys) for keys in (_BEGIN, _END))
    if end < begin:
        raise source.bad(place, "ends before it begins")
    parent = found.get("parent_span_id") or found.get("parentSpanId") or ""
    attributes = _attributes(found.get("attributes"))
    status = found.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else status
    failed = code in (2, "ERROR", "STATUS_CODE_ERROR", "error") or "error.type" in attributes
    return name, _Span(place, begin, end, str(parent), attributes, failed)


def _time(source: Source, place: int, found: Mapping[str, object], keys: Sequence[str]) -> int:
    """ns since 1970, from a date or from a count of ns."""
    key = next((key for key in keys if found.get(key) is not None), None)
    if key is None:
        raise source.bad(place, f"{keys[0]} is missing: spans need a start_time and an end_time")
    if key == keys[0] and isinstance(found[key], str) and not str(found[key]).isdigit():
        return utc_ns(source, place, key, found[key])
    return time_ns(source, place, key, found[key], 1)


def _attributes(found: object) -> Mapping[str, object]:
    """By name, from an object or from OTLP's list of `{key, value: {intValue: ...}}`."""
    if isinstance(found, dict):
        return found
    out: dict[str, object] = {}
    for pair in found if isinstance(found, list) else ():
        if isinstance(pair, dict) and isinstance(pair.get("key"), str) and isinstance(pair.get("value"), dict):
            out[pair["key"]] = next(iter(pair["value"].values()), None)
    return out


def _count(source: Source, span: _Span, keys: Sequence[str]) -> int:
    key = next((key for key in keys if key in span.attributes), None)
    if key is None:
        raise source.bad(span.place, f"{keys[0]} is missing beside {_INPUT[0]}")
    return whole(source, span.place, key, span.attributes[key])


def _tree(source: Source, spans: Mapping[str, _Span]) -> list[_Span]:
    """Roots, children in order of their start. A parent that is not in the file makes a root."""
    roots: list[_Span] = []
    for span in sorted(spans.values(), key=lambda one: (one.begin_ns, one.end_ns, one.place)):
        parent = spans.get(span.parent)
        (parent.children if parent is not None else roots).append(span)
    reached, waiting = 0, list(roots)
    while waiting:
        span = waiting.pop()
        reached += 1
        waiting += span.children
    if reached < len(spans) or not roots:
        raise source.bad(next(iter(spans.values())).place, "spans of this trace are each other's parents")
    return roots
