"""Branching conversations: forks inherit, spawns start afresh, and a turn waits for those it joins."""

import json
from pathlib import Path
from typing import Any

import pytest

from trials.content import Content
from trials.formats.aiperf_dag import read
from trials.trace import Trace, TraceError


def turn(tokens: int, output: int, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "word" * tokens}], "max_tokens": output, **more}


def _read(folder: Path, *conversations: dict[str, Any]) -> Trace:
    path = folder / "d.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in conversations))
    return read([path])


def told(name: str, *turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"session_id": name, "turns": list(turns), **more}


def after(trace: Trace) -> list[list[int]]:
    return [trace.after.row(r).tolist() for r in range(len(trace))]


def test_a_turns_prompt_is_all_that_was_said_and_its_own_words(tmp_path: Path) -> None:
    trace = _read(tmp_path, told("a", turn(10, 4), turn(3, 5), turn(2, 1, delay=1500)))
    assert trace.num_prompt_tokens.tolist() == [10, 17, 24]
    assert trace.inherited_tokens.tolist() == [0, 14, 22]
    assert after(trace) == [[], [0], [1]]
    assert trace.think_ns.tolist() == [0, 0, 1_500_000_000]
    assert Content(trace).common_tokens(1, 2) == 22


def test_a_fork_inherits_its_parents_turn_and_answer(tmp_path: Path) -> None:
    trace = _read(tmp_path, told("p", turn(10, 4, forks=["x", "y"])), told("x", turn(3, 2)), told("y", turn(5, 2)))
    assert trace.num_prompt_tokens.tolist() == [10, 17, 19]
    assert (trace.parent.tolist(), trace.inherited_tokens.tolist()) == ([-1, 0, 0], [0, 14, 14])
    assert after(trace) == [[], [0], [0]]
    content = Content(trace)
    assert (content.common_tokens(0, 1), content.common_tokens(1, 2)) == (14, 14)


def test_a_spawn_starts_afresh_and_the_next_turn_waits_for_it(tmp_path: Path) -> None:
    trace = _read(tmp_path, told("p", turn(10, 4, spawns=["x"]), turn(3, 2)), told("x", turn(5, 2), turn(1, 1)))
    assert after(trace) == [[], [0], [1], [0, 2]]
    assert trace.num_prompt_tokens.tolist() == [10, 5, 8, 17]
    assert trace.inherited_tokens.tolist() == [0, 0, 7, 14]


def test_turns_before_join_at_run_beside_the_spawn(tmp_path: Path) -> None:
    spawns = [{"children": ["x", "z"], "join_at": 2}]
    trace = _read(
        tmp_path, told("p", turn(9, 4, spawns=spawns), turn(3, 2), turn(1, 1)), told("x", turn(5, 2)),
        told("z", turn(6, 2)),
    )  # fmt: skip
    assert after(trace) == [[], [0], [0], [0], [1, 2, 3]]


def test_a_fork_in_the_background_is_waited_for_by_nobody(tmp_path: Path) -> None:
    forks = [{"child": "x", "background": True}]
    trace = _read(tmp_path, told("p", turn(9, 4, forks=forks), turn(3, 2)), told("x", turn(5, 2)))
    assert after(trace) == [[], [0], [0]]


def test_a_spawn_before_the_session_waits_for_nobody(tmp_path: Path) -> None:
    trace = _read(tmp_path, told("p", turn(9, 4), pre_session_spawns=["x"]), told("x", turn(5, 2)))
    assert after(trace) == [[], []]
    assert sorted(trace.num_prompt_tokens.tolist()) == [5, 9]


def test_a_spawn_may_be_named_by_several_and_runs_for_each(tmp_path: Path) -> None:
    trace = _read(
        tmp_path, told("p", turn(9, 4, spawns=["x"])), told("q", turn(8, 4, spawns=["x"])), told("x", turn(5, 2))
    )
    assert sorted(trace.num_prompt_tokens.tolist()) == [5, 5, 8, 9]
    assert len(set(trace.session.tolist())) == 2


def test_isolated_turns_bring_their_whole_prompt(tmp_path: Path) -> None:
    trace = _read(tmp_path, told("a", turn(10, 4), turn(30, 5), context_mode="message_array_with_responses"))
    assert (trace.num_prompt_tokens.tolist(), trace.parent.tolist()) == ([10, 30], [-1, -1])
    assert after(trace) == [[], [0]]


def test_what_was_not_observed_is_marked_and_told(tmp_path: Path) -> None:
    trace = _read(tmp_path, told("a", turn(10, 4)))
    assert trace.meta.synthetic == ("arrival_ns", "num_prompt_tokens", "num_output_tokens")
    assert any("a token is 4 bytes of text" in note for note in trace.meta.notes)


@pytest.mark.parametrize(
    ("conversations", "reason"),
    [
        ([told("a", turn(1, 1)), told("a", turn(1, 1))], "line 2: session_id 'a' stands twice"),
        ([told("a", turn(1, 1, forks=["b"]))], "line 1: names 'b', which is no session_id here"),
        ([told("a", turn(1, 1, spawns=["b"])), told("b", turn(1, 1, spawns=["a"]))], "no root"),
        (
            [told("r", turn(1, 1, spawns=["a"])), told("a", turn(1, 1, spawns=["b"])),
             told("b", turn(1, 1, spawns=["a"]))],
            "line 2: conversation 'a' starts itself",
        ),
        (
            [told("p", turn(1, 1, forks=["x"])), told("q", turn(1, 1, forks=["x"])), told("x", turn(1, 1))],
            "line 2: forks 'x', which another turn forks too",
        ),
        ([told("a", turn(1, 1, spawns=[{"children": ["b"], "join_at": 5}])), told("b", turn(1, 1))], "join_at 5"),
        ([{"session_id": "a", "turns": [{"messages": [{"role": "user"}]}]}], "has no max_tokens"),
        ([{"session_id": "a", "turns": [{"messages": "hi", "max_tokens": 1}]}], "a list of objects with a role"),
        ([{"session_id": "a", "turns": []}], "a list of at least one turn"),
        ([{"session_id": "a", "orchestrator": True, "spawns": ["b"]}], "orchestrators send no requests"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(tmp_path: Path, conversations: list[Any], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        _read(tmp_path, *conversations)
