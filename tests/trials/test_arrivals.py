"""Who comes when and who is given up: against a server that looks at everybody before every step."""

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.builders import MS, build_engine, build_trace, family_trace, policy_case
from tests.reference import PlainEngine
from trials.content import Content
from trials.engine import Outcome, StepShape, Work
from trials.latency import check_tokens, order_runs
from trials.ledger import account_bytes, unbalanced_rows
from trials.load import Offer, offer
from trials.recording import Replay
from trials.replay import replay
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.trace import STARTS, Ragged, Trace, make_trace, with_links


def by_tokens(shape: StepShape) -> tuple[int, int]:
    """1 ms a step and 10 us a token."""
    return MS + 10_000 * (shape.num_decodes + shape.chunk_tokens), 0


def whole(trace: Trace, sessions: str = "open", load: Load | None = None) -> Offer:
    spec = TraceSpec.model_validate({"path": "t", "sessions": sessions})
    return offer(trace, spec, load or Load(rate_scale=1.0), "cold")


@dataclass
class Life:
    """One request as the plain server sees it."""

    row: int
    comes: int | None = None  # when it comes, once that is known
    arrival: int | None = None  # from when its patience counts
    met: int = -1
    started: bool = False
    delivered: int = 0
    first: int = -1
    last: int = -1
    end: int = -1
    cancel_step: int = -1
    outcome: Outcome = Outcome.UNFINISHED
    waits: set[int] = field(default_factory=set)


