"""Who arrives when: feeds an engine from an offer, in (time, row) order."""

from trials.engine import Engine, Outcome, Work
from trials.recorder import Recorder
from trials.trace import Trace

NEVER = 1 << 62


class Arrivals:
    """Feeds the engine from the offer, in (time, row) order; `due` is when the next one comes."""

    def __init__(self, engine: Engine, trace: Trace, recorder: Recorder) -> None:
        offer = recorder.offer
        self._engine, self._recorder = engine, recorder
        self._rows: list[int] = offer.rows.tolist()
        if offer.met_step is not None:
            self._due: list[int] = [step if step >= 0 else NEVER for step in offer.met_step.tolist()]
        elif offer.concurrency is not None:
            self._due = [0 if k < offer.concurrency else NEVER for k in range(len(self._rows))]
        else:
            self._due = offer.due_ns.tolist()
        self._prompts = trace.num_prompt_tokens.tolist()
        self._outputs = trace.num_output_tokens.tolist()
        self._priorities = trace.priority.tolist()
        self._next = 0
        self._released = offer.concurrency or 0
        self._closed = offer.concurrency is not None and offer.met_step is None
        self.due = self._due[0] if self._due else NEVER

    def admit(self, until: int, index: int, now: int) -> None:
        """Hand over all that are due; one that can never fit ends here, with the engine's reason."""
        recorder = self._recorder
        while self.due <= until:
            k, row = self._next, self._rows[self._next]
            if recorder.offer.concurrency is not None:
                recorder.arrival[k] = max(now, 0)
            recorder.met_step[k] = index
            reason = self._engine.add(
                Work(row, self._prompts[row], self._outputs[row], recorder.arrival[k], self._priorities[row])
            )
            self._next += 1
            self.due = self._due[self._next] if self._next < len(self._due) else NEVER
            if reason is not None:
                recorder.reasons[row] = reason
                recorder.finish(k, Outcome.REJECTED, now)
                self.ended(1, now)

    def ended(self, count: int, now: int) -> None:
        """`count` requests are over: under a closed load as many may arrive, unless a schedule says when."""
        if not self._closed:
            return
        for k in range(self._released, min(self._released + count, len(self._due))):
            self._due[k] = now
        self._released += count
        if self._next < len(self._due):
            self.due = self._due[self._next]
