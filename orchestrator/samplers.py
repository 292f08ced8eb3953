"""Who proposes the next candidate, by what came of those before: Optuna's samplers, or a process over a list.

A proposal is a pure function of the space, the past, and a seed of its own: each is made in a study in memory that
is built of the past, so a resumed search continues as an unbroken one would, an older and narrower space's trials
count in a wider one, and controls outside the space (which have no parameters) disturb no sampler. Numbers are put
to samplers by their place in order, categories as such; what does not matter at a candidate is at its usual value.
"""

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from statistics import NormalDist
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from orchestrator.expected import Listing, expected, listing_of
from orchestrator.past import MOST_OVER, answered_before, shown
from orchestrator.past import Past as Past
from search_spaces.design import spread
from search_spaces.dimension import Dimension, Value
from search_spaces.neighbours import Key, key_of, unasked_near
from search_spaces.screen import Screen
from search_spaces.space import Space

_STARTUP = {"tpe": 10, "gp": 6}  # candidates spread over the space before a model is used
_LISTED_FIRST = 4  # of what a screen lists: in its order, before a model is used
POPULATION = 24  # of a generation of NSGA-II
_LONG_AGO = datetime(2000, 1, 1)  # when is nothing to a sampler


@dataclass(frozen=True, slots=True)
class Proposal:
    """`instead_of`: what the sampler named first, which was known already."""

    params: dict[str, Value]
    instead_of: dict[str, Value] | None = None


SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed, n_startup_trials=1),
    "gp": lambda seed: GPSampler(seed=seed, n_startup_trials=1, warn_independent_sampling=False),
    "nsga2": lambda seed: NSGAIISampler(seed=seed, population_size=POPULATION),
    "random": lambda seed: RandomSampler(seed=seed),
}


def seed_of(seed: int, number: int) -> int:
    """A seed of its own for each ask, so that a resumed search draws what an unbroken one would have."""
    return int.from_bytes(hashlib.sha256(f"kvknee-ask:{seed}:{number}".encode()).digest()[:4], "big")


