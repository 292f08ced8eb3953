"""The sweep's Optuna study: one journal file, asked and told by the driver alone.

A trial's number is Optuna's number is its folder. A trial that a killed driver left RUNNING is finished under its
own number, so the journal ends with exactly the budget and the controls beside it. Controls outside the space are
trials without parameters, and carry the attribute kvknee.control.
"""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from orchestrator.config import Point, Sweep
from search_spaces.objective import Score
from search_spaces.space import Value

_CONTROL, _REPEAT = "kvknee.control", "kvknee.repeat"
_STARTUP = 10  # random asks before the estimator is used; what TPE takes by default


@dataclass(frozen=True, slots=True)
class Asked:
    """What the study wants measured next."""

    number: int
    point: Point


class _SpaceTPE(optuna.samplers.TPESampler):  # type: ignore[misc]
    """TPE over the whole space from the first ask on: controls have no parameters, and would empty the
    intersection from which TPE otherwise infers what to sample jointly."""

    def __init__(self, space: Mapping[str, BaseDistribution], seed: int) -> None:
        super().__init__(seed=seed, n_startup_trials=_STARTUP)
        self._whole = {name: d for name, d in space.items() if not d.single()}

    def infer_relative_search_space(self, study: Any, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return dict(self._whole)


def seed_of(seed: int, number: int) -> int:
    """A seed of its own for each ask, so that a resumed search draws what an unbroken one would have."""
    return int.from_bytes(hashlib.sha256(f"kvknee-ask:{seed}:{number}".encode()).digest()[:4], "big")


class SweepStudy:
    """Asks for trials until budget and controls are met, and tells what came of them."""

    def __init__(self, journal: Path, sweep: Sweep) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sweep = sweep
        self._distributions = sweep.space.distributions()
        storage = JournalStorage(JournalFileBackend(str(journal)))
        self._study = optuna.create_study(
            storage=storage, study_name=sweep.config.name, direction="maximize", load_if_exists=True
        )
        self._handles: dict[int, optuna.Trial] = {}
        self._left_running = [t.number for t in self._trials(TrialState.RUNNING)]
        self._enqueue_plan()

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False, states=states or None)
        return trials

    def _enqueue_plan(self) -> None:
        """Put in whatever of controls and grid is not yet there; a plan cut short by a kill is completed."""
        planned = list(self._sweep.control_points())
        if self._sweep.config.sampler == "exhaustive":
            # In a race controls come first: what they come to answers the points of the grid that they are.
            grid = list(self._sweep.grid())
            planned = [*planned, *grid] if self._sweep.config.races else [*grid, *planned]
        known = {self._key(t) for t in self._trials()} if planned else set()
        for point in planned:
            if _key_of(point) not in known:
                self._enqueue(point)

    def _enqueue(self, point: Point) -> None:
        attrs = {_REPEAT: point.repeat, **({_CONTROL: point.control} if point.control else {})}
        encoded = self._sweep.space.encode(dict(point.params)) if point.params else {}
        self._study.enqueue_trial(encoded, user_attrs=attrs)

    def _key(self, trial: FrozenTrial) -> tuple[object, ...]:
        control = trial.user_attrs.get(_CONTROL)
        held = trial.params or trial.system_attrs.get("fixed_params", {})
        whole = not control and set(held) == set(self._distributions)
        params = tuple(self._sweep.space.decode(held).items()) if whole else ()
        return control, trial.user_attrs.get(_REPEAT, 0), params

    def ask(self) -> Asked | None:
        """The next trial to run, or None when budget and controls are all asked for."""
        if self._left_running:
            return self._reopen(self._left_running.pop(0))
        waiting = self._trials(TrialState.WAITING)
        if not waiting and not self._extend():
            return None
        head = waiting[0] if waiting else None
        control = head.user_attrs.get(_CONTROL) if head else None
        number = head.number if head else len(self._trials())
        self._study.sampler = self._sampler(number)
        trial = self._study.ask({} if control else self._distributions)
        self._handles[trial.number] = trial
        return Asked(trial.number, self._point(trial.number, control, trial.params))

    def _extend(self) -> bool:
        """Whether the budget allows one more searched trial; enqueues what is not the sampler's to choose."""
        if self._sweep.config.sampler == "exhaustive":
            return False
        asked = [t for t in self._trials() if _CONTROL not in t.user_attrs]
        if len(asked) >= self._sweep.budget:
            return False
        repeat = len(asked) % self._sweep.config.repeats
        base = self._sweep.space.base.policy
        if repeat:
            self._study.enqueue_trial(asked[-repeat].params, user_attrs={_REPEAT: repeat})
        elif not asked and self._sweep.space.contains(base):
            default = {d.field: getattr(base, d.field) for d in self._sweep.space.dimensions}
            self._study.enqueue_trial(self._sweep.space.encode(default), user_attrs={_REPEAT: 0})
        return True

    def _reopen(self, number: int) -> Asked:
        """A trial left RUNNING: the same number, the same parameters; what was not yet drawn is drawn now."""
        frozen = self._study.get_trials(deepcopy=False)[number]
        self._study.sampler = self._sampler(number)
        trial = optuna.trial.Trial(self._study, frozen._trial_id)
        control = frozen.user_attrs.get(_CONTROL)
        for name, distribution in {} if control else self._distributions.items():
            _suggest(trial, name, distribution)
        self._handles[number] = trial
        return Asked(number, self._point(number, control, trial.params))

    def _point(self, number: int, control: str | None, params: Mapping[str, Any]) -> Point:
        repeat = int(self._study.get_trials(deepcopy=False)[number].user_attrs.get(_REPEAT, 0))
        decoded: dict[str, Value] = {} if control else self._sweep.space.decode(params)
        return Point(tuple(decoded.items()), control, repeat)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        seed = seed_of(self._sweep.config.seed, number)
        if self._sweep.config.sampler == "exhaustive":
            return optuna.samplers.RandomSampler(seed=seed)  # every parameter is enqueued; nothing is drawn
        return _SpaceTPE(self._distributions, seed)

    def tell(self, number: int, score: Score) -> None:
        """Value and constraints of a finished trial; without a value it is a FAIL. A second telling is void.

        One that lost a race is told its bound as an infeasible value; one that was never run is PRUNED.
        """
        trial = self._handles.pop(number, None)
        if trial is None:
            return
        value = score.less_than if score.value is None else score.value
        if value is None or not score.run:
            state = TrialState.FAIL if score.run else TrialState.PRUNED
            self._study.tell(trial, state=state, skip_if_finished=True)
            return
        for name, bound in score.constraints:
            trial.set_constraint(name, bound)
        self._study.tell(trial, value, skip_if_finished=True)

    def finished(self) -> set[int]:
        """Numbers that the journal has as told."""
        return {t.number for t in self._trials(TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)}

    def planned(self) -> int:
        """How many trials there will be: budget and controls."""
        return self._sweep.budget + len(list(self._sweep.control_points()))

    def name_winner(self, label: str | None, number: int | None) -> None:
        """The sweep's choice beside Optuna's own best_trial, which knows no repeats and no ties."""
        self._study.set_user_attr("kvknee.winner", label)
        self._study.set_user_attr("kvknee.winner_trial", number)


def _key_of(point: Point) -> tuple[object, ...]:
    return point.control, point.repeat, point.params


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
