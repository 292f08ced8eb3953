"""ContinuousBatching: transformers' serving thread behind the Engine contract, one turn a step.

A turn is transformers' own: schedule, forward pass, update, deliver. Tokens are counted where a consumer gets them.
The ledger row is taken when the batch is scheduled and before anything finished is released. Of what the model
samples, the answer that the trace recorded takes the place, so that what two requests share is the trace's; where
outputs are `live`, what the model said stands.
"""

import queue
from collections.abc import Callable
from typing import Any

from trials.block_pool import PoolError
from trials.engine import (
    NO_REFUSAL,
    Audit,
    Cause,
    DeviceBytes,
    EngineDied,
    EngineFacts,
    EngineStart,
    GroupAudit,
    LedgerRow,
    Outcome,
    Refusal,
    Step,
    StepShape,
    Work,
)
from trials.engines.branches import Branches
from trials.engines.builds import Builds
from trials.engines.cb_loop import ServingThread
from trials.engines.cb_watch import CachePoolWatch
from trials.engines.outputs import Outputs
from trials.engines.torch_device import TorchDevice

_NOTHING = StepShape(0, 0, 0, 0, 0, 0, 0, 0)


class ContinuousBatching:
    """One KV group, one rank. `thread` stands before its first turn."""

    def __init__(
        self, thread: ServingThread, watch: CachePoolWatch, facts: EngineFacts, outputs: Outputs,
        device: TorchDevice, start_up: EngineStart, builds: Builds,
    ) -> None:  # fmt: skip
        self.facts, self.start_up = facts, start_up
        self.manager, self.processor = thread.manager, thread.manager.batch_processor
        self.watch, self.device = watch, device
        self._thread, self._outputs, self._builds = thread, outputs, builds
        self._answers: dict[int, list[int]] = {}  # live row -> the tokens that it will be given
        self._told: dict[int, int] = {}  # live row -> tokens delivered
        self._flowing: dict[int, None] = {}  # rows that delivered a token in the last step, and go on
        self._serving: dict[int, None] = {}  # rows that have been in a batch since they last waited
        self._waiting_tokens = 0
        self._branches = Branches()
        self._step = Step(0, None, _NOTHING, (), 0, 0, 0)
        self.on_pick: Callable[[int, int], None] | None = None  # (row, what the model itself would have said)
        self._prepare = self.processor.prepare_next_batch
        self.processor.prepare_next_batch = self._prepared
        batch = self.processor.inputs_and_outputs
        self._update, batch.prepare_batch_update = batch.prepare_batch_update, self._recorded

    # ---- replays
    def start(self, cold: bool) -> None:
        if self._told:
            raise PoolError(f"a replay can only start drained: {len(self._told)} requests are alive")
        self._branches, self._waiting_tokens = Branches(), 0
        self._flowing.clear()
        self._serving.clear()
        if cold:
            self.processor.reset()
            self.processor.cache.reset()
            self._prove_empty()
            self.watch.fresh()
        self.watch.accounts.row()
        self.device.reset()
        self._outputs.clear()
        self._builds.since()

    def _prove_empty(self) -> None:
        allocator, ledger = self.watch.allocator, self.watch.allocator.ledger
        free, all_ = self.watch.num_free(), allocator.num_blocks
        if free != all_ or ledger.cached_blocks or ledger.hash_to_block or allocator.block_table:
            raise PoolError(
                f"transformers did not drop its cache: {free} of {all_} blocks free, "
                f"{len(ledger.cached_blocks)} cached, {len(ledger.hash_to_block)} known"
            )

    # ---- requests in and out
    def add(self, work: Work) -> str | None:
        total = work.num_prompt_tokens + work.num_output_tokens
        if total > self.facts.max_model_len:
            return f"prompt + output = {total} tokens, more than max_model_len {self.facts.max_model_len}"
        geometry = self.facts.groups[0]
        blocks, usable = -(-(total - 1) // geometry.block_size), geometry.num_blocks - geometry.reserve_blocks
        if blocks > usable:  # transformers would take it, and its thread would die of it
            return (
                f"holds {total - 1} tokens = {blocks} blocks of {geometry.block_size} at its end, "
                f"more than the {usable} that the pool can hand out"
            )
        if work.inherited_tokens and work.parent in self._told:
            self._branches.hold(work)
            return None
        self._queue(work)
        return None

    def _queue(self, work: Work) -> None:
        told = self._outputs.told(work.row, work.num_prompt_tokens)
        self._answers[work.row], self._told[work.row] = told.answer, 0
        self._waiting_tokens += work.num_prompt_tokens
        self.manager.add_request(
            told.prompt, request_id=str(work.row), max_new_tokens=work.num_output_tokens,
            streaming=True, eos_token_id=-1,
        )  # fmt: skip

    def cancel(self, row: int) -> bool:
        """What transformers does at the head of its next turn is done now: the thread stands still."""
        if row not in self._told:
            return self._branches.forget(row)
        processor, name = self.processor, str(row)
        self.manager.cancel_request(name)
        processor._update_tp_group_state()
        scheduler = processor.scheduler
        state = scheduler.active_requests.get(name) or scheduler.waiting_requests.get(name)
        if row not in self._serving:
            self._waiting_tokens -= _known(state)
        self.watch.leaving[name] = state
        for gone in scheduler.clear_cancelled_requests():
            processor.offloading_manager.free_request_cpu_cache(gone)
        self.watch.leaving.clear()
        self.watch.matched.pop(name, None)
        self._forget(row)
        return True

    def _forget(self, row: int) -> None:
        for kept in (self._answers, self._told, self._flowing, self._serving):
            kept.pop(row, None)

    # ---- one step
    def step(self) -> Step | None:
        if not self._told:
            return None
        step = self._step
        step.shape, step.ledger, step.refusal = _NOTHING, (), NO_REFUSAL
        step.admitted = []
        self.watch.begin()
        self._thread.turn()
        if not step.ledger:  # nothing could be scheduled
            self._look([])
        self._deliver(step)
        step.builds = self._builds.since()
        return step

    def _prepared(self) -> bool:
        """transformers scheduled a batch: blocks are allocated, nothing has ended. The row of the ledger."""
        ready = bool(self._prepare())
        self._look(self.processor.inputs_and_outputs.requests_in_batch if ready else [])
        return ready

    def _look(self, batch: list[Any]) -> None:
        step, watch = self._step, self.watch
        step.preempted = self._preempted()
        fresh = [future.state for future in batch if int(future.state.request_id) not in self._serving]
        step.admitted = [self._admitted(state) for state in fresh]
        step.shape = self._shape(batch)
        watch.accounts.fill(sum(future.query_length for future in batch))
        step.ledger = (watch.accounts.row(),)
        step.num_running, step.num_waiting = len(self._serving), len(self._told) - len(self._serving)
        step.waiting_tokens = self._waiting_tokens
        step.refusal = self._refusal(batch)

    def _preempted(self) -> list[tuple[int, int]]:
        """Those that gave way and go back to the queue; one that had only been matched never left it."""
        out = []
        for name, held in self.watch.preempted:
            row = int(name)
            self.watch.matched.pop(name, None)
            if row in self._serving:
                del self._serving[row]
                self._waiting_tokens += _known(self.processor.scheduler.waiting_requests[name])
                out.append((row, held))
        return out

    def _admitted(self, state: Any) -> tuple[int, int]:
        row = int(state.request_id)
        self._serving[row] = None
        self._waiting_tokens -= _known(state)
        return row, self.watch.matched.pop(state.request_id, 0)

    def _shape(self, batch: list[Any]) -> StepShape:
        """Decodes are those that delivered a token in the step before; all else is computed in chunks."""
        tables, flowing = self.watch.allocator.block_table, self._flowing
        decodes = context = blocks = chunks = chunk_tokens = chunk_context = pairs = sampled = 0
        for future in batch:
            state, count = future.state, future.query_length
            held = state.position_offset
            sampled += future.has_new_token
            if int(state.request_id) in flowing:
                decodes += 1
                context += held
                blocks += len(tables[state.request_id])
            else:
                chunks += 1
                chunk_tokens += count
                chunk_context += held - count
                pairs += count * (held - count) + count * (count + 1) // 2
        return StepShape(decodes, context, blocks, chunks, chunk_tokens, chunk_context, pairs, sampled)

    def _refusal(self, batch: list[Any]) -> Refusal:
        """Why the first that waits was not taken in."""
        scheduler, watch = self.processor.scheduler, self.watch
        if not scheduler.waiting_requests_order:
            return NO_REFUSAL
        head = int(scheduler.waiting_requests_order[0])
        if watch.preempted or scheduler.block_new_requests:
            return Refusal(Cause.PREEMPTED, head, 0)
        if watch.refused is not None and watch.refused[0] in scheduler.waiting_requests:
            return Refusal(Cause.MEMORY, int(watch.refused[0]), watch.refused[1])
        if not watch.in_margin:
            return Refusal(Cause.WATERMARK, head, 0)
        full = len(batch) >= scheduler.max_requests_per_batch
        return Refusal(Cause.SLOTS if full else Cause.BUDGET, head, 0)

    def _recorded(self) -> tuple[list[Any], list[int], Any]:
        """The recorded answers in the place of what was sampled; lengths and time are as they were."""
        batch, sampled, logprobs = self._update()
        place = 0
        for future in batch:
            if future.has_new_token:
                row = int(future.state.request_id)
                if self.on_pick is not None:
                    self.on_pick(row, sampled[place])
                answer, told = self._answers[row], self._told[row]
                if told < len(answer):
                    sampled[place] = answer[told]
                place += 1
        return batch, sampled, logprobs

    def _deliver(self, step: Step) -> None:
        """What came out to consumers in this turn: who began, paused and ended, and who starts because of it."""
        arrived: dict[int, int] = {}
        ended: list[tuple[int, Outcome]] = []
        while True:
            try:
                output = self.manager.output_router.output_queue.get_nowait()
            except queue.Empty:
                break
            row = int(output.request_id)
            new = len(output.generated_tokens) - self._told[row]
            if output.error is not None:
                ended.append((row, Outcome.FAILED))
                continue
            if new < 1:
                raise EngineDied(f"row {row}: token {self._told[row]} was delivered twice")
            self._told[row] += new
            if self._outputs.live:
                self._outputs.said(row, list(output.generated_tokens[-new:]))
            arrived[row] = arrived.get(row, 0) + new
            if output.is_finished():
                ended.append((row, Outcome.COMPLETED))
        step.began = [row for row in arrived if row not in self._flowing]
        step.paused = [row for row in self._flowing if row not in arrived]
        step.extra = [(row, count) for row, count in arrived.items() if count > 1]
        step.ended = ended
        self._flowing = dict.fromkeys(arrived)
        step.started = self._start_branches({row for row, _ in ended}) if self._branches.pending else []
        for row, _ in ended:
            self._forget(row)

    def _start_branches(self, ending: set[int]) -> list[int]:
        active = self.processor.scheduler.active_requests

        def held(parent: int) -> int | None:
            if parent in ending or parent not in self._told:
                return None
            state = active.get(str(parent))
            return int(state.position_offset) if state is not None else 0

        due = self._branches.due(held)
        for work in due:
            self._queue(work)
        return [work.row for work in due]

    # ---- looked at
    def ledger(self) -> tuple[LedgerRow, ...]:
        return (self.watch.accounts.peek(),)

    def audit(self) -> Audit:
        allocator, active = self.watch.allocator, self.processor.scheduler.active_requests
        tables = {int(name): list(table) for name, table in allocator.block_table.items()}
        held = {int(name): int(state.position_offset) for name, state in active.items()}
        reserve = range(self.watch.cache.pool.num_reserved_sectors * allocator.blocks_per_sector)
        cached = list(allocator.ledger.cached_blocks)
        return Audit([GroupAudit(tables, held, self.watch.free_ids(), cached, list(reserve))], self.device_bytes())

    def device_bytes(self) -> DeviceBytes:
        """Device side of the ledger, at peak so far in this replay."""
        return self.device.bytes()

    def close(self) -> None:
        self._thread.stop()


def _known(state: Any) -> int:
    """Tokens of a request that are known: its prompt and what it has answered."""
    return len(state.initial_tokens) + len(state.generated_tokens)
