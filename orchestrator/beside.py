"""Trials beside the budget that measure a candidate again, once the search is over: which, and with what spec.

slot: a control on a slot that others were measured on. reprieve: who is out of a race because its leader fell.
neighbour: next to the tied set, whether one that lost a race is worse or only not better. confirm: winner, default
and best fixed block on windows that the search never saw. survival: the winner under bursts of cancels and forks;
where it does not survive, the next candidate is tried. All of it follows from finished trials alone, so that a
resumed sweep asks for the same.
"""

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.conclude import decision_of, judged
from orchestrator.config import Sweep
from orchestrator.folder import SweepFolder, TrialRecord
from orchestrator.points import OF_THE_SEARCH, Beside, Point, Role
from orchestrator.reprieve import reprieved
from orchestrator.survival import bursts_on
from search_spaces.candidates import Candidate
from search_spaces.knee import Decision, unresolved
from search_spaces.race import Standings
from trials.slo import parse_slo
from trials.spec import Load, Measure, TrialSpec


def wanted(records: Sequence[TrialRecord], sweep: Sweep, slots: Sequence[str] = ()) -> list[Point]:
    """What is still to be measured before the outcome stands; empty where nothing is, or nothing is feasible.

    `slots`: those that the executor has.
    """
    if points := list(_on_other_slots(records, sweep, slots)):
        return points
    by_number = {r.number: r for r in records}

    def asks(number: int, role: Role, repeat: int, beat: float | None) -> tuple[object, ...]:
        return sweep.space.policy_of(by_number[number].spec), role, repeat, beat

    known = {asks(r.number, r.card.role, r.repeat, r.card.beat) for r in records if r.card.role is not None}

    def left(points: Iterable[Point]) -> list[Point]:
        """Those that were not asked yet: an answer that failed is one too."""
        stands = [(p, p.beside) for p in points if p.beside is not None]
        return [p for p, b in stands if asks(b.of, b.role, p.repeat, b.beat) not in known]

    slo = parse_slo(sweep.config.slo)
    searched = [
        (r, judged(r, sweep, slo)) for r in records if r.card.role in OF_THE_SEARCH and r.state != "running"
    ]
    if reprieves := left(reprieved(searched, sweep)):
        return reprieves[:1]
    decision = decision_of(records, sweep)
    if decision.choice is None:
        return []
    stages = (left(stage(decision, sweep)) for stage in (_neighbours, _confirming, _surviving))
    return next(filter(None, stages), [])


def _on_other_slots(records: Sequence[TrialRecord], sweep: Sweep, slots: Sequence[str]) -> Iterator[Point]:
    """Each control on each slot that the search was measured on: what a slot gives is told by the same work."""
    if not sweep.timed:
        return
    used = {r.slot for r in records if r.card.role is None and r.result is not None} & set(slots)
    if len(used) < 2:
        return
    controls = [r for r in records if r.control is not None and r.repeat == 0 and r.result is not None]
    seen = {(sweep.candidate(r.spec), r.card.slot or r.slot) for r in records if r.repeat == 0}
    for record in controls:
        for slot in sorted(used):
            if (asked := (sweep.candidate(record.spec), slot)) not in seen:
                seen.add(asked)
                yield Point((), None, 0, Beside("slot", record.number, None, slot))


def _first(candidate: Candidate) -> int:
    return min(t.number for t in candidate.trials.values())


def _neighbours(decision: Decision, sweep: Sweep) -> Iterator[Point]:
    """On the winner's slot, where slots differ: the load that it held there is the one that they have to miss."""
    ladder, choice = sweep.config.measure.ladder, decision.choice
    first = choice.winner.values.get(0) if choice is not None else None
    if not sweep.config.races or ladder is None or choice is None or first is None:
        return
    slot = choice.winner.trials[0].slot
    held = first * decision.slots.get(slot, 1.0)
    beat = Standings(ladder, sweep.config.min_gain).to_be_worse(held)
    for candidate in unresolved(decision, sweep.space) if beat is not None else ():
        where = slot if slot in decision.slots else None
        yield Point((), None, 0, Beside("neighbour", _first(candidate), beat, where))


def _confirming(decision: Decision, sweep: Sweep) -> Iterator[Point]:
    choice = decision.choice
    assert choice is not None
    again = (choice.winner, decision.default, decision.best_fixed_block)
    numbers = dict.fromkeys(_first(c) for c in again if c is not None)
    for k in range(len(sweep.held_out)):
        for number in numbers:
            yield Point((), None, len(sweep.windows) + k, Beside("confirm", number))


def _surviving(decision: Decision, sweep: Sweep) -> Iterator[Point]:
    """At a share of what the winner held on the very window that its bursts are laid over."""
    assert decision.choice is not None
    winner, window = decision.choice.winner, len(sweep.windows) - (not sweep.held_out)
    if sweep.config.survival is not None:
        again = decision.proofs.confirmed.get(winner.policy, {}) if sweep.held_out else winner.trials
        of = again[window].number if window in again else _first(winner)
        yield Point((), None, len(sweep.windows) + len(sweep.held_out), Beside("survival", of))


def spec_again(point: Point, source: TrialRecord, sweep: Sweep, folder: SweepFolder) -> TrialSpec:
    """The spec of the candidate that `source` is a trial of, on the point's window."""
    assert point.beside is not None
    spec, ladder = source.spec, source.spec.measure.ladder
    capacity = source.result.metrics.capacity_load if source.result is not None else None
    if point.beside.role == "survival":
        return _under_bursts(point, spec, capacity, sweep, folder)
    every = (*sweep.windows, *sweep.held_out)
    if ladder is not None:
        near = capacity if point.beside.beat is None else None
        asked = ladder.model_copy(update={"beat": point.beside.beat, "near": near})
        spec = spec.model_copy(update={"measure": spec.measure.model_copy(update={"ladder": asked})})
    trace = spec.trace.model_copy(update={"window": every[point.repeat]})
    return spec.model_copy(update={"trace": trace, "repeat": point.repeat})


def _under_bursts(
    point: Point, spec: TrialSpec, capacity: float | None, sweep: Sweep, folder: SweepFolder
) -> TrialSpec:
    """On a held-out window, else on the last one searched; at the sweep's load, or at a share of the capacity."""
    asked = sweep.config.survival
    assert asked is not None
    window = sweep.held_out[0] if sweep.held_out else sweep.windows[-1]
    bursts = bursts_on(asked, spec, window, folder.path / "survival")
    load, ladder = spec.measure.load, spec.measure.ladder
    if ladder is not None:
        value = (capacity or ladder.low) * asked.of_capacity
        load = Load.model_validate({ladder.over: max(1, round(value)) if ladder.over == "concurrency" else value})
    assert load is not None
    measure = Measure(load=bursts.load(load))
    return spec.model_copy(update={"trace": bursts.trace, "measure": measure, "repeat": point.repeat})
