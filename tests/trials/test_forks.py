"""Forks one transition at a time: who copies, who writes in place, who holds what, and in what order."""

import numpy as np
import pytest

from tests.builders import build_engine, build_trace, copies_of, works_of
from trials.engine import LedgerRow, Outcome, Step, Work
from trials.engines.own import PagedEngine
from trials.spec import PoolPolicy
from trials.trace import STARTS, Trace, make_trace

FORK = STARTS["fork"]


def family(prompts: list[int], outputs: list[int], parents: list[int], inherited: list[int] | None = None) -> Trace:
    """Rows that all come at once; a row with a parent forks, by default at the end of its parent's prompt."""
    up = np.array(parents)
    at_end = [prompts[p] if p >= 0 else 0 for p in parents]
    return make_trace(
        np.zeros(len(prompts), np.int64), np.array(prompts), np.array(outputs), parent=up,
        inherited_tokens=np.array(at_end if inherited is None else inherited),
        starts=np.where(up >= 0, FORK, STARTS["arrival"]),
    )  # fmt: skip


def samples(prompt: int, outputs: list[int]) -> Trace:
    """One prompt, sampled once for each entry of `outputs`; the first is the parent."""
    n = len(outputs)
    return family([prompt] * n, outputs, [-1] + [0] * (n - 1))


def serve(trace: Trace, num_blocks: int = 64, **policy: object) -> PagedEngine:
    """An engine that was given all rows."""
    knobs = {"block_size": 16, "sharing": "cow"} | policy
    engine = build_engine(trace, PoolPolicy.model_validate(knobs), num_blocks=num_blocks)
    for work in works_of(trace):
        assert engine.add(work) is None
    return engine


def stepped(engine: PagedEngine) -> Step:
    step = engine.step()
    assert step is not None
    engine.check()
    return step


def tables(engine: PagedEngine) -> dict[int, list[int]]:
    return engine.audit().groups[0].tables


def refs(engine: PagedEngine, block: int) -> int:
    return engine._pool.ref_count(block, list(tables(engine).values()))


def live_blocks(row: LedgerRow, num_blocks: int = 64) -> int:
    return num_blocks - row.free_blocks - row.cached_blocks - row.reserve_blocks


# ---- worked values
@pytest.mark.parametrize("caching", [True, False])
def test_three_children_of_a_20_token_prompt_whose_parent_is_gone_make_two_copies(caching: bool) -> None:
    """Block 16: after each child has written one token 4 blocks are held, payload 31, slack 33, logical 63."""
    engine = serve(samples(20, [1, 9, 9, 9]), prefix_caching=caching)
    first = stepped(engine)
    assert first.ended == [(0, Outcome.COMPLETED)]
    assert first.ledger[0].allocated_blocks == 2
    assert first.bound_blocks == 2
    assert [refs(engine, block) for block in tables(engine)[1]] == [3, 3]
    second = stepped(engine)
    row = second.ledger[0]
    assert row.copied_blocks == second.burst_blocks == row.allocated_blocks == 2
    assert live_blocks(row) == 4
    assert (row.payload_tokens, row.tail_slack_tokens, row.logical_tokens) == (31, 33, 63)
    held = tables(engine)
    shared, old = held[3]
    assert [held[row][0] for row in (1, 2, 3)] == [shared] * 3
    assert copies_of(engine) == ((old, held[1][1]), (old, held[2][1]))  # the last one writes in place
    assert [refs(engine, table[1]) for table in held.values()] == [1, 1, 1]
    assert refs(engine, shared) == 3


def test_with_the_parent_alive_it_writes_first_and_copies_too() -> None:
    engine = serve(samples(20, [9, 9, 9, 9]))
    assert stepped(engine).bound_blocks == 3
    step = stepped(engine)
    assert step.ledger[0].copied_blocks == step.burst_blocks == 3
    assert live_blocks(step.ledger[0]) == 5
    held = tables(engine)
    old = held[3][1]
    assert copies_of(engine) == tuple((old, held[row][1]) for row in (0, 1, 2))
    assert stepped(engine).ledger[0].copied_blocks == 0  # each once


