"""One pass over an offer: every token's time, every byte's step, the same again by steps, and how it ends."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.builders import BUILT, MS, build_engine, build_trace, token_time
from tests.reference import PlainEngine
from tests.trials.test_scheduler import random_case
from trials.content import Content
from trials.engine import Cause, DeviceBytes, EngineDied, Outcome, StepShape
from trials.engines.own import PagedEngine
from trials.engines.simulator import Modelled
from trials.latency import check_tokens, order_runs
from trials.ledger import account_bytes, unbalanced_rows
from trials.load import Offer, offer
from trials.plan import Plan
from trials.recorder import Recorder
from trials.recording import LEDGER_COLUMNS, Replay
from trials.replay import STUCK_STEPS, replay
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.trace import Trace, make_trace

WHOLE = TraceSpec(path="t")


def arriving(trace: Trace, gaps_ms: Sequence[float]) -> Trace:
    """The same trace with other arrival gaps."""
    at = np.cumsum([round(g * MS) for g in gaps_ms]).astype(np.int64)
    return make_trace(at, trace.num_prompt_tokens, trace.num_output_tokens, trace.prefix_ids, trace.meta)


def timed_case(seed: int) -> tuple[Trace, PoolPolicy, int, int]:
    """A random small load with gaps of none, of a step, and of an hour."""
    trace, policy, blocks, reserve = random_case(seed)
    rng = random.Random(seed)
    gaps = [0.0, *(rng.choice([0.0] * 9 + [0.3, 0.3, 2.0, 2.0, 40.0, 3.6e6]) for _ in range(len(trace) - 1))]
    return arriving(trace, gaps), policy, blocks, reserve


def whole(trace: Trace, load: Load | None = None) -> Offer:
    return offer(trace, WHOLE, load or Load(rate_scale=1.0), "cold")


class Spy(Modelled):
    """Writes down which rows sampled a token in each step, from the plan alone."""

    def __init__(self) -> None:
        super().__init__(token_time, DeviceBytes())
        self.sampled: list[list[int]] = []

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        self.sampled.append([*plan.decoding, *(c.run.row for c in plan.chunks if c.samples)])
        return super().execute(plan)


def spied(trace: Trace, policy: PoolPolicy, blocks: int, reserve: int) -> tuple[PagedEngine, Spy]:
    plain, spy = build_engine(trace, policy, blocks, reserve), Spy()
    return PagedEngine(plain.facts, policy, Content(trace), spy), spy


def token_times(recorded: Replay) -> dict[int, list[int]]:
    """Row -> end of the step of every token, read back from the runs."""
    end = recorded.end_ns
    out: dict[int, list[int]] = {}
    for row, first, count in zip(*(column.tolist() for column in recorded.runs), strict=True):
        out.setdefault(row, []).extend(end[first : first + count].tolist())
    return {row: sorted(times) for row, times in out.items()}


def test_runs_hold_the_time_of_every_token_exactly() -> None:
    """Against a spy that writes down each delivered token: preemptions, pauses, bursts and idle hours included."""
    paused = preempted = 0
    for seed in range(400):
        trace, policy, blocks, reserve = timed_case(seed)
        engine, spy = spied(trace, policy, blocks, reserve)
        recorded = replay(engine, trace, whole(trace))
        ran = np.flatnonzero(recorded.steps["idle"] == 0)
        assert len(ran) == len(spy.sampled)
        expected: dict[int, list[int]] = {}
        for step, rows in zip(ran.tolist(), spy.sampled, strict=True):
            assert len(set(rows)) == len(rows)
            for row in rows:
                expected.setdefault(row, []).append(int(recorded.end_ns[step]))
        assert token_times(recorded) == expected
        requests = recorded.requests
        assert requests.first_token_ns.tolist() == [times[0] for _, times in sorted(expected.items())]
        assert requests.last_token_ns.tolist() == [times[-1] for _, times in sorted(expected.items())]
        assert requests.end_ns.tolist() == requests.last_token_ns.tolist()
        assert requests.num_delivered.tolist() == trace.num_output_tokens.tolist()
        check_tokens(recorded, order_runs(recorded))
        preempted += int(requests.preemptions.sum())
        paused += len(recorded.runs[0]) - len(trace)
    assert preempted > 50
    assert paused > 40


def plain_times(trace: Trace, policy: PoolPolicy, blocks: int, reserve: int) -> dict[int, list[int]]:
    """The oracle driven by a clock of its own: row -> time of each token."""
    plain = PlainEngine(policy, blocks, reserve, Content(trace))
    due = trace.arrival_ns - trace.arrival_ns[0]
    now, pending, out = 0, list(range(len(trace))), dict[int, list[int]]()
    while pending or plain.running or plain.waiting:
        if not plain.running and not plain.waiting:
            now = max(now, int(due[pending[0]]))
        while pending and due[pending[0]] <= now:
            row = pending.pop(0)
            plain.add(row, int(trace.num_prompt_tokens[row]), int(trace.num_output_tokens[row]))
        before = {s.row: s.delivered for s in [*plain.running, *plain.waiting]}
        said = plain.step()
        tokens = said["tokens"]
        assert isinstance(tokens, dict)
        now += MS + 10_000 * sum(tokens.values())
        after = {s.row: s.delivered for s in [*plain.running, *plain.waiting]}
        for row in before:
            if after.get(row, before[row] + 1) > before[row]:
                out.setdefault(row, []).append(now)
    return out


def test_every_token_comes_when_the_plain_engine_says() -> None:
    for seed in range(400, 520):
        trace, policy, blocks, reserve = timed_case(seed)
        engine = build_engine(
            trace, policy, blocks, reserve,
            step_time=lambda shape: (MS + 10_000 * (shape.num_decodes + shape.chunk_tokens), 0),
        )  # fmt: skip
        recorded = replay(engine, trace, whole(trace))
        assert token_times(recorded) == plain_times(trace, policy, blocks, reserve), f"seed {seed}"


def test_ledger_has_a_row_a_step_each_adds_up_and_block_events_balance() -> None:
    """Idle spans are rows too and carry no event; what is released after the last step stands in the last row."""
    revived = 0
    for seed in range(200):
        trace, policy, blocks, reserve = timed_case(seed)
        engine = build_engine(trace, policy, blocks, reserve)
        recorded = replay(engine, trace, whole(trace))
        steps, ledger = recorded.steps, recorded.ledger
        assert len(ledger["group"]) == len(steps["start_ns"])
        assert not len(unbalanced_rows(account_bytes(ledger, engine.facts.groups)))
        idle = steps["idle"] == 1
        for name in ("allocated", "released", "evicted", "copied"):
            assert not ledger[f"{name}_blocks"][idle][:-1].any()
        allocated, released = (int(ledger[f"{name}_blocks"].sum()) for name in ("allocated", "released"))
        if policy.prefix_caching:
            assert released >= allocated  # a cached block that is hit lives, and is released, once more
            revived += released - allocated
        else:
            assert released == allocated
        for name in ("payload_tokens", "tail_slack_tokens", "logical_tokens"):
            assert not ledger[name][idle].any()
        assert recorded.audited_steps >= 2
        assert not recorded.broken_laws
    assert revived > 100


def test_time_is_covered_without_a_gap_by_steps_and_idle_spans() -> None:
    for seed in range(100):
        trace, policy, blocks, reserve = timed_case(seed)
        recorded = replay(build_engine(trace, policy, blocks, reserve), trace, whole(trace))
        start = recorded.steps["start_ns"]
        assert start[0] == 0
        assert (recorded.end_ns[:-1] == start[1:]).all()
        assert recorded.end_ns[-1] == recorded.drain_end_ns


def test_huge_gap_is_one_idle_row() -> None:
    trace = build_trace([4, 4], [2, 2], arrivals_ms=[0, 1e12])  # about 32 years
    recorded = replay(build_engine(trace), trace, whole(trace))
    assert recorded.steps["idle"].tolist() == [0, 0, 1, 0, 0, 1]
    assert recorded.requests.arrival_ns.tolist() == [0, 10**18]
    assert recorded.requests.admitted_ns.tolist() == [0, 10**18]


def test_single_request() -> None:
    trace = build_trace([5], [1])
    recorded = replay(build_engine(trace), trace, whole(trace))
    assert [c.tolist() for c in recorded.runs] == [[0], [0], [1]]
    took = MS + 50_000
    assert recorded.requests.end_ns.tolist() == [took]
    assert recorded.window_ns == (0, took)


def test_window_of_a_burst_lasts_until_its_last_request_has_ended() -> None:
    """It was 1 ns long, so that throughput came out a billion times too high."""
    trace = build_trace([4, 8, 2], [3, 9, 1])
    recorded = replay(build_engine(trace), trace, whole(trace))
    assert recorded.window_ns == (0, int(recorded.requests.end_ns.max()))


def test_request_that_can_never_fit_is_rejected_at_once_and_blocks_nobody() -> None:
    trace = build_trace([10, 500, 10], [4, 4, 4], arrivals_ms=[0, 1, 2])
    recorded = replay(build_engine(trace, num_blocks=4), trace, whole(trace))
    assert recorded.requests.outcome.tolist() == [Outcome.COMPLETED, Outcome.REJECTED, Outcome.COMPLETED]
    assert list(recorded.reasons) == [1]
    assert "more than the 4" in recorded.reasons[1]
    assert recorded.requests.first_token_ns[1] == -1


# ---- closed load
@pytest.mark.parametrize("concurrency", [1, 3, 100])
def test_closed_load_keeps_as_many_under_way_as_asked_and_no_more(concurrency: int) -> None:
    trace = build_trace([6] * 20, [1 + k % 7 for k in range(20)], arrivals_ms=[1000.0 * k for k in range(20)])
    engine = build_engine(trace)
    recorded = replay(engine, trace, whole(trace, Load(concurrency=concurrency)))
    requests = recorded.requests
    assert (requests.outcome == Outcome.COMPLETED).all()
    last = int(requests.arrival_ns.max())
    for at in sorted({*requests.arrival_ns.tolist(), *requests.end_ns.tolist()}):
        under_way = int(((requests.arrival_ns <= at) & (requests.end_ns > at)).sum())
        assert under_way <= concurrency
        if at < last:
            assert under_way == min(concurrency, 20)
    assert not recorded.steps["idle"][:-1].any()
    assert recorded.window_ns == (0, recorded.drain_end_ns)


def test_closed_load_goes_on_after_requests_that_can_never_fit() -> None:
    trace = build_trace([9000, 4, 9000, 9000, 4], [2] * 5)
    recorded = replay(build_engine(trace), trace, whole(trace, Load(concurrency=2)))
    r, c = Outcome.REJECTED, Outcome.COMPLETED
    assert recorded.requests.outcome.tolist() == [r, c, r, r, c]


# ---- step lock
def accounts_of(recorded: Replay) -> list[list[int]]:
    return [recorded.ledger[name].tolist() for name in LEDGER_COLUMNS]


def slower(shape: StepShape) -> tuple[int, int]:
    return 17 * token_time(shape)[0] + 3, 0


@pytest.mark.parametrize("load", [Load(rate_scale=1.0), Load(concurrency=2)], ids=lambda load: load.label)
def test_replay_locked_to_steps_has_the_same_ledger_whatever_a_step_costs(load: Load) -> None:
    """Under a closed load the schedule was overwritten by end times, so that the locked replay waited for step
    numbers as large as nanoseconds."""
    differs = 0
    for seed in range(60):
        trace, policy, blocks, reserve = timed_case(seed)
        offered = whole(trace, load)
        first = replay(build_engine(trace, policy, blocks, reserve), trace, offered)
        engine = build_engine(trace, policy, blocks, reserve, step_time=slower)
        locked = replay(engine, trace, offered.locked(first.requests.met_step))
        assert accounts_of(locked) == accounts_of(first)
        assert locked.clock == "steps"
        assert locked.requests.met_step.tolist() == first.requests.met_step.tolist()
        assert [c.tolist() for c in locked.runs] == [c.tolist() for c in first.runs]
        free = replay(build_engine(trace, policy, blocks, reserve, step_time=slower), trace, offered)
        differs += accounts_of(free) != accounts_of(first)
    if load.concurrency is None:
        assert differs > 10, "the lock has nothing to hold"


def test_request_that_never_arrived_does_not_arrive_in_the_locked_replay_either() -> None:
    """Its step was -1, which was taken for due at once."""
    trace = build_trace([4, 4, 4], [5, 5, 5], arrivals_ms=[0, 1, 1000])
    offered = whole(trace)
    stopped = replay(build_engine(trace), trace, offered, stop=lambda r, now: "enough" if r.end[1] >= 0 else None)
    assert stopped.requests.met_step[2] == -1
    locked = replay(build_engine(trace), trace, offered.locked(stopped.requests.met_step))
    assert locked.requests.outcome.tolist() == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.UNFINISHED]


# ---- ends
def test_replay_that_is_stopped_keeps_what_was_delivered_and_leaves_the_engine_drained() -> None:
    def enough(recorder: Recorder, now: int) -> str | None:
        return "enough" if now > 10 * MS else None

    short = build_trace([4] * 6, [2, 30, 30, 9, 30, 30])
    engine = build_engine(short, PoolPolicy(max_num_seqs=3))
    recorded = replay(engine, short, whole(short), stop=enough)
    assert recorded.stopped_early == "enough"
    assert recorded.failed is None
    assert recorded.requests.outcome.tolist()[0] == Outcome.COMPLETED
    assert (recorded.requests.outcome[[1, 2, 4, 5]] == Outcome.UNFINISHED).all()
    assert 0 < recorded.requests.num_delivered[1] < 30
    check_tokens(recorded, order_runs(recorded))
    assert not recorded.broken_laws
    engine.start(cold=True)
    again = replay(engine, short, whole(short))
    assert (again.requests.outcome == Outcome.COMPLETED).all()


class Stalled(PagedEngine):
    """From the fifth step on nothing is computed, although requests run."""

    def step(self):  # type: ignore[no-untyped-def]
        if self._scheduler.serving.step < 5:
            return super().step()
        self._step.shape = StepShape(0, 0, 0, 0, 0, 0, 0, 0)
        self._step.began = self._step.ended = self._step.admitted = ()
        return self._step


def test_replay_that_makes_no_progress_ends_as_failed_and_says_when() -> None:
    trace = build_trace([4] * 3, [30] * 3)
    plain = build_engine(trace)
    engine = Stalled(plain.facts, PoolPolicy(), Content(trace), Modelled(token_time, DeviceBytes()))
    recorded = replay(engine, trace, whole(trace))
    assert recorded.failed is not None
    assert f"{STUCK_STEPS} steps" in recorded.failed
    assert f"step {5 + STUCK_STEPS}" in recorded.failed
    assert (recorded.requests.outcome == Outcome.UNFINISHED).all()


class Breaks(Modelled):
    """Fails in step 5, as a kernel or an index would."""

    def __init__(self, error: Exception) -> None:
        super().__init__(token_time, DeviceBytes())
        self.error = error

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        if plan.step == 5:
            raise self.error
        return super().execute(plan)


@pytest.mark.parametrize("error", [RuntimeError("cuda"), IndexError("row 7"), KeyError(3), AssertionError("x")])
def test_whatever_an_execution_raises_is_the_engine_s_death_with_step_and_cause(error: Exception) -> None:
    """An IndexError or KeyError of an execution passed through and ended the worker without a result."""
    trace = build_trace([4] * 3, [30] * 3)
    plain = build_engine(trace)
    engine = PagedEngine(plain.facts, PoolPolicy(), Content(trace), Breaks(error))
    with pytest.raises(EngineDied, match=f"step 5: {type(error).__name__}") as died:
        replay(engine, trace, whole(trace))
    assert died.value.__cause__ is error


class Short(PagedEngine):
    """Delivers the first request a token early."""

    def step(self):  # type: ignore[no-untyped-def]
        step = super().step()
        serving = self._scheduler.serving
        run = serving.running.get(0)
        if run is not None and run.began >= 0 and run.num_output_tokens == 30:
            serving.ring.stop(run, serving.step)
            run.num_output_tokens = 29
            serving.ring.begin(run, serving.step)
        return step


def test_replay_whose_delivered_lengths_differ_from_the_trace_s_is_void() -> None:
    trace = build_trace([4] * 3, [30] * 3)
    plain = build_engine(trace)
    engine = Short(plain.facts, PoolPolicy(), Content(trace), Modelled(token_time, DeviceBytes()))
    recorded = replay(engine, trace, whole(trace))
    assert recorded.void_because == [
        "1 requests were delivered another length than asked, first row 0: 29 tokens for 30"
    ]


# ---- storms
def test_preemption_storm_ends_and_adds_up() -> None:
    """Twelve answers that outgrow a pool for two: everybody is preempted again and again, and all complete."""
    for size in (1, 4, 16):
        trace = build_trace([8] * 12, [40] * 12)
        policy = PoolPolicy(block_size=size, reserve_prompt=False)
        engine = build_engine(trace, policy, num_blocks=96 // size)
        recorded = replay(engine, trace, whole(trace))
        requests = recorded.requests
        assert (requests.outcome == Outcome.COMPLETED).all()
        assert requests.preemptions.sum() >= 10
        assert not recorded.broken_laws
        assert (recorded.steps["refusal_cause"] == Cause.PREEMPTED).any()


@pytest.mark.parametrize("size", [1, 128])
def test_smallest_and_largest_block(size: int) -> None:
    trace = build_trace([20, 100, 3], [10, 28, 1], arrivals_ms=[0, 1, 2])
    engine = build_engine(trace, PoolPolicy(block_size=size, max_model_len=128), num_blocks=256 // size)
    recorded = replay(engine, trace, whole(trace))
    assert (recorded.requests.outcome == Outcome.COMPLETED).all()
    if size == 1:
        assert not recorded.ledger["tail_slack_tokens"].any()
    else:
        assert recorded.ledger["allocated_blocks"].sum() == 3


def test_budget_smaller_than_the_running_set_serves_everybody_in_the_end() -> None:
    trace = build_trace([5] * 10, [12] * 10)
    engine = build_engine(trace, PoolPolicy(max_num_batched_tokens=3, max_num_seqs=64))
    recorded = replay(engine, trace, whole(trace))
    assert (recorded.requests.outcome == Outcome.COMPLETED).all()
    worked = recorded.steps["num_decodes"] + recorded.steps["chunk_tokens"]
    assert worked.max() == 3


# ---- watching
def test_lowest_availability_is_audited_after_seeded_audits_too() -> None:
    """Every seeded audit pushed the mark of the next peak a 32nd of the pool further down, until no peak was
    audited any more."""
    from trials.auditor import Auditor

    trace = build_trace([4], [4])
    engine = build_engine(trace, num_blocks=320)
    auditor = Auditor(engine, Recorder.of(whole(trace)), random.Random(0))
    auditor.due(1, 300)
    assert auditor.below == 290
    for index in range(2, 30):
        auditor.due(index, 310)
    assert auditor.below == 290
    auditor.due(31, 250)
    assert auditor.below == 240


def test_broken_account_is_found_by_an_audit_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from trials.ledger import Accounts

    whole_fill = Accounts.fill

    def loses_one(self: Accounts, tokens: int) -> None:
        whole_fill(self, tokens)
        self.payload_tokens -= tokens > 3

    monkeypatch.setattr(Accounts, "fill", loses_one)
    trace = build_trace([8] * 4, [9] * 4)
    recorded = replay(build_engine(trace), trace, whole(trace))
    assert recorded.broken_laws
    assert "account payload_tokens: running" in recorded.broken_laws[0]
    BUILT.clear()  # its accounts are wrong on purpose
