"""The replays of one trial on one open engine: each phase at a load, or a search for the largest load that holds.

Between replays the engine is drained and proven empty, so their order changes nothing.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from trials.capacity import Windowed, combined, parts_of, searched
from trials.challenge import beaten
from trials.engine import Engine
from trials.heartbeat import Heartbeat
from trials.load import Lock, Offer, offer
from trials.metrics import measure
from trials.recording import Replay
from trials.replay import replay
from trials.result import Capacity, ReplayResult
from trials.slo import Slo, parse_slo
from trials.spec import Load, TrialSpec
from trials.stop_rules import StopRule
from trials.trace import Trace, TraceError

Say = Callable[[str], None]
Locks = dict[tuple[str, str], Lock]  # (phase, load) -> its recorded schedule


@dataclass(frozen=True, slots=True)
class Asked:
    """What a trial is asked beside its spec; none of it moves a result."""

    locks: Locks | None = None  # arrivals and cancels by recorded steps
    ownership_at_ns: int | None = None  # engine time of a look at who holds which block, in every replay
    clock_s: Callable[[], float] | None = None  # by which it is said how far a replay is; None: it is not


@dataclass(slots=True)
class Measured:
    """One replay and what it came to."""

    replay: Replay
    result: ReplayResult


@dataclass(slots=True)
class Outcome:
    """All replays of a trial in the order they ran; `decides` is the index of the one that counts."""

    replays: list[Measured]
    decides: int
    capacity_load: float | None = None
    capacity: Capacity | None = None


@contextmanager
def _no_collection(measured: bool) -> Iterator[None]:
    """No garbage collection inside a measured replay: its pauses are not the engine's."""
    if measured:
        gc.collect()
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if measured:
            gc.unfreeze()


class Replays:
    """Runs and measures replays of one spec on one engine."""

    def __init__(self, engine: Engine, trace: Trace, spec: TrialSpec, say: Say, asked: Asked | None = None) -> None:
        self._engine, self._trace, self._spec, self._say = engine, trace, spec, say
        self._asked = asked or Asked()
        self._slo: Slo = parse_slo(spec.slo)
        self._offered: list[Offer] = []  # one a replay in `done`
        self.done: list[Measured] = []

    def at(self, load: Load, phase: str, early: bool = False) -> Measured:
        """One replay, measured; a modelled one that offers the same as an earlier one is that one.

        `early`: it may end as soon as it is certain whether the load holds.
        """
        asked = offer(self._trace, self._spec.trace, load, phase)
        if self._asked.ownership_at_ns is not None:
            asked = replace(asked, look_ns=self._asked.ownership_at_ns)
        if self._asked.locks is not None:
            lock = _lock(self._asked.locks, phase, load)
            asked = asked.locked(lock.met_step, lock.cancel_step, lock.arrival_ns)
        elif (past := self._same(asked, early)) is not None:
            again = replace(past.replay, phase=phase)
            return self._keep(asked, again, past.result.model_copy(update={"phase": phase}))
        self._say(
            f"{phase} {load.label}: {len(asked.rows)} requests, {asked.window_ns[1] / 1e9:.1f} s of engine time"
        )
        rule = self._watched(
            asked, StopRule(self._trace, asked, self._slo) if early and asked.lock is None else None
        )
        with _no_collection(self._engine.facts.clock != "virtual"):
            recorded = replay(self._engine, self._trace, asked, self._spec.seed, rule)
        return self._keep(asked, recorded, measure(recorded, self._engine.facts, self._slo, self._trace))

    def _watched(self, asked: Offer, rule: StopRule | None) -> "StopRule | Heartbeat | None":
        """The rule, and beside it a word now and then on how far the replay is."""
        if self._asked.clock_s is None:
            return rule
        kind = "simulated" if self._engine.facts.clock == "virtual" else "engine"
        return Heartbeat(asked, kind, self._say, self._asked.clock_s, rule)

    def _same(self, asked: Offer, early: bool) -> Measured | None:
        """An earlier replay of exactly this, where the engine's time is modelled and so cannot differ."""
        if self._engine.facts.clock != "virtual":
            return None
        places = (place for place, offered in enumerate(self._offered) if offered.same_as(asked))
        found = (self.done[place] for place in places)
        return next((m for m in found if early or m.replay.stopped_early is None), None)

    def _keep(self, asked: Offer, recorded: Replay, result: ReplayResult) -> Measured:
        self._offered.append(asked)
        self.done.append(Measured(recorded, result))
        return self.done[-1]

    def passes(self, load: Load, phase: str) -> bool:
        """Whether the load holds: SLO and attainment, and a backlog that does not grow; ends once that is sure."""
        return self._judged(self.at(load, phase, early=True))

    def holds_in_full(self, load: Load, phase: str) -> bool:
        """The same of a replay to its end; one that was made in full already is that one."""
        done = self._latest(load, phase)
        if done is not None and done.replay.stopped_early is None:
            return _holds(done.result)
        return self._judged(self.at(load, phase))

    def place_of(self, load: Load, phase: str) -> int:
        """Which of `done` is the latest replay at this load."""
        found = [k for k, m in enumerate(self.done) if (m.result.load, m.result.phase) == (load.label, phase)]
        return found[-1]

    def _latest(self, load: Load, phase: str) -> Measured | None:
        found = [m for m in self.done if (m.result.load, m.result.phase) == (load.label, phase)]
        return found[-1] if found else None

    def _judged(self, measured: Measured) -> bool:
        result, holds = measured.result, _holds(measured.result)
        early = f", stopped early: {result.stopped_early}" if result.stopped_early else ""
        self._say(
            f"{result.phase} {result.load}: {'holds' if holds else 'does not hold'} ({result.binding} binds{early})"
        )
        return holds