@pytest.mark.parametrize("caching", [True, False])
def test_prompt_that_fills_its_blocks_is_not_copied_but_opens_three_in_one_step(caching: bool) -> None:
    engine = serve(samples(32, [1, 9, 9, 9]), prefix_caching=caching)
    assert stepped(engine).bound_blocks == 3
    step = stepped(engine)
    assert step.ledger[0].copied_blocks == 0
    assert step.ledger[0].allocated_blocks == step.burst_blocks == 3
    assert copies_of(engine) == ()
    assert live_blocks(step.ledger[0]) == 5


@pytest.mark.parametrize(("match", "saved"), [("block", 16), ("partial", 31)])
def test_same_32_token_prompt_twice_saves_16_or_31_tokens_never_32(match: str, saved: int) -> None:
    trace = build_trace([32, 32], [1, 1], ids=[[7], [7]], tokens_per_id=32)
    engine = build_engine(trace, PoolPolicy.model_validate({"block_size": 16, "prefix_match": match}))
    engine.add(Work(0, 32, 1))
    stepped(engine)
    engine.add(Work(1, 32, 1))
    step = stepped(engine)
    assert list(step.admitted) == [(1, saved)]
    assert step.shape.chunk_tokens == 32 - saved
    assert step.ledger[0].copied_blocks == (match == "partial")


# ---- in place, one by one
def test_last_holder_of_a_tail_writes_in_place_when_the_others_have_ended() -> None:
    engine = serve(samples(20, [1, 1, 9]))
    assert [row for row, _ in stepped(engine).ended] == [0, 1]
    old = tables(engine)[2]
    step = stepped(engine)
    assert step.ledger[0].copied_blocks == step.burst_blocks == 0
    assert tables(engine)[2] == old


def test_cancelled_holder_of_a_tail_saves_its_copy() -> None:
    engine = serve(samples(20, [1, 9, 9, 9]))
    assert stepped(engine).bound_blocks == 2
    assert engine.cancel(2)
    engine.check()
    assert engine._scheduler.forks.bound() == 1
    assert stepped(engine).ledger[0].copied_blocks == 1


def test_each_full_block_is_freed_when_the_last_of_its_holders_ends() -> None:
    engine = serve(samples(20, [1, 3, 6, 9]))
    ends, released = [], []
    while (step := engine.step()) is not None:
        engine.check()
        ends += [row for row, _ in step.ended]
        released.append(engine.ledger()[0].released_blocks)
    assert ends == [0, 1, 2, 3]
    assert [n for n in released if n] == [1, 1, 2]  # own tail, own tail, own tail and the shared first block
    assert engine.ledger()[0].free_blocks + engine.ledger()[0].cached_blocks == 64


def test_forks_sample_their_first_token_in_their_parents_step() -> None:
    engine = serve(samples(20, [3, 3, 3]))
    step = stepped(engine)
    assert step.started == [1, 2]
    assert sorted(step.began) == [0, 1, 2]
    assert list(step.admitted) == [(0, 0), (1, 20), (2, 20)]
    assert step.shape.chunk_tokens == 20  # computed once
    stepped(engine)
    assert sorted(row for row, _ in stepped(engine).ended) == [0, 1, 2]


def test_fork_with_a_prompt_of_its_own_computes_only_that_and_copies_the_tail_first() -> None:
    engine = serve(family([20, 30], [9, 3], [-1, 0]))
    stepped(engine)
    step = stepped(engine)
    assert step.shape.num_decodes == 1
    assert step.shape.chunk_tokens == 10
    assert step.ledger[0].copied_blocks == 1  # the parent, which is first in running order
    held = tables(engine)
    assert copies_of(engine) == ((held[1][1], held[0][1]),)


# ---- mid-answer, mid-prefill
def test_fork_in_mid_answer_starts_in_the_step_in_which_its_parent_holds_what_it_inherits() -> None:
    """23 tokens are held after the prompt's step and three decodes; the first token is the parent's fourth."""
    engine = serve(family([20, 23], [9, 4], [-1, 0], [0, 23]))
    started = [list(stepped(engine).started) for _ in range(4)]
    assert started == [[], [], [], [1]]
    audit = engine.audit().groups[0]
    assert audit.held_tokens == {0: 23, 1: 23}
    assert audit.tables[0] == audit.tables[1]
    step = stepped(engine)
    assert step.ledger[0].copied_blocks == 1
    assert step.shape.num_decodes == 2


