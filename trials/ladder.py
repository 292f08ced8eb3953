"""The replays of one trial on one open engine: each phase at a load, or a search for the largest load that holds.

Between replays the engine is drained and proven empty, so their order changes nothing.
"""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from trials.engine import Engine
from trials.load import Lock, Offer, offer
from trials.metrics import measure
from trials.recording import Replay
from trials.replay import replay
from trials.result import ReplayResult
from trials.slo import Slo, parse_slo
from trials.spec import Ladder, Load, TrialSpec
from trials.trace import Trace, TraceError

Say = Callable[[str], None]
Locks = dict[tuple[str, str], Lock]  # (phase, load) -> its recorded schedule


@dataclass(frozen=True, slots=True)
class Asked:
    """What a trial is asked beside its spec; none of it moves a result."""

    locks: Locks | None = None  # arrivals and cancels by recorded steps
    ownership_at_ns: int | None = None  # engine time of a look at who holds which block, in every replay


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


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside a measured window: its pauses are not the engine's."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


class Replays:
    """Runs and measures replays of one spec on one engine."""

    def __init__(self, engine: Engine, trace: Trace, spec: TrialSpec, say: Say, asked: Asked | None = None) -> None:
        self._engine, self._trace, self._spec, self._say = engine, trace, spec, say
        self._asked = asked or Asked()
        self._slo: Slo = parse_slo(spec.slo)
        self._offered: list[Offer] = []  # one a replay in `done`
        self.done: list[Measured] = []

    def at(self, load: Load, phase: str) -> Measured:
        """One replay, measured; a modelled one that offers the same as an earlier one is that one."""
        asked = offer(self._trace, self._spec.trace, load, phase)
        if self._asked.ownership_at_ns is not None:
            asked = replace(asked, look_ns=self._asked.ownership_at_ns)
        if self._asked.locks is not None:
            lock = _lock(self._asked.locks, phase, load)
            asked = asked.locked(lock.met_step, lock.cancel_step, lock.arrival_ns)
        elif (past := self._same(asked)) is not None:
            again = replace(past.replay, phase=phase)
            return self._keep(asked, again, past.result.model_copy(update={"phase": phase}))
        self._say(
            f"{phase} {load.label}: {len(asked.rows)} requests, {asked.window_ns[1] / 1e9:.1f} s of engine time"
        )
        with _no_collection():
            recorded = replay(self._engine, self._trace, asked, self._spec.seed)
        return self._keep(asked, recorded, measure(recorded, self._engine.facts, self._slo))

    def _same(self, asked: Offer) -> Measured | None:
        """An earlier replay of exactly this, where the engine's time is modelled and so cannot differ."""
        if self._engine.facts.clock != "virtual":
            return None
        places = (place for place, offered in enumerate(self._offered) if offered.same_as(asked))
        return next((self.done[place] for place in places), None)

    def _keep(self, asked: Offer, recorded: Replay, result: ReplayResult) -> Measured:
        self._offered.append(asked)
        self.done.append(Measured(recorded, result))
        return self.done[-1]

    def passes(self, load: Load, phase: str) -> bool:
        """Whether the load holds: SLO and attainment, and a backlog that does not grow."""
        result = self.at(load, phase).result
        holds = result.holds and not result.metrics.backlog_grew
        self._say(f"{phase} {load.label}: {'holds' if holds else 'does not hold'} ({result.binding} binds)")
        return holds


def _lock(locks: Locks, phase: str, load: Load) -> Lock:
    if (phase, load.label) not in locks:
        known = ", ".join(" ".join(key) for key in sorted(locks))
        raise TraceError(f"the schedule to lock to has no replay {phase} {load.label}; it has {known or 'none'}")
    return locks[phase, load.label]


def run(engine: Engine, trace: Trace, spec: TrialSpec, say: Say, asked: Asked | None = None) -> Outcome:
    """All replays that the spec asks for."""
    replays = Replays(engine, trace, spec, say, asked)
    if spec.measure.load is not None:
        for phase in spec.phases:
            replays.at(spec.measure.load, phase)
        decides = spec.phases.index("steady") if "steady" in spec.phases else len(spec.phases) - 1
        return Outcome(replays.done, decides)
    assert spec.measure.ladder is not None
    return _climb(replays, spec.measure.ladder, "steady" if "steady" in spec.phases else "cold")


def _climb(replays: Replays, ladder: Ladder, phase: str) -> Outcome:
    """Bisection on a log scale between a load that holds and one that does not.

    Not assumed monotone: what is returned was measured to hold, and its neighbour beyond was measured not to
    (or is the end of the ladder).
    """

    def load(value: float) -> Load:
        if ladder.over == "concurrency":
            return Load(concurrency=max(1, round(value)))
        return Load.model_validate({ladder.over: float(f"{value:.6g}")})

    if not replays.passes(load(ladder.low), phase):
        return Outcome(replays.done, 0)
    best, at = load(ladder.low), 0
    if load(ladder.high).label == best.label:
        return Outcome(replays.done, 0, best.value)
    if replays.passes(load(ladder.high), phase):
        return Outcome(replays.done, 1, load(ladder.high).value)
    low, high = ladder.low, ladder.high
    while high / low > 1 + ladder.within and load(low).label != load(high).label:
        middle = load(math.sqrt(low * high))
        if middle.label in (load(low).label, load(high).label):
            break
        if replays.passes(middle, phase):
            low, best, at = middle.value, middle, len(replays.done) - 1
        else:
            high = middle.value
    return Outcome(replays.done, at, best.value)
