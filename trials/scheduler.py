"""Continuous batching over a block pool: who computes which tokens in the next step, and who must wait.

One rule instead of phases: every request has computed tokens that chase its known tokens. A step serves the
running requests first, in admission order, then admits from the head of the queue, all under one token budget.
A block is taken in the step that computes the first token in it. Who finds no block preempts the last admitted,
which goes back to the FRONT of the queue and recomputes. Source of the rules: vLLM v1's scheduler (0.32).

Where the pool and the budget cover all decodes and at most one prefill is under way, nothing about a decode
needs deciding, and the ring (decode_ring.py) says what changes. Otherwise the same state takes the plain
in-order path. Both end in the same plan.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from trials.block_pool import BlockPool
from trials.content import Content
from trials.decode_ring import DecodeRing
from trials.engine import NO_REFUSAL, Cause, Outcome, Refusal, StepShape, Work
from trials.plan import Chunk, Plan, Run
from trials.spec import PoolPolicy


class SchedulerError(RuntimeError):
    """A request is in a state that cannot be; carries its story."""


@dataclass(slots=True)
class Changes:
    """What a step changed, by row; filled by schedule() and complete()."""

    began: list[int]
    paused: list[int]
    ended: list[tuple[int, Outcome]]
    admitted: list[tuple[int, int]]
    preempted: list[tuple[int, int]]

    def clear(self) -> None:
        """A new step begins; most steps change nothing."""
        if self.began or self.paused or self.ended or self.admitted or self.preempted:
            self.began, self.paused, self.ended, self.admitted, self.preempted = [], [], [], [], []


class Scheduler:
    """Owns the queue and the running set of one engine. `schedule()`, then `complete(plan)`, once a step."""

    def __init__(self, policy: PoolPolicy, pool: BlockPool, content: Content, block_size: int) -> None:
        self.pool = pool
        self.content = content
        self.block_size = block_size
        self.budget = policy.max_num_batched_tokens
        self.max_num_seqs = policy.max_num_seqs
        self.max_model_len = policy.max_model_len
        self.chunk_limit = policy.long_prefill_token_threshold
        self.reserve_prompt = policy.reserve_prompt
        self.margin = int(policy.watermark * pool.num_blocks)  # of the configured count, rounded down
        self.step = 0
        self.waiting: deque[Run] = deque()
        self.waiting_tokens = 0
        self.running: dict[int, Run] = {}  # in admission order
        self.partial: dict[
            int, Run
        ] = {}  # of these, who is not decoding: prefills under way, and decodes stood still
        self.ring = DecodeRing(block_size)
        self.refusal = NO_REFUSAL
        self.changes = Changes([], [], [], [], [])
        self._admissions = 0
        self._shortest: list[tuple[int, int]] = []  # heap of (known tokens, row) of those that wait, lazily cleaned
        self._runs: dict[int, Run] = {}  # every live request, waiting or running
        self._lookup: tuple[int, int, list[int]] = (-1, -1, [])  # (row, epoch, blocks) of the last prefix match

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
        """Queue a request; the reason instead, where it can never fit."""
        if (reason := self.why_never(work)) is not None:
            return reason
        if work.row in self._runs:
            raise SchedulerError(f"row {work.row} is already being served")
        run = Run(work.row, work.num_prompt_tokens, work.num_output_tokens, work.arrival_ns, work.priority)
        if self.pool.caching:
            run.keys = self.content.keys(work.row, self.block_size)
        self._runs[work.row] = run
        self._enqueue(run, front=False)
        return None

    def _enqueue(self, run: Run, front: bool) -> None:
        known = run.num_prompt_tokens + run.sampled
        run.waiting = True
        self.waiting_tokens += known
        heapq.heappush(self._shortest, (known, run.row))
        if front:
            self.waiting.appendleft(run)
        else:
            self.waiting.append(run)

    def _dequeue(self, run: Run) -> None:
        run.waiting = False
        self.waiting_tokens -= run.num_prompt_tokens + run.sampled

    def cancel(self, row: int) -> bool:
        """End a request between steps; its blocks are back before the next schedule(). False if it is over."""
        run = self._runs.pop(row, None)
        if run is None:
            return False
        if run.waiting:
            self.waiting.remove(run)
            self._dequeue(run)
            return True
        self._let_go(run, self.step)
        return True

    def _let_go(self, run: Run, step: int) -> None:
        """Out of the running set; everything is released."""
        del self.running[run.row]
        if run.began >= 0:
            self.ring.stop(run, step)
        else:
            del self.partial[run.row]
        self.pool.release(run.table, run.computed, run.num_indexed)
        run.table, run.num_indexed = [], 0

    # ---- one step
    def schedule(self) -> Plan:
        """Decide the next step: blocks are allocated, tokens counted as held. O(changes) unless blocks lack."""
        self.changes.clear()
        ring, pool, step = self.ring, self.pool, self.step
        crossing = ring.crossing(step)
        chunks: list[Chunk] = []
        num_decodes = len(ring.runs)
        if (
            num_decodes > self.budget
            or (crossing and len(crossing) > pool.available)
            or (self.partial and not self._one_partial_last())
        ):
            left = self._serve_in_order(chunks)
            num_decodes = len(ring.runs)
        else:
            left = self.budget - num_decodes
            if crossing:
                for run, block in zip(crossing.values(), pool.take(len(crossing)), strict=True):
                    run.table.append(block)
                ring.blocks += len(crossing)
            if self.partial and left > 0:
                left -= self._serve_partial(next(iter(self.partial.values())), left, chunks)
        filling = ring.filling(step)
        if filling:
            self._register_filled(filling)
        if self.waiting:
            self._admit(left, chunks)
        else:
            self.refusal = NO_REFUSAL
        if not chunks:
            pool.accounts.fill(num_decodes)
            shape = StepShape(num_decodes, ring.context + num_decodes, ring.blocks, 0, 0, 0, 0, num_decodes)
        else:
            shape = self._shape(chunks)
            pool.accounts.fill(num_decodes + shape.chunk_tokens)
        return Plan(step, ring.runs, chunks, (), shape)

    def _one_partial_last(self) -> bool:
        if len(self.partial) > 1:
            return False
        last: int = next(reversed(self.running))
        return last in self.partial

    def _shape(self, chunks: list[Chunk]) -> StepShape:
        tokens = context = pairs = sampled = 0
        for chunk in chunks:
            count, start = chunk.num_tokens, chunk.start
            tokens += count
            context += start
            pairs += count * start + count * (count + 1) // 2
            sampled += chunk.samples
        ring = self.ring
        decodes = len(ring.runs)
        return StepShape(
            decodes, ring.context + decodes, ring.blocks, len(chunks), tokens, context, pairs, decodes + sampled
        )

    def _grant(self, run: Run, left: int) -> int:
        """Tokens that a run which is not decoding may compute now."""
        count = run.num_prompt_tokens + run.sampled - run.computed
        if self.chunk_limit and count > self.chunk_limit and len(self._runs) > 1:
            count = self.chunk_limit
        return min(count, left)

    def _serve_partial(self, run: Run, left: int, chunks: list[Chunk]) -> int:
        """The one prefill under way, last in running order: it can only make room by leaving itself."""
        count = self._grant(run, left)
        need = -(-(run.computed + count) // self.block_size) - len(run.table)
        if need > self.pool.available:
            self._preempt(run)
            return 0
        self._compute(run, count, need, chunks)
        return count

    def _compute(self, run: Run, count: int, need: int, chunks: list[Chunk]) -> None:
        """`count` tokens of a prefill join the step, in `need` new blocks."""
        if need > 0:
            run.table += self.pool.take(need)
        start, end = run.computed, run.computed + count
        full = min(end // self.block_size, len(run.keys))
        if full > run.num_indexed:
            # Before the step runs, so that a later admission of the same step finds them.
            self.pool.register(run.table[run.num_indexed : full], run.keys[run.num_indexed : full])
            run.num_indexed = full
        run.computed = end
        chunks.append(Chunk(run, start, count, end == run.num_prompt_tokens + run.sampled))

    def _serve_in_order(self, chunks: list[Chunk]) -> int:
        """The plain path: one running request after the other, preempting from the back. Returns budget left."""
        left, step, ring = self.budget, self.step, self.ring
        for run in list(self.running.values()):
            if run.row not in self.running:
                break  # it was preempted, and so was everyone behind it
            decoding = run.began >= 0
            if left == 0:
                if decoding:
                    self._stand_still(run)
                continue
            count = 1 if decoding else self._grant(run, left)
            computed = run.computed_at(step)
            need = -(-(computed + count) // self.block_size) - len(run.table)
            while need > self.pool.available and run.row in self.running:
                self._preempt(self._victim())
            if run.row not in self.running:
                break
            left -= count
            if not decoding:
                self._compute(run, count, need, chunks)
            elif need > 0:
                run.table += self.pool.take(need)
                ring.blocks += need
        return left

    def _victim(self) -> Run:
        return next(reversed(self.running.values()))

    def _stand_still(self, run: Run) -> None:
        """A decode that the budget does not reach in this step."""
        self.ring.stop(run, self.step)
        self.partial[run.row] = run
        self.changes.paused.append(run.row)

    def _preempt(self, run: Run) -> None:
        """Release everything and go to the front of the queue; content stays matchable until it is taken."""
        step = self.step
        if run.began >= 0:
            self.changes.paused.append(run.row)
        held = run.computed_at(step)
        full = held // self.block_size
        if self.pool.caching and full > run.num_indexed:
            # Nobody but the run itself can ask for these; now it may.
            known = len(run.keys)
            if full > known:
                run.keys = run.keys + self.content.private_keys(run.row, self.block_size, known, full)
            self.pool.register(run.table[run.num_indexed : full], run.keys[run.num_indexed : full])
            run.num_indexed = full
        self._let_go(run, step)
        self.changes.preempted.append((run.row, held))
        run.computed = 0
        run.preemptions += 1
        self._enqueue(run, front=True)

    def _register_filled(self, filling: dict[int, Run]) -> None:
        """Decodes whose token of this step completes a block that other rows may ask for."""
        for run in list(filling.values()):
            place = run.computed_at(self.step) // self.block_size
            self.pool.register([run.table[place]], [run.keys[place]])
            run.num_indexed = place + 1
            if run.num_indexed == len(run.keys):
                self.ring.filled_all(run)

    # ---- admission
    def _admit(self, left: int, chunks: list[Chunk]) -> None:
        """From the head of the queue, until the first that must wait; `refusal` says why it must."""
        waiting, running = self.waiting, self.running
        if self.changes.preempted:
            self.refusal = Refusal(Cause.PREEMPTED, waiting[0].row, 0)
            return
        while waiting:
            run = waiting[0]
            if left <= 0 or len(running) >= self.max_num_seqs:
                self.refusal = Refusal(Cause.BUDGET if left <= 0 else Cause.SLOTS, run.row, 0)
                return
            known = run.num_prompt_tokens + run.sampled
            hit = self._match(run, known) if run.keys else []
            cached = len(hit) * self.block_size
            run.computed = cached
            count = self._grant(run, left)
            want = -(-(known if self.reserve_prompt else cached + count) // self.block_size) - len(hit)
            taken = want + (self.pool.num_idle(hit) if hit else 0)
            if taken + (self.margin if running else 0) > self.pool.available:
                run.computed = 0
                self.refusal = Refusal(self._why_not(taken), run.row, taken)
                return
            waiting.popleft()
            self._dequeue(run)
            if hit:
                self.pool.share(hit)
            run.table, run.num_indexed = hit, len(hit)
            run.admission = self._admissions
            self._admissions += 1
            running[run.row] = self.partial[run.row] = run
            self.changes.admitted.append((run.row, cached))
            self._compute(run, count, -(-(cached + count) // self.block_size) - len(hit), chunks)
            left -= count
        self.refusal = NO_REFUSAL

    def _match(self, run: Run, known: int) -> list[int]:
        """Leading blocks of the run that are in the cache; at least one token is left to compute."""
        row, epoch, blocks = self._lookup
        if row != run.row or epoch != self.pool.epoch:
            blocks = self.pool.match(run.keys, (known - 1) // self.block_size)
            self._lookup = (run.row, self.pool.epoch, blocks)
        return list(blocks)

    def _why_not(self, taken: int) -> Cause:
        """The head of the queue wants `taken` blocks and does not get them."""
        if taken <= self.pool.available:
            return Cause.WATERMARK
        heap = self._shortest
        while heap:
            known, row = heap[0]
            run = self._runs.get(row)
            if run is not None and run.waiting and known == run.num_prompt_tokens + run.sampled:
                break
            heapq.heappop(heap)
        if heap and -(-heap[0][0] // self.block_size) + self.margin <= self.pool.available:
            return Cause.HEAD_OF_LINE
        return Cause.MEMORY

    # ---- after the step
    def complete(self, plan: Plan) -> list[tuple[int, Outcome]]:
        """The step has run: who sampled, who is done. Releases in schedule order; returns what ended."""
        step, ring = self.step, self.ring
        done = ring.due(step)
        ring.advance()
        self.step = step + 1
        if plan.chunks:
            done = self._complete_chunks(plan, done)
        ended = self.changes.ended
        for run in done:
            self._let_go(run, step + 1)
            del self._runs[run.row]
            ended.append((run.row, Outcome.COMPLETED))
        return ended

    def _complete_chunks(self, plan: Plan, done: list[Run]) -> list[Run]:
        finished = []
        for chunk in plan.chunks:
            if not chunk.samples:
                continue
            run = chunk.run
            run.sampled += 1
            self.changes.began.append(run.row)
            if run.sampled == run.num_output_tokens:
                finished.append(run)
                continue
            del self.partial[run.row]
            self.ring.begin(run, self.step)
        if not finished:
            return done
        return sorted([*done, *finished], key=lambda run: run.admission)

    def tables(self) -> dict[int, Run]:
        """Live runs that hold blocks, by row, in running order."""
        return self.running
