"""Two engines, one load: what each did in a step, in one form, and where they differ.

A step is compared whole, but only what can have changed is looked at: a running request's block table only grows,
so its new entries are compared; the free queue is walked whole after every step while it has at most WHOLE_QUEUE
blocks, in larger pools after every WALK_EVERY steps (an order that differs shows in the blocks handed out next).
"""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.agreement_changes import FLAW
from benchmarks.agreement_loads import Case
from trials.content import Content
from trials.engine import (
    DeviceBytes,
    Engine,
    EngineFacts,
    LedgerRow,
    PoolGeometry,
    Refusal,
    Refused,
    Step,
    StepShape,
    Work,
)
from trials.engines.own import PagedEngine, effective_knobs
from trials.engines.simulator import Modelled
from trials.plan import Plan
from trials.roofline import step_time
from trials.spec import TrialSpec, trial_spec

WHOLE_QUEUE = 4096
WALK_EVERY = 64
STUCK_STEPS = 20_000  # without a request that ends, after which a run is left
MODEL = {
    "num_layers": 1, "num_kv_heads": 2, "num_query_heads": 4, "head_dim": 64, "hidden_size": 256,
    "intermediate_size": 512, "vocab_size": 32000,
}  # fmt: skip
STEP_TIME = "linear:4000,40,10"  # any function of the schedule will do: both engines ask the same one


@dataclass(slots=True)
class Seen:
    """One step, as seen from outside an engine. Two engines agree when these are equal, field by field."""

    tokens: list[tuple[int, int]]  # (row, tokens scheduled), in schedule order
    running: list[int]
    waiting: list[int]
    held: list[int]  # KV tokens of each running row
    new_blocks: list[tuple[int, int, list[int]]]  # (row, entries before, ids since)
    num_free: tuple[int, int]  # without content, with content
    queue: list[int] | None  # the free queue, head first, where it was walked
    admitted: list[tuple[int, int]]  # (row, tokens hit)
    preempted: list[tuple[int, int]]
    ended: list[int]
    began: list[int]
    paused: list[int]
    started: list[int]  # forks
    shape: StepShape
    duration_ns: int
    backlog: tuple[int, int, int]  # running, waiting, known tokens that wait
    refusal: Refusal
    ledger: LedgerRow

    def differs(self, other: "Seen") -> list[str]:
        """Names of the fields that are not equal."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]


class View(Protocol):
    """How an engine's inside is read, whoever wrote it."""

    engine: Engine
    tokens: list[tuple[int, int]]

    def running(self) -> list[int]: ...
    def waiting(self) -> list[int]: ...
    def held(self, row: int) -> int: ...
    def blocks(self, row: int, first: int) -> list[int]: ...
    def queue(self) -> list[int]: ...


@dataclass(slots=True)
class Observer:
    """Turns an engine's steps into `Seen`."""

    view: View
    known: dict[int, int] = field(default_factory=dict)  # running row -> entries of its table compared so far
    steps: int = 0

    def step(self) -> Seen | None:
        step = self.view.engine.step()
        if step is None:
            return None
        self.steps += 1
        return self._seen(step)

    def _seen(self, step: Step) -> Seen:
        view = self.view
        for row, _ in step.preempted:
            self.known.pop(row, None)
        running = view.running()
        new_blocks = []
        known: dict[int, int] = {}
        for row in running:
            before = self.known.get(row, 0)
            more = view.blocks(row, before)
            if more:
                new_blocks.append((row, before, more))
            known[row] = before + len(more)
        self.known = known
        now = view.engine.ledger()[0]
        walked = now.free_blocks + now.cached_blocks <= WHOLE_QUEUE or self.steps % WALK_EVERY == 0
        return Seen(
            tokens=list(view.tokens), running=running, waiting=view.waiting(),
            held=[view.held(row) for row in running], new_blocks=new_blocks,
            num_free=(now.free_blocks, now.cached_blocks), queue=view.queue() if walked else None,
            admitted=list(step.admitted), preempted=list(step.preempted), ended=[row for row, _ in step.ended],
            began=sorted(step.began), paused=sorted(step.paused), started=list(step.started),
            shape=step.shape, duration_ns=step.duration_ns,
            backlog=(step.num_running, step.num_waiting, step.waiting_tokens), refusal=step.refusal,
            ledger=step.ledger[0],
        )  # fmt: skip


# ---- ours
class Noted(Modelled):
    """The simulator's execution, which also notes who computes what, in running order."""

    tokens: list[tuple[int, int]]

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        found = [(run.admission, run.row, 1) for run in plan.decoding.values()]
        found += [
            (chunk.run.admission, chunk.run.row, chunk.num_tokens) for chunk in plan.chunks if chunk.num_tokens
        ]
        self.tokens = [(row, count) for _, row, count in sorted(found)]
        return super().execute(plan)


