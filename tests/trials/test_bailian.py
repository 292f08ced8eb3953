"""Turns by chat id, 16 tokens an id, and a padded last block that is nobody else's."""

import json
from pathlib import Path
from typing import Any

import pytest

from trials.content import Content
from trials.formats.bailian import read
from trials.trace import Trace, TraceError


def _read(folder: Path, *rows: dict[str, Any]) -> Trace:
    path = folder / "b.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read([path])


def _row(chat: int, at_s: float, prompt: int, ids: list[int], parent: int = -1, output: int = 4) -> dict[str, Any]:
    return {"chat_id": chat, "parent_chat_id": parent, "timestamp": at_s, "input_length": prompt,
            "output_length": output, "type": "text", "turn": 1, "hash_ids": ids}  # fmt: skip


def test_the_padded_last_block_is_never_shared(tmp_path: Path) -> None:
    """Two prompts of 33 tokens with the same three ids share 32: the third id is padding's."""
    trace = _read(tmp_path, _row(1, 0, 33, [4, 5, 6]), _row(2, 1, 33, [4, 5, 6]), _row(3, 2, 48, [4, 5, 6]))
    assert [trace.prefix_ids.row(r).tolist() for r in range(3)] == [[4, 5], [4, 5], [4, 5, 6]]
    assert trace.meta.tail_rule == "floor"
    assert Content(trace).common_tokens(0, 1) == 32
    assert "last ids of partly filled blocks, left out: 2; padded, so never shared" in trace.meta.notes


def test_turns_follow_their_chat_and_inherit_the_ids_they_have_in_common(tmp_path: Path) -> None:
    trace = _read(
        tmp_path, _row(9, 1.25, 32, [4, 5]), _row(10, 1.5, 32, [4, 7]), _row(11, 4.75, 70, [4, 5, 20, 21, 22], 9)
    )
    assert trace.session.tolist() == [0, 1, 0]
    assert trace.parent.tolist() == [-1, -1, 0]
    assert trace.inherited_tokens.tolist() == [0, 0, 32]
    assert trace.after.row(2).tolist() == [0]
    assert trace.think_ns.tolist() == [0, 0, 3_500_000_000]
    assert any("holds the answer's own time too" in note for note in trace.meta.notes)


def test_a_turn_whose_chat_is_absent_begins_a_session(tmp_path: Path) -> None:
    trace = _read(tmp_path, _row(1, 0, 16, [4]), _row(2, 1, 16, [4], parent=77))
    assert (trace.session.tolist(), trace.starts.tolist()) == ([0, 1], [0, 0])
    assert "turns whose parent is not in the files: 1; each begins a session" in trace.meta.notes


def test_turns_go_on_over_files(tmp_path: Path) -> None:
    rows = [_row(1, 0, 16, [4]), _row(2, 3, 32, [4, 5], parent=1)]
    for n, row in enumerate(rows):
        (tmp_path / f"{n}.jsonl").write_text(json.dumps(row))
    trace = read([tmp_path / "0.jsonl", tmp_path / "1.jsonl"])
    assert trace.parent.tolist() == [-1, 0]


@pytest.mark.parametrize("ids", [[4, 5], [4, 5, 6, 7]])
def test_a_prompt_has_one_id_a_16_tokens_rounded_up(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(TraceError, match=f"line 1: {len(ids)} hash_ids for 33 input tokens: at 16 .* must be 3"):
        _read(tmp_path, _row(1, 0, 33, ids))


def test_a_chat_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 2: chat_id 1 stands twice"):
        _read(tmp_path, _row(1, 0, 16, [4]), _row(1, 1, 16, [4]))
