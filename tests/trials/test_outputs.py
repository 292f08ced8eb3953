"""What a turn inherits of an answer: the trace's tokens, or those that were really given."""

from dataclasses import replace

import numpy as np

from trials.content import Content
from trials.engines.outputs import Outputs
from trials.ragged import Ragged
from trials.trace import STARTS, Trace, TraceMeta, make_trace, with_links

LIMIT = 97


def session(*inherited: int, start: str = "think", ids: Ragged | None = None) -> Trace:
    """Row 0 of 6 + 4 tokens; each next row goes on from the one before with so many of its tokens and 3 more."""
    n = len(inherited) + 1
    trace = make_trace(
        np.arange(n, dtype=np.int64), np.array([6, *(i + 3 for i in inherited)]), np.full(n, 4),
        prefix_ids=ids, meta=TraceMeta(tokens_per_id=3 if ids else 0, tail_rule="floor"),
    )  # fmt: skip
    after = Ragged.of([[], *([row] for row in range(n - 1))] if start == "think" else [[] for _ in range(n)])
    trace = replace(
        trace, parent=np.arange(-1, n - 1, dtype=np.int64), inherited_tokens=np.array([0, *inherited]),
        starts=np.array([STARTS["arrival"], *[STARTS[start]] * (n - 1)]),
    )  # fmt: skip
    return with_links(trace, after)


def test_recorded_rows_are_the_content_trees_whatever_was_said() -> None:
    content = Content(session(10, 17))
    outputs = Outputs(content, LIMIT, live=False)
    for row, prompt in enumerate((6, 13, 20)):
        told = outputs.told(row, prompt)
        assert told.prompt + told.answer == content.row_tokens(row, LIMIT).tolist()
        outputs.said(row, [1, 2, 3, 4])


def test_a_turn_repeats_what_its_parent_really_said_and_so_do_the_turns_behind_it() -> None:
    content = Content(session(10, 17))
    outputs = Outputs(content, LIMIT, live=True)
    first = outputs.told(0, 6)
    assert first.answer == []
    outputs.said(0, [90, 91])
    outputs.said(0, [92, 93])
    second = outputs.told(1, 13)
    assert second.prompt == [*first.prompt, 90, 91, 92, 93, *content.row_tokens(1, LIMIT)[10:13].tolist()]
    outputs.said(1, [80, 81, 82, 83])
    third = outputs.told(2, 20)
    assert third.prompt == [*second.prompt, 80, 81, 82, 83, *content.row_tokens(2, LIMIT)[17:20].tolist()]


def test_what_the_parent_has_not_said_yet_is_the_traces() -> None:
    """A fork in mid-answer, or a turn of an open session that comes before its parent's end."""
    content = Content(session(9, start="fork"))
    outputs = Outputs(content, LIMIT, live=True)
    prompt = outputs.told(0, 6).prompt
    outputs.said(0, [90, 91])
    found = outputs.told(1, 12).prompt
    assert found == [*prompt, 90, 91, *content.row_tokens(1, LIMIT)[8:12].tolist()]


def test_a_parent_that_was_never_served_stands_as_the_trace_has_it_on_what_was_said_before_it() -> None:
    content = Content(session(10, 17))
    outputs = Outputs(content, LIMIT, live=True)
    prompt = outputs.told(0, 6).prompt
    outputs.said(0, [90, 91, 92, 93])
    found = outputs.told(2, 20).prompt  # row 1 was refused
    assert found == [*prompt, 90, 91, 92, 93, *content.row_tokens(2, LIMIT)[10:20].tolist()]
    outputs.clear()
    assert outputs.told(2, 20).prompt == content.prompt_tokens(2, LIMIT).tolist()


def test_a_turn_whose_content_is_named_by_ids_inherits_by_name_and_not_by_answer() -> None:
    trace = session(9, ids=Ragged.of([[1, 2], [1, 2, 5, 6]]))
    content = Content(trace)
    assert content.continued == frozenset()
    outputs = Outputs(content, LIMIT, live=True)
    outputs.told(0, 6)
    outputs.said(0, [90, 91, 92, 93])
    assert outputs.told(1, 12).prompt == content.prompt_tokens(1, LIMIT).tolist()


def test_only_rows_that_others_go_on_from_are_remembered() -> None:
    content = Content(session(10, 17))
    assert content.continued == {0, 1}
    outputs = Outputs(content, LIMIT, live=True)
    outputs.told(2, 20)
    outputs.said(2, [1])
    assert outputs._heard == {}