class PlainServer:
    """Every rule of arrival and cancellation, asked of everybody before every step."""

    def __init__(self, trace: Trace, policy: PoolPolicy, blocks: int, reserve: int, offered: Offer) -> None:
        self.trace, self.offered = trace, offered
        self.engine = PlainEngine(policy, blocks, reserve, Content(trace))
        self.lives = {row: Life(row) for row in offered.rows.tolist()}
        self.now = self.index = 0
        for row, due in zip(offered.rows.tolist(), offered.due_ns.tolist(), strict=True):
            life = self.lives[row]
            if self.starts(row) == STARTS["think"] and offered.closed_sessions:
                life.waits = {r for r in trace.after.row(row).tolist() if r in self.lives}
            if not life.waits and not self.is_fork(row) and offered.concurrency is None:
                life.comes = due
        if offered.concurrency is not None:
            for _ in range(offered.concurrency):
                self.next_client(0)

    def starts(self, row: int) -> int:
        return int(self.trace.starts[row])

    def parent(self, row: int) -> int:
        return int(self.trace.parent[row])

    def is_fork(self, row: int) -> bool:
        return self.starts(row) == STARTS["fork"] and self.parent(row) in self.lives

    def root(self, row: int) -> int:
        if self.is_fork(row):
            return self.root(self.parent(row))
        if self.starts(row) == STARTS["think"] and self.offered.closed_sessions:
            before = [r for r in self.trace.after.row(row).tolist() if r in self.lives]
            return max(map(self.root, before), default=row)
        return row

    def next_client(self, now: int) -> None:
        """Of a closed load: the next request that hangs on nobody."""
        for row, life in self.lives.items():
            if life.comes is None and life.met < 0 and self.root(row) == row:
                life.comes = now
                return

    def asked_with_parent(self, row: int) -> bool:
        return bool(self.trace.inherited_tokens[row] <= self.trace.num_prompt_tokens[self.parent(row)])

    def come(self, row: int, arrival: int) -> None:
        """Into the engine, forks behind their parent."""
        life, fork = self.lives[row], self.is_fork(row)
        life.met = self.index
        if not fork or self.asked_with_parent(row):
            above = self.lives[self.parent(row)].arrival if fork else arrival
            life.arrival = above
        lengths = int(self.trace.num_prompt_tokens[row]), int(self.trace.num_output_tokens[row])
        inherited = int(self.trace.inherited_tokens[row]) if fork else 0
        self.engine.take_on(
            Work(row, *lengths, arrival, int(self.trace.priority[row]), self.parent(row) if fork else -1, inherited)
        )
        for child in self.lives:
            if self.is_fork(child) and self.parent(child) == row:
                self.come(child, arrival)

    def over(self, row: int, outcome: Outcome) -> None:
        life = self.lives[row]
        life.end, life.outcome = self.now, outcome
        family = [other for other in self.lives.values() if self.root(other.row) == self.root(row)]
        if self.offered.concurrency is not None and all(other.end >= 0 for other in family):
            self.next_client(self.now)
        for turn in self.lives.values():
            if row in turn.waits:
                turn.waits.remove(row)
                if not turn.waits:
                    turn.comes = self.now + int(self.trace.think_ns[turn.row])

    def gives_up(self, life: Life) -> bool:
        patience = int(self.trace.cancel_after_ns[life.row])
        enough = int(self.trace.cancel_after_tokens[life.row])
        if patience >= 0 and life.arrival is not None and life.arrival + patience <= self.now:
            return True
        return 0 <= enough <= life.delivered

    def cancel(self, row: int) -> None:
        """With it go its forks that have not started, and theirs."""
        assert self.engine.cancel(row)
        self.over(row, Outcome.CANCELLED)
        for child, life in self.lives.items():
            if self.is_fork(child) and self.parent(child) == row and not life.started and life.end < 0:
                self.cancel(child)

    def serve(self) -> None:
        while True:
            due = [(life.comes, row) for row, life in self.lives.items() if life.comes is not None and life.met < 0]
            for comes, row in sorted(due):
                if comes <= self.now:
                    self.come(row, comes)
            for row, life in self.lives.items():
                if life.met >= 0 and life.end < 0 and self.gives_up(life):
                    life.cancel_step = self.index
                    self.cancel(row)
            if self.engine.live:
                self.step()
            else:
                due = [life.comes for life in self.lives.values() if life.comes is not None and life.met < 0]
                if not due:
                    return
                self.now = min(due)
            self.index += 1

    def step(self) -> None:
        before = {seq.row: seq.delivered for seq in self.engine.live}
        seqs = {seq.row: seq for seq in self.engine.live}
        said = self.engine.step()
        tokens = said["tokens"]
        assert isinstance(tokens, dict)
        self.now += MS + 10_000 * sum(tokens.values())
        for row, seq in seqs.items():
            if seq.delivered > before[row]:
                life = self.lives[row]
                life.delivered = seq.delivered
                life.last = self.now
                life.first = self.now if life.first < 0 else life.first
        for row in said["started"]:  # type: ignore[attr-defined]
            self.lives[row].started = True
        for row in said["started"]:  # type: ignore[attr-defined]
            if not self.asked_with_parent(row):
                self.asked_now(row)
        for row in said["finished"]:  # type: ignore[attr-defined]
            self.over(row, Outcome.COMPLETED)

    def asked_now(self, row: int) -> None:
        self.lives[row].arrival = self.now
        for child in self.lives:
            if self.is_fork(child) and self.parent(child) == row and self.asked_with_parent(child):
                self.asked_now(child)


def lifecycle_trace(seed: int, cancels: float = 0.4) -> Trace:
    """Sessions, joins, forks of every kind, and requests that are given up at any moment."""
    rng = random.Random(seed)
    trace = family_trace(rng, rng.randint(3, 14), 5, (0.0, 0.0, 0.3, 2.0, 40.0, 3.6e6))
    n = len(trace)
    after: list[list[int]] = [[] for _ in range(n)]
    starts, think = trace.starts.copy(), np.zeros(n, np.int64)
    for row in range(1, n):
        if starts[row] == STARTS["arrival"] and rng.random() < 0.5:
            before = {rng.randrange(row) for _ in range(rng.choice([1, 1, 2, 3]))}
            after[row] = sorted(before | ({int(trace.parent[row])} - {-1}))
            starts[row], think[row] = STARTS["think"], round(rng.choice([0, 0, 0.4, 7, 500]) * MS)
    patience = [round(rng.choice([0, 0.5, 2, 9, 30, 200]) * MS) if rng.random() < cancels else -1 for _ in range(n)]
    enough = [rng.choice([0, 1, 2, rng.randint(1, 31)]) if rng.random() < cancels else -1 for _ in range(n)]
    made = replace(
        trace, starts=starts, think_ns=think, cancel_after_ns=np.array(patience),
        cancel_after_tokens=np.array(enough), priority=trace.priority,
    )  # fmt: skip
    return with_links(made, Ragged.of(after))


