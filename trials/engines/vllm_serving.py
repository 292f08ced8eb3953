"""VllmServing: a whole vLLM behind the Engine contract, model and kernels included, one LLMEngine.step() a step.

Decisions, blocks and ledger are watched as in vllm_engine.py; here the real executor computes, and tokens are
counted in what `step()` hands to its caller.
"""

import gc
from collections.abc import Callable
from typing import Any

from vllm import SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

from trials.block_pool import PoolError
from trials.content import Content
from trials.engine import (
    NO_REFUSAL,
    Audit,
    DeviceBytes,
    EngineDied,
    EngineFacts,
    EngineStart,
    Outcome,
    Step,
    StepShape,
    Work,
)
from trials.engines.branches import Branches
from trials.engines.builds import Builds
from trials.engines.outputs import Outputs
from trials.engines.torch_device import TorchDevice
from trials.engines.vllm_answers import Answers
from trials.engines.vllm_engine import VllmScheduler, request_id

_NOTHING = StepShape(0, 0, 0, 0, 0, 0, 0, 0)


def _untimed(shape: StepShape) -> tuple[int, int | None]:
    """Time is taken by whoever drives the engine."""
    return 0, None


class VllmServing(VllmScheduler):
    """One KV group. `llm` is drained and warm. `answers`: how the recorded ones are given; None: vLLM's own do."""

    def __init__(
        self, llm: Any, facts: EngineFacts, content: Content, device: TorchDevice, start_up: EngineStart,
        outputs: Outputs, answers: Answers | None, builds: Builds,
    ) -> None:  # fmt: skip
        core = llm.engine_core.engine_core
        super().__init__(core, facts, content, _untimed, DeviceBytes(), start_up)  # type: ignore[arg-type]
        self._llm, self._torch_device = llm, device
        self._outputs, self._builds = outputs, builds
        self._branches = Branches()
        self._execute = core.model_executor.execute_model
        core.model_executor.execute_model = self._executed
        if answers is not None:
            answers.token_of = self._token_of
            answers.on_pick = self._picked
        self.on_pick: Callable[[int, int], None] | None = None

    # ---- replays
    def start(self, cold: bool) -> None:
        if self._answers:
            raise PoolError(f"a replay can only start drained: {len(self._answers)} requests are alive")
        super().start(cold)
        self._branches = Branches()
        self._outputs.clear()
        self._torch_device.reset()
        self._builds.since()

    # ---- requests in and out
    def add(self, work: Work) -> str | None:
        total = work.num_prompt_tokens + work.num_output_tokens
        if total > self.facts.max_model_len:
            return f"prompt + output = {total} tokens, more than max_model_len {self.facts.max_model_len}"
        if work.inherited_tokens and work.parent in self._answers:
            self._branches.hold(work)
            return None
        self._queue(work)
        return None

    def _queue(self, work: Work) -> None:
        told = self._outputs.told(work.row, work.num_prompt_tokens)
        self._answers[work.row] = told.answer
        wanted = SamplingParams(
            max_tokens=work.num_output_tokens, temperature=0.0, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        self._llm.add_request(
            request_id(work.row), TokensPrompt(prompt_token_ids=told.prompt), wanted,
            arrival_time=float(work.arrival_ns), priority=work.priority,
        )  # fmt: skip
        self.watch.waiting_tokens += work.num_prompt_tokens

    def cancel(self, row: int) -> bool:
        if row not in self._answers:
            return self._branches.forget(row)
        request = self.scheduler.requests[request_id(row)]
        if not self._is_running(request):
            self.watch.waiting_tokens -= request.num_tokens
        self._llm.abort_request([request.request_id])
        self._flowing.pop(row, None)
        del self._answers[row]
        return True

    @staticmethod
    def _is_running(request: Any) -> bool:
        return bool(request.status.name == "RUNNING")

    # ---- one step
    def step(self) -> Step | None:
        if not self._answers:
            return None
        step, watch = self._step, self.watch
        watch.begin()
        step.shape, step.ledger, step.refusal, step.attention_ns = _NOTHING, (), NO_REFUSAL, None
        try:
            outputs = self._llm.step()
        except Exception as error:  # whatever it is: the engine cannot go on, and the trial has to say so
            raise EngineDied(f"vLLM's step failed: {type(error).__name__}: {error}") from error
        if not step.ledger:  # no batch was started in this step
            step.ledger = watch.rows()
        self._deliver(step, outputs)
        step.builds = self._builds.since()
        return step

    def _executed(self, output: Any, non_block: bool = False) -> Any:
        """vLLM scheduled, nothing has ended: the row of the ledger. Then the real executor."""
        super()._on_step(output)
        return self._execute(output, non_block=non_block)

    def _tokens(self, scheduled: dict[str, int]) -> list[list[int]]:
        """Who computes its last known token in this step; what comes next is the model's to say."""
        requests = self.scheduler.requests
        ends = (name for name in scheduled if requests[name].num_computed_tokens >= requests[name].num_tokens)
        self._sampled = [int(name) for name in ends]
        return []

    def _token_of(self, name: str) -> int:
        """The recorded token of a request in this step; any for one that is still in its prompt."""
        request = self.scheduler.requests.get(name)
        if request is None:
            return 0
        place = request.num_output_tokens + max(0, request.num_output_placeholders - 1)
        answer = self._answers[int(name)]
        return answer[place] if place < len(answer) else 0

    def _picked(self, name: str, token: int) -> None:
        request = self.scheduler.requests.get(name)
        if self.on_pick is not None and request is not None and request.num_computed_tokens >= request.num_tokens:
            self.on_pick(int(name), token)

    def _deliver(self, step: Step, outputs: list[Any]) -> None:
        """What `step()` handed out: who began, paused and ended, and who starts because of it."""
        arrived: dict[int, int] = {}
        ended: list[tuple[int, Outcome]] = []
        for output in outputs:
            row = int(output.request_id)
            (one,) = output.outputs
            if one.token_ids:
                arrived[row] = arrived.get(row, 0) + len(one.token_ids)
                if self._outputs.live:
                    self._outputs.said(row, list(one.token_ids))
            if output.finished:
                ended.append((row, Outcome.FAILED if one.finish_reason == "error" else Outcome.COMPLETED))
        step.began = [row for row in arrived if row not in self._flowing]
        step.paused = [row for row in self._flowing if row not in arrived]
        step.extra = [(row, count) for row, count in arrived.items() if count > 1]
        step.ended, step.admitted, step.preempted = ended, self.watch.admitted, self.watch.preempted
        self._flowing = dict.fromkeys(arrived)
        gone = {row for row, _ in ended}
        step.started = self._start_branches(gone) if self._branches.pending else []
        for row in gone:
            self._flowing.pop(row, None)
            del self._answers[row]

    def _start_branches(self, ending: set[int]) -> list[int]:
        def held(parent: int) -> int | None:
            request = self.scheduler.requests.get(request_id(parent))
            if parent in ending or request is None:
                return None
            return int(request.num_computed_tokens) if self._is_running(request) else 0

        due = self._branches.due(held)
        for work in due:
            self._queue(work)
        return [work.row for work in due]

    # ---- looked at
    def audit(self) -> Audit:
        audit = super().audit()
        audit.device = self._torch_device.bytes()
        return audit

    def close(self) -> None:
        if self._llm is not None:
            self._llm.engine_core.shutdown()
            self._llm = self.core = None
            gc.unfreeze()  # vLLM froze the heap when it started
