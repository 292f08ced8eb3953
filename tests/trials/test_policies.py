"""Every policy against the plain engine, each different from its neighbours, and each rule by example."""

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

import trials.admission
import trials.block_pool
import trials.replay
import trials.scheduler
from tests.builders import BUILT, Case, build_engine, build_trace, policy_case, works_of
from tests.reference import PlainEngine
from tests.trials.test_scheduler import compare
from trials.content import Content
from trials.engine import Cause, Step
from trials.engines.own import PagedEngine
from trials.idle_queue import EVICTION
from trials.load import offer
from trials.plan import Run
from trials.policies import QUEUES, VICTIMS, LongestPrefix
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.trace import make_trace


def lockstep(case: Case, seed: int) -> Counter[str]:
    plain = PlainEngine(case.policy, case.num_blocks, case.reserve, Content(case.trace))
    return compare(case.engine(), plain, seed, case.trace)


@pytest.mark.parametrize("part", range(8))
def test_fast_path_equals_the_plain_one_under_every_policy(part: int) -> None:
    """2,400 random small specs: every time, block id, queue order, preemption, account, event, copy and bound; and
    every row reads through its table what it wrote or inherited."""
    seen: Counter[str] = Counter()
    for seed in range(part * 300, (part + 1) * 300):
        seen += lockstep(policy_case(seed), seed)
    assert seen["steps"] > 7000
    assert min(seen[name] for name in ("preempted", "copied", "forked", "shared", "cancelled")) > 30
    assert min(seen["hit"], seen["evicted"]) > 2000