def some_rows(offered: Offer, rng: random.Random) -> Offer:
    """A window: some of the rows, so that links lead out of it."""
    keep = np.array([rng.random() < 0.75 for _ in offered.rows])
    keep[0] = True
    return replace(offered, rows=offered.rows[keep], due_ns=offered.due_ns[keep], counted=offered.counted[keep])


def random_offer(trace: Trace, seed: int) -> Offer:
    rng = random.Random(seed)
    load = Load(concurrency=rng.choice([1, 2, 4])) if rng.random() < 0.3 else Load(rate_scale=1.0)
    offered = whole(trace, rng.choice(["open", "closed"]), load)
    return some_rows(offered, rng) if rng.random() < 0.3 else offered


@dataclass(frozen=True)
class Served:
    trace: Trace
    offered: Offer
    policy: PoolPolicy
    blocks: int
    reserve: int

    def replay(self, offered: Offer | None = None) -> Replay:
        engine = build_engine(self.trace, self.policy, self.blocks, self.reserve, step_time=by_tokens)
        recorded = replay(engine, self.trace, offered or self.offered)
        assert recorded.failed is None
        assert recorded.broken_laws == []
        assert recorded.ledger["logical_tokens"][-1] == 0
        return recorded


def random_service(seed: int) -> Served:
    trace = lifecycle_trace(seed)
    case = policy_case(seed, victim=random.Random(seed).choice(["last_admitted", "fewest_outputs", "largest"]))
    longest = int((trace.num_prompt_tokens + trace.num_output_tokens).max())
    need = -(-longest // case.policy.block_size) + case.reserve
    blocks = random.Random(seed).randint(need, need + need // 4)
    return Served(trace, random_offer(trace, seed), case.policy, blocks, case.reserve)


@pytest.mark.parametrize("part", range(4))
def test_everybody_comes_and_goes_when_the_plain_server_says(part: int) -> None:
    """1,200 small traces of sessions, forks and cancels: every time, step, outcome and delivered token."""
    seen = dict.fromkeys(Outcome, 0)
    preempted = 0
    for seed in range(part * 300, (part + 1) * 300):
        served = random_service(seed)
        plain = PlainServer(served.trace, served.policy, served.blocks, served.reserve, served.offered)
        plain.serve()
        got = served.replay().requests
        lives = [plain.lives[row] for row in got.row.tolist()]
        where = f"seed {seed}"
        assert got.outcome.tolist() == [life.outcome for life in lives], where
        assert got.num_delivered.tolist() == [life.delivered for life in lives], where
        assert got.met_step.tolist() == [life.met for life in lives], where
        assert got.cancel_step.tolist() == [life.cancel_step for life in lives], where
        assert got.first_token_ns.tolist() == [life.first for life in lives], where
        assert got.last_token_ns.tolist() == [life.last for life in lives], where
        assert got.end_ns.tolist() == [life.end for life in lives], where
        known = [k for k, life in enumerate(lives) if life.arrival is not None]
        assert got.arrival_ns[known].tolist() == [lives[k].arrival for k in known], where
        for outcome in Outcome:
            seen[outcome] += int((got.outcome == outcome).sum())
        preempted += int(got.preemptions.sum())
    assert seen[Outcome.COMPLETED] > 500
    assert seen[Outcome.CANCELLED] > 500
    assert seen[Outcome.UNFINISHED] == 0
    assert preempted > 10


@pytest.mark.parametrize("part", range(2))
def test_replay_locked_to_the_steps_of_another_repeats_it_byte_for_byte(part: int) -> None:
    """With cancels, forks, closed sessions and closed loads: every ledger column, every step, every request."""
    for seed in range(part * 200, (part + 1) * 200):
        served = random_service(seed)
        first = served.replay()
        r = first.requests
        locked = served.offered.locked(r.met_step, r.cancel_step, r.arrival_ns)
        again = served.replay(locked)
        for name, column in first.ledger.items():
            assert column.tobytes() == again.ledger[name].tobytes(), f"seed {seed}: {name}"
        idle = first.steps["idle"] > 0
        for name, column in first.steps.items():
            if name not in ("start_ns", "duration_ns"):
                assert column.tobytes() == again.steps[name].tobytes(), f"seed {seed}: {name}"
        assert (first.steps["duration_ns"] == again.steps["duration_ns"])[~idle].all()
        for name in ("outcome", "met_step", "cancel_step", "num_delivered", "cached_tokens", "preemptions"):
            assert getattr(r, name).tolist() == getattr(again.requests, name).tolist(), f"seed {seed}: {name}"
        for a, b in zip(first.runs, again.runs, strict=True):
            assert a.tobytes() == b.tobytes()


def test_records_of_cancelled_families_hold_together() -> None:
    """Runs, delivered counts and accounts agree with themselves, whatever is given up."""
    for seed in range(3000, 3150):
        served = random_service(seed)
        recorded = served.replay()
        check_tokens(recorded, order_runs(recorded))
        engine = build_engine(served.trace, served.policy, served.blocks, served.reserve)
        assert not len(unbalanced_rows(account_bytes(recorded.ledger, engine.facts.groups)))
        r = recorded.requests
        came = r.admitted_ns >= 0
        assert (r.admitted_ns[came] >= r.arrival_ns[came]).all()
        got = r.num_delivered > 0
        assert (r.first_token_ns[got] >= r.admitted_ns[got]).all()
        assert ((r.cancel_step >= 0) <= (r.outcome == Outcome.CANCELLED)).all()


# ---- one moment at a time
def giving_up(
    prompts: list[int], outputs: list[int], after_ms: list[float] | None = None, tokens: list[int] | None = None,
    arrivals_ms: list[float] | None = None,
) -> Trace:  # fmt: skip
    n = len(prompts)
    at = np.array([round(a * MS) for a in arrivals_ms or [0.0] * n])
    return make_trace(
        at, np.array(prompts), np.array(outputs),
        cancel_after_ns=np.array([-1 if t < 0 else round(t * MS) for t in after_ms or [-1.0] * n]),
        cancel_after_tokens=np.array(tokens or [-1] * n),
    )  # fmt: skip


def served(
    trace: Trace, blocks: int = 64, sessions: str = "open", load: Load | None = None, **policy: object
) -> Replay:
    knobs = PoolPolicy.model_validate({"block_size": 4} | policy)
    return Served(trace, whole(trace, sessions, load), knobs, blocks, 0).replay()


COMPLETED, CANCELLED = Outcome.COMPLETED, Outcome.CANCELLED


def test_cancelled_while_it_queues_it_was_never_admitted() -> None:
    recorded = served(giving_up([20, 20], [30, 30], after_ms=[-1, 5]), max_num_seqs=1)
    r = recorded.requests
    assert r.outcome.tolist() == [COMPLETED, CANCELLED]
    assert (r.admitted_ns[1], r.first_token_ns[1], r.num_delivered[1]) == (-1, -1, 0)


def test_cancelled_in_mid_prefill_its_blocks_are_back_before_the_next_step() -> None:
    """Eight tokens a step: 16 of 40 are computed when it is given up."""
    recorded = served(giving_up([40], [5], after_ms=[2]), max_num_batched_tokens=8, prefix_caching=False)
    assert recorded.requests.cancel_step.tolist() == [2]
    assert recorded.ledger["payload_tokens"].tolist() == [8, 16, 0]
    assert recorded.ledger["free_blocks"].tolist() == [62, 60, 64]
    assert recorded.requests.num_delivered.tolist() == [0]


def test_cancelled_while_it_decodes_it_keeps_what_it_got() -> None:
    recorded = served(giving_up([8], [50], after_ms=[5]))
    r = recorded.requests
    assert r.outcome.tolist() == [CANCELLED]
    assert r.num_delivered[0] == r.cancel_step[0] == len(recorded.end_ns) - 1
    assert r.end_ns[0] == r.last_token_ns[0] >= 5 * MS


def test_token_of_the_step_in_which_it_finishes_makes_it_complete() -> None:
    """Patience ends inside its last step: the engine sees the cancel only when there is nothing left to cancel."""
    last = served(giving_up([8], [6])).requests.end_ns[0]
    inside = (last - 1) / MS
    for after_ms, outcome in ((inside, COMPLETED), (last / MS, COMPLETED), (inside - 1.1, CANCELLED)):
        assert served(giving_up([8], [6], after_ms=[after_ms])).requests.outcome.tolist() == [outcome]


def test_cancel_after_the_finish_changes_nothing() -> None:
    plain = served(giving_up([8, 8], [4, 40]))
    late = served(giving_up([8, 8], [4, 40], after_ms=[20, -1]))
    assert late.requests.cancel_step.tolist() == [-1, -1]
    for name, column in plain.ledger.items():
        assert column.tobytes() == late.ledger[name].tobytes()


def test_cancelled_twice_is_cancelled_once() -> None:
    """By patience and by tokens before the same step, and by patience again later."""
    trace = giving_up([8], [50], after_ms=[5], tokens=[5])
    r = served(trace).requests
    assert r.outcome.tolist() == [CANCELLED]
    assert r.cancel_step[0] == r.num_delivered[0] == 5


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 19, 20, 21])
def test_exactly_the_asked_number_of_tokens_is_delivered(tokens: int) -> None:
    r = served(giving_up([8, 8], [20, 20], tokens=[tokens, -1])).requests
    assert r.num_delivered.tolist() == [min(tokens, 20), 20]
    assert r.outcome.tolist() == [CANCELLED if tokens < 20 else COMPLETED, COMPLETED]