def _holds(result: ReplayResult) -> bool:
    return result.holds and not result.metrics.backlog_grew


def _lock(locks: Locks, phase: str, load: Load) -> Lock:
    if (phase, load.label) not in locks:
        known = ", ".join(" ".join(key) for key in sorted(locks))
        raise TraceError(f"the schedule to lock to has no replay {phase} {load.label}; it has {known or 'none'}")
    return locks[phase, load.label]


def run(engine: Engine, trace: Trace, spec: TrialSpec, say: Say, asked: Asked | None = None) -> Outcome:
    """All replays that the spec asks for."""
    if spec.measure.ladder is not None:
        return _capacity(engine, trace, spec, say, asked)
    assert spec.measure.load is not None
    replays = Replays(engine, trace, spec, say, asked)
    for phase in spec.phases:
        replays.at(spec.measure.load, phase)
    return Outcome(replays.done, _deciding_phase(spec))


def _deciding_phase(spec: TrialSpec) -> int:
    return spec.phases.index("steady") if "steady" in spec.phases else len(spec.phases) - 1


def _capacity(engine: Engine, trace: Trace, spec: TrialSpec, say: Say, asked: Asked | None) -> Outcome:
    """A search on each window; the replays that are kept are those of the window that decides."""
    ladder = spec.measure.ladder
    assert ladder is not None
    phase = "steady" if "steady" in spec.phases else "cold"
    specs = [spec.model_copy(update={"trace": part}) for part in parts_of(trace, spec)]
    windows = [Windowed(own, Replays(engine, trace, own, say, asked)) for own in specs]
    lost = beaten(windows, ladder, phase, trace) if ladder.beat is not None else None
    if lost is not None:
        challenger, capacity = lost
        say(f"capacity: {capacity.words}")
        return Outcome(challenger.replays, challenger.decides, None, capacity)
    found = [searched(window, trace, phase) for window in windows]
    capacity = combined(ladder.over, ladder.high, [f.part for f in found], spec.trace.superpose)
    say(f"capacity: {capacity.words}")
    chosen = found[capacity.decides]
    value = None if capacity.needs_requests else capacity.value
    kept = _once_each(chosen.replays)
    return Outcome(kept, kept.index(chosen.replays[chosen.decides]), value, capacity)


def _once_each(done: list[Measured]) -> list[Measured]:
    """The latest replay of each load: one that ended early and was made again in full could not be told apart."""
    latest = {(m.result.phase, m.result.load): m for m in done}
    return list(latest.values())
