"""Continuous batching over a block pool: who computes which tokens in the next step, and who must wait.

One rule instead of phases: every request has computed tokens that chase its known tokens. A step serves the
running requests first, in admission order, then admits from the head of the queue, all under one token budget.
A block is taken in the step that computes the first token in it. Who finds no block preempts a victim (the last
admitted, unless the policy says otherwise), which goes back to the FRONT of the queue and recomputes. Source of
the rules: vLLM v1's scheduler (0.32); forks with copy-on-write: vLLM v0.

Where the pool and the budget cover all decodes and at most one prefill is under way, nothing about a decode
needs deciding, and the ring (decode_ring.py) says what changes. Otherwise the same state takes the plain
in-order path. Both end in the same plan.
"""

from trials.admission import Admission
from trials.block_pool import BlockPool
from trials.content import Content
from trials.engine import NO_REFUSAL, Cause, Outcome, Refusal, StepShape, Work
from trials.forks import Forks
from trials.plan import Plan, Run
from trials.policies import VICTIMS
from trials.serving import Serving
from trials.spec import PoolPolicy

_new = tuple.__new__  # a named tuple in half the time of its own constructor: one is made every step


class SchedulerError(RuntimeError):
    """A request is in a state that cannot be; carries its story."""


class Scheduler:
    """Decides for one engine. `schedule()`, then `complete(plan)`, once a step."""

    def __init__(self, policy: PoolPolicy, pool: BlockPool, content: Content) -> None:
        self.pool = pool
        self.content = content
        self.block_size = pool.block_size
        self.budget = policy.max_num_batched_tokens
        self.max_num_seqs = policy.max_num_seqs
        self.max_model_len = policy.max_model_len
        self.chunk_limit = policy.long_prefill_token_threshold
        self.partial_match = policy.prefix_match == "partial"
        self.serving = Serving(policy, pool, content)
        self.admission = Admission(policy, pool, content)
        self.forks = Forks(self.serving, policy)
        self.refusal = NO_REFUSAL
        self._victim = VICTIMS[policy.victim]
        self._last_gives_way = policy.victim == "last_admitted" and not self.serving.reserving
        self._runs: dict[int, Run] = {}  # every live request, waiting or running

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits, be it for its parent."""
        return not self._runs and not self.forks.pending

    # ---- requests in and out
    def why_never(self, work: Work) -> str | None:
        """Why a request can never be served here, or None. The last sampled token never needs a slot."""
        total = work.num_prompt_tokens + work.num_output_tokens
        if total > self.max_model_len:
            return f"prompt + output = {total} tokens, more than max_model_len {self.max_model_len}"
        blocks = -(-(total - 1) // self.block_size)
        usable = self.pool.num_blocks - self.pool.reserve_blocks
        if blocks > usable:
            return (
                f"holds {total - 1} tokens = {blocks} blocks of {self.block_size} at its end, "
                f"more than the {usable} that the pool can hand out"
            )
        return None

    def add(self, work: Work) -> str | None:
        """Queue a request, or keep it as a fork of a live parent; the reason, where it can never fit."""
        if (reason := self.why_never(work)) is not None:
            return reason
        if work.row in self._runs or self.forks.holds(work.row):
            raise SchedulerError(f"row {work.row} is already being served")
        run = Run(work.row, work.num_prompt_tokens, work.num_output_tokens, work.arrival_ns, work.priority)
        if self.pool.caching:
            run.keys = self.content.keys(work.row, self.block_size, self.partial_match)
        if work.inherited_tokens and (work.parent in self._runs or self.forks.holds(work.parent)):
            run.parent, run.inherited_tokens = work.parent, work.inherited_tokens
            self.forks.hold(run)
            return None
        self._queue(run)
        return None

    def _queue(self, run: Run) -> None:
        self._runs[run.row] = run
        self.admission.enqueue(run)

    def cancel(self, row: int) -> bool:
        """End a request between steps; its blocks are back before the next schedule(). False if it is over."""
        run = self._runs.pop(row, None)
        if run is None:
            return self.forks.forget(row)
        if run.waiting:
            self.admission.dequeue(run)
        else:
            self.serving.let_go(run)
        self.forks.parent_is_over(row)
        return True

    # ---- one step
    def schedule(self) -> Plan:
        """Decide the next step: blocks are allocated, tokens counted as held. O(changes) unless blocks lack."""
        serving, pool = self.serving, self.pool
        serving.begin_step()
        ring, step = serving.ring, serving.step
        crossing = ring.crossing(step)
        left = self.budget - len(ring.runs)
        run, count, need = self._partial_demand(left) if serving.partial else (None, 0, 0)
        if crossing and not serving.reserving:
            need += len(crossing)
        if left < 0 or count < 0 or serving.sharing_tail:
            left = self._serve_in_order()
        elif need > pool.available:
            left = self._serve_short(crossing or {}, run) if self._last_gives_way else self._serve_in_order()
        else:
            if crossing:
                serving.open_blocks(crossing)
            if filling := ring.filling(step):
                serving.register_filled(filling)
            if run is not None and count:
                serving.compute(run, count)
                left -= count
        self.refusal = self._admit(left) if self.admission.num_waiting else NO_REFUSAL
        chunks = serving.chunks
        decodes = len(ring.runs)
        if chunks:
            shape = self._shape()
            pool.accounts.fill(decodes + shape.chunk_tokens)
        else:
            shape = _new(StepShape, (decodes, ring.context + decodes, ring.blocks, 0, 0, 0, 0, decodes))
            pool.accounts.fill(decodes)
        return Plan(step, ring.runs, chunks, serving.copies, shape)

    def _partial_demand(self, left: int) -> tuple[Run | None, int, int]:
        """The one prefill under way, the tokens it may compute and the blocks that takes; -1: look in order."""
        serving = self.serving
        last: int = next(reversed(serving.running))
        if len(serving.partial) > 1 or last not in serving.partial:
            return None, -1, 0
        run = serving.partial[last]
        count = self._grant(run, left)
        return run, count, max(0, -(-(run.computed + count) // self.block_size) - len(run.table))

    def _grant(self, run: Run, left: int) -> int:
        """Tokens that a run which is not decoding may compute now."""
        return max(0, min(run.num_prompt_tokens + run.sampled - run.computed, self._most(left)))

    def _most(self, left: int) -> int:
        """What the budget and the long-prefill threshold leave for one request."""
        return min(left, self.chunk_limit) if self.chunk_limit and len(self._runs) > 1 else left

    def _shape(self) -> StepShape:
        tokens = context = pairs = sampled = 0
        for chunk in self.serving.chunks:
            count, start = chunk.num_tokens, chunk.start
            tokens += count
            context += start
            pairs += count * start + count * (count + 1) // 2
            sampled += chunk.samples
        ring = self.serving.ring
        decodes, chunks = len(ring.runs), len(self.serving.chunks)
        return StepShape(
            decodes, ring.context + decodes, ring.blocks, chunks, tokens, context, pairs, decodes + sampled
        )

    def _serve_short(self, crossing: dict[int, Run], partial: Run | None) -> int:
        """As in order, where only blocks lack and the last admitted give way; the budget left.

        The budget covers every decode, so that nothing needs deciding about those that open no block; whoever
        is preempted stands behind all that were served, and a partial prefill stands last.
        """
        serving, ring, served = self.serving, self.serving.ring, dict[int, int]()
        for run in list(crossing.values()):
            self._make_room(run, 1, served)
            if run.row not in serving.running:
                break
            serving.open_blocks({run.row: run})
        if filling := ring.filling(serving.step):
            serving.register_filled(filling)
        left = self.budget - len(ring.runs)
        if partial is not None and partial.row in serving.running and (count := self._grant(partial, left)):
            self._make_room(partial, count, served)
            if partial.row in serving.running:
                serving.compute(partial, count)
                left -= count
        return left

    def _serve_in_order(self) -> int:
        """The plain path: one running request after the other, preempting where blocks lack; the budget left."""
        serving = self.serving
        left, served, stopped = self.budget, dict[int, int](), False
        for run in list(serving.running.values()):
            if run.row not in serving.running:
                continue
            if left == 0 or stopped:
                if run.began >= 0:
                    serving.stand_still(run)
                continue
            count = 1 if run.began >= 0 else self._grant(run, left)
            left += self._make_room(run, count, served)
            if run.row not in serving.running:
                stopped = True  # it made room by leaving; nobody behind it is looked at
                continue
            served[run.row] = count
            left -= count
            serving.serve(run, count)
        return left

    def _make_room(self, run: Run, count: int, served: dict[int, int]) -> int:
        """Preempt until the run fits or has left itself; returns the budget that victims give back."""
        serving, back = self.serving, 0
        while run.row in serving.running and serving.need(run, count) > self.pool.available:
            victim = self._victim(serving.running, serving.step)
            if victim.row in served:  # only a policy that does not take the last can choose such a one
                back += served.pop(victim.row)
                serving.uncompute(victim)
            serving.preempt(victim)
            self.admission.enqueue(victim, back=True)
        return back

    def _admit(self, left: int) -> Refusal:
        """From the head of the queue, until the first that must wait; says why it must."""
        admission, serving = self.admission, self.serving
        queue = admission.queue
        if serving.changes.preempted:
            return Refusal(Cause.PREEMPTED, queue.head().row, 0)
        while admission.num_waiting:
            run = queue.head()
            if left <= 0 or len(serving.running) >= self.max_num_seqs:
                return Refusal(Cause.BUDGET if left <= 0 else Cause.SLOTS, run.row, 0)
            most = self._most(left)
            verdict = admission.judge(run, most, len(serving.running))
            if isinstance(verdict, Refusal):
                return verdict
            admission.dequeue(run)
            serving.take_in(run, verdict)
            count = min(run.num_prompt_tokens + run.sampled - run.computed, most)
            serving.compute(run, count)
            left -= count
        return NO_REFUSAL

    # ---- after the step
    def complete(self, plan: Plan) -> list[tuple[int, Outcome]]:
        """The step has run: who sampled, who is done. Releases in schedule order; returns what ended."""
        serving = self.serving
        done = serving.ring.advance(serving.step)
        serving.step += 1
        if plan.chunks:
            finished = [chunk.run for chunk in plan.chunks if chunk.samples and serving.sample_first(chunk.run)]
            if finished:
                done = sorted([*done, *finished], key=lambda run: run.admission)
        if self.forks.pending:
            done = done + self._start_forks(plan, {run.row for run in done})
        ended = serving.changes.ended
        for run in done:
            serving.let_go(run)
            del self._runs[run.row]
            ended.append((run.row, Outcome.COMPLETED))
        return ended

    def _start_forks(self, plan: Plan, ending: set[int]) -> list[Run]:
        """Forks whose parent now holds what they inherit, or ends before it ever does; returns what is done.

        One that starts may be the parent of the next: they start until none is due.
        """
        forks, done, started = self.forks, list[Run](), self.serving.changes.started
        look = forks.moved([*(chunk.run.row for chunk in plan.chunks), *ending])
        while look:
            due = forks.due(look, self._runs, ending)
            for fork, parent in due:
                started.append(fork.row)
                sampled = parent is not None and (parent.began >= 0 or parent.row in ending)
                over = forks.share(fork, parent, sampled) if parent is not None else None
                if over is None:
                    self._queue(fork)
                    continue
                self._runs[fork.row] = fork
                done += over
                ending.update(run.row for run in over)
            look = {fork.row for fork, _ in due} & forks.pending.keys()
        return done
