"""Who proposes the next candidate: Optuna's samplers over what came of those before, one proposal at a time.

A proposal is a pure function of the space, the past, and a seed of its own: each is made in a study in memory that
is built of the past, so a resumed search continues as an unbroken one would, an older and narrower space's trials
count in a wider one, and controls outside the space (which have no parameters) disturb no sampler. Numbers are put
to samplers by their place in order, categories as such; what does not matter at a candidate is at its usual value.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from search_spaces.dimension import Dimension, Value
from search_spaces.neighbours import key_of, unasked_near
from search_spaces.space import Space

_STARTUP = 10  # random proposals before a model is used; what TPE and GP take by default
POPULATION = 24  # of a generation of NSGA-II
_MOST_OVER = 10.0  # a bound missed by more than so many times itself tells a model nothing more


@dataclass(frozen=True, slots=True)
class Past:
    """A candidate that was asked for, and what came of it. `values` None: it runs yet, or gave no answer."""

    params: Mapping[str, Value]
    values: tuple[float, ...] | None
    constraints: Mapping[str, float] = field(default_factory=dict)  # <= 0 holds
    running: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """`instead_of`: what the sampler named first, which was known already."""

    params: dict[str, Value]
    instead_of: dict[str, Value] | None = None


SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed, n_startup_trials=_STARTUP),
    "gp": lambda seed: GPSampler(seed=seed, n_startup_trials=_STARTUP, warn_independent_sampling=False),
    "nsga2": lambda seed: NSGAIISampler(seed=seed, population_size=POPULATION),
    "random": lambda seed: RandomSampler(seed=seed),
}


def propose(sampler: str, space: Space, past: Sequence[Past], seed: int, directions: Sequence[str]) -> Proposal:
    """The next candidate. Where the sampler names a known one, the nearest that is new, if there is one near."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=list(directions), sampler=SAMPLERS[sampler](seed))
    axes = {d.field: _axis(d) for d in space.dimensions}
    study.add_trials(list(_trials(space, past, axes)))
    drawn = study.ask(axes).params
    named = space.canonical({d.field: _value(d, drawn[d.field]) for d in space.dimensions})
    asked = {key_of(p.params) for p in past}
    near = unasked_near(space, named, asked, seed)
    if near is None or near == named:
        return Proposal(named)
    return Proposal(near, named)


def _axis(d: Dimension) -> BaseDistribution:
    if not d.values:
        return FloatDistribution(d.low, d.high)
    return CategoricalDistribution(d.values) if d.categorical else IntDistribution(0, len(d.values) - 1)


def _value(d: Dimension, drawn: Any) -> Value:
    value: Value = d.values[drawn] if d.values and not d.categorical else drawn
    return value


def _coordinate(d: Dimension, value: Value) -> Value:
    return d.values.index(value) if d.values and not d.categorical else value


def _trials(space: Space, past: Sequence[Past], axes: dict[str, BaseDistribution]) -> Sequence[FrozenTrial]:
    names = sorted({name for p in past for name in p.constraints})
    trials: list[FrozenTrial] = []
    answered = 0
    for p in past:
        if p.values is None and not p.running:
            continue
        whole = {d.field: p.params.get(d.field, space.usual(d)) for d in space.dimensions}
        trial = create_trial(
            state=TrialState.COMPLETE if p.values is not None else TrialState.RUNNING,
            values=p.values,
            params={d.field: _coordinate(d, whole[d.field]) for d in space.dimensions},
            distributions=axes,
            constraints=_even(p, names),
            system_attrs=_generation(answered),
        )
        answered += p.values is not None
        trials.append(trial)
    return trials


def _even(p: Past, names: Sequence[str]) -> dict[str, float] | None:
    """The same bounds for everyone, as a Gaussian process needs: one not met there holds as well as can be."""
    if p.values is None or not names:
        return None
    return {name: max(-1.0, min(p.constraints.get(name, -1.0), _MOST_OVER)) for name in names}


def _generation(answered: int) -> dict[str, int]:
    """NSGA-II counts generations in its trials' attributes; here they follow from how many answered before."""
    return {NSGAIISampler._get_generation_key(): answered // POPULATION}


# Optuna announces that constraints on trials are new; the versions that are pinned have them.
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