@pytest.mark.parametrize("victim", [*VICTIMS])
def test_fast_path_equals_the_plain_one_where_it_preempts_at_every_turn(victim: str) -> None:
    """Few slots left over: victims that were served already give their tokens back, and what they would have
    computed is not found."""
    seen: Counter[str] = Counter()
    for seed in range(5000, 5150):
        case = policy_case(seed, victim=victim, reserve_prompt=False, reserve_output="none", max_num_seqs=64)
        longest = int((case.trace.num_prompt_tokens + case.trace.num_output_tokens).max())
        least = -(-longest // case.policy.block_size) + case.reserve
        seen += lockstep(Case(case.trace, case.policy, least, case.reserve), seed)
    assert seen["preempted"] > 150


def differs(cases: Iterator[tuple[Case, PoolPolicy]]) -> bool:
    """Whether the plain engine under the case's policy and the fast one under the other ever disagree."""
    try:
        for seed, (case, other) in enumerate(cases):
            plain = PlainEngine(case.policy, case.num_blocks, case.reserve, Content(case.trace))
            compare(Case(case.trace, other, case.num_blocks, case.reserve).engine(), plain, seed, case.trace)
    except AssertionError:
        BUILT.clear()  # stopped anywhere
        return True
    return False


@pytest.mark.parametrize("knob", ["victim", "queue", "eviction"])
def test_no_strategy_passes_for_another(knob: str) -> None:
    """Negative control: asked for one and served by another, the comparison notices, for every ordered pair."""
    names = {"victim": VICTIMS, "queue": QUEUES, "eviction": EVICTION}[knob]
    for asked in names:
        for served in names:
            cases = (policy_case(seed, **{knob: asked}, reserve_prompt=False) for seed in range(400))
            pairs = ((case, case.policy.model_copy(update={knob: served})) for case in cases)
            assert differs(itertools.islice(pairs, 20 if asked == served else None)) == (asked != served)


@pytest.mark.parametrize(
    ("knob", "asked", "served"),
    [
        ("free_order", "head_first", "tail_first"),
        ("prefix_match", "partial", "block"),
        ("prefix_match", "block", "partial"),
        ("sharing", "cow", "prefix"),
        ("reserve_output", "full", "none"),
        ("reserve_prompt", True, False),
        ("watermark", 0.1, 0.0),
        ("prefix_caching", False, True),
        ("long_prefill_token_threshold", 5, 0),
        ("max_num_seqs", 2, 4),
        ("max_num_batched_tokens", 8, 24),
    ],
)
def test_no_knob_is_without_effect(knob: str, asked: object, served: object) -> None:
    """Negative control: with only this knob turned, plain and fast differ somewhere."""
    cases = (policy_case(seed, **{knob: asked}) for seed in range(400))
    assert differs((case, case.policy.model_copy(update={knob: served})) for case in cases)


# ---- victims
def run(row: int, prompt: int, sampled: int, blocks: int, **other: int) -> Run:
    out = Run(row, prompt, 50, sampled=sampled, table=list(range(blocks)), **other)
    out.admission = row
    return out


def chosen(name: str, *runs: Run) -> int:
    return VICTIMS[name]({r.row: r for r in runs}, 0).row


def test_last_admitted_looks_at_nothing_else() -> None:
    assert chosen("last_admitted", run(0, 9, 0, 9), run(1, 1, 40, 1)) == 1


def test_fewest_outputs_then_longest_prompt_then_last_admitted() -> None:
    assert chosen("fewest_outputs", run(0, 5, 3, 1), run(1, 5, 2, 1), run(2, 5, 4, 1)) == 1
    assert chosen("fewest_outputs", run(0, 5, 2, 1), run(1, 9, 2, 1), run(2, 7, 2, 1)) == 1
    assert chosen("fewest_outputs", run(0, 5, 2, 1), run(1, 5, 2, 1), run(2, 5, 4, 1)) == 1


def test_fewest_outputs_counts_those_of_a_decode_under_way() -> None:
    decoding = run(0, 5, 1, 1)
    decoding.began = -1
    later = run(1, 5, 3, 1)
    decoding.began = 0  # at step 4 it has delivered 1 + 4
    assert VICTIMS["fewest_outputs"]({0: decoding, 1: later}, 4).row == 1
    assert VICTIMS["fewest_outputs"]({0: decoding, 1: later}, 1).row == 0


def test_largest_holds_the_most_blocks_then_is_the_last_admitted() -> None:
    assert chosen("largest", run(0, 5, 0, 3), run(1, 5, 0, 4), run(2, 5, 0, 2)) == 1
    assert chosen("largest", run(0, 5, 0, 1), run(1, 5, 0, 4), run(2, 5, 0, 4), run(3, 5, 0, 2)) == 2


def test_largest_spares_who_has_run_longest_while_others_run() -> None:
    assert chosen("largest", run(0, 5, 0, 9), run(1, 5, 0, 2)) == 1
    assert chosen("largest", run(0, 5, 0, 9)) == 0


def test_priority_takes_the_first_of_the_highest_number_and_latest_arrival() -> None:
    assert chosen("priority", run(0, 5, 0, 1, priority=2), run(1, 5, 0, 1, priority=1)) == 0
    assert chosen("priority", run(0, 5, 0, 1, arrival_ns=7), run(1, 5, 0, 1, arrival_ns=9)) == 1
    assert chosen("priority", run(0, 5, 0, 1), run(1, 5, 0, 1)) == 0


# ---- queues
def queued(name: str, *runs: Run, found: dict[int, int] | None = None) -> list[int]:
    """Order of admission of those that were pushed in this order."""
    queue = QUEUES[name](lambda r: (found or {}).get(r.row, 0))
    for r in runs:
        queue.push(r)
    out = []
    while len(queue):
        out.append(queue.head().row)
        queue.remove(queue.head())
    return out


def test_queues_order_by_arrival_priority_and_declared_length() -> None:
    runs = [
        Run(0, 5, 9, arrival_ns=1, priority=2), Run(1, 5, 3, arrival_ns=2, priority=1),
        Run(2, 5, 7, arrival_ns=3, priority=1), Run(3, 5, 3, arrival_ns=2, priority=0),
    ]  # fmt: skip
    assert queued("fcfs", *runs) == [0, 1, 2, 3]
    assert queued("priority", *runs) == [3, 1, 2, 0]
    assert queued("shortest_job", *runs) == [1, 3, 2, 0]
    runs[0].sampled = 7  # two tokens left
    assert queued("shortest_job", *runs) == [0, 1, 3, 2]


def test_longest_prefix_goes_by_what_is_found_and_by_place_among_equals() -> None:
    runs = [Run(row, 5, 5) for row in range(4)]
    assert queued("longest_prefix", *runs, found={1: 2, 2: 5, 3: 2}) == [2, 1, 3, 0]


def test_longest_prefix_looks_no_further_than_it_says() -> None:
    runs = [Run(row, 5, 5) for row in range(LongestPrefix.LOOK + 1)]
    best = {LongestPrefix.LOOK: 9}
    assert queued("longest_prefix", *runs, found=best)[:2] == [0, LongestPrefix.LOOK]  # seen once it moved up


def test_fast_and_plain_agree_where_the_look_ahead_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongestPrefix, "LOOK", 2)
    monkeypatch.setattr(PlainEngine, "LOOK", 2)
    for seed in range(150):
        lockstep(policy_case(seed, queue="longest_prefix", max_num_seqs=2, prefix_caching=True), seed)