def test_exactly_the_asked_number_also_across_preemptions_and_pauses() -> None:
    """It was given up at the step that was expected before it was interrupted, with fewer tokens."""
    interrupted = 0
    for seed in range(200):
        rng = random.Random(seed)
        n = rng.randint(2, 5)
        enough = [rng.randint(1, 40) for _ in range(n)]
        trace = giving_up([rng.randint(1, 12) for _ in range(n)], [40] * n, tokens=enough)
        recorded = served(trace, blocks=14, reserve_prompt=False, max_num_batched_tokens=rng.choice([2, 4, 64]))
        r = recorded.requests
        assert r.num_delivered.tolist() == enough
        rows, counts = np.unique(recorded.runs[0], return_counts=True)
        interrupted += int((counts[np.isin(rows, np.flatnonzero(r.outcome == CANCELLED))] > 1).sum())
    assert interrupted > 100


def test_burst_of_cancels_frees_everything_at_once_and_the_rest_goes_on() -> None:
    """Twenty decodes given up before one step."""
    trace = giving_up([8] * 21, [60] * 21, after_ms=[15.0] * 20 + [-1])
    recorded = served(trace, blocks=300)
    r = recorded.requests
    assert len(set(r.cancel_step[:20].tolist())) == 1
    step = int(r.cancel_step[0])
    assert recorded.steps["num_decodes"][step - 1] == 21
    assert recorded.steps["num_decodes"][step] == 1
    held = recorded.ledger["payload_tokens"][step]
    assert held == r.num_prompt_tokens[20] + step
    assert r.outcome.tolist() == [CANCELLED] * 20 + [COMPLETED]