@dataclass(frozen=True)
class Search:
    """What of a search stays the same from ask to ask. `seed`: the sweep's; `screen`: what is followed, if any."""

    sampler: str
    space: Space
    directions: Sequence[str]
    seed: int
    screen: Screen | None = None
    told: dict[Key, tuple[Past, list[str], FrozenTrial]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # what came of a candidate, and which bounds there were, as the trial that a sampler is shown

    @cached_property
    def axes(self) -> dict[str, BaseDistribution]:
        """The fields as a sampler sees them."""
        return {d.field: _axis(d) for d in self.space.dimensions}

    @cached_property
    def usual(self) -> dict[str, Value]:
        """What each field has where it does not matter."""
        return {d.field: self.space.usual(d) for d in self.space.dimensions}

    @cached_property
    def places(self) -> dict[str, dict[Value, Value] | None]:
        """By field: a number's place in its order; None where samplers get the value itself."""
        return {d.field: _places(d) for d in self.space.dimensions}

    @cached_property
    def listing(self) -> Listing | None:
        """The whole space where the sampler looks at all of it."""
        if self.sampler != "gp" or len(self.directions) != 1 or not self.space.listable:
            return None
        return listing_of(self.space, self.screen.said if self.screen is not None else None)

    def expected(
        self, past: Sequence[Past], number: int, among: Sequence[dict[str, Value]] | None = None
    ) -> dict[str, Value] | None:
        """The new one that is expected to gain most; None where the sampler does not look at all of the space."""
        if self.listing is None:
            return None
        maximize, seen = self.directions[0] == "maximize", shown(past, self.directions)
        return expected(self.listing, seen, maximize, seed_of(self.seed, number), among)


def propose(search: Search, past: Sequence[Past], number: int) -> Proposal:
    """The next candidate, for the trial of this number. `past`: each candidate once.

    Where the sampler names a known one, the nearest that is new, if there is one near.
    """
    space = search.space
    if len(past) <= (first := _STARTUP.get(search.sampler, 0)):
        asked = {_key(p) for p in past}
        new = (c for c in spread(space, first, search.seed) if key_of(c) not in asked)
        if (candidate := next(new, None)) is not None:
            return Proposal(candidate)
    if (best := search.expected(past, number)) is not None:
        return Proposal(best)
    named = _named(search, past, number)
    if (here := key_of(named)) not in map(_key, past):  # a set of all would cost more than it saves
        return Proposal(named)
    near = unasked_near(space, named, {here, *map(_key, past)}, seed_of(search.seed, number))
    return Proposal(named) if near is None else Proposal(near, named)


def _key(p: Past) -> Key:
    return p.key or key_of(p.params)


def listed_next(
    search: Search, past: Sequence[Past], asked: Collection[Key], number: int
) -> dict[str, Value] | None:
    """The next candidate of those that the screen lists; None where all were asked for.

    In the screen's own order; a sampler that looks at all of the space chooses among the promising, once the first
    of them have answered, and the checks keep their places.
    """
    assert search.screen is not None
    listed = search.screen.listed
    left = [one for one in listed if key_of(one.params) not in asked]
    done = len(listed) - len(left)
    if not left:
        return None
    if done < _LISTED_FIRST:
        return left[0].params
    if (due := listed[done]).role == "check" and due in left:
        return due.params
    among = [one.params for one in left if one.role != "check"]
    best = search.expected(past, number, among) if among else None
    return left[0].params if best is None else best


def _named(search: Search, past: Sequence[Past], number: int) -> dict[str, Value]:
    """What Optuna's sampler names, having seen what is shown of the past."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage, sampler = InMemoryStorage(), SAMPLERS[search.sampler](seed_of(search.seed, number))
    study = optuna.create_study(storage=storage, directions=list(search.directions), sampler=sampler)
    name = storage.get_study_id_from_name(study.study_name)
    for trial in _trials(search, past):
        storage.create_new_trial(name, trial)  # as it is: what the study would check of each is known of all
    drawn = study.ask(search.axes).params
    dimensions = search.space.dimensions
    return search.space.canonical({d.field: _value(d, drawn[d.field]) for d in dimensions})


def _by_rank(past: Sequence[Past]) -> list[Past]:
    """With values replaced by normal scores of their ranks (Blom 1958), equals alike: a Gaussian process then sees
    no cliffs, of which a space is full where an SLO breaks."""
    answered = [p.values for p in past if p.values is not None]
    columns = [_scores(column) for column in zip(*answered, strict=True)]
    scores = iter(zip(*columns, strict=True))
    return [p if p.values is None else replace(p, values=next(scores)) for p in past]


def _scores(values: Sequence[float]) -> list[float]:
    below = {v: sum(x < v for x in values) for v in values}
    equal = Counter(values)
    return [NormalDist().inv_cdf((below[v] + equal[v] / 2) / len(values)) for v in values]


def _axis(d: Dimension) -> BaseDistribution:
    if not d.values:
        return FloatDistribution(d.low, d.high)
    return CategoricalDistribution(d.values) if d.categorical else IntDistribution(0, len(d.values) - 1)


def _value(d: Dimension, drawn: Any) -> Value:
    value: Value = d.values[drawn] if d.values and not d.categorical else drawn
    return value


def _places(d: Dimension) -> dict[Value, Value] | None:
    """A number's place in its order; None where samplers get the value itself."""
    return None if d.categorical or not d.values else {value: n for n, value in enumerate(d.values)}


class _Told(FrozenTrial):  # type: ignore[misc]
    """A trial that is only read: a study may hold it as it is. Copies of all of them would be most of an ask."""

    bounds: dict[str, float]

    @property
    def constraints(self) -> dict[str, float]:
        """Where Optuna would look for them among the attributes at each reading."""
        return self.bounds

    def __deepcopy__(self, memo: dict[int, object]) -> "_Told":
        same = _Told.__new__(_Told)
        same.__dict__.update(self.__dict__)
        return same


def _trials(search: Search, past: Sequence[Past]) -> list[FrozenTrial]:
    """Those that are shown, as trials; what came of a candidate is put into one once."""
    seen = shown(past, search.directions)
    names = sorted({name for p in seen for name in p.constraints})
    if search.sampler == "gp":
        return [_trial(search, p, names) for p in _by_rank(seen)]
    if search.sampler == "nsga2":
        answered = {id(p): before for p, before in zip(past, answered_before(past), strict=True)}
        return [_trial(search, p, names, answered[id(p)]) for p in seen]
    trials = []
    for p in seen:
        known = search.told.get(_key(p))
        if known is None or known[0] is not p or known[1] != names:
            known = search.told[_key(p)] = p, names, _trial(search, p, names)
        trials.append(known[2])
    return trials


def _trial(search: Search, p: Past, bounds: Sequence[str], answered: int = 0) -> FrozenTrial:
    whole = {**search.usual, **p.params}
    trial = _Told(
        number=-1, trial_id=-1, value=None, values=p.values,
        state=TrialState.COMPLETE if p.values is not None else TrialState.RUNNING,
        datetime_start=_LONG_AGO, datetime_complete=_LONG_AGO if p.values is not None else None,
        params={name: of[whole[name]] if of else whole[name] for name, of in search.places.items()},
        distributions=search.axes, user_attrs={}, system_attrs=_generation(answered), intermediate_values={},
    )  # fmt: skip
    trial.bounds = _even(p, bounds)
    for name, bound in trial.bounds.items():
        trial.set_constraint(name, bound)
    return trial


def _even(p: Past, names: Sequence[str]) -> dict[str, float]:
    """The same bounds for everyone, as a Gaussian process needs: one not met there holds as well as can be."""
    if p.values is None:
        return {}
    return {name: max(-1.0, min(p.constraints.get(name, -1.0), MOST_OVER)) for name in names}


def _generation(answered: int) -> dict[str, int]:
    """NSGA-II counts generations in its trials' attributes; here they follow from how many answered before."""
    return {NSGAIISampler._get_generation_key(): answered // POPULATION}


# Optuna announces that constraints on trials are new; the versions that are pinned have them.
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