class OurView:
    """Reads PagedEngine."""

    def __init__(self, case: Case) -> None:
        spec = spec_of(case)
        geometry = geometry_of(spec)
        facts = EngineFacts(
            "simulator", "0" * 64, "modelled", "virtual", (geometry,), 1, effective_knobs(spec.policy, geometry),
            max_model_len=spec.policy.max_model_len,
        )  # fmt: skip
        time_of = step_time(STEP_TIME, spec.model, geometry.block_size)
        self.noted = Noted(time_of, DeviceBytes())
        self.engine: Any = PagedEngine(facts, spec.policy, Content(case.trace), self.noted)

    @property
    def tokens(self) -> list[tuple[int, int]]:
        return self.noted.tokens

    @property
    def _serving(self) -> Any:
        return self.engine._scheduler.serving

    def running(self) -> list[int]:
        return list(self._serving.running)

    def waiting(self) -> list[int]:
        return [run.row for run in self.engine._scheduler.admission.queue]

    def held(self, row: int) -> int:
        return int(self._serving.running[row].computed_at(self._serving.step))

    def blocks(self, row: int, first: int) -> list[int]:
        return list(self._serving.running[row].table[first:])

    def queue(self) -> list[int]:
        pool = self.engine._pool
        return [*pool.free_ids(), *pool.cached_ids()]


# ---- theirs
class TheirView:
    """Reads VllmScheduler."""

    def __init__(self, case: Case) -> None:
        from trials.engines import vllm_scheduler

        spec = spec_of(case)
        engine = vllm_scheduler.open(spec, Content(case.trace))
        if isinstance(engine, Refused):
            raise SystemExit(f"vLLM would not start: {engine.words}")
        self.engine: Any = engine
        self.tokens: list[tuple[int, int]] = []
        executor = engine.core.model_executor  # type: ignore[attr-defined]
        inner = executor.on_step

        def noting(output: Any) -> list[list[int]]:
            self.tokens = [(int(name), count) for name, count in output.num_scheduled_tokens.items()]
            return inner(output)

        executor.on_step = noting

    def running(self) -> list[int]:
        return [int(request.request_id) for request in self.engine.scheduler.running]

    def waiting(self) -> list[int]:
        return [int(request.request_id) for request in self.engine.scheduler.waiting]

    def held(self, row: int) -> int:
        return int(self.engine.scheduler.requests[_name(row)].num_computed_tokens)

    def blocks(self, row: int, first: int) -> list[int]:
        return [block.block_id for block in self.engine.watch.tables[_name(row)][first:]]

    def queue(self) -> list[int]:
        return [block.block_id for block in self.engine.watch.queue()]


def _name(row: int) -> str:
    return f"{row:010d}"


def spec_of(case: Case) -> TrialSpec:
    return trial_spec(
        {
            "engine": {"name": "vllm_scheduler", "step_time": STEP_TIME}, "model": MODEL,
            "pool": {"blocks": case.num_blocks}, "policy": case.policy.model_dump(), "trace": {"path": "-"},
            "slo": "ttft:p99<1s",
        },
        "agreement",
    )  # fmt: skip


def geometry_of(spec: TrialSpec) -> PoolGeometry:
    """The pool on our side: as many blocks, of which the first is reserved like vLLM's null block."""
    size, per_token = spec.policy.block_size, spec.model.kv_bytes_per_token
    assert spec.pool.blocks is not None
    return PoolGeometry(
        size, spec.pool.blocks, 1, per_token, 0, spec.pool.blocks * size * per_token, size,
        size if spec.policy.prefix_caching else 0,
    )  # fmt: skip


# ---- the load
@dataclass(slots=True)
class Moment:
    """What happens between two steps."""

    adds: list[int] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)


class Driver:
    """Says what happens between steps, by the clock that the steps moved. One abort a call."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.now = 0
        self._next = 0
        self._rng = random.Random(f"aborts/{case.seed}")
        self._alive: dict[int, None] = {}
        self._aborts: dict[int, list[int]] = {}  # step -> rows
        self._step = self._last_end = 0

    @property
    def over(self) -> bool:
        """All has ended, or nothing ends any more: by vLLM's rules two can take turns forever."""
        return self.stuck or (self._next == len(self.case.due_ns) and not self._alive)

    @property
    def stuck(self) -> bool:
        return self._step - self._last_end > STUCK_STEPS

    def moment(self) -> Moment:
        """Everything that is due now; an idle engine is taken to the next arrival."""
        due = self.case.due_ns
        if not self._alive and self._next < len(due):
            self.now = max(self.now, due[self._next])
        out = Moment()
        while self._next < len(due) and due[self._next] <= self.now:
            out.adds.append(self._next)
            self._alive[self._next] = None
            if self._rng.random() < self.case.abort_share:
                self._aborts.setdefault(self._step + self._patience(self._next), []).append(self._next)
            self._next += 1
        out.cancels = self._aborts.pop(self._step, [])
        for row in out.cancels:
            self._alive.pop(row, None)
        self._step += 1
        return out

    def _patience(self, row: int) -> int:
        """Steps until a request is aborted: still queued, in its prefill, while it decodes, or long over."""
        output = int(self.case.trace.num_output_tokens[row])
        return self._rng.choice((0, 1, self._rng.randint(2, 20), self._rng.randint(1, output), 2 * output))

    def stepped(self, seen: Seen) -> None:
        self.now += seen.duration_ns
        for row in seen.ended:
            self._last_end = self._step
            self._alive.pop(row, None)


