"""Where two ledgers part."""

import pyarrow as pa

from orchestrator.ledger_diff import compare_ledgers


def _table(payload: list[int], slack: list[int], phase: str = "cold") -> pa.Table:
    count = len(payload)
    return pa.table({"phase": [phase] * count, "load": ["rate_scale=1"] * count, "step": list(range(count)),
                     "payload": payload, "tail_slack": slack})  # fmt: skip


def test_equal_ledgers_do_not_differ() -> None:
    assert compare_ledgers(_table([1, 2], [3, 4]), _table([1, 2], [3, 4])) == ()


def test_the_first_step_of_each_column_is_named_earliest_first() -> None:
    lines = [d.line for d in compare_ledgers(_table([1, 2, 3], [4, 5, 6]), _table([1, 2, 9], [4, 7, 8]))]
    assert lines == [
        "tail_slack differs first at step 1 of cold rate_scale=1: 5 -> 7 (2 rows differ)",
        "payload differs first at step 2 of cold rate_scale=1: 3 -> 9",
    ]


def test_steps_count_within_their_replay() -> None:
    old = pa.concat_tables([_table([1, 2], [0, 0]), _table([5, 6], [0, 0], "steady")])
    new = pa.concat_tables([_table([1, 2], [0, 0]), _table([5, 7], [0, 0], "steady")])
    (only,) = compare_ledgers(old, new)
    assert (only.replay, only.step, only.expected, only.found) == ("steady rate_scale=1", 1, "6", "7")


def test_a_shorter_replay_differs_in_rows() -> None:
    (only,) = compare_ledgers(_table([1, 2, 3], [0, 0, 0]), _table([1, 2], [0, 0]))
    assert (only.column, only.expected, only.found, only.step) == ("rows", "3", "2", 2)


def test_a_replay_that_never_ran_differs_in_all_its_rows() -> None:
    (only,) = compare_ledgers(_table([1, 2], [0, 0]), _table([1, 2], [0, 0], "steady"))
    assert (only.column, only.found, only.rows) == ("rows", "0", 2)


def test_a_column_that_is_gone_is_named() -> None:
    (only,) = compare_ledgers(_table([1], [2]), _table([1], [2]).drop_columns(["tail_slack"]))
    assert (only.column, only.found) == ("tail_slack", "absent")