def test_fork_in_the_middle_of_a_prefill_shares_full_blocks_and_computes_the_rest() -> None:
    """One chunk carries the parent past the 20 tokens that the fork inherits: 16 are shared, 4 are its own."""
    engine = serve(family([40, 20], [9, 3], [-1, 0], [0, 20]))
    step = stepped(engine)
    assert list(step.admitted) == [(0, 0), (1, 16)]
    step = stepped(engine)
    assert step.shape.chunk_tokens == 4
    assert step.ledger[0].copied_blocks == 0


def test_fork_of_a_whole_number_of_blocks_in_mid_prefill_still_computes_its_last_token() -> None:
    """Nobody sampled at its 32nd token: that one is computed again, with its block."""
    engine = serve(family([40, 32], [9, 3], [-1, 0], [0, 32]))
    assert list(stepped(engine).admitted) == [(0, 0), (1, 16)]
    assert stepped(engine).shape.chunk_tokens == 16


def test_fork_of_a_chunk_s_end_computes_its_last_token_because_no_token_was_sampled_there() -> None:
    engine = serve(family([40, 20], [9, 3], [-1, 0], [0, 20]), max_num_batched_tokens=20)
    step = stepped(engine)
    assert list(step.admitted) == [(0, 0), (1, 16)]
    assert step.began == []


def test_fork_that_shares_less_than_a_block_starts_with_nothing() -> None:
    engine = serve(family([40, 9], [9, 3], [-1, 0], [0, 5]))
    assert list(stepped(engine).admitted) == [(0, 0), (1, 0)]
    assert tables(engine)[1] == []
    assert stepped(engine).shape.chunk_tokens == 9


# ---- forks of forks
def test_forks_of_forks_start_in_the_same_step_where_they_inherit_no_more() -> None:
    """Grandchildren of one prompt: all five hold its two blocks when the prompt's step is over."""
    engine = serve(family([20] * 5, [4] * 5, [-1, 0, 1, 2, 1]))
    step = stepped(engine)
    assert step.started == [1, 2, 4, 3]  # round by round, in the order in which they came
    assert [refs(engine, block) for block in tables(engine)[0]] == [5, 5]
    assert step.bound_blocks == 4
    assert stepped(engine).ledger[0].copied_blocks == 4


def test_beam_takes_over_from_a_beam_that_is_cancelled() -> None:
    """Two beams; after three tokens the second is given up and the first is forked in its place."""
    trace = family([16, 16, 19], [9, 9, 6], [-1, 0, 0], [0, 16, 19])
    engine = serve(trace)
    stepped(engine)
    for _ in range(3):
        step = stepped(engine)
    assert step.started == [2]
    assert engine.cancel(1)
    held = tables(engine)
    assert held[0] == held[2]
    assert stepped(engine).ledger[0].copied_blocks == 1
    ended = []
    while (step := engine.step()) is not None:
        ended += step.ended
    assert ended == [(0, Outcome.COMPLETED), (2, Outcome.COMPLETED)]


def test_fork_waits_for_a_parent_that_is_itself_a_fork_that_waits() -> None:
    """It was taken for an orphan, and queued at once."""
    engine = serve(family([20, 25, 28], [9, 9, 3], [-1, 0, 1], [0, 25, 28]))
    started: dict[int, int] = {}
    number = 0
    while (step := engine.step()) is not None:
        started |= dict.fromkeys(step.started, number)
        number += 1
    assert started == {1: 5, 2: 8}


# ---- who finds no place
def test_forks_that_find_no_slot_queue_and_the_ending_parent_still_has_one() -> None:
    engine = serve(samples(20, [1, 9, 9, 9]), max_num_seqs=2)
    step = stepped(engine)
    assert list(step.admitted) == [(0, 0), (1, 20)]
    assert step.started == [1, 2, 3]
    assert [run.row for run in engine._scheduler.admission.queue] == [2, 3]
    step = stepped(engine)
    assert list(step.admitted) == [(2, 16)]  # by the prefix cache: whole blocks


