"""Capacity: the largest load that holds, searched for inside one trial on one open engine.

Each window is searched for itself on the same rungs; the median of the windows decides, and its range is shown.
The load that is returned was replayed in full; the rungs beside it were measured too, the failing ones for as long
as it took to be sure (stop_rules.py). Where a window holds too few requests to tell, that is the answer, with the
number that it needs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from trials.bracket import Bracket, rung_from, rung_near, rungs, search
from trials.load import window_of
from trials.result import Capacity, CapacityPart, ReplayResult
from trials.slo import Slo, parse_slo
from trials.spec import Ladder, Load, TraceSpec, TrialSpec, Window
from trials.stop_rules import CANNOT_HOLD
from trials.trace import Trace

if TYPE_CHECKING:
    from trials.ladder import Measured, Replays

UNITS = {"rate_scale": "x", "rps": "requests/s", "concurrency": "at once", "pool_bytes": "bytes"}


@dataclass(slots=True)
class Windowed:
    """One window on the open engine, and what is known of its rungs before it is searched."""

    spec: TrialSpec
    replays: "Replays"
    known: dict[int, bool] = field(default_factory=dict)


@dataclass(slots=True)
class Searched:
    """One window's search. `decides` is an index into the replays that were made for it."""

    replays: "list[Measured]"
    decides: int
    part: CapacityPart


