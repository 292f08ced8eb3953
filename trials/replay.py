"""One pass over what is offered: arrivals, steps, records, until everything has drained.

Knows clocks and the Engine contract, and nothing of schedulers, tokens or SLOs. What a step costs here is
proportional to what changed in it.

    start(cold) -> { clock; due arrivals; step; record; sampled audit } until drained -> audit
"""

import random
from collections.abc import Callable

import numpy as np

from trials.arrivals import Arrivals
from trials.auditor import Auditor
from trials.clocks import Clocks
from trials.engine import Engine, EngineFacts, Outcome
from trials.load import Offer
from trials.recorder import ROW_PACK, STEP_PACK, Recorder
from trials.recording import LEDGER_COLUMNS, STEP_COLUMNS, Ints, Replay, Requests
from trials.trace import Trace

STUCK_STEPS = 1000  # steps without a token after which a replay is given up
FRUITLESS_STEPS = 10_000  # likewise, steps that preempt with no token delivered in between

StopRule = Callable[[Recorder, int], str | None]  # (recorder, now) -> why the replay need not go on


def replay(engine: Engine, trace: Trace, offer: Offer, seed: int = 0, stop: StopRule | None = None) -> Replay:
    """Drive the engine through the offer, from a cold start, and record everything. Raises EngineDied."""
    engine.start(cold=True)
    recorder = Recorder.of(offer)
    # Seeded by the replay itself, never by the search's state.
    auditor = Auditor(engine, recorder, random.Random(f"{seed}/{offer.phase}/{offer.load.label}"))
    clock = Clocks("steps" if offer.lock is not None else engine.facts.clock)
    now, why_stopped, stuck = _drive(engine, trace, recorder, auditor, clock, stop)
    last = len(recorder.steps) // len(STEP_COLUMNS)
    if why_stopped or stuck:
        _abandon(engine, recorder, last, now)
    auditor.close(last, now)
    recorder.idle(engine.ledger(), now, 0, events=True)
    return _finish(recorder, trace, auditor, clock, engine.facts, now, why_stopped, stuck)


def _drive(
    engine: Engine, trace: Trace, recorder: Recorder, auditor: Auditor, clock: Clocks, stop: StopRule | None
) -> tuple[int, str | None, str | None]:
    """The loop. Returns (end ns, why it was stopped, why it got stuck)."""
    offer = recorder.offer
    arrivals = Arrivals(engine, trace, recorder)
    write_step, write_row = recorder.steps.frombytes, recorder.ledger.frombytes
    pack_step, pack_row = STEP_PACK, ROW_PACK
    virtual, by_step = clock.virtual, offer.lock is not None
    now = index = without_tokens = 0
    while True:
        if arrivals.due <= (index if by_step else now) or arrivals.due_step <= index:
            arrivals.meet(index if by_step else now, index, now)
        step = engine.step()
        if step is None:
            if arrivals.drained():
                return now, None, None
            then = now if by_step else clock.wait_until(arrivals.due)
            auditor.pass_idle(index, now, then)
            recorder.idle(engine.ledger(), now, then - now, events=False)
            now = then
            index += 1
            continue
        start, duration = now, step.duration_ns
        if virtual:
            now += duration
        else:
            now = clock.now()
            duration = step.duration_ns = now - start
        decodes, context, blocks, chunks, tokens, before, pairs, sampled = step.shape
        cause, head, wanted = step.refusal
        attention = step.attention_ns
        write_step(pack_step(
            start, duration, -1 if attention is None else attention,
            decodes, context, blocks, chunks, tokens, before, pairs, sampled,
            step.num_running, step.num_waiting, step.waiting_tokens, cause, head, wanted,
            step.burst_blocks, step.bound_blocks, 0,
        ))  # fmt: skip
        for row in step.ledger:
            write_row(pack_row(*row))
        changed = step.admitted or step.began or step.ended or step.paused or step.preempted or step.started
        if changed or step.extra or step.builds:
            recorder.changes(step, index, now)
            arrivals.saw(step, index, now)
            if stop is not None and (why := stop(recorder, now)) is not None:
                return now, why, None
            if recorder.fruitless > FRUITLESS_STEPS:
                why = f"{FRUITLESS_STEPS} steps preempted and no token was delivered in between"
                return now, None, f"{why}; gave up at step {index}, {now} ns"
        if not decodes and not tokens:
            without_tokens += 1
            if without_tokens > STUCK_STEPS:
                return now, None, f"no token computed in {STUCK_STEPS} steps; gave up at step {index}, {now} ns"
        else:
            without_tokens = 0
        index += 1
        available = step.ledger[0][5] + step.ledger[0][6]
        due = index > auditor.next_step or available < auditor.below or (step.num_waiting and auditor.unrefused)
        if due and auditor.visit(step, index, now):
            clock.resume_at(now)  # a recount is not the engine's time


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
    window = _window(offer, requests, now)
    return Replay(
        phase=offer.phase, load=offer.load.label, clock=clock.kind,
        steps={name: np.ascontiguousarray(steps[:, i]) for i, name in enumerate(STEP_COLUMNS)},
        ledger={name: np.ascontiguousarray(ledger[:, i]) for i, name in enumerate(LEDGER_COLUMNS)},
        requests=requests, runs=(runs[:, 0].copy(), runs[:, 1].copy(), runs[:, 2].copy()),
        window_ns=window, drain_end_ns=now, reasons=recorder.reasons, stopped_early=stopped,
        failed=stuck, audited_steps=recorder.audited_steps, broken_laws=recorder.broken_laws,
        device=auditor.peak_device, rank_devices=auditor.peak_ranks, snapshots=list(auditor.snapshots.values()),
        void_because=_void(requests) + _built(recorder, requests, steps, window),
    )  # fmt: skip


def _window(offer: Offer, requests: Requests, now: int) -> tuple[int, int]:
    """As offered; or, where arrivals span no time of their own, until the last counted request has ended."""
    if not offer.until_ended:
        return offer.window_ns
    counted = offer.counted > 0
    begin = offer.window_ns[0] if offer.concurrency is None else int(requests.arrival_ns[counted][0])
    ended = requests.end_ns[counted]
    return begin, max(now if (ended < 0).any() else int(ended.max()), begin + 1)


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


def _built(recorder: Recorder, requests: Requests, steps: Ints, window: tuple[int, int]) -> list[str]:
    """A step that waited for a compiler measured the compiler: void where a counted request may have waited too.

    From the window's begin until the last that counts has ended; before it there is the warm-up to build in.
    """
    begin, finish = window
    until = max(int(requests.end_ns[requests.counted == 1].max(initial=finish)), finish)
    inside = [(i, end, n) for i, end, n in recorder.builds if end > begin and steps[i, 0] < until]
    if not inside:
        return []
    step, end, _ = inside[0]
    count = sum(n for _, _, n in inside)
    return [
        f"{count} compilations or graph captures inside the window, first in step {step}, which took "
        f"{(end - int(steps[step, 0])) / 1e6:.1f} ms; warm up what it met, or widen the warm-up"
    ]