def test_forks_that_find_no_slot_compute_everything_where_nothing_is_cached() -> None:
    engine = serve(samples(20, [1, 9, 9]), max_num_seqs=2, prefix_caching=False)
    stepped(engine)
    step = stepped(engine)
    assert list(step.admitted) == [(2, 0)]
    assert step.shape.chunk_tokens == 20


def test_preempted_fork_is_a_request_like_any_other() -> None:
    """8 blocks of 4, three of them shared: the fork, admitted last, gives way and comes back by the cache."""
    engine = serve(samples(10, [18, 18]), num_blocks=8, block_size=4)
    preempted = admitted = 0
    ended = []
    while (step := engine.step()) is not None:
        engine.check()
        preempted += len(step.preempted)
        if preempted:
            admitted += sum(row == 1 and hit > 0 for row, hit in step.admitted)
        ended += [row for row, _ in step.ended]
    assert preempted == 1
    assert admitted == 1
    assert ended == [0, 1]


def test_parent_that_is_preempted_before_it_holds_enough_starts_its_forks_when_it_is_back() -> None:
    """Row 1 decodes towards its fork's 20 tokens, gives way to row 0, and comes back."""
    trace = family([8, 8, 20], [20, 20, 2], [-1, -1, 1], [0, 0, 20])
    engine = serve(trace, num_blocks=9, block_size=4)
    preempted_at = started_at = -1
    number = 0
    while (step := engine.step()) is not None:
        if step.preempted:
            assert [row for row, _ in step.preempted] == [1]
            preempted_at = number
        if step.started:
            started_at = number
        number += 1
    assert -1 < preempted_at < started_at


# ---- parents that go
def test_children_go_on_when_their_parent_is_cancelled() -> None:
    engine = serve(samples(20, [9, 9, 9]))
    stepped(engine)
    assert engine.cancel(0)
    engine.check()
    assert sorted(tables(engine)) == [1, 2]
    assert stepped(engine).ledger[0].copied_blocks == 1
    ended = []
    while (step := engine.step()) is not None:
        ended += step.ended
    assert [row for row, _ in ended] == [1, 2]


@pytest.mark.parametrize("alone", [True, False])
def test_fork_whose_parent_is_cancelled_before_it_holds_enough_queues(alone: bool) -> None:
    """Also where nothing else is alive: an engine with such a fork is not idle."""
    trace = family([20, 25, 4], [9, 3, 9], [-1, 0, -1], [0, 25, 0])
    engine = serve(trace)
    stepped(engine)
    assert engine.cancel(0)
    if alone:
        assert engine.cancel(2)
    step = stepped(engine)
    assert step.started == [1]
    assert [run.row for run in engine._scheduler.admission.queue] == [1]
    rows = []
    while (step := engine.step()) is not None:
        rows += [row for row, _ in step.ended]
    assert rows == ([1] if alone else [1, 2])


def test_fork_whose_parent_ends_too_short_queues() -> None:
    engine = serve(family([20, 25], [3, 3], [-1, 0], [0, 25]))
    while not (step := stepped(engine)).ended:
        assert not step.started
    assert step.started == [1]
    step = stepped(engine)
    assert list(step.admitted) == [(1, 16)]


def test_fork_cancelled_before_it_starts_is_over_once_and_its_own_forks_queue() -> None:
    engine = serve(family([20, 25, 28], [9, 9, 3], [-1, 0, 1], [0, 25, 28]))
    stepped(engine)
    assert engine.cancel(1)
    assert not engine.cancel(1)
    assert stepped(engine).started == [2]


def test_parent_and_fork_that_end_in_the_same_step_free_everything() -> None:
    engine = serve(samples(20, [1, 1, 1]))
    step = stepped(engine)
    assert [row for row, _ in step.ended] == [0, 1, 2]
    assert engine.step() is None
    row = engine.ledger()[0]
    assert row.free_blocks + row.cached_blocks == 64
    assert row.logical_tokens == row.payload_tokens == 0


