"""VllmScheduler: vLLM's engine core behind the Engine contract, one step at a time.

A step is vLLM's own: schedule, execute, process the results. The executor's stand-in asks here for its tokens
after blocks are allocated and before anything finished is released; that is where the ledger row is taken.
A step costs O(batch), as vLLM's own does.
"""

import gc
from typing import Any

from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import RequestStatus

from trials.block_pool import PoolError
from trials.content import Content
from trials.engine import (
    NO_REFUSAL,
    Audit,
    Cause,
    DeviceBytes,
    EngineDied,
    EngineFacts,
    EngineStart,
    LedgerRow,
    Outcome,
    Refusal,
    Step,
    StepShape,
    StepTime,
    Work,
)
from trials.engines.branches import Branches
from trials.engines.stand_in_ranks import Rank, spread_audits, spread_rows
from trials.engines.vllm_core import VOCABULARY
from trials.engines.vllm_group_watch import watch_pool

_NO_TOKEN: list[int] = []


def request_id(row: int) -> str:
    """vLLM breaks ties by the text of an id: rows keep their order in it."""
    return f"{row:010d}"


class VllmScheduler:
    """`core` is vLLM's EngineCore, opened with the stand-in executor."""

    def __init__(
        self, core: Any, facts: EngineFacts, content: Content, time_of: StepTime, device: DeviceBytes,
        start_up: EngineStart,
    ) -> None:  # fmt: skip
        self.facts, self.start_up = facts, start_up
        self.core, self.scheduler = core, core.scheduler
        self.watch = watch_pool(self.scheduler.kv_cache_manager, facts)
        self._ranks: list[Rank] = getattr(core.model_executor, "ranks", [])  # where each has a ledger of its own
        self._content, self._time_of, self._device = content, time_of, device
        self._answers: dict[int, list[int]] = {}  # live row -> the tokens that it will be given
        self._flowing: dict[int, None] = {}  # rows that delivered a token in the last step, and go on
        self._sampled: list[int] = []
        self._forks = Branches()
        self._pending: dict[int, int] = {}  # fork that has not started -> its place among all that came
        self._came = 0
        config = core.vllm_config
        self._margin = int(config.scheduler_config.watermark * facts.groups[0].num_blocks)
        self._budget = config.scheduler_config.max_num_batched_tokens
        self._slots = config.scheduler_config.max_num_seqs
        self._step = Step(0, None, StepShape(0, 0, 0, 0, 0, 0, 0, 0), (), 0, 0, 0)
        core.model_executor.on_step = self._on_step

    def start(self, cold: bool) -> None:
        if self.scheduler.running or self.scheduler.waiting:
            running, waiting = len(self.scheduler.running), len(self.scheduler.waiting)
            raise PoolError(f"a replay can only start drained: {running} run, {waiting} wait")
        if cold:
            known = any(b.block_hash is not None for b in self.watch.pool.blocks)
            if not self.scheduler.reset_prefix_cache() or (known := any(
                b.block_hash is not None or (b.ref_cnt and not b.is_null) for b in self.watch.pool.blocks
            )):  # fmt: skip
                raise PoolError(f"vLLM did not drop its cache: blocks known {known}")
            self.watch.forget()
        self.watch.rows()
        self._flowing.clear()

    def add(self, work: Work) -> str | None:
        total = work.num_prompt_tokens + work.num_output_tokens
        if total > self.facts.max_model_len:
            return f"prompt + output = {total} tokens, more than max_model_len {self.facts.max_model_len}"
        if work.inherited_tokens and (work.parent in self._answers or work.parent in self._pending):
            self._pending[work.row] = self._came
            self._came += 1
            self._forks.hold(work)
            return None
        self._enqueue(work)
        return None

    def _enqueue(self, work: Work) -> None:
        tokens = self._content.row_tokens(work.row, VOCABULARY).tolist()
        self._answers[work.row] = tokens[work.num_prompt_tokens :]
        request = EngineCoreRequest(
            request_id=request_id(work.row), prompt_token_ids=tokens[: work.num_prompt_tokens], mm_features=None,
            sampling_params=SamplingParams(
                max_tokens=work.num_output_tokens, temperature=0.0, ignore_eos=True, detokenize=False
            ),
            pooling_params=None, arrival_time=float(work.arrival_ns), lora_request=None, cache_salt=None,
            data_parallel_rank=None, priority=work.priority,
        )  # fmt: skip
        self.core.add_request(*self.core.preprocess_add_request(request))
        self.watch.waiting_tokens += work.num_prompt_tokens

    def cancel(self, row: int) -> bool:
        request = self.scheduler.requests.get(request_id(row))
        if request is None:
            return self._pending.pop(row, None) is not None and self._forks.forget(row)
        if request.status is not RequestStatus.RUNNING:
            self.watch.waiting_tokens -= request.num_tokens
        self.core.abort_requests([request.request_id])
        self._flowing.pop(row, None)
        del self._answers[row]
        return True

    def step(self) -> Step | None:
        scheduler, watch = self.scheduler, self.watch
        if not scheduler.running and not scheduler.waiting and not self._pending:
            return None
        watch.begin()
        try:
            self.core.step()
        except (RuntimeError, ValueError, AssertionError, KeyError, ArithmeticError) as error:
            raise EngineDied(f"vLLM's step failed: {type(error).__name__}: {error}") from error
        step = self._step
        step.began = [row for row in self._sampled if row not in self._flowing]
        went_on = dict.fromkeys(self._sampled)
        step.paused = [row for row in self._flowing if row not in went_on]
        step.ended = [(row, Outcome.COMPLETED) for row in watch.ended]
        step.admitted, step.preempted = watch.admitted, watch.preempted
        for row in watch.ended:
            del went_on[row], self._answers[row]
        self._flowing = went_on
        step.started = self._start_forks() if self._pending else []
        if step.started:  # they wait from this step on
            step.num_waiting, step.waiting_tokens = len(scheduler.waiting), watch.waiting_tokens
        return step

    def _start_forks(self) -> list[int]:
        """Forks whose parent has come so far, or is over: from now on requests like any other, in their order."""

        def held(parent: int) -> int | None:
            request = self.scheduler.requests.get(request_id(parent))
            if request is None:
                return 0 if parent in self._pending else None
            return int(request.num_computed_tokens)

        started = []
        while due := self._forks.due(held):
            for work in sorted(due, key=lambda work: self._pending[work.row]):
                del self._pending[work.row]
                self._enqueue(work)
                started.append(work.row)
        return started

    def _on_step(self, output: Any) -> list[list[int]]:
        """Blocks are allocated, nothing has ended: the row of the ledger, the step's time, and its tokens."""
        step, watch = self._step, self.watch
        watch.fill(output.num_scheduled_tokens, output.total_num_scheduled_tokens)
        step.ledger = watch.rows()
        if self._ranks:
            step.ledger = spread_rows(step.ledger, self._ranks, self.facts.groups, self.scheduler.requests)
        free = watch.pool.get_num_free_blocks()
        if (said := watch.available_blocks) != free:
            raise RuntimeError(f"{said} blocks free and cached are booked, vLLM has {free}")
        step.num_running, step.num_waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        step.waiting_tokens = watch.waiting_tokens
        step.refusal = self._refusal(output.total_num_scheduled_tokens)
        tokens = self._tokens(output.num_scheduled_tokens)
        step.shape = self._shape(output.num_scheduled_tokens)
        step.duration_ns, step.attention_ns = self._time_of(step.shape)
        return tokens

    def _tokens(self, scheduled: dict[str, int]) -> list[list[int]]:
        """One token to whoever computes its last known token in this step."""
        requests, answers, out = self.scheduler.requests, self._answers, []
        self._sampled = []
        for name in scheduled:
            request = requests[name]
            if request.num_computed_tokens < request.num_tokens:
                out.append(_NO_TOKEN)
                continue
            row = int(name)
            self._sampled.append(row)
            out.append([answers[row][request.num_output_tokens]])
        return out

    def _shape(self, scheduled: dict[str, int]) -> StepShape:
        """Decodes are those that delivered a token in the step before; all else is computed in chunks."""
        requests, tables, flowing = self.scheduler.requests, self.watch.tables, self._flowing
        decodes = context = blocks = chunks = chunk_tokens = chunk_context = pairs = 0
        for name, count in scheduled.items():
            held = requests[name].num_computed_tokens
            if int(name) in flowing:
                decodes += 1
                context += held
                blocks += len(tables[name])
            else:
                chunks += 1
                chunk_tokens += count
                chunk_context += held - count
                pairs += count * (held - count) + count * (count + 1) // 2
        return StepShape(decodes, context, blocks, chunks, chunk_tokens, chunk_context, pairs, len(self._sampled))

    def _refusal(self, num_scheduled: int) -> Refusal:
        """Why the head of vLLM's queue waits."""
        waiting, watch = self.scheduler.waiting, self.watch
        if not waiting:
            return NO_REFUSAL
        head = int(waiting.peek_request().request_id)
        if watch.preempted:
            return Refusal(Cause.PREEMPTED, head, 0)
        if watch.refused is None:
            full = num_scheduled < self._budget and len(self.scheduler.running) >= self._slots
            return Refusal(Cause.SLOTS if full else Cause.BUDGET, head, 0)
        row, wanted = watch.refused
        free = watch.pool.get_num_free_blocks()
        if wanted <= free:
            return Refusal(Cause.WATERMARK, row, wanted)
        shortest = min(request.num_tokens for request in waiting)
        fits = watch.blocks_for(shortest) + self._margin <= free
        return Refusal(Cause.HEAD_OF_LINE if fits else Cause.MEMORY, row, wanted)

    def ledger(self) -> tuple[LedgerRow, ...]:
        rows = self.watch.peek()
        return spread_rows(rows, self._ranks, self.facts.groups, self._alive()) if self._ranks else rows

    def _alive(self) -> set[str]:
        """Whose blocks a rank may have: it hears of an end with the step that follows."""
        return {*self.scheduler.requests, *self.scheduler.finished_req_ids}

    def audit(self) -> Audit:
        groups = self.watch.audit(self.scheduler.running)
        if self._ranks:
            groups = spread_audits(groups, self._ranks, self._alive())
        return Audit(groups, self._device)

    def close(self) -> None:
        if self.core is not None:
            self.core.shutdown()
            self.core = None
            gc.unfreeze()  # vLLM froze the heap when it started; its blocks are a ring that only gc can free
