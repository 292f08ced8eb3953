"""The recount of groups that let go of what lies behind, and of groups that draw from one pool."""

from dataclasses import replace

import numpy as np
import pytest

from trials.engine import NO_BLOCK, EngineFacts, GroupAudit, LedgerRow, PoolGeometry
from trials.ownership import mentioned, ownership
from trials.recount import LedgerError, check_rows, recount

GONE = NO_BLOCK


def window(size: int = 4, blocks: int = 12, look_back: int = 6, most: int = 4) -> PoolGeometry:
    return PoolGeometry(size, blocks, 1, 1, 0, blocks * size, size, size, "sliding_window", 1, look_back,
                        most_blocks=most)  # fmt: skip


def states(size: int = 4, blocks: int = 12) -> PoolGeometry:
    return PoolGeometry(size, blocks, 1, 3, 1, blocks * 4, size, size, "mamba", 1, most_blocks=2)


def audit(
    tables: dict[int, list[int]], held: dict[int, int], before: dict[int, int], blocks: int = 12
) -> GroupAudit:
    """What no table has is free; block 0 is the reserve."""
    known = {block for table in tables.values() for block in table} | {0}
    return GroupAudit(tables, held, [b for b in range(blocks) if b not in known], [], [0], held_before=before)


def test_tokens_behind_the_window_are_in_no_account() -> None:
    """15 tokens, a window of 6: 0 to 7 were passed when the last was granted, and 7 are held in two blocks."""
    found = recount(audit({5: [GONE, GONE, 7, 3]}, {5: 15}, {5: 14}), window())
    assert (found["payload_tokens"], found["tail_slack_tokens"], found["logical_tokens"]) == (7, 1, 7)
    assert (found["live_blocks"], found["free_blocks"]) == (2, 9)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([GONE, 9, 7, 3], "1 blocks behind the window were let go, 2 to 2 are to be"),
        ([8, 9, 7, 3], "0 blocks behind the window were let go, 2 to 2 are to be"),
        ([GONE, GONE, GONE, 3], "3 blocks behind the window were let go"),
        ([GONE, 9, GONE, 3], "a block inside the window is not held"),
        ([GONE, GONE, 7, GONE], "the last block is not held"),
    ],
)
def test_a_window_that_lets_go_too_late_too_early_or_of_the_wrong_block_is_found(
    table: list[int], said: str
) -> None:
    with pytest.raises(LedgerError, match=said):
        recount(audit({5: table}, {5: 15}, {5: 14}), window())


def test_a_chunk_is_let_go_of_whole_and_only_when_its_last_token_is_behind() -> None:
    chunk = replace(window(most=8), kind="chunked_local", window=8)
    assert [chunk.passed(tokens) for tokens in (7, 8, 15, 16)] == [0, 8, 8, 16]
    assert recount(audit({5: [GONE, GONE, 7]}, {5: 9}, {5: 8}), chunk)["payload_tokens"] == 1
    with pytest.raises(LedgerError, match="1 blocks behind the window were let go, 0 to 0 are to be"):
        recount(audit({5: [GONE, 7]}, {5: 7}, {5: 6}), chunk)


def test_a_state_counts_one_whatever_the_length_and_a_sequence_has_two_at_most() -> None:
    found = recount(audit({5: [GONE, GONE, 7], 6: [9]}, {5: 11, 6: 1}, {}), states())
    assert (found["payload_tokens"], found["tail_slack_tokens"], found["logical_tokens"]) == (2, 0, 2)
    with pytest.raises(LedgerError, match="3 states are held, it needs 2 at most"):
        recount(audit({5: [8, 9, 7]}, {5: 11}, {}), states())
    with pytest.raises(LedgerError, match="the last block is not held"):
        recount(audit({5: [8, 9, GONE]}, {5: 11}, {}), states())


def two_groups() -> tuple[EngineFacts, list[LedgerRow], list[GroupAudit]]:
    """A pool of 12 blocks of 4: one sequence of 9 tokens in a group that keeps all and in one that keeps 6."""
    pool = 12 * 4
    full = PoolGeometry(4, 12, 1, 1, 0, pool, 4, 4, num_layers=1)
    facts = EngineFacts("toy", "e", "modelled", "virtual", (full, window()), 1, (), shared_pool=True)
    audits = [
        GroupAudit({5: [1, 2, 3]}, {5: 9}, [6, 7, 8, 9, 10], [11], [0], held_before={5: 8}),
        GroupAudit({5: [4, 5, 2]}, {5: 9}, [], [], [], held_before={5: 8}),
    ]
    audits[1].tables[5] = [GONE, 5, 4]
    audits[1].held_before[5] = 9
    rows = [
        LedgerRow(0, 0, 9, 3, 0, 1, 5, 1, 9, 0, 0, 0, 0),
        LedgerRow(1, 0, 5, 3, 0, 0, 0, 0, 5, 0, 0, 0, 0),
    ]
    return facts, rows, audits


def test_every_block_of_a_shared_pool_is_of_one_group_or_of_none() -> None:
    facts, rows, audits = two_groups()
    assert check_rows(rows, audits, facts) == []
    audits[1].tables[5] = [GONE, 5, 3]  # which the other group has
    assert check_rows(rows, audits, facts) == [
        "rank 0: block 3 (2 such) has 2 owners and is in 0 of the queues free, cached, reserve over 2 groups; "
        "exactly one state is lawful"
    ]


def test_a_group_that_books_what_it_does_not_hold_is_named() -> None:
    facts, rows, audits = two_groups()
    rows[1] = rows[1]._replace(payload_tokens=9, logical_tokens=9)
    assert check_rows(rows, audits, facts) == [
        "group 1 rank 0: account payload_tokens: running 9, recounted 5",
        "group 1 rank 0: account logical_tokens: running 9, recounted 5",
    ]


def test_a_rank_of_its_own_pool_is_named_with_its_group() -> None:
    facts, rows, audits = two_groups()
    facts = replace(facts, ranks=2)
    rows = [row._replace(rank=rank) for row in rows for rank in (0, 1)]
    doubled = [replace(a, tables=dict(a.tables), held_tokens=dict(a.held_tokens)) for a in audits for _ in (0, 1)]
    assert check_rows(rows, doubled, facts) == []
    doubled[1].tables[6], doubled[1].held_tokens[6] = [7], 2  # group 0, rank 1
    said = check_rows(rows, doubled, facts)
    assert said
    assert all("rank 1" in words for words in said)


def test_ownership_of_a_shared_pool_shows_each_block_once() -> None:
    audits = two_groups()[2]
    known = [mentioned(group, 12) for group in audits]
    assert (np.sum(known, axis=0) == 1).all()
    found = ownership(audits[1], 12, 4).of(np.flatnonzero(known[1]))
    assert found.fill.tolist() == [1, 4]
    assert found.owners.tolist() == [5, 5]
    assert found.ref_count.tolist() == [1, 1]
    held = ownership(audit({5: [GONE, GONE, 7]}, {5: 11}, {}), 12, 4, keeps_states=True)
    assert held.fill.tolist() == [0] * 7 + [1] + [0] * 4