def test_cancels_leave_what_waits_to_come_in_in_the_same_step() -> None:
    trace = giving_up([8, 8], [50, 5], after_ms=[5, -1])
    recorded = served(trace, max_num_seqs=1)
    r = recorded.requests
    assert r.admitted_ns[1] == r.end_ns[0]


def test_counts_by_outcome_tell_asked_cancels_from_the_rest() -> None:
    trace = giving_up([8, 8, 3000], [20, 20, 20], tokens=[3, -1, -1])
    recorded = served(trace)
    assert recorded.requests.outcome.tolist() == [CANCELLED, COMPLETED, Outcome.REJECTED]
    assert list(recorded.reasons) == [2]


# ---- forks
def fork_trace(
    prompts: list[int], outputs: list[int], parents: list[int], inherited: list[int], **columns: np.ndarray
) -> Trace:
    up = np.array(parents)
    return make_trace(
        np.zeros(len(prompts), np.int64), np.array(prompts), np.array(outputs), parent=up,
        inherited_tokens=np.array(inherited), starts=np.where(up >= 0, STARTS["fork"], STARTS["arrival"]),
        **columns,
    )  # fmt: skip


@pytest.mark.parametrize("sharing", ["cow", "prefix"])
def test_parent_given_up_takes_along_only_forks_that_have_not_started(sharing: str) -> None:
    """Row 1 starts with its parent's first token, row 2 would start at its 30th, row 3 hangs on row 2."""
    trace = fork_trace(
        [20, 20, 49, 60], [60, 12, 5, 5], [-1, 0, 0, 2], [0, 20, 49, 60],
        cancel_after_tokens=np.array([10, -1, -1, -1]),
    )  # fmt: skip
    r = served(trace, sharing=sharing).requests
    assert r.outcome.tolist() == [CANCELLED, COMPLETED, CANCELLED, CANCELLED]
    assert r.num_delivered.tolist() == [10, 12, 0, 0]
    assert r.cancel_step[0] > 0
    assert r.cancel_step[1:].tolist() == [-1, -1, -1]
    assert (r.end_ns[2:] == r.end_ns[0]).all()


