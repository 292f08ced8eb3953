"""PagedEngine: our scheduler and pool behind the Engine contract, with whatever executes the steps.

Driven by a step-time model it is the simulator; by real tensors, torch_paged. Synchronous: a step is scheduled,
its ledger row taken, it is executed, and only then is anything finished released.
"""

from trials.block_pool import BlockPool, PoolError, PoolRules
from trials.content import Content
from trials.engine import (
    Audit,
    EngineDied,
    EngineFacts,
    EngineStart,
    GroupAudit,
    LedgerRow,
    PoolGeometry,
    Step,
    StepShape,
    Work,
)
from trials.plan import Execution
from trials.scheduler import Scheduler
from trials.spec import PoolPolicy

_UNSHARED = {"prefix_caching": False, "sharing": "prefix", "prefix_match": "block"}


def applied(policy: PoolPolicy) -> PoolPolicy:
    """The policy as the scheduler gets it: nothing is shared where a sequence's memory is contiguous."""
    return policy if policy.layout == "paged" else policy.model_copy(update=_UNSHARED)


def effective_knobs(policy: PoolPolicy, geometry: PoolGeometry) -> tuple[tuple[str, str], ...]:
    """Every knob as this engine applies it: our own engines apply what they are asked, or refuse."""
    knobs = {name: str(value) for name, value in applied(policy).model_dump(mode="json").items()}
    knobs["block_size"] = str(geometry.block_size)
    return tuple(sorted(knobs.items()))


class PagedEngine:
    """One KV group, one rank. `facts` and `start_up` are given by who built it and verified against the pool."""

    def __init__(
        self, facts: EngineFacts, policy: PoolPolicy, content: Content, execution: Execution,
        start_up: EngineStart | None = None,
    ) -> None:  # fmt: skip
        geometry = facts.groups[0]
        self.facts = facts
        self.start_up = start_up or EngineStart()
        self.geometry: PoolGeometry = geometry
        self._policy = policy = applied(policy)
        self._content = content
        self._execution = execution
        rules = PoolRules(policy.eviction, policy.free_order, policy.prefix_match == "partial")
        self._pool = BlockPool(
            geometry.num_blocks, geometry.block_size, geometry.reserve_blocks, policy.prefix_caching, rules
        )
        self._scheduler = Scheduler(policy, self._pool, content)
        empty = StepShape(0, 0, 0, 0, 0, 0, 0, 0)
        self._step = Step(0, None, empty, (), 0, 0, 0)

    def start(self, cold: bool) -> None:
        scheduler = self._scheduler
        if not scheduler.idle:
            running, waiting = len(scheduler.serving.running), len(scheduler.admission.queue)
            raise PoolError(f"a replay can only start drained: {running} run, {waiting} wait")
        self._pool.check_invariants([])
        if cold:
            self._pool.drop_cached()
        self._scheduler = Scheduler(self._policy, self._pool, self._content)
        self._pool.accounts.row()
        self._execution.reset()

    def add(self, work: Work) -> str | None:
        return self._scheduler.add(work)

    def cancel(self, row: int) -> bool:
        if not self._scheduler.cancel(row):
            return False
        self._execution.forget(row)
        return True

    def step(self) -> Step | None:
        scheduler = self._scheduler
        if scheduler.idle:
            return None
        plan = scheduler.schedule()
        ledger = (self._pool.accounts.row(),)
        try:
            duration_ns, attention_ns = self._execution.execute(plan)
        except Exception as error:  # whatever it is: the engine cannot go on, and the trial has to say so
            raise EngineDied(f"step {plan.step}: {type(error).__name__}: {error}") from error
        ended = scheduler.complete(plan)
        for row, _ in ended:
            self._execution.forget(row)
        step, changes = self._step, scheduler.serving.changes
        step.duration_ns, step.attention_ns = duration_ns, attention_ns
        step.shape, step.ledger = plan.shape, ledger
        step.num_running = len(scheduler.serving.running) + len(ended)
        step.num_waiting = scheduler.admission.num_waiting
        step.waiting_tokens, step.refusal = scheduler.admission.waiting_tokens, scheduler.refusal
        step.began, step.paused, step.ended = changes.began, changes.paused, ended
        step.admitted, step.preempted, step.started = changes.admitted, changes.preempted, changes.started
        if scheduler.serving.forking:
            step.burst_blocks, step.bound_blocks = changes.burst_blocks, scheduler.forks.bound()
        return step

    def ledger(self) -> tuple[LedgerRow, ...]:
        return (self._pool.accounts.peek(),)

    def audit(self) -> Audit:
        pool, serving = self._pool, self._scheduler.serving
        tables = {row: list(run.table) for row, run in serving.running.items()}
        held = {row: run.computed_at(serving.step) for row, run in serving.running.items()}
        reserve = list(range(pool.reserve_blocks))
        ahead = {row: serving.ahead_of(run, held[row]) for row, run in serving.running.items()}
        group = GroupAudit(tables, held, pool.free_ids(), pool.cached_ids(), reserve, ahead)
        return Audit([group], self._execution.device())

    def check(self) -> None:
        """Every law of the pool against the raw tables; raises PoolError. O(pool): for tests and audits."""
        self._pool.check_invariants([run.table for run in self._scheduler.serving.running.values()])

    def close(self) -> None:
        """Nothing to give back but memory."""
