"""Mooncake-like rows of other tools: what they may leave out, and what has no lengths."""

import json
from pathlib import Path
from typing import Any

import pytest

from trials.formats import reader
from trials.trace import Trace, TraceError


def _read(folder: Path, *rows: dict[str, Any], name: str = "aiperf-mooncake") -> Trace:
    path = folder / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return reader(name)([path])


def _row(**more: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 600, "output_length": 4, **more}


def test_rows_may_have_no_ids_but_all_or_none(tmp_path: Path) -> None:
    assert _read(tmp_path, _row(), _row()).meta.tokens_per_id == 0
    with pytest.raises(TraceError, match="line 2: some rows have hash_ids and some have none"):
        _read(tmp_path, _row(hash_ids=[0, 1]), _row())


def test_the_size_of_an_id_is_told_by_lengths_or_refused(tmp_path: Path) -> None:
    assert _read(tmp_path, _row(hash_ids=[0, 1]), _row(input_length=5, hash_ids=[0])).meta.tokens_per_id == 512
    assert _read(tmp_path, _row(hash_ids=list(range(10)))).meta.tokens_per_id == 64
    with pytest.raises(TraceError, match="how many tokens an id has cannot be told"):
        _read(tmp_path, _row(hash_ids=[0]), name="vllm-timed")
    with pytest.raises(TraceError, match="line 1: 601 hash_ids for 600 input tokens"):
        _read(tmp_path, _row(hash_ids=list(range(601))))


@pytest.mark.parametrize("key", ["text_input", "messages", "payload", "session_id", "delay"])
def test_rows_without_token_counts_or_with_a_growing_history_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(TraceError, match=f"line 1: {key}"):
        _read(tmp_path, _row(**{key: "x"}))


def test_a_priority_is_read_and_other_extras_are_told(tmp_path: Path) -> None:
    trace = _read(tmp_path, _row(extra={"priority": 3, "n": 4}), _row(tools=[]))
    assert trace.priority.tolist() == [3, 0]
    assert any("not read: extra.n, tools" in note for note in trace.meta.notes)
    with pytest.raises(TraceError, match="extra is 7: an object is needed"):
        _read(tmp_path, _row(extra=7))


def test_units_are_the_tools_own(tmp_path: Path) -> None:
    rows = [_row(), _row(timestamp=1.5)]
    assert _read(tmp_path, *rows).arrival_ns.tolist() == [0, 1_500_000]
    assert _read(tmp_path, *rows, name="vllm-timed").arrival_ns.tolist() == [0, 1_500_000_000]
    assert _read(tmp_path, *rows, name="guidellm").arrival_ns.tolist() == [0, 1_500_000_000]