def test_forks_of_forks_come_with_the_root_and_all_are_served() -> None:
    """They never came: only the forks of a request that came by itself were handed over."""
    trace = fork_trace([20, 25, 28, 28], [9, 9, 3, 3], [-1, 0, 1, 2], [0, 25, 28, 28])
    r = served(trace, sharing="cow").requests
    assert r.outcome.tolist() == [COMPLETED] * 4
    assert r.met_step.tolist() == [0] * 4


def test_refused_parent_refuses_its_whole_family_and_says_why() -> None:
    trace = fork_trace([900, 900, 900, 8], [9, 9, 9, 9], [-1, 0, 1, -1], [0, 900, 900, 0])
    recorded = served(trace, sharing="cow")
    assert recorded.requests.outcome.tolist() == [Outcome.REJECTED] * 3 + [COMPLETED]
    assert "blocks of 4 at its end" in recorded.reasons[0]
    assert recorded.reasons[1] == recorded.reasons[2] == f"its parent was refused: {recorded.reasons[0]}"


def test_refused_fork_leaves_its_parent_and_takes_its_own_forks() -> None:
    trace = fork_trace([20, 300, 300], [9, 9, 9], [-1, 0, 1], [0, 20, 300])
    recorded = served(trace, sharing="cow")
    assert recorded.requests.outcome.tolist() == [COMPLETED, Outcome.REJECTED, Outcome.REJECTED]
    assert "its parent was refused" in recorded.reasons[2]


