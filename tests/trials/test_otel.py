"""Spans: overlap is a parallel branch, what ended before is waited for, and only calls of models are rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from trials.fingerprint import trace_hash
from trials.formats.otel import read
from trials.trace import Trace, TraceError

S = 10**9


def span(name: str, begin: float, end: float, parent: str | None = None, tokens: tuple[int, int] | None = None,
         **more: Any) -> dict[str, Any]:  # fmt: skip
    attributes = dict(more.pop("attributes", {}))
    if tokens is not None:
        attributes |= {"gen_ai.usage.input_tokens": tokens[0], "gen_ai.usage.output_tokens": tokens[1]}
    return {"span_id": name, "parent_span_id": parent, "attributes": attributes,
            "start_time": f"2030-01-01T00:{int(begin) // 60:02d}:{begin % 60:09.6f}Z",
            "end_time": f"2030-01-01T00:{int(end) // 60:02d}:{end % 60:09.6f}Z", **more}  # fmt: skip


def _read(folder: Path, *spans: dict[str, Any], trace_id: str = "t", name: str = "o.json") -> Trace:
    path = folder / name
    path.write_text(json.dumps({"trace_id": trace_id, "spans": list(spans)}))
    return read([path])


def after(trace: Trace) -> list[list[int]]:
    return [trace.after.row(r).tolist() for r in range(len(trace))]


def test_who_overlaps_is_parallel_and_who_comes_behind_waits_for_all_of_them(tmp_path: Path) -> None:
    trace = _read(
        tmp_path, span("a", 0, 2, tokens=(10, 1)), span("b", 3, 9, tokens=(20, 1)), span("c", 4, 8, tokens=(30, 1)),
        span("d", 10, 12, tokens=(40, 1)),
    )  # fmt: skip
    assert trace.num_prompt_tokens.tolist() == [10, 20, 30, 40]
    assert after(trace) == [[], [0], [0], [1, 2]]
    assert trace.think_ns.tolist() == [0, 1 * S, 2 * S, 1 * S]


def test_branches_below_different_parents_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Two agents side by side: the second call of each follows its own first, though the other's ended earlier."""
    trace = _read(
        tmp_path, span("A", 0, 20), span("B", 0.5, 20.5),
        span("a1", 1, 3, "A", (10, 1)), span("b1", 2, 8, "B", (20, 1)),
        span("a2", 4, 6, "A", (30, 1)), span("b2", 9, 12, "B", (40, 1)), span("end", 22, 23, None, (50, 1)),
    )  # fmt: skip
    assert trace.num_prompt_tokens.tolist() == [10, 20, 30, 40, 50]
    assert after(trace) == [[], [], [0], [1], [2, 3]]


def test_a_tool_between_two_calls_is_think_time(tmp_path: Path) -> None:
    trace = _read(tmp_path, span("a", 0, 2, tokens=(10, 1)), span("tool", 3, 9), span("b", 10, 11, tokens=(20, 1)))
    assert after(trace) == [[], [0]]
    assert trace.think_ns.tolist() == [0, 8 * S]


def test_a_wrapper_of_a_call_is_no_call(tmp_path: Path) -> None:
    trace = _read(tmp_path, span("chat", 0, 5, tokens=(10, 1)), span("http", 1, 4, "chat", (10, 1)))
    assert len(trace) == 1
    assert any("spans with token counts around others that have them: 1" in note for note in trace.meta.notes)


def test_embeddings_are_no_calls_of_a_model_that_answers(tmp_path: Path) -> None:
    kind = {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 5}
    assert len(_read(tmp_path, span("e", 0, 1, attributes=kind), span("a", 2, 3, tokens=(10, 1)))) == 1


def test_failed_calls_are_left_out_and_what_followed_them_follows_their_cause(tmp_path: Path) -> None:
    trace = _read(
        tmp_path, span("a", 0, 2, tokens=(10, 1)), span("b", 3, 4, tokens=(20, 1), status={"code": 2}),
        span("c", 5, 6, tokens=(30, 1)),
    )  # fmt: skip
    assert trace.num_prompt_tokens.tolist() == [10, 30]
    assert after(trace) == [[], [0]]
    assert any("1 row whose status is an error left out" in note and "span 2" in note for note in trace.meta.notes)