# ---- together with other knobs
@pytest.mark.parametrize("prompt", [20, 32])
def test_reserving_fork_claims_all_that_it_will_need_at_once_and_its_own_tail_with_it(prompt: int) -> None:
    """Output 30 at block 16: 49 or 61 tokens end in four blocks. One or two full blocks are shared."""
    engine = serve(samples(prompt, [30, 30]), reserve_output="full")
    stepped(engine)
    full = prompt // 16
    held = tables(engine)
    assert [len(table) for table in held.values()] == [4, 4]
    assert held[0][:full] == held[1][:full]
    assert not set(held[0][full:]) & set(held[1][full:])
    assert engine.ledger()[0].copied_blocks == (prompt % 16 > 0)
    step = stepped(engine)
    assert copies_of(engine) == (((held[0][1], held[1][1]),) if prompt % 16 else ())
    assert step.ledger[0].allocated_blocks == 4 - full
    later = 0
    while (step := engine.step()) is not None:
        later += step.ledger[0].allocated_blocks + len(step.preempted) + step.burst_blocks + step.bound_blocks
    assert later == 0


def test_reserving_fork_of_a_fork_copies_from_the_block_that_is_written() -> None:
    """It copied from its parent's copy, which was to be made in the same step and is empty until then."""
    engine = serve(family([20] * 3, [30, 1, 30], [-1, 0, 1]), reserve_output="full")
    stepped(engine)
    held = tables(engine)
    stepped(engine)
    assert copies_of(engine) == ((held[0][1], held[2][1]),)


def test_reserving_fork_that_does_not_fit_queues() -> None:
    engine = serve(samples(20, [30, 30]), num_blocks=6, reserve_output="full")
    step = stepped(engine)
    assert list(step.admitted) == [(0, 0)]
    assert step.started == [1]
    assert step.num_waiting == 1


def test_copy_of_a_reserving_fork_that_is_cancelled_is_not_made() -> None:
    engine = serve(samples(20, [30, 30]), reserve_output="full")
    stepped(engine)
    assert engine.cancel(1)
    stepped(engine)
    assert copies_of(engine) == ()


def test_contiguous_memory_is_not_shared() -> None:
    engine = serve(samples(20, [4, 4, 4]), layout="contiguous")
    step = stepped(engine)
    assert list(step.admitted) == [(0, 0)]
    step = stepped(engine)
    assert list(step.admitted) == [(1, 0), (2, 0)]
    assert not set(tables(engine)[0]) & set(tables(engine)[1])
    assert dict(engine.facts.effective)["sharing"] == "prefix"


def test_under_prefix_sharing_a_fork_is_a_request_that_meets_its_parent_in_the_cache() -> None:
    engine = serve(samples(40, [4, 4]), sharing="prefix")
    step = stepped(engine)
    assert step.started == [1]
    assert list(step.admitted) == [(0, 0)]
    step = stepped(engine)
    assert list(step.admitted) == [(1, 32)]
    assert step.ledger[0].copied_blocks == step.burst_blocks == step.bound_blocks == 0


def test_row_that_waits_for_its_parent_cannot_come_twice() -> None:
    trace = samples(20, [4, 4])
    engine = serve(trace)
    with pytest.raises(RuntimeError, match="row 1 is already being served"):
        engine.add(works_of(trace)[1])


def test_physical_sharing_ends_where_the_contents_differ() -> None:
    """A row that says it inherits more than its prefix ids have in common with its parent's shares only those."""
    from trials.trace import Ragged, TraceMeta

    trace = make_trace(
        np.zeros(2, np.int64), np.array([48, 48]), np.array([4, 4]), Ragged.of([[1, 2, 3], [1, 2, 9]]),
        TraceMeta(tokens_per_id=16), parent=np.array([-1, 0]), inherited_tokens=np.array([0, 48]),
        starts=np.array([STARTS["arrival"], FORK]),
    )  # fmt: skip
    engine = serve(trace)
    assert list(stepped(engine).admitted) == [(0, 0), (1, 32)]
