"""What a study's trials come to, candidate by candidate, brought up to date trial by trial.

Nothing here walks over all trials when one is asked for or told, so that the 2,000th costs what the 100th does.
How a trial of the study says what it stands for is written down here as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from statistics import fmean

from optuna.trial import FrozenTrial, TrialState

from orchestrator.journal import held_by
from orchestrator.past import Past
from orchestrator.points import Beside, Point
from search_spaces.idle import Reached
from search_spaces.neighbours import Key, key_of
from search_spaces.space import Space, Value

CONTROL, REPEAT, INSTEAD = "kvknee.control", "kvknee.repeat", "kvknee.instead_of"
REACHED = "kvknee.reached"  # most running, preemptions, evictions
ROLE, OF, BEAT, SLOT = "kvknee.role", "kvknee.of", "kvknee.beat", "kvknee.slot"  # measured again


@dataclass(slots=True)
class _Candidate:
    params: dict[str, Value]
    trials: dict[int, FrozenTrial] = field(default_factory=dict)  # by number


class History:
    """Of one study. `controls`: the candidates that are controls; what came of one counts for the other.

    `searched`: the candidates that were asked for under the budget, once a window, in order.
    """

    def __init__(self, space: Space, controls: Mapping[str, dict[str, Value]]) -> None:
        self._space, self._controls = space, controls
        self._whole = space.distributions().keys()
        self._decoded: dict[int, tuple[Key, dict[str, Value]]] = {}  # by number: a trial's candidate stays
        self._candidates: dict[Key, _Candidate] = {}
        self._past: dict[Key, Past] = {}
        self._numbers: set[int] = set()
        self.searched: list[tuple[Key, dict[str, Value]]] = []

    def __len__(self) -> int:
        """Trials that were taken in."""
        return len(self._numbers)

    def take(self, trial: FrozenTrial) -> None:
        """A trial that is new, or that is further than before; new ones in the order of their numbers."""
        key, params = self._candidate(trial)
        if trial.number not in self._numbers:
            self._numbers.add(trial.number)
            if not is_beside(trial):
                self.searched.append((key, params))
        if not params and (control := self._controls.get(trial.user_attrs.get(CONTROL, ""))):
            key, params = key_of(control), control
        if params:
            candidate = self._candidates.setdefault(key, _Candidate(params))
            candidate.trials[trial.number] = trial
            self._past[key] = replace(_came_of(candidate.params, list(candidate.trials.values())), key=key)

    def past(self) -> list[Past]:
        """What came of each candidate, controls that are one included: means over its windows, its worst bounds."""
        return list(self._past.values())

    def point(self, trial: FrozenTrial) -> Point:
        """What a trial was asked for."""
        attrs, params = trial.user_attrs, self._candidate(trial)[1]
        return Point(tuple(params.items()), attrs.get(CONTROL), int(attrs.get(REPEAT, 0)), _beside(trial))

    def _candidate(self, trial: FrozenTrial) -> tuple[Key, dict[str, Value]]:
        """Of a trial; empty for what stands beside the budget."""
        if (known := self._decoded.get(trial.number)) is not None:
            return known
        held = {} if is_beside(trial) else held_by(trial)
        params = self._space.decode(held) if held else {}
        found = key_of(params), params
        if held.keys() == self._whole or is_beside(trial):
            self._decoded[trial.number] = found
        return found


def attributes(point: Point, note: str = "") -> dict[str, object]:
    """How a trial of the study says that it is this point. `note`: what has to be said of it."""
    attrs: dict[str, object] = {REPEAT: point.repeat, **({CONTROL: point.control} if point.control else {})}
    if (beside := point.beside) is not None:
        attrs |= {ROLE: beside.role, OF: beside.of, BEAT: beside.beat, SLOT: beside.slot}
    return attrs | ({INSTEAD: note} if note else {})


def is_beside(trial: FrozenTrial) -> bool:
    """Whether it does not count against the budget."""
    return CONTROL in trial.user_attrs or ROLE in trial.user_attrs


def _beside(trial: FrozenTrial) -> Beside | None:
    attrs = trial.user_attrs
    return Beside(attrs[ROLE], int(attrs[OF]), attrs[BEAT], attrs[SLOT]) if ROLE in attrs else None


def _came_of(params: Mapping[str, Value], trials: list[FrozenTrial]) -> Past:
    answered = [t for t in trials if t.state == TrialState.COMPLETE]
    if not answered:
        return Past(params, None, running=any(t.state == TrialState.RUNNING for t in trials))
    values = tuple(fmean(column) for column in zip(*(t.values for t in answered), strict=True))
    bounds: dict[str, float] = {}
    for trial in answered:
        for name, bound in trial.constraints.items():
            bounds[name] = max(bound, bounds.get(name, bound))
    return Past(params, values, bounds, reached=_reached_by(answered))


def _reached_by(trials: Sequence[FrozenTrial]) -> Reached | None:
    """How far the candidate went on all its windows; None where one does not say."""
    said = [t.user_attrs.get(REACHED) for t in trials]
    return None if None in said else reduce(or_, (Reached(*one) for one in said))
