"""What is carried out when somebody comes, computes, gives way and goes; what a step says that it changed."""

import numpy as np
import pytest

from tests.builders import build_engine, build_trace, copies_of, policy_case, works_of
from tests.trials.test_forks import samples, serve
from trials.engine import Outcome, Step
from trials.engines.own import PagedEngine
from trials.ledger import Accounts
from trials.spec import PoolPolicy
from trials.trace import STARTS, make_trace


def all_steps(engine: PagedEngine) -> list[dict[str, object]]:
    """Every step's changes, copied: they are valid until the next one."""
    out = []
    while (step := engine.step()) is not None:
        out.append(
            {name: list(getattr(step, name)) for name in ("began", "paused", "ended", "admitted", "started")}
        )
        out[-1]["preempted"] = list(step.preempted)
        out[-1]["sampled"] = step.shape.num_sampled
    return out


def stepped(engine: PagedEngine) -> Step:
    step = engine.step()
    assert step is not None
    engine.check()
    return step


@pytest.mark.parametrize("sharing", ["prefix", "cow"])
def test_lists_of_changes_account_for_every_token(sharing: str) -> None:
    """A row in `began` delivers in this and every later step until it is in `paused` or `ended`; summed up, that is
    what the plans sampled (and one more for each fork that began from its parent's step), and each row's output."""
    for seed in range(250):
        case = policy_case(seed, sharing=sharing)
        engine = case.engine()
        for work in works_of(case.trace):
            engine.add(work)
        delivering: set[int] = set()
        delivered = dict.fromkeys(range(len(case.trace)), 0)
        for step in all_steps(engine):
            began, paused = set(step["began"]), set(step["paused"])  # type: ignore[call-overload]
            assert paused <= delivering
            assert not began & (delivering - paused)
            delivering = (delivering - paused) | began
            forked = began & set(step["started"])  # type: ignore[call-overload]
            assert len(delivering) == step["sampled"] + len(forked)  # type: ignore[operator]
            for row in delivering:
                delivered[row] += 1
            ended = {row for row, outcome in step["ended"] if outcome is Outcome.COMPLETED}  # type: ignore[attr-defined]
            assert ended <= delivering
            delivering -= ended
            assert {row for row, _ in step["preempted"]} & began == set()  # type: ignore[attr-defined]
        assert list(delivered.values()) == case.trace.num_output_tokens.tolist()


def test_each_row_is_admitted_once_and_once_more_for_each_time_it_gave_way() -> None:
    for seed in range(150):
        case = policy_case(seed)
        engine = case.engine()
        for work in works_of(case.trace):
            engine.add(work)
        admitted, preempted = np.zeros(len(case.trace), int), np.zeros(len(case.trace), int)
        for step in all_steps(engine):
            for row, _ in step["admitted"]:  # type: ignore[attr-defined]
                admitted[row] += 1
            for row, held in step["preempted"]:  # type: ignore[attr-defined]
                preempted[row] += 1
                assert held < case.trace.num_prompt_tokens[row] + case.trace.num_output_tokens[row]
        assert (admitted == preempted + 1).all()


