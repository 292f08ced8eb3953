"""The smallest pool that still holds a load: the capacity search over bytes. Each pool is an engine of its own."""

from collections.abc import Callable
from dataclasses import dataclass

from trials.bracket import rungs, search
from trials.capacity import combined, part_of, parts_of, placed
from trials.engine import Engine, EngineFacts, Refused
from trials.ladder import Measured, Outcome, Replays, Say
from trials.result import CapacityPart
from trials.spec import PoolSpec, TrialSpec
from trials.trace import Trace

Open = Callable[[TrialSpec], Engine | Refused]


@dataclass(slots=True)
class Sized:
    """`facts` are those of the engine whose replay decides."""

    outcome: Outcome
    facts: EngineFacts


@dataclass(slots=True)
class _Tried:
    measured: Measured
    facts: EngineFacts
    holds: bool


class _Pools:
    """Replays of one spec at one load, pool by pool."""

    def __init__(self, open_engine: Open, trace: Trace, spec: TrialSpec, say: Say) -> None:
        self._open, self._trace, self._spec, self._say = open_engine, trace, spec, say
        self._phase = "steady" if "steady" in spec.phases else "cold"
        self.tried: list[_Tried] = []
        self.refused: Refused | None = None

    def replay(self, num_bytes: float, full: bool) -> _Tried | None:
        """None where the engine refuses the pool."""
        pool = PoolSpec(
            bytes=round(num_bytes), reserve_blocks=self._spec.pool.reserve_blocks,
            tables_inside=self._spec.pool.tables_inside,
        )  # fmt: skip
        own = self._spec.model_copy(update={"pool": pool})
        engine = self._open(own)
        if isinstance(engine, Refused):
            self._say(f"a pool of {pool.bytes} bytes is refused: {engine.words}")
            self.refused = engine
            return None
        assert own.measure.load is not None
        try:
            replays = Replays(
                engine, self._trace, own, lambda text: self._say(f"pool of {pool.bytes} bytes: {text}")
            )
            holds = (replays.holds_in_full if full else replays.passes)(own.measure.load, self._phase)
        finally:
            engine.close()
        self.tried.append(_Tried(replays.done[-1], engine.facts, holds))
        return self.tried[-1]


def size_pool(open_engine: Open, trace: Trace, spec: TrialSpec, say: Say) -> Sized | Refused:
    """Search on each window; the replay of the deciding window's smallest pool is kept, or of the largest tried."""
    ladder = spec.measure.ladder
    assert ladder is not None
    found: list[tuple[_Tried, CapacityPart]] = []
    for window in parts_of(trace, spec):
        one = _on_window(open_engine, trace, spec.model_copy(update={"trace": window}), say)
        if isinstance(one, Refused):
            return one
        found.append(one)
    capacity = combined(ladder.over, ladder.low, [part for _, part in found], spec.trace.superpose)
    say(f"pool: {capacity.words}")
    decided, _ = found[capacity.decides]
    return Sized(Outcome([decided.measured], 0, None, capacity), decided.facts)


def _on_window(
    open_engine: Open, trace: Trace, spec: TrialSpec, say: Say
) -> tuple[_Tried, CapacityPart] | Refused:  # fmt: skip
    ladder = spec.measure.ladder
    assert ladder is not None
    pools, values = _Pools(open_engine, trace, spec, say), rungs(ladder)[::-1]  # rungs rise with difficulty
    known: dict[int, bool] = {}
    at: dict[int, _Tried | None] = {}

    def holds(rung: int) -> bool:
        if rung not in known:
            at[rung] = tried = pools.replay(values[rung], full=False)
            known[rung] = tried is not None and tried.holds
        return known[rung]

    while True:
        bracket = search(holds, len(values))
        rung = bracket.best or 0
        decided = at.get(rung)
        if decided is None or decided.measured.replay.stopped_early is not None:
            decided = pools.replay(values[rung], full=True)
        if bracket.best is None or (decided is not None and decided.holds):
            break
        known[rung] = False
    if decided is None:
        assert pools.refused is not None
        return pools.refused
    bound = decided if bracket.beyond is None else at[bracket.beyond]
    told = [t.measured.result for t in pools.tried]
    part = part_of(bracket, values, told, bound.measured.result if bound else None)
    return decided, placed(part, decided.measured, spec, trace)