def test_messages_that_go_on_inherit_prompt_and_answer(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "a"}]
    answered = {"role": "assistant", "content": "b"}
    texts = [
        {"gen_ai.input.messages": json.dumps(asked),
         "gen_ai.output.messages": json.dumps([{**answered, "finish_reason": "stop"}])},
        {"gen_ai.input.messages": json.dumps([*asked, answered, {"role": "user", "content": "c"}])},
        {"gen_ai.input.messages": json.dumps([*asked, {"role": "user", "content": "d"}])},
        {"gen_ai.input.messages": json.dumps([{"role": "user", "content": "e"}])},
    ]  # fmt: skip
    trace = _read(
        tmp_path,
        *[span(f"s{n}", 3 * n, 3 * n + 1, tokens=(100 + n, 10), attributes=t) for n, t in enumerate(texts)],
    )
    assert trace.parent.tolist() == [-1, 0, 0, -1]
    assert trace.inherited_tokens.tolist() == [0, 101, 100, 0]  # no more than the prompt of 101 tokens holds


def test_traces_of_one_conversation_follow_one_another(tmp_path: Path) -> None:
    talk = {"gen_ai.conversation.id": "c"}
    lines = [
        {"trace_id": f"t{n}", "spans": [span("x", 10 * n, 10 * n + 4, tokens=(10 + n, 1), attributes=talk)]}
        for n in (1, 0)
    ]
    (tmp_path / "o.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    trace = read([tmp_path / "o.jsonl"])
    assert trace.num_prompt_tokens.tolist() == [10, 11]
    assert (trace.session.tolist(), after(trace)) == ([0, 0], [[], [0]])


def test_otlps_own_shape_reads_the_same(tmp_path: Path) -> None:
    plain = _read(tmp_path, span("a", 0, 2, tokens=(10, 3)), span("b", 3, 4.5, tokens=(20, 1)))
    begin = 1_893_456_000 * S
    spans = [
        {"traceId": "t", "spanId": name, "startTimeUnixNano": str(begin + int(at * S)),
         "endTimeUnixNano": str(begin + int(end * S)),
         "attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(tokens[0])}},
                        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(tokens[1])}}]}
        for name, at, end, tokens in (("a", 0, 2, (10, 3)), ("b", 3, 4.5, (20, 1)))
    ]  # fmt: skip
    path = tmp_path / "otlp.json"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    assert trace_hash(read([path])) == trace_hash(plain)


def test_many_siblings_take_no_longer_than_their_number(tmp_path: Path) -> None:
    trace = _read(tmp_path, *[span(f"s{n}", n / 10, n / 10 + 0.05, tokens=(10, 1)) for n in range(5_000)])
    assert after(trace)[1:4] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([span("a", 0, 1, tokens=(1, 1)), span("a", 1, 2)], "span 2: span_id 'a' stands twice"),
        ([span("a", 0, 1, "b", (1, 1)), span("b", 0, 1, "a")], "each other's parents"),
        ([span("a", 2, 1, tokens=(1, 1))], "span 1: ends before it begins"),
        ([{"span_id": "a", "end_time": "2030-01-01T00:00:00Z"}], "span 1: start_time is missing"),
        ([{"span_id": 7}], "span 1: span_id is 7"),
        ([span("a", 0, 1, attributes={"gen_ai.usage.input_tokens": 5})], "output_tokens is missing"),
    ],
)
def test_what_is_no_tree_of_spans_is_refused(tmp_path: Path, spans: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        _read(tmp_path, *spans)


def test_a_document_without_spans_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text('{"data": []}')
    with pytest.raises(TraceError, match="spans or resourceSpans is needed; found data"):
        read([tmp_path / "o.json"])
