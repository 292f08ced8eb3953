"""One pass over what is offered: arrivals, steps, records, until everything has drained.

Knows clocks and the Engine contract, and nothing of schedulers, tokens or SLOs. What a step costs here is
proportional to what changed in it.

    start(cold) -> { clock; due arrivals; step; record; sampled audit } until drained -> audit
"""

import random
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from trials.engine import Audit, Engine, EngineFacts, LedgerRow, Outcome, Step, Work
from trials.ledger import check_row
from trials.load import Offer
from trials.recording import LEDGER_COLUMNS, STEP_COLUMNS, Ints, Replay, Requests
from trials.trace import Trace

MEAN_AUDIT_GAP = 1024  # steps between audits, seeded
PEAK_STEP = 32  # a new peak is audited when it has grown by this fraction of the pool
STUCK_STEPS = 1000  # steps without a token after which a replay is given up
_NEVER = 1 << 62


class Clocks:
    """Where time comes from. `now` is ns since the replay began; idle spans are passed with `wait_until`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._source = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}.get(kind)
        self._zero = self._source() if self._source else 0
        self._skipped = 0

    @property
    def virtual(self) -> bool:
        """Time is what steps say they took."""
        return self._source is None

    def now(self) -> int:
        """Only where time is measured."""
        assert self._source is not None
        return self._source() - self._zero + self._skipped

    def wait_until(self, due_ns: int) -> int:
        """Nothing runs: pass the time until `due_ns` (asleep by the wall, skipped by CPU time)."""
        if self._source is None:
            return due_ns
        if self.kind == "cpu":
            self._skipped += max(0, due_ns - self.now())
            return self.now()
        while (left := due_ns - self.now()) > 0:
            time.sleep(left / 1e9)
        return self.now()


@dataclass(slots=True)
class Recorder:
    """Columns under way. Requests are numbered by their place in the offer."""

    offer: Offer
    place: dict[int, int]  # row -> place
    arrival: list[int]
    met_step: list[int]
    admitted: list[int]
    first_token: list[int]
    last_token: list[int]
    end: list[int]
    outcome: list[int]
    delivered: list[int]
    cached: list[int]
    recomputed: list[int]
    preemptions: list[int]
    open_run: list[int]  # step of the first token of the run under way, -1
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    ledger: "array[int]" = field(default_factory=lambda: array("q"))
    runs: "array[int]" = field(default_factory=lambda: array("q"))
    reasons: dict[int, str] = field(default_factory=dict)
    broken_laws: list[str] = field(default_factory=list)
    audited_steps: int = 0

    @classmethod
    def of(cls, offer: Offer) -> "Recorder":
        n = len(offer.rows)

        def column(value: int) -> list[int]:
            return [value] * n

        return cls(
            offer=offer, place={row: k for k, row in enumerate(offer.rows.tolist())},
            arrival=offer.due_ns.tolist(), met_step=column(-1), admitted=column(-1), first_token=column(-1),
            last_token=column(-1), end=column(-1), outcome=column(int(Outcome.UNFINISHED)), delivered=column(0),
            cached=column(0), recomputed=column(0), preemptions=column(0), open_run=column(-1),
        )  # fmt: skip

    def changes(self, step: Step, index: int, now: int) -> None:
        """What the step says that changed, at its end `now`."""
        place = self.place
        for row, hit in step.admitted:
            k = place[row]
            if self.admitted[k] < 0:
                self.admitted[k], self.cached[k] = now - step.duration_ns, hit
        for row in step.paused:
            self.close_run(place[row], row, index, now - step.duration_ns)
        for row, dropped in step.preempted:
            k = place[row]
            self.preemptions[k] += 1
            self.recomputed[k] += dropped
        for row in step.began:
            k = place[row]
            self.open_run[k] = index
            if self.first_token[k] < 0:
                self.first_token[k] = now
        for row, outcome in step.ended:
            k = place[row]
            done = outcome is Outcome.COMPLETED
            self.close_run(k, row, index + done, now if done else now - step.duration_ns)
            self.finish(k, outcome, now)

    def close_run(self, k: int, row: int, stop: int, now: int) -> None:
        """The run under way delivered its last token in the step in front of `stop`, which ended at `now`."""
        first = self.open_run[k]
        if first < 0:
            return
        self.open_run[k] = -1
        if stop > first:
            self.runs.extend((row, first, stop - first))
            self.delivered[k] += stop - first
            self.last_token[k] = now

    def finish(self, k: int, outcome: Outcome, now: int) -> None:
        self.outcome[k] = outcome
        self.end[k] = now

    def idle(self, rows: tuple[LedgerRow, ...], start: int, duration: int, events: bool) -> None:
        """A span in which nothing ran. Events since the last step belong to the next one, unless it is the end."""
        self.steps.extend((start, duration, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 1))
        for row in rows:
            self.ledger.extend(row if events else (*row[:9], 0, 0, 0, 0))

    def columns(self, trace: Trace) -> Requests:
        rows = self.offer.rows

        def column(values: list[int]) -> Ints:
            return np.asarray(values, np.int64)

        return Requests(
            row=rows, arrival_ns=column(self.arrival), met_step=column(self.met_step),
            cancel_step=np.full(len(rows), -1, np.int64), admitted_ns=column(self.admitted),
            first_token_ns=column(self.first_token), last_token_ns=column(self.last_token),
            end_ns=column(self.end), outcome=column(self.outcome),
            num_prompt_tokens=trace.num_prompt_tokens[rows], num_output_tokens=trace.num_output_tokens[rows],
            num_delivered=column(self.delivered), cached_tokens=column(self.cached),
            recomputed_tokens=column(self.recomputed), preemptions=column(self.preemptions),
            counted=self.offer.counted,
        )  # fmt: skip


@dataclass(slots=True)
class Auditor:
    """Decides which steps are recounted from raw tables: seeded ones, new peaks, and the end."""

    engine: Engine
    recorder: Recorder
    rng: random.Random
    next_step: int = 0
    below: int = _NEVER  # audit when fewer blocks than this are available
    peak_device: dict[str, int] = field(default_factory=dict)

    def due(self, index: int, available: int) -> None:
        """The next places to look at, after an audit at step `index`."""
        self.next_step = index + self.rng.randint(1, 2 * MEAN_AUDIT_GAP - 1)
        pool = self.engine.facts.groups[0].num_blocks
        self.below = min(self.below, available) - max(1, pool // PEAK_STEP)

    def look(self, index: int) -> None:
        """Recount now, between two steps, and compare with the running accounts."""
        audit, rows = self.engine.audit(), self.engine.ledger()
        facts = self.engine.facts
        self.recorder.audited_steps += 1
        for number, (row, group) in enumerate(zip(rows, audit.groups, strict=True)):
            geometry = facts.groups[number // facts.ranks]
            said = check_row(row, group, geometry)
            self.recorder.broken_laws += [f"step {index}: group {row.group} rank {row.rank}: {x}" for x in said]
        self._device(audit)

    def _device(self, audit: Audit) -> None:
        device = audit.device
        if device.observed >= self.peak_device.get("observed", -1):
            names = ("pool", "block_tables", "weights", "workspace", "allocator_reserve", "observed", "resident")
            self.peak_device = {name: int(getattr(device, name)) for name in names}
            self.peak_device["residual"] = device.residual


StopRule = Callable[[Recorder, int], str | None]  # (recorder, now) -> why the replay need not go on


def replay(engine: Engine, trace: Trace, offer: Offer, seed: int = 0, stop: StopRule | None = None) -> Replay:
    """Drive the engine through the offer, from a cold start, and record everything. Raises EngineDied."""
    engine.start(cold=True)
    recorder = Recorder.of(offer)
    # Seeded by the replay itself, never by the search's state.
    auditor = Auditor(engine, recorder, random.Random(f"{seed}/{offer.phase}/{offer.load.label}"))
    clock = Clocks("steps" if offer.met_step is not None else engine.facts.clock)
    now, why_stopped, stuck = _drive(engine, trace, recorder, auditor, clock, stop)
    last = len(recorder.steps) // len(STEP_COLUMNS)
    if why_stopped or stuck:
        _abandon(engine, recorder, last, now)
    auditor.look(last)
    recorder.idle(engine.ledger(), now, 0, events=True)
    return _finish(recorder, trace, auditor, clock, engine.facts, now, why_stopped, stuck)


def _drive(
    engine: Engine, trace: Trace, recorder: Recorder, auditor: Auditor, clock: Clocks, stop: StopRule | None
) -> tuple[int, str | None, str | None]:
    """The loop. Returns (end ns, why it was stopped, why it got stuck)."""
    offer = recorder.offer
    arrivals = Arrivals(engine, trace, recorder)
    steps, ledger = recorder.steps, recorder.ledger
    virtual, by_step = clock.virtual, offer.met_step is not None
    now = index = without_tokens = 0
    while True:
        if arrivals.due <= (index if by_step else now):
            arrivals.admit(index if by_step else now, index, now)
        step = engine.step()
        if step is None:
            if arrivals.due >= _NEVER:
                return now, None, None
            then = now if by_step else clock.wait_until(arrivals.due)
            recorder.idle(engine.ledger(), now, then - now, events=False)
            now = then
            index += 1
            continue
        start = now
        if virtual:
            now += step.duration_ns
            duration = step.duration_ns
        else:
            now = clock.now()
            duration = step.duration_ns = now - start
        shape = step.shape
        attention = step.attention_ns
        steps.extend((
            start, duration, -1 if attention is None else attention, *shape,
            step.num_running, step.num_waiting, step.waiting_tokens, *step.refusal, 0,
        ))  # fmt: skip
        for row in step.ledger:
            ledger.extend(row)
        if step.admitted or step.began or step.ended or step.paused or step.preempted:
            recorder.changes(step, index, now)
            if step.ended and offer.concurrency is not None:
                arrivals.refill(len(step.ended), now)
            if stop is not None and (why := stop(recorder, now)) is not None:
                return now, why, None
        if not shape[0] and not shape[4]:
            without_tokens += 1
            if without_tokens > STUCK_STEPS:
                return now, None, f"no token computed in {STUCK_STEPS} steps; gave up at step {index}, {now} ns"
        else:
            without_tokens = 0
        index += 1
        available = step.ledger[0][5] + step.ledger[0][6]
        if index > auditor.next_step or available < auditor.below:
            auditor.look(index)
            auditor.due(index, available)


class Arrivals:
    """Feeds the engine from the offer, in (time, row) order; `due` is when the next one comes."""

    def __init__(self, engine: Engine, trace: Trace, recorder: Recorder) -> None:
        offer = recorder.offer
        self._engine, self._recorder = engine, recorder
        self._rows: list[int] = offer.rows.tolist()
        if offer.met_step is not None:
            self._due: list[int] = offer.met_step.tolist()
        elif offer.concurrency is not None:
            self._due = [0 if k < offer.concurrency else _NEVER - 1 for k in range(len(self._rows))]
        else:
            self._due = offer.due_ns.tolist()
        self._prompts = trace.num_prompt_tokens.tolist()
        self._outputs = trace.num_output_tokens.tolist()
        self._priorities = trace.priority.tolist()
        self._next = 0
        self._released = offer.concurrency or 0
        self.due = self._due[0] if self._due else _NEVER

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
            self.due = self._due[self._next] if self._next < len(self._due) else _NEVER
            if reason is not None:
                recorder.reasons[row] = reason
                recorder.finish(k, Outcome.REJECTED, now)
                if recorder.offer.concurrency is not None:
                    self.refill(1, now)

    def refill(self, count: int, now: int) -> None:
        """Closed load: `count` requests ended, so as many may arrive."""
        for k in range(self._released, min(self._released + count, len(self._due))):
            self._due[k] = now
        self._released += count
        if self._next < len(self._due):
            self.due = self._due[self._next]


def _abandon(engine: Engine, recorder: Recorder, index: int, now: int) -> None:
    """The replay ends before its requests do: they stay unfinished, and the engine is drained."""
    for k, row in enumerate(recorder.offer.rows.tolist()):
        if recorder.end[k] < 0:
            recorder.close_run(k, row, index, now)
            engine.cancel(row)


def _finish(
    recorder: Recorder, trace: Trace, auditor: Auditor, clock: Clocks, facts: EngineFacts, now: int,
    stopped: str | None, stuck: str | None,
) -> Replay:  # fmt: skip
    offer = recorder.offer
    steps = np.frombuffer(recorder.steps, np.int64).reshape(-1, len(STEP_COLUMNS))
    ledger = np.frombuffer(recorder.ledger, np.int64).reshape(-1, len(LEDGER_COLUMNS))
    runs = (
        np.frombuffer(recorder.runs, np.int64).reshape(-1, 3) if len(recorder.runs) else np.zeros((0, 3), np.int64)
    )
    requests = recorder.columns(trace)
    return Replay(
        phase=offer.phase, load=offer.load.label, clock=clock.kind,
        steps={name: np.ascontiguousarray(steps[:, i]) for i, name in enumerate(STEP_COLUMNS)},
        ledger={name: np.ascontiguousarray(ledger[:, i]) for i, name in enumerate(LEDGER_COLUMNS)},
        requests=requests, runs=(runs[:, 0].copy(), runs[:, 1].copy(), runs[:, 2].copy()),
        window_ns=_window(offer, requests), drain_end_ns=now, reasons=recorder.reasons, stopped_early=stopped,
        failed=stuck, audited_steps=recorder.audited_steps, broken_laws=recorder.broken_laws,
        device=auditor.peak_device, void_because=_void(requests),
    )  # fmt: skip


def _window(offer: Offer, requests: Requests) -> tuple[int, int]:
    """Open load: as offered. Closed: from the first counted arrival to the last, while all slots were in use."""
    if offer.concurrency is None:
        return offer.window_ns
    arrivals = requests.arrival_ns[offer.counted > 0]
    return int(arrivals.min()), max(int(arrivals.max()), int(arrivals.min()) + 1)


def _void(requests: Requests) -> list[str]:
    """A replay whose delivered lengths differ from the trace's is void."""
    done = requests.outcome == Outcome.COMPLETED
    wrong: Ints = np.flatnonzero(done & (requests.num_delivered != requests.num_output_tokens))
    if not len(wrong):
        return []
    k = int(wrong[0])
    return [
        f"{len(wrong)} requests were delivered another length than asked, first row {int(requests.row[k])}: "
        f"{int(requests.num_delivered[k])} tokens for {int(requests.num_output_tokens[k])}"
    ]
