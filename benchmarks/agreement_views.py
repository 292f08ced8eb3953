"""Two engines' insides, seen alike: what each did in a step, in one form, whoever wrote it.

A step is looked at whole, but only where it can have changed: a running request's block table only grows, so its
new entries are read; the free queue is walked whole after every step while it has at most WHOLE_QUEUE blocks, in
larger pools after every WALK_EVERY steps (an order that differs shows in the blocks handed out next).
"""

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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
)
from trials.engines.own import PagedEngine, effective_knobs
from trials.engines.simulator import Modelled
from trials.plan import Plan
from trials.roofline import step_time
from trials.spec import TrialSpec, trial_spec

WHOLE_QUEUE = 4096
WALK_EVERY = 64
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