def work(case: Case, row: int) -> Work:
    trace = case.trace
    fork = case.forks and trace.parent[row] >= 0
    return Work(
        row, int(trace.num_prompt_tokens[row]), int(trace.num_output_tokens[row]), case.due_ns[row],
        case.priorities[row], parent=int(trace.parent[row]) if fork else -1,
        inherited_tokens=int(trace.inherited_tokens[row]) if fork else 0,
    )  # fmt: skip


def apply(engine: Engine, case: Case, moment: Moment) -> list[object]:
    """Carry a moment out; what the engine answered."""
    said: list[object] = [engine.add(work(case, row)) for row in moment.adds]
    said += [engine.cancel(row) for row in moment.cancels]
    return said


@dataclass(slots=True)
class Tally:
    """What was compared in one run, and the first difference."""

    steps: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    aborts: int = 0
    finished: int = 0
    stuck: int = 0  # 1: left, since nothing ended any more
    differing: int = 0
    first: str = ""

    def count(self, seen: Seen) -> None:
        self.steps += 1
        self.preemptions += len(seen.preempted)
        self.hit_tokens += sum(hit for _, hit in seen.admitted)
        self.evictions += seen.ledger.evicted_blocks
        self.finished += len(seen.ended)


def lockstep(case: Case) -> Tally:
    """Both engines through the load, compared after every step; stops at the first step that differs.

    Under the priority policy ours is given vLLM's flaw (agreement_changes.py): all else must agree.
    """
    with ExitStack() as changes:
        if case.policy.victim == "priority":
            for change in FLAW:
                changes.enter_context(change.applied())
        return _lockstep(case)


def _lockstep(case: Case) -> Tally:
    theirs, ours = Observer(TheirView(case)), Observer(OurView(case))
    driver, tally = Driver(case), Tally()
    engines: Sequence[Engine] = (theirs.view.engine, ours.view.engine)
    try:
        for engine in engines:
            engine.start(cold=True)
        while not driver.over:
            moment = driver.moment()
            said = [apply(engine, case, moment) for engine in engines]
            tally.aborts += sum(answer is True for answer in said[0])
            if said[0] != said[1]:
                tally.differing, tally.first = 1, f"before step {tally.steps}: {said[0]} against {said[1]}"
                break
            wanted, found = theirs.step(), ours.step()
            if wanted is None or found is None:
                if wanted is not found:
                    tally.differing, tally.first = 1, f"step {tally.steps}: only one engine ran"
                    break
                continue
            tally.count(wanted)
            if names := wanted.differs(found):
                tally.differing, tally.first = 1, told(tally.steps, names, wanted, found)
                break
            driver.stepped(wanted)
        tally.stuck = int(driver.stuck)
    finally:
        theirs.view.engine.close()
    return tally


def told(step: int, names: list[str], wanted: Seen, found: Seen) -> str:
    """A difference, in words short enough to read."""
    shown = [f"{n}: vLLM {str(getattr(wanted, n))[:300]}, ours {str(getattr(found, n))[:300]}" for n in names[:4]]
    return f"step {step}: {len(names)} fields differ: " + "; ".join(shown)


@dataclass(slots=True)
class Script:
    """A run of vLLM's scheduler, kept: what happened before each step, and what was seen of it."""

    case: Case
    moments: list[Moment]
    seen: list[Seen | None]


def record(case: Case) -> Script:
    """Run vLLM's scheduler alone, and keep everything."""
    observer, driver = Observer(TheirView(case)), Driver(case)
    script = Script(case, [], [])
    observer.view.engine.start(cold=True)
    while not driver.over:
        moment = driver.moment()
        apply(observer.view.engine, case, moment)
        seen = observer.step()
        script.moments.append(moment)
        script.seen.append(seen)
        if seen is not None:
            driver.stepped(seen)
    observer.view.engine.close()
    return script


def replayed(script: Script) -> Iterator[list[str]]:
    """Our engine through a kept run, step by step: the fields that differ."""
    observer = Observer(OurView(script.case))
    observer.view.engine.start(cold=True)
    for moment, wanted in zip(script.moments, script.seen, strict=True):
        apply(observer.view.engine, script.case, moment)
        found = observer.step()
        if wanted is None or found is None:
            yield [] if wanted is found else ["one ran, the other did not"]
        else:
            yield wanted.differs(found)