def test_blocks_handed_out_and_revived_are_let_go_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a whole load: released = allocated + those found idle in the cache."""
    share, revived = Accounts.share, 0

    def counting(self: Accounts, held: int, again: int) -> None:
        nonlocal revived
        revived += again
        share(self, held, again)

    monkeypatch.setattr(Accounts, "share", counting)
    for seed in range(150):
        case = policy_case(seed)
        engine, revived = case.engine(), 0
        for work in works_of(case.trace):
            engine.add(work)
        allocated = released = 0
        while (step := engine.step()) is not None:
            allocated += step.ledger[0].allocated_blocks
            released += step.ledger[0].released_blocks
        released += engine.ledger()[0].released_blocks
        assert released == allocated + revived


# ---- one by one
def test_decode_registers_the_block_that_it_fills_before_a_later_chunk_of_the_step_does() -> None:
    """A turn computes what its parent is still saying: both fill the block of tokens 12 to 15 in one step. The one
    that runs first is the one that is found afterwards."""
    trace = make_trace(
        np.zeros(2, np.int64), np.array([12, 16]), np.array([9, 4]), parent=np.array([-1, 0]),
        inherited_tokens=np.array([0, 16]), starts=np.array([STARTS["arrival"]] * 2),
    )  # fmt: skip
    engine = build_engine(trace, PoolPolicy(block_size=4, max_num_batched_tokens=3))
    first, turn = works_of(trace)
    engine.add(first)
    for _ in range(6):
        stepped(engine)
    engine.add(turn)
    assert list(stepped(engine).admitted) == [(1, 12)]
    shape = stepped(engine).shape
    assert (shape.num_decodes, shape.chunk_tokens, shape.chunk_context) == (1, 2, 14)
    tables = engine.audit().groups[0].tables
    key = engine._scheduler.serving.running[0].keys[3]
    assert engine._pool.index.match([key], 1) == [tables[0][3]]
    assert engine._pool.index.key_of(tables[1][3]) == key


def test_victim_that_made_a_copy_in_this_step_leaves_no_copy_into_its_old_block() -> None:
    """Its block may be the target of another copy in the same step: one block, one copy."""
    seen = 0
    for seed in range(600):
        case = policy_case(seed, sharing="cow", victim="priority", reserve_output="none", max_num_seqs=64)
        engine = case.engine()
        for work in works_of(case.trace):
            engine.add(work)
        while (step := engine.step()) is not None:
            targets = [new for _, new in copies_of(engine)]
            assert len(set(targets)) == len(targets)
            held = {block for table in engine.audit().groups[0].tables.values() for block in table}
            if not step.ended:
                assert set(targets) <= held
            seen += len(targets) if step.preempted else 0
    assert seen > 0


@pytest.mark.parametrize("caching", [True, False])
def test_blocks_of_a_family_go_back_in_the_order_of_its_tables(caching: bool) -> None:
    """Children of one prompt end together: last block first, so that the prompt's first block is taken last."""
    engine = serve(samples(10, [3, 3]), num_blocks=12, block_size=4, prefix_caching=caching)
    for _ in range(3):
        step = stepped(engine)
    assert [row for row, _ in step.ended] == [0, 1]
    audit = engine.audit().groups[0]
    if caching:
        assert audit.cached == [3, 2, 1, 0]
    else:
        assert audit.free[:4] == [2, 1, 0, 3]


def test_head_first_release_turns_every_order_round() -> None:
    trace = build_trace([10], [1])
    for order, free, cached in (("tail_first", [2, 3], [1, 0]), ("head_first", [2, 3], [0, 1])):
        policy = PoolPolicy.model_validate({"block_size": 4, "free_order": order})
        engine = build_engine(trace, policy, num_blocks=4)
        engine.add(works_of(trace)[0])
        stepped(engine)
        audit = engine.audit().groups[0]
        assert (audit.free, audit.cached) == (free, cached)
    for order, free in (("tail_first", [2, 1, 0, 3]), ("head_first", [0, 1, 2, 3])):
        policy = PoolPolicy.model_validate({"block_size": 4, "free_order": order, "prefix_caching": False})
        engine = build_engine(trace, policy, num_blocks=4)
        engine.add(works_of(trace)[0])
        stepped(engine)
        assert engine.audit().groups[0].free == free


def test_token_budget_that_does_not_reach_a_decode_pauses_it_and_its_block_stays() -> None:
    engine = build_engine(build_trace([4] * 3, [6] * 3), PoolPolicy(block_size=4, max_num_batched_tokens=4))
    for work in works_of(build_trace([4] * 3, [6] * 3)):
        engine.add(work)
    held: dict[int, list[int]] = {}
    while (step := engine.step()) is not None:
        engine.check()
        tables = engine.audit().groups[0].tables
        for row in step.paused:
            if row in tables:
                assert tables[row][: len(held[row])] == held[row]
        held = tables
