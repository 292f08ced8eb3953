"""The sweep's Optuna study: one journal file, asked and told by the driver alone.

A trial's number is Optuna's number is its folder. A trial that a killed driver left RUNNING is finished under its
own number, so the journal ends with exactly the budget and the controls beside it. Controls outside the space are
trials without parameters, and carry the attribute kvknee.control. Which candidate comes next is the samplers' word
(`samplers`); it is enqueued here, so nothing is drawn in this study itself.
"""

import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from statistics import fmean

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from orchestrator.config import Sweep
from orchestrator.folder import SweepFolder
from orchestrator.journal import held_by, open_study
from orchestrator.past import Past
from orchestrator.points import Beside, Point
from orchestrator.samplers import Search, listed_next, propose
from orchestrator.screened import drop_screen
from search_spaces.idle import Reached
from search_spaces.neighbours import Key, key_of
from search_spaces.objective import DIRECTIONS, RACED_OUT, Score, values_of
from search_spaces.screen import Screened
from search_spaces.space import Value

_CONTROL, _REPEAT, _INSTEAD = "kvknee.control", "kvknee.repeat", "kvknee.instead_of"
_REACHED = "kvknee.reached"  # most running, preemptions, evictions
_ROLE, _OF, _BEAT, _SLOT = "kvknee.role", "kvknee.of", "kvknee.beat", "kvknee.slot"  # measured again


@dataclass(frozen=True, slots=True)
class Asked:
    """What the study wants measured next. `note`: what has to be said of it."""

    number: int
    point: Point
    note: str = ""