def parts_of(trace: Trace, spec: TrialSpec) -> tuple[TraceSpec, ...]:
    """The windows that are searched: the spec's own, or as many equal stretches of it as the ladder asks for."""
    ladder = spec.measure.ladder
    count = ladder.windows if ladder else 1
    if count == 1:
        return (spec.trace,)
    _, start, end = window_of(trace, spec.trace)
    edges = [start + (end - start) * k // count for k in range(count + 1)]
    return tuple(
        spec.trace.model_copy(update={"window": Window.model_construct(start=a, duration=b - a)})
        for a, b in pairwise(edges)
    )


def load_of(over: str, value: float) -> Load:
    return Load.model_validate({over: round(value) if over == "concurrency" else value})


def climb(window: Windowed, ladder: Ladder, phase: str) -> tuple[Bracket, int]:
    """One window -> (bracket, index of the replay that decides: the best load's, or the lowest's, in full)."""
    values, replays, known = rungs(ladder), window.replays, dict(window.known)
    hint = _hint(ladder, values)

    def holds(rung: int) -> bool:
        if rung not in known:
            known[rung] = replays.passes(load_of(ladder.over, values[rung]), phase)
        return known[rung]

    while True:
        found = search(holds, len(values), hint)
        if found.best is None:
            lowest = load_of(ladder.over, values[0])
            replays.holds_in_full(lowest, phase)  # how far it misses is only known in full
            return found, replays.place_of(lowest, phase)
        load = load_of(ladder.over, values[found.best])
        if replays.holds_in_full(load, phase):
            return found, replays.place_of(load, phase)
        known[found.best] = False  # measured engines differ from run to run: what failed once does not count


def _hint(ladder: Ladder, values: Sequence[float]) -> int | None:
    """Where the search begins: at the load to beat, else near what a neighbour came to."""
    if ladder.beat is not None:
        return rung_from(values, ladder.beat)
    return None if ladder.near is None else rung_near(values, ladder.near)


def searched(window: Windowed, trace: Trace, phase: str) -> Searched:
    """The search on one window and what it came to."""
    spec, replays = window.spec, window.replays
    ladder = spec.measure.ladder
    assert ladder is not None
    values = rungs(ladder)
    found, decides = climb(window, ladder, phase)
    beyond = None
    if found.beyond is not None:
        load = load_of(ladder.over, values[found.beyond])
        beyond = replays.done[replays.place_of(load, phase)].result
    told = [m.result for m in replays.done]
    part = part_of(found, values, told, beyond or told[decides])
    return Searched(replays.done, decides, placed(part, replays.done[decides], spec, trace))


def part_of(
    found: Bracket, values: Sequence[float], told: Sequence[ReplayResult], bound: ReplayResult | None
) -> CapacityPart:
    """The bracket in numbers. `bound`: the replay that says what binds."""

    def at(rung: int | None) -> float | None:
        return None if rung is None else values[rung]

    return CapacityPart(
        start_ns=0, end_ns=0, requests=0, value=at(found.best), beyond=at(found.beyond), below=at(found.below),
        binding=_binding(bound) if bound is not None else "the pool is refused",
        replays=len(told), stopped_early=sum(r.stopped_early is not None for r in told),
        engine_s=sum(r.observation.drain_end_ns for r in told) / 1e9,
    )  # fmt: skip


def placed(part: CapacityPart, decided: "Measured", spec: TrialSpec, trace: Trace) -> CapacityPart:
    """The same with its window, and whether that held requests enough."""
    _, start, end = window_of(trace, spec.trace)
    counted = int((decided.replay.requests.counted > 0).sum())
    needs = needed_requests(decided, parse_slo(spec.slo), part.value)
    return part.model_copy(update={"start_ns": start, "end_ns": end, "requests": counted, "needs_requests": needs})


def _binding(result: ReplayResult) -> str:
    """What was, or would have been, missed; of a replay that ended early, what made that sure."""
    if result.stopped_early and result.stopped_early.startswith(CANNOT_HOLD):
        return result.stopped_early.removeprefix(f"{CANNOT_HOLD}: ")
    return "backlog" if result.holds and result.metrics.backlog_grew else result.binding


def needed_requests(decided: "Measured", slo: Slo, value: float | None) -> int:
    """How many requests a window needs where there are too few to judge by; 0 where there are enough.

    Enough are as many as the strictest share can be seen in (a 99th percentile of fewer than 100 is the worst of
    them), and, at an open load that holds, as many as arrive while one is served: else nothing was ever in balance.
    """
    result = decided.result
    counted = int((decided.replay.requests.counted > 0).sum())
    shares = [c.percentile / 100 for c in slo.clauses] + [slo.attainment]
    strictest = max((s for s in shares if s < 1), default=0.0)
    needs = math.ceil(1 / (1 - strictest) - 1e-6)
    window_ms = (result.observation.end_ns - result.observation.start_ns) / 1e6
    served_ms = result.metrics.e2el_ms.mean
    if value is not None and served_ms is not None and not result.load.startswith("concurrency"):
        needs = max(needs, math.ceil(counted * served_ms / window_ms))
    return needs if counted < needs else 0


def combined(over: str, last: float, parts: Sequence[CapacityPart], superposed: int = 1) -> Capacity:
    """Windows to one answer: the lower median, where nothing holds counting as least; for pools as most."""
    sign = -1 if over == "pool_bytes" else 1
    order = sorted(range(len(parts)), key=lambda k: _rank(parts[k], sign))
    decides = order[(len(parts) - 1) // 2]
    low, high = (parts[order[0]].value, parts[order[-1]].value)[::sign]
    chosen = parts[decides]
    capacity = Capacity(
        over=over, last=last, value=chosen.value, low=low, high=high,
        at_least=chosen.value is not None and chosen.beyond is None,
        needs_requests=max(p.needs_requests for p in parts), superposed=superposed, decides=decides,
        parts=tuple(parts),
    )  # fmt: skip
    return capacity.model_copy(update={"words": words(capacity)})


def _rank(part: CapacityPart, sign: int) -> tuple[bool, float]:
    return part.value is not None, sign * (part.value or 0.0)


def words(found: Capacity) -> str:
    """The answer in a line."""
    unit, num_windows = UNITS[found.over], len(found.parts)
    if found.needs_requests:
        have = min(p.requests for p in found.parts)
        wanted = math.ceil(found.needs_requests / max(have, 1)) * found.superposed
        return (
            f"too few to judge by: {have} in the window, it needs at least {found.needs_requests} requests: "
            f"lengthen trace.window, or set trace.superpose to {wanted}"
        )
    if found.value is None:
        kind = "pool" if found.over == "pool_bytes" else "load"
        return f"no {kind} of the ladder holds: {found.parts[found.decides].binding} binds"
    bound = (">= " if found.over != "pool_bytes" else "<= ") if found.at_least else ""
    part = found.parts[found.decides]

    def shown(value: float | None) -> str:
        if value is None:
            return "none"
        return f"{value:,.0f}" if found.over == "pool_bytes" else f"{value:g}"

    tail = (
        "nothing tried failed" if found.at_least else f"{shown(part.beyond)} does not hold ({part.binding} binds)"
    )
    spread = f", {shown(found.low)} to {shown(found.high)} over {num_windows} windows" if num_windows > 1 else ""
    laid = f"; {found.superposed} shifted copies of the trace over one another" if found.superposed > 1 else ""
    return f"{bound}{shown(found.value)} {unit}{spread}; {tail}{laid}"