def test_sample_of_a_prompt_loses_patience_with_it_and_a_branch_from_its_own_start() -> None:
    """Row 0 runs 60 ms; its sample, asked for with it, is gone after 5 ms; a branch 5 ms after it started."""
    trace = fork_trace(
        [20, 20, 40], [60, 60, 60], [-1, 0, 0], [0, 20, 40], cancel_after_ns=np.array([-1, 5 * MS, 5 * MS])
    )
    r = served(trace, sharing="cow").requests
    assert r.arrival_ns[1] == 0
    assert 5 * MS <= r.end_ns[1] < 7 * MS
    assert r.arrival_ns[2] > 20 * MS
    assert 5 * MS <= r.end_ns[2] - r.arrival_ns[2] < 7 * MS
    assert r.admitted_ns[2] == r.arrival_ns[2] == r.first_token_ns[2]


def test_sample_that_waits_for_its_prompt_loses_patience_too() -> None:
    """The prompt takes ten steps; its sample is given up in the middle, before it starts."""
    trace = fork_trace([80, 80], [5, 5], [-1, 0], [0, 80], cancel_after_ns=np.array([-1, 4 * MS]))
    r = served(trace, sharing="cow", max_num_batched_tokens=8).requests
    assert r.outcome.tolist() == [COMPLETED, CANCELLED]
    assert 0 < r.cancel_step[1] < 6


def test_branch_that_gives_up_after_no_token_never_starts() -> None:
    trace = fork_trace([20, 25], [9, 9], [-1, 0], [0, 25], cancel_after_tokens=np.array([-1, 0]))
    r = served(trace, sharing="cow").requests
    assert r.outcome.tolist() == [COMPLETED, CANCELLED]
    assert r.num_delivered.tolist() == [9, 0]
    assert r.cancel_step[1] == 0


# ---- sessions
def turns(trace: Trace, after: list[list[int]]) -> Trace:
    """Rows with somebody in front of them start when those have ended."""
    starts = np.where([bool(before) for before in after], STARTS["think"], STARTS["arrival"])
    return with_links(replace(trace, starts=starts), Ragged.of(after))


def turn_trace(think_ms: float = 7.0, **columns: np.ndarray) -> Trace:
    """Two first turns, one after the first, one join of both; stamps are early."""
    trace = make_trace(
        np.array([0, 0, 1, 2]) * MS, np.array([8, 8, 20, 30]), np.array([4, 12, 6, 5]),
        parent=np.array([-1, -1, 0, 1]), inherited_tokens=np.array([0, 0, 12, 20]),
        think_ns=np.array([0, 0, round(think_ms * MS), 0]), **columns,
    )  # fmt: skip
    return turns(trace, [[], [], [0], [0, 1]])


def test_open_turns_come_at_their_stamps_even_while_the_turn_before_runs() -> None:
    r = served(turn_trace(), sharing="cow").requests
    assert r.arrival_ns.tolist() == [0, 0, MS, 2 * MS]
    assert r.met_step.tolist()[:2] == [0, 0]
    assert 0 < r.met_step[2] <= r.met_step[3] < 4


def test_closed_turns_come_think_time_after_all_in_front_of_them_have_ended() -> None:
    r = served(turn_trace(), sessions="closed").requests
    assert r.arrival_ns[2] == r.end_ns[0] + 7 * MS
    assert r.arrival_ns[3] == max(r.end_ns[0], r.end_ns[1])
    assert r.outcome.tolist() == [COMPLETED] * 4


@pytest.mark.parametrize("how", ["cancelled", "rejected"])
def test_closed_turn_comes_however_the_turn_in_front_of_it_ended(how: str) -> None:
    trace = turn_trace(cancel_after_tokens=np.array([2, -1, -1, -1]))
    if how == "rejected":
        trace = replace(trace, num_prompt_tokens=np.array([400, 8, 20, 30]), cancel_after_tokens=np.full(4, -1))
    r = served(trace, sessions="closed").requests
    assert r.outcome[0] == (CANCELLED if how == "cancelled" else Outcome.REJECTED)
    assert r.arrival_ns[2] == r.end_ns[0] + 7 * MS
    assert r.outcome[2] == COMPLETED