@pytest.mark.parametrize(
    ("name", "place"), [("fcfs", 0), ("longest_prefix", 0), ("priority", 2), ("shortest_job", 1)]
)
def test_preempted_request_comes_back_to_the_front_or_to_its_place(name: str, place: int) -> None:
    queue = QUEUES[name](lambda r: 0)
    for row, output in ((0, 2), (1, 9)):
        queue.push(Run(row, 5, output, arrival_ns=row))
    back = Run(2, 5, 5, arrival_ns=2)
    queue.push_back(back)
    assert [r.row for r in queue].index(2) == place
    assert len(queue) == 3


# ---- victims in a step that served them already
def until_preempted(engine: PagedEngine) -> Step:
    while (step := engine.step()) is not None:
        if step.preempted:
            return step
    raise AssertionError("nothing was preempted")


def test_victim_that_was_served_gives_its_tokens_back_and_its_content_is_not_found() -> None:
    """Row 0, served first in the step, has the lower priority: row 1 makes room with it. The block that its token
    would have filled, and that a later row could ask for, is not in the cache afterwards."""
    trace = make_trace(
        np.array([0, 0, 9]), np.array([12, 5, 24]), np.array([18, 18, 1]),
        parent=np.array([-1, -1, 0]), inherited_tokens=np.array([0, 0, 24]), priority=np.array([1, 0, 0]),
    )  # fmt: skip
    engine = build_engine(trace, PoolPolicy(block_size=4, victim="priority"), num_blocks=8)
    for work in works_of(trace)[:2]:
        assert engine.add(work) is None
    step = until_preempted(engine)
    assert list(step.preempted) == [(0, 19)]
    assert step.shape.num_decodes == 1  # row 1 alone
    assert step.ledger[0].payload_tokens == engine.audit().groups[0].held_tokens[1] == 13
    assert len(engine._pool.index.blocks()) == 19 // 4
    engine.check()


@pytest.mark.parametrize("victim", [*VICTIMS])
def test_token_budget_is_kept_whoever_gives_way(victim: str) -> None:
    for seed in range(60):
        case = policy_case(seed, victim=victim, reserve_prompt=False, max_num_batched_tokens=8)
        engine = case.engine()
        for work in works_of(case.trace):
            engine.add(work)
        while (step := engine.step()) is not None:
            assert step.shape.num_decodes + step.shape.chunk_tokens <= 8


def test_reserved_output_is_never_preempted_for() -> None:
    """Whatever else the policy says: who came in with all that it will need stays in."""
    claimed = 0
    for seed in range(300):
        case = policy_case(seed, reserve_output="full")
        seen = lockstep(case, seed)
        assert not seen["preempted"]
        claimed += seen["steps"]
    assert claimed > 3000


@pytest.mark.parametrize(("blocks", "watermark", "fits"), [(8, 0.5, False), (8, 0.49, True), (9, 0.5, True)])
def test_watermark_is_of_the_configured_count_rounded_down(blocks: int, watermark: float, fits: bool) -> None:
    """Beside 4 blocks of a running request one more is wanted: 4 free and 4 kept is too few, 3 kept is enough."""
    trace = build_trace([64, 16], [1, 1])
    engine = build_engine(trace, PoolPolicy(block_size=16, watermark=watermark), num_blocks=blocks)
    for work in works_of(trace):
        engine.add(work)
    step = engine.step()
    assert step is not None
    assert [row for row, _ in step.admitted] == [0, 1][: 1 + fits]
    assert step.refusal.cause is (Cause.NONE if fits else Cause.WATERMARK)


def test_idle_engine_ignores_the_watermark() -> None:
    trace = build_trace([64], [1])
    engine = build_engine(trace, PoolPolicy(block_size=16, watermark=0.9), num_blocks=5)
    engine.add(works_of(trace)[0])
    step = engine.step()
    assert step is not None
    assert [row for row, _ in step.admitted] == [0]


def test_endless_mutual_preemption_is_given_up_and_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts of 90 tokens in 100 slots, that came in one nanosecond: neither ever delivers a token."""
    monkeypatch.setattr(trials.replay, "FRUITLESS_STEPS", 200)
    trace = build_trace([90, 90], [4, 4])
    policy = PoolPolicy(
        block_size=2, victim="priority", prefix_caching=False, reserve_prompt=False,
        long_prefill_token_threshold=4, max_num_batched_tokens=8,
    )  # fmt: skip
    engine = build_engine(trace, policy, num_blocks=50)
    recorded = trials.replay.replay(engine, trace, offer(trace, TraceSpec(path="t"), Load(rate_scale=1.0), "cold"))
    assert recorded.failed is not None
    assert "200 steps preempted and no token was delivered in between; gave up at step" in recorded.failed
    assert np.all(recorded.requests.num_delivered == 0)
    assert not engine.audit().groups[0].tables
