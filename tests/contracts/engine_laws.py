"""What every engine owes whoever drives it, whichever engine it is. One function a law; none looks inside.

A laboratory says how an engine is built: `open(name, ...)` for any that this interpreter has. Pools are given in
blocks that can be handed out; what an engine reserves comes on top, as it says itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.builders import build_trace
from trials.content import Content
from trials.engine import Engine, Outcome, Refused, Step, Work
from trials.engines import engine_module
from trials.load import Offer, offer
from trials.ragged import Ragged
from trials.recording import Replay
from trials.recount import check_row
from trials.replay import replay
from trials.spec import Load, TraceSpec, TrialSpec, trial_spec
from trials.trace import STARTS, Trace, with_links

MODEL = {
    "num_layers": 2, "num_kv_heads": 2, "num_query_heads": 4, "head_dim": 32, "hidden_size": 128,
    "intermediate_size": 256, "vocab_size": 512, "kv_dtype": "float32", "dtype": "float32",
}  # fmt: skip
POLICY = {"block_size": 4, "max_model_len": 96, "max_num_seqs": 16, "max_num_batched_tokens": 32}


@dataclass(frozen=True)
class Laboratory:
    """One engine by name. `reserve`: blocks that it takes out of what it is given; `extra`: parts of its spec;
    `shape`: what differs from MODEL; `times`: how much longer everything is, in tokens."""

    name: str
    reserve: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    times: int = 1

    def trace(self, prompts: list[int], outputs: list[int], ids: list[list[int]] | None = None) -> Trace:
        """All at once; ids of 16 tokens."""
        long = [[n * self.times for n in lengths] for lengths in (prompts, outputs)]
        return build_trace(*long, ids=ids, tokens_per_id=16 * self.times)

    def spec(self, usable_blocks: int, **policy: Any) -> TrialSpec:
        return trial_spec(
            {
                "engine": {"name": self.name, **self.extra}, "model": MODEL | self.shape,
                "pool": {"blocks": usable_blocks + self.reserve}, "policy": {**self._policy(), **policy},
                "trace": {"path": "/none.parquet"}, "slo": "ttft:p99<60s",
            }
        )  # fmt: skip

    def _policy(self) -> dict[str, int]:
        long = {
            name: POLICY[name] * self.times for name in ("block_size", "max_model_len", "max_num_batched_tokens")
        }
        return POLICY | long

    def open(self, trace: Trace, usable_blocks: int, **policy: Any) -> Engine:
        spec = self.spec(usable_blocks, **policy)
        module = engine_module(self.name)
        module.prepare(spec)
        engine = module.open(spec, Content(trace))
        assert not isinstance(engine, Refused), engine.words
        return engine


def work(trace: Trace, row: int) -> Work:
    parent, inherited = int(trace.parent[row]), int(trace.inherited_tokens[row])
    prompt, output = int(trace.num_prompt_tokens[row]), int(trace.num_output_tokens[row])
    return Work(row, prompt, output, parent=parent, inherited_tokens=inherited)


class Driven:
    """Steps an engine and keeps what it said: tokens a row, how each ended. Every step is audited."""

    def __init__(self, engine: Engine, trace: Trace) -> None:
        self.engine, self.trace = engine, trace
        self.delivered: dict[int, int] = {}
        self.ended: dict[int, Outcome] = {}
        self.hits: dict[int, int] = {}
        self.started: dict[int, int] = {}  # fork -> step, counted from 0
        self.preemptions = self.steps = 0
        self._flowing: set[int] = set()
        engine.start(cold=True)

    def add(self, *rows: int) -> None:
        for row in rows:
            assert self.engine.add(work(self.trace, row)) is None

    def step(self) -> Step | None:
        step = self.engine.step()
        if step is None:
            return None
        self.steps += 1
        assert self.steps < 20_000, "the engine does not come to an end"
        for row, hit in step.admitted:
            self.hits.setdefault(row, hit)
        self.preemptions += len(step.preempted)
        self.started |= dict.fromkeys(step.started, self.steps - 1)
        assert not set(step.began) & self._flowing, "a row began that had not paused"
        assert set(step.paused) <= self._flowing, "a row paused that had not begun"
        self._flowing = (self._flowing | set(step.began)) - set(step.paused)
        more = dict(step.extra)
        for row in self._flowing:
            self.delivered[row] = self.delivered.get(row, 0) + more.get(row, 1)
        for row, outcome in step.ended:
            assert row not in self.ended, f"row {row} ended twice"
            self.ended[row] = outcome
            self._flowing.discard(row)
        self.audit()
        return step

    def audit(self) -> None:
        audit, rows = self.engine.audit(), self.engine.ledger()
        for row, group, geometry in zip(rows, audit.groups, self.engine.facts.groups, strict=True):
            assert check_row(row, group, geometry) == []
            tokens = row.payload_tokens + row.tail_slack_tokens + row.reserved_ahead_tokens
            blocks = row.cached_blocks + row.free_blocks + row.reserve_blocks
            assert tokens + blocks * geometry.block_size == geometry.num_blocks * geometry.block_size

    def cancel(self, row: int) -> bool:
        self._flowing.discard(row)
        return self.engine.cancel(row)

    def drain(self) -> "Driven":
        while self.step() is not None:
            pass
        assert self.engine.step() is None
        assert not any(group.tables for group in self.engine.audit().groups), "something is held after the drain"
        return self


def load_of(seed: int, count: int = 24, times: int = 1) -> Trace:
    """Requests of 1 to 60 prompt tokens, half of them with a beginning that others have too; or `times` as long,
    less some tokens, so that they end anywhere in a block."""
    rng = np.random.default_rng(seed)
    prompts = (rng.integers(1, 60, count) * times).tolist()
    outputs = (rng.integers(1, 30, count) * times).tolist()
    at = np.cumsum(rng.integers(0, 20, count)).tolist()
    if times > 1:
        prompts, outputs = ([n - int(rng.integers(times)) for n in lengths] for lengths in (prompts, outputs))
    per = 16 * times
    ids = [[0, 1, 2, 3][: -(-p // per)] if k % 2 else [100 + k] * -(-p // per) for k, p in enumerate(prompts)]
    return build_trace(prompts, outputs, arrivals_ms=at, ids=ids, tokens_per_id=per)


# ---- laws
def tokens_are_delivered_once(lab: Laboratory) -> None:
    """An overloaded pool: preempted requests repeat no token and lose none; every ledger row stands the audit."""
    trace = load_of(1, times=lab.times)
    driven = Driven(lab.open(trace, 30), trace)
    driven.add(*range(len(trace)))
    driven.drain()
    assert driven.preemptions > 0, "the load was meant to be too much"
    assert driven.delivered == dict(enumerate(trace.num_output_tokens.tolist()))
    assert set(driven.ended.values()) == {Outcome.COMPLETED}
    driven.engine.close()


def cancelling_gives_everything_back_at_once(lab: Laboratory) -> None:
    """Queued, in its prefill, while it decodes; a second time, after the end, and of a row never seen: False."""
    trace = lab.trace([60, 60, 8, 8], [20, 20, 20, 1])
    driven = Driven(lab.open(trace, 64, max_num_seqs=2), trace)
    driven.add(0, 1, 2)
    driven.step()
    assert driven.cancel(2), "row 2 was queued"
    assert not driven.cancel(2)
    driven.step()
    assert driven.cancel(1), "row 1 was in its prefill"
    driven.audit()
    assert all(1 not in group.tables for group in driven.engine.audit().groups)
    while not driven.delivered.get(0):
        driven.step()
    assert driven.cancel(0), "row 0 was decoding"
    assert not driven.cancel(0)
    assert not driven.cancel(99)
    driven.add(3)
    driven.drain()
    assert driven.ended == {3: Outcome.COMPLETED}
    assert not driven.cancel(3)
    driven.engine.close()


def what_can_never_fit_is_refused_and_the_rest_goes_on(lab: Laboratory) -> None:
    trace = lab.trace([90, 20, 96], [6, 5, 1])
    driven = Driven(lab.open(trace, 30), trace)
    assert driven.engine.add(work(trace, 0)) is None, "as many tokens as max_model_len, and no more"
    reason = driven.engine.add(work(trace, 2))
    assert reason is not None
    assert str(97 * lab.times) in reason
    assert str(96 * lab.times) in reason
    driven.add(1)
    driven.drain()
    assert driven.delivered == {0: 6 * lab.times, 1: 5 * lab.times}
    driven.engine.close()


def a_cold_start_forgets_and_a_warm_one_does_not(lab: Laboratory) -> None:
    trace = lab.trace([33, 33, 33, 33], [3] * 4, ids=[[1, 2, 3]] * 4)
    driven = Driven(lab.open(trace, 64), trace)
    driven.add(0)
    driven.drain()
    driven.engine.start(cold=False)
    driven.add(1)
    driven.drain()
    assert driven.hits[1] == 32 * lab.times
    driven.engine.start(cold=True)
    row = driven.engine.ledger()[0]
    assert (row.cached_blocks, row.payload_tokens, row.logical_tokens) == (0, 0, 0)
    assert not any(group.cached for group in driven.engine.audit().groups)
    driven.add(2)
    driven.drain()
    assert driven.hits[2] == 0
    driven.engine.close()


def starting_while_something_lives_is_an_error(lab: Laboratory) -> None:
    trace = lab.trace([10], [5])
    driven = Driven(lab.open(trace, 30), trace)
    driven.add(0)
    for _ in range(2):
        try:
            driven.engine.start(cold=True)
        except RuntimeError:
            pass
        else:
            raise AssertionError("it started although a request is alive")
        driven.step()
    driven.drain()
    driven.engine.start(cold=True)
    driven.engine.close()


def a_fork_starts_when_its_parent_holds_what_it_inherits(lab: Laboratory) -> None:
    """A prompt of 40 in steps of 32, then decodes; forks at 40 and at 50, and one at 55 that is given up before."""
    times = lab.times
    trace = forks_of(lab.trace([40, 48, 58, 63], [20, 4, 4, 4]), [40 * times, 50 * times, 55 * times])
    driven = Driven(lab.open(trace, 64), trace)
    driven.add(*range(4))
    driven.step()
    assert driven.cancel(3), "it has not started"
    assert not driven.cancel(3)
    driven.drain()
    assert driven.started == {1: 1, 2: 1 + 10 * times}
    size = driven.engine.facts.groups[0].block_size
    assert driven.hits == {0: 0, 1: 40 * times, 2: 50 * times // size * size}
    assert driven.delivered == {0: 20 * times, 1: 4 * times, 2: 4 * times}
    driven.engine.close()


def forks_of(trace: Trace, inherited: Sequence[int]) -> Trace:
    """The rows behind the first as forks of it that inherit so many tokens."""
    n = len(trace)
    columns = {
        "parent": np.array([-1, *[0] * (n - 1)]), "inherited_tokens": np.array([0, *inherited]),
        "starts": np.array([STARTS["arrival"], *[STARTS["fork"]] * (n - 1)]),
    }  # fmt: skip
    return with_links(replace(trace, **columns), Ragged.empty(n))


def facts_are_what_was_asked_or_say_otherwise(lab: Laboratory) -> None:
    times, size = lab.times, 8 * lab.times
    asked = {
        "block_size": size, "prefix_caching": False, "watermark": 0.1, "reserve_prompt": False,
        "max_model_len": 80 * times, "max_num_seqs": 7, "max_num_batched_tokens": 24 * times,
        "long_prefill_token_threshold": 5 * times,
    }  # fmt: skip
    engine = lab.open(lab.trace([10], [5]), 40, **asked)
    facts = engine.facts
    assert facts.name == lab.name
    knobs = dict(facts.effective)
    asked = {name: value for name, value in asked.items() if name not in facts.not_applicable}
    assert {name: knobs[name] for name in asked} == {name: str(value) for name, value in asked.items()}
    assert "outputs" in knobs or "outputs" in facts.not_applicable
    (geometry,) = facts.groups
    num_blocks = (geometry.num_blocks, geometry.reserve_blocks)
    assert (geometry.block_size, *num_blocks) == (size, 40 + lab.reserve, lab.reserve)
    assert geometry.bytes_per_token == lab.spec(40).model.kv_bytes_per_token
    assert geometry.remainder_bytes == 0
    assert geometry.reuse_quantum_tokens == 0, "nothing is reused without prefix caching"
    assert len(engine.audit().groups[0].reserve) == lab.reserve
    assert facts.max_model_len == 80 * times
    assert len(facts.engine_hash) == 64
    engine.close()
    engine.close()


def _offer(trace: Trace) -> Offer:
    return offer(trace, TraceSpec(path="-"), Load(rate_scale=1.0), "cold")


def a_replay_locked_to_steps_gives_the_same_ledger(lab: Laboratory) -> None:
    """By clock, then by the recorded steps: every account of every step and every token's step are equal."""
    trace = load_of(2, times=lab.times)
    engine = lab.open(trace, 30)
    first = replay(engine, trace, _offer(trace))
    again = replay(engine, trace, _offer(trace).locked(first.requests.met_step, first.requests.cancel_step))
    busy, also = _busy(first), _busy(again)
    assert len(busy) > 20
    assert np.array_equal(busy, also)
    assert first.broken_laws == again.broken_laws == []
    assert not first.void_because
    assert np.array_equal(first.requests.num_delivered, again.requests.num_delivered)
    engine.close()


def _busy(done: Replay) -> np.ndarray:
    """Ledger rows of the steps that were no idle span, [S, columns]."""
    return np.stack(list(done.ledger.values()), axis=1)[done.steps["idle"] == 0]


LAWS: tuple[Callable[[Laboratory], None], ...] = (
    tokens_are_delivered_once,
    cancelling_gives_everything_back_at_once,
    what_can_never_fit_is_refused_and_the_rest_goes_on,
    a_cold_start_forgets_and_a_warm_one_does_not,
    starting_while_something_lives_is_an_error,
    a_fork_starts_when_its_parent_holds_what_it_inherits,
    facts_are_what_was_asked_or_say_otherwise,
    a_replay_locked_to_steps_gives_the_same_ledger,
)