def test_turn_whose_predecessors_lie_outside_the_window_comes_at_its_stamp() -> None:
    """The window starts with row 2: nothing in front of it is offered. Row 3 waits for nobody either."""
    window = {"start": "1ms", "duration": "5ms"}
    spec = TraceSpec.model_validate({"path": "t", "sessions": "closed", "window": window})
    trace = turn_trace()
    offered = offer(trace, spec, Load(rate_scale=1.0), "cold")
    assert offered.rows.tolist() == [2, 3]
    r = Served(trace, offered, PoolPolicy(block_size=4), 64, 0).replay().requests
    assert r.arrival_ns.tolist() == [0, MS]
    assert r.outcome.tolist() == [COMPLETED] * 2


def test_rate_divides_gaps_and_leaves_think_time_and_patience_alone() -> None:
    trace = turn_trace(cancel_after_ns=np.array([-1, 5 * MS, -1, -1]))
    r = served(trace, sessions="closed", load=Load(rate_scale=100.0)).requests
    assert r.arrival_ns[2] == r.end_ns[0] + 7 * MS
    assert 5 * MS <= r.end_ns[1] < 7 * MS


# ---- closed loads
def test_closed_load_keeps_as_many_clients_as_asked_whatever_hangs_on_their_requests() -> None:
    """Each fork that ended brought another client, so that they became more and more."""
    prompts, parents, inherited = list[int](), list[int](), list[int]()
    for family in range(12):
        prompts += [8] * 4
        parents += [-1] + [family * 4] * 3
        inherited += [0, 8, 8, 8]
    trace = fork_trace(prompts, [5, 9, 13, 17] * 12, parents, inherited)
    recorded = served(trace, blocks=400, sharing="cow", load=Load(concurrency=2))
    assert recorded.steps["num_running"].max() == 8
    r = recorded.requests
    families = r.end_ns.reshape(12, 4).max(axis=1)
    begun = r.arrival_ns.reshape(12, 4).min(axis=1)
    for k in range(12):
        assert ((begun <= begun[k]) & (families > begun[k])).sum() <= 2
    assert r.outcome.tolist() == [COMPLETED] * 48


def test_closed_load_of_closed_sessions_runs_a_session_a_client() -> None:
    n = 6
    trace = make_trace(
        np.zeros(2 * n, np.int64), np.full(2 * n, 8), np.full(2 * n, 4), think_ns=np.array([0, 50 * MS] * n)
    )
    trace = turns(trace, [x for k in range(n) for x in ([], [2 * k])])
    r = served(trace, sessions="closed", load=Load(concurrency=1)).requests
    assert (np.diff(r.arrival_ns) > 0).all()
    assert r.arrival_ns[2:].tolist()[::2] == r.end_ns[:-2].tolist()[1::2]


def test_join_of_two_sessions_keeps_no_client_from_coming() -> None:
    """One client at a time: the join waits for a session that could not begin while the join held its place."""
    trace = turns(build_trace([8, 8, 8, 8], [4, 4, 4, 4]), [[], [], [0, 1], []])
    r = served(trace, sessions="closed", load=Load(concurrency=1)).requests
    assert r.outcome.tolist() == [COMPLETED] * 4
    assert r.arrival_ns.tolist() == [0, *r.end_ns[:3].tolist()]


def test_lock_that_belongs_to_another_offer_is_refused() -> None:
    trace = build_trace([8, 8], [4, 4])
    with pytest.raises(ValueError, match="has 1 requests, 2 are offered"):
        whole(trace).locked(np.array([0]))