class SweepStudy:
    """Asks for trials until budget and controls are met, and tells what came of them."""

    def __init__(self, journal: Path, sweep: Sweep) -> None:
        self._sweep = sweep
        self._distributions = sweep.space.distributions()
        self._directions = DIRECTIONS.get(sweep.config.objective, ("maximize",))
        self._study = open_study(journal, sweep.config.name, sweep.space, self._directions)
        self._control_params = {
            name: params for name, spec in sweep.controls
            if (params := sweep.space.params_of(sweep.space.policy_of(spec))) is not None
        }  # fmt: skip
        self._handles: dict[int, optuna.Trial] = {}
        self._decoded: dict[int, tuple[Key, dict[str, Value]]] = {}  # by number: a trial's candidate stays
        self._came: dict[Key, tuple[int, Past]] = {}  # candidate -> its trials, all over, and what came of them
        self._folder = SweepFolder(journal.parent)
        self._dropped = "" if sweep.screen is None else sweep.screen.dropped  # why the screen is not followed
        self._searching: Search | None = None
        self._again = sum(_ROLE in t.user_attrs for t in self._trials())  # measured again, so far as it is known
        self._waiting = deque(map(_is_beside, self._trials(TrialState.WAITING)))  # as Optuna takes them
        self._left_running = [t.number for t in self._trials(TrialState.RUNNING)]
        self._enqueue_plan()

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False, states=states or None)
        return trials

    def _enqueue_plan(self) -> None:
        """Put in whatever of controls and grid is not yet there; a plan cut short by a kill is completed."""
        planned = list(self._sweep.control_points())
        if self._sweep.config.sampler == "exhaustive" and self._sweep.screen is None:
            # In a race controls come first: what they come to answers the points of the grid that they are.
            grid = list(self._sweep.grid())
            planned = [*planned, *grid] if self._sweep.config.races else [*grid, *planned]
        known = {self._key(t) for t in self._trials()} if planned else set()
        for point in planned:
            if _key_of(point) not in known:
                self._enqueue(point)

    def _enqueue(self, point: Point, note: str = "") -> None:
        attrs = {_REPEAT: point.repeat, **({_CONTROL: point.control} if point.control else {})}
        if point.beside is not None:
            beside, self._again = point.beside, self._again + 1
            attrs |= {_ROLE: beside.role, _OF: beside.of, _BEAT: beside.beat, _SLOT: beside.slot}
        encoded = self._sweep.space.encode(dict(point.params)) if point.params else {}
        self._study.enqueue_trial(encoded, user_attrs=attrs | ({_INSTEAD: note} if note else {}))
        self._waiting.append(_CONTROL in attrs or _ROLE in attrs)

    def _params(self, trial: FrozenTrial) -> dict[str, Value]:
        """The candidate of a trial; empty for what stands beside the budget."""
        return self._candidate(trial)[1]

    def _candidate(self, trial: FrozenTrial) -> tuple[Key, dict[str, Value]]:
        if (known := self._decoded.get(trial.number)) is not None:
            return known
        held = {} if _is_beside(trial) else held_by(trial)
        params = self._sweep.space.decode(held) if held else {}
        if held.keys() == self._distributions.keys() or _is_beside(trial):
            self._decoded[trial.number] = key_of(params), params
        return key_of(params), params

    def _key(self, trial: FrozenTrial) -> tuple[object, ...]:
        attrs = trial.user_attrs
        return attrs.get(_CONTROL), attrs.get(_REPEAT, 0), tuple(self._params(trial).items()), _beside(trial)

    def ask(self) -> Asked | None:
        """The next trial to run, or None when budget and controls are all asked for."""
        if self._left_running:
            return self._reopen(self._left_running.pop(0))
        if not self._waiting and not self._extend():
            return None
        trial = self._study.ask({} if self._waiting.popleft() else self._distributions)
        self._handles[trial.number] = trial
        return self._asked(trial.number)

    def add(self, points: Sequence[Point]) -> bool:
        """Enqueue what is to be measured again beside the budget; False where all of it stands there already."""
        known = {self._key(t) for t in self._trials()}
        new = [point for point in points if _key_of(point) not in known]
        for point in new:
            self._enqueue(point)
        return bool(new)

    def _extend(self) -> bool:
        """Enqueue one more searched trial; False where the budget allows none."""
        whole = self._sweep.config.sampler == "exhaustive"
        if whole and self._sweep.screen is None:
            return False
        trials = self._trials()
        searched = [t for t in trials if not _is_beside(t)]
        repeat = len(searched) % self._sweep.config.repeats
        if repeat and len(searched) < self._limit:
            self._enqueue(Point(tuple(self._params(searched[-repeat]).items()), None, repeat))
            return True
        if len(searched) >= (self._sweep.config.trials or 0):
            return False  # nothing more may be asked, whatever the screen is worth
        note = self._drop_where_misled()
        if len(searched) >= self._limit:
            return False
        default = self._sweep.space.params_of(self._sweep.space.default)
        listed = None if self._sweep.screen is None else self._listed({self._candidate(t)[0] for t in searched})
        if listed is None and not searched and not whole:
            listed = default
        if listed is not None:
            self._enqueue(Point(tuple(listed.items()), None, 0), note)
        elif not whole:
            self._enqueue_proposal(len(trials), note)
        return listed is not None or not whole

    @property
    def _limit(self) -> int:
        """Searched trials at most: what a screen lists of a grid, and all that was asked for once it is dropped."""
        return self._sweep.config.trials or 0 if self._dropped else self._sweep.budget

    def _drop_where_misled(self) -> str:
        """Drop the screen where what was measured contradicts it -> what has to be said of it."""
        screen = self._sweep.screen
        if screen is None or self._dropped:
            return ""
        self._dropped = screen.misled(self._answered(), self._sweep.config.min_gain)
        if not self._dropped:
            return ""
        drop_screen(self._folder, self._dropped)
        return f"the screen is dropped: {self._dropped}"

    def _listed(self, asked: set[Key]) -> dict[str, Value] | None:
        """The next candidate that the screen lists; of a grid whose screen is dropped, the next of all others."""
        if self._sweep.screen is None:
            return None
        if not self._dropped:
            return listed_next(self._search(), self._past(), asked, len(self._trials()))
        whole = self._sweep.config.sampler == "exhaustive"
        left = self._sweep.space.candidates() if whole else iter(())
        return next((params for params in left if key_of(params) not in asked), None)

    def _search(self) -> Search:
        """With the screen for as long as it is followed."""
        screen, config = None if self._dropped else self._sweep.screen, self._sweep.config
        if self._searching is None or self._searching.screen is not screen:
            self._searching = Search(config.sampler, self._sweep.space, self._directions, config.seed, screen)
        return self._searching

    def _answered(self) -> dict[Key, Screened]:
        """What was measured of each candidate, as a screen is held against it: what lost a race is only bounded."""
        return {
            key_of(p.params): Screened(p.params, p.values[0], max([0.0, *p.constraints.values()]))
            for p in self._past() if p.values is not None and RACED_OUT not in p.constraints
        }  # fmt: skip

    def _enqueue_proposal(self, number: int, note: str) -> None:
        space = self._sweep.space
        found = propose(self._search(), self._past(), number)
        if found.instead_of is not None:
            known = space.label(space.policy_of(space.suggest(found.instead_of)))
            moved = f"{known} was proposed and is known; the nearest new candidate instead"
            note = f"{note}; {moved}" if note else moved
        self._enqueue(Point(tuple(found.params.items()), None, 0), note)

    def _past(self) -> list[Past]:
        """What came of each candidate, controls that are one included: means over its windows, its worst bounds."""
        found: dict[Key, tuple[dict[str, Value], list[FrozenTrial]]] = {}
        for trial in self._trials():
            key, params = self._candidate(trial)
            if not params and (control := self._control_params.get(trial.user_attrs.get(_CONTROL, ""))):
                key, params = key_of(control), control
            if params:
                found.setdefault(key, (params, []))[1].append(trial)
        return [self._of(key, params, trials) for key, (params, trials) in found.items()]

    def _of(self, key: Key, params: Mapping[str, Value], trials: list[FrozenTrial]) -> Past:
        """What came of a candidate; worked out once where all its trials are over, so that an ask stays cheap."""
        known = self._came.get(key)
        if known is not None and known[0] == len(trials):
            return known[1]
        past = replace(_came_of(params, trials), key=key)
        if all(t.state.is_finished() for t in trials):
            self._came[key] = len(trials), past
        return past

    def _reopen(self, number: int) -> Asked:
        """A trial left RUNNING: the same number, the same parameters, those not yet written included."""
        frozen = self._study.get_trials(deepcopy=False)[number]
        trial = optuna.trial.Trial(self._study, frozen._trial_id)
        for name, distribution in {} if _is_beside(frozen) else self._distributions.items():
            _suggest(trial, name, distribution)
        self._handles[number] = trial
        return self._asked(number)

    def _asked(self, number: int) -> Asked:
        trial = self._study.get_trials(deepcopy=False)[number]
        attrs = trial.user_attrs
        params, repeat = tuple(self._params(trial).items()), int(attrs.get(_REPEAT, 0))
        point = Point(params, attrs.get(_CONTROL), repeat, _beside(trial))
        return Asked(number, point, str(attrs.get(_INSTEAD, "")))

    def tell(self, number: int, score: Score) -> None:
        """Values and constraints of a finished trial; without a value it is a FAIL. A second telling is void.

        One that lost a race is told its bound as an infeasible value; one that was never run is PRUNED.
        """
        trial = self._handles.pop(number, None)
        if trial is None:
            return
        values = values_of(score, self._sweep.config.objective)
        if values is None or not score.run:
            state = TrialState.FAIL if score.run else TrialState.PRUNED
            self._study.tell(trial, state=state, skip_if_finished=True)
            return
        for name, bound in score.constraints:
            trial.set_constraint(name, bound)
        if score.reached is not None:
            trial.set_user_attr(_REACHED, astuple(score.reached))
        self._study.tell(trial, values, skip_if_finished=True)

    def finished(self) -> set[int]:
        """Numbers that the journal has as told."""
        return {t.number for t in self._trials(TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)}

    def planned(self) -> int:
        """How many trials there will be: budget, controls, and what is measured again as far as it is known."""
        return self._limit + len(list(self._sweep.control_points())) + self._again

    def name_winner(self, label: str | None, number: int | None) -> None:
        """The sweep's choice beside Optuna's own best_trial, which knows no repeats and no ties."""
        self._study.set_user_attr("kvknee.winner", label)
        self._study.set_user_attr("kvknee.winner_trial", number)


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
    said = [t.user_attrs.get(_REACHED) for t in trials]
    return None if None in said else reduce(or_, (Reached(*one) for one in said))


def _key_of(point: Point) -> tuple[object, ...]:
    return point.control, point.repeat, point.params, point.beside


def _beside(trial: FrozenTrial) -> Beside | None:
    attrs = trial.user_attrs
    return Beside(attrs[_ROLE], int(attrs[_OF]), attrs[_BEAT], attrs[_SLOT]) if _ROLE in attrs else None


def _is_beside(trial: FrozenTrial) -> bool:
    """Whether it does not count against the budget."""
    return _CONTROL in trial.user_attrs or _ROLE in trial.user_attrs


def _suggest(trial: optuna.Trial, name: str, d: BaseDistribution) -> None:
    match d:
        case IntDistribution():
            trial.suggest_int(name, d.low, d.high, step=d.step)
        case FloatDistribution():
            trial.suggest_float(name, d.low, d.high, step=d.step)
        case CategoricalDistribution():
            trial.suggest_categorical(name, d.choices)
        case _:
            raise TypeError(f"{name}: {type(d).__name__} is not one of this search's distributions")


# Optuna announces that set_constraint and journals are new; the versions that are pinned have them.
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
