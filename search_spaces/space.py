"""Which trials are allowed: the fields that move, alone or under a condition, and their values in order.

Knows nothing of results. A dimension that does not matter where others stand (its `when`) keeps the base's value
there and multiplies no trials: candidates are canonical, they name active fields only.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from search_spaces.dimension import MAX_POINTS, Dimension, dimension, moved, value_of
from search_spaces.dimension import Value as Value
from search_spaces.ready import SpaceSpec as SpaceSpec
from search_spaces.ready import load_space_spec as load_space_spec
from search_spaces.ready import space_spec as space_spec
from trials.spec import PoolPolicy, TrialSpec
from trials.units import SpecError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_MOST_LISTED = 20_000  # candidates that an ask may look at one by one
_ALL_CHECKED = 4096  # candidates; of a larger space each value is checked alone, a combination when it is met


class Setting(PoolPolicy):
    """What tells a candidate from others where a space moves more than the policy: the policy, and those fields."""

    beyond: tuple[tuple[str, Any], ...] = ()  # in the order of the space


def held(policy: PoolPolicy, field_name: str) -> Any:
    """What a candidate has in a field of its space."""
    if isinstance(policy, Setting):
        beyond = dict(policy.beyond)
        if field_name in beyond:
            return beyond[field_name]
    return getattr(policy, field_name, None)


@dataclass(frozen=True, slots=True)
class Space:
    """Allowed candidates over a base spec. `notes` says what was left out, and why."""

    name: str
    base: TrialSpec
    dimensions: tuple[Dimension, ...]
    notes: tuple[str, ...] = ()
    isolates: str | None = None
    _default: PoolPolicy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_default", self.policy_of(self.base))

    @property
    def default(self) -> PoolPolicy:
        """The base as a candidate."""
        return self._default

    def policy_of(self, spec: TrialSpec) -> PoolPolicy:
        """A trial as a candidate: its policy, and what else this space moves."""
        beyond = tuple((d.field, value_of(spec, d.field)) for d in self.dimensions if "." in d.field)
        return Setting(**spec.policy.model_dump(), beyond=beyond) if beyond else spec.policy

    def distributions(self) -> "dict[str, BaseDistribution]":
        """Optuna's view; values keep their order wherever they are numbers with one step."""
        return {d.parameter: _distribution(d) for d in self.dimensions}

    @property
    def enumerable(self) -> bool:
        return all(d.values for d in self.dimensions)

    @property
    def num_candidates(self) -> int:
        """0 where a dimension is continuous."""
        if not self.enumerable:
            return 0
        asked = {other for d in self.dimensions for other, _ in d.when}
        counted: dict[tuple[int, tuple[tuple[str, Value], ...]], int] = {}

        def count(axis: int, params: dict[str, Value]) -> int:
            if axis == len(self.dimensions):
                return 1
            key = (axis, tuple(params.items()))
            if key not in counted:
                d = self.dimensions[axis]
                if not self.matters(d, params):
                    counted[key] = count(axis + 1, params)
                elif d.field in asked:
                    counted[key] = sum(count(axis + 1, {**params, d.field: v}) for v in d.values)
                else:
                    counted[key] = len(d.values) * count(axis + 1, params)
            return counted[key]

        return count(0, {})

    @property
    def listable(self) -> bool:
        """Whether a sampler may look at every candidate at each ask."""
        return 0 < self.num_candidates <= _MOST_LISTED

    def matters(self, d: Dimension, params: Mapping[str, Value]) -> bool:
        """Whether the dimension changes anything beside these values of those before it."""
        now = ((params[other] if other in params else value_of(self.base, other), ok) for other, ok in d.when)
        return all(value in ok for value, ok in now)

    def candidates(self) -> Iterator[dict[str, Value]]:
        """Every candidate as {field: value} of its active fields, the last dimension fastest."""
        return self._from(0, {})

    def _from(self, axis: int, params: dict[str, Value]) -> Iterator[dict[str, Value]]:
        if axis == len(self.dimensions):
            yield dict(params)
            return
        d = self.dimensions[axis]
        if not self.matters(d, params):
            yield from self._from(axis + 1, params)
            return
        for value in d.values:
            yield from self._from(axis + 1, {**params, d.field: value})

    def canonical(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """The same candidate by its active fields alone."""
        kept: dict[str, Value] = {}
        for d in self.dimensions:
            if self.matters(d, kept):
                kept[d.field] = params[d.field] if d.field in params else self.usual(d)
        return kept

    def usual(self, d: Dimension) -> Value:
        """What a dimension has before anything is known of it: the base's value, else its first."""
        at: Value | None = value_of(self.base, d.field)
        if at is not None and d.holds(at):
            return at
        return d.values[0] if d.values else d.low

    def encode(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Optuna's parameters, all of them: what does not matter is at its usual value."""
        return {d.parameter: d.encode(params.get(d.field, self.usual(d))) for d in self.dimensions}

    def decode(self, parameters: Mapping[str, Value]) -> dict[str, Value]:
        """The candidate of Optuna's parameters; what an older, narrower space did not move has its usual value."""
        found = ((d.field, d.read(parameters)) for d in self.dimensions)
        return self.canonical({name: value for name, value in found if value is not None})

    def params_of(self, policy: PoolPolicy) -> dict[str, Value] | None:
        """The candidate that this policy is; None where it is none of this space."""
        params: dict[str, Value] = {}
        for d in self.dimensions:
            value = held(policy, d.field)
            if not self.matters(d, params):
                if value != held(self.default, d.field):
                    return None
            elif not d.holds(value):
                return None
            else:
                params[d.field] = value
        return params if self._at(policy, params) == policy else None

    def _at(self, policy: PoolPolicy, params: Mapping[str, Value]) -> PoolPolicy:
        """The default with these fields of the policy; what lies beyond the policy is taken over as it is."""
        update: dict[str, Any] = {name: value for name, value in params.items() if "." not in name}
        if isinstance(policy, Setting):
            update["beyond"] = policy.beyond
        return self.default.model_copy(update=update)

    def contains(self, policy: PoolPolicy) -> bool:
        """Whether the policy is a candidate of this space: the base, moved along the dimensions only."""
        return self.params_of(policy) is not None

    def position(self, policy: PoolPolicy) -> tuple[int, ...] | None:
        """Index along each dimension, -1 where it does not matter; None where it is no candidate, or continuous."""
        params = self.params_of(policy) if self.enumerable else None
        return None if params is None else self.place_of(params)

    def place_of(self, params: Mapping[str, Value]) -> tuple[int, ...]:
        """The same of a candidate."""
        return tuple(d.values.index(params[d.field]) if d.field in params else -1 for d in self.dimensions)

    def candidate_at(self, place: tuple[int, ...]) -> dict[str, Value]:
        """The candidate at these indices; what has come to matter is at its usual value."""
        chosen = {d.field: d.values[i] for d, i in zip(self.dimensions, place, strict=True) if i >= 0}
        return self.canonical(chosen)

    def lines(self, start: tuple[int, ...]) -> list[tuple[int, list[tuple[int, ...]]]]:
        """From a place outwards: (dimension, places) down and up; a category's other values one by one."""
        found = []
        for axis, d in enumerate(self.dimensions):
            here = start[axis]
            if here < 0:
                continue
            if d.categorical:
                ways = [[i] for i in range(len(d.values)) if i != here]
            else:
                ways = [list(range(here - 1, -1, -1)), list(range(here + 1, len(d.values)))]
            for way in ways:
                places = [(*start[:axis], i, *start[axis + 1 :]) for i in way]
                found.append((axis, [self.place_of(self.candidate_at(p)) for p in places]))
        return found

    def suggest(self, params: Mapping[str, Value]) -> TrialSpec:
        """The candidate's spec: the base with its fields moved. SpecError where it is not valid."""
        return with_fields(self.base, params)

    def label(self, policy: PoolPolicy) -> str:
        """`block_size=16 watermark=0.1`: its active fields."""
        params: dict[str, Value] = {}
        words = []
        for d in self.dimensions:
            if self.matters(d, params):
                params[d.field] = value = held(policy, d.field)
                words.append(f"{d.label}={d.words(value)}")
        return " ".join(words)


def with_fields(base: TrialSpec, params: Mapping[str, Value]) -> TrialSpec:
    """The base with these fields (as candidates name them) replaced and validated anew. SpecError."""
    try:
        return moved(base, params)
    except ValidationError as error:
        asked = ", ".join(f"{k}={v!r}" for k, v in params.items())
        raise SpecError(f"policy with {asked}: {error.errors()[0]['msg']}") from None


def with_policy(base: TrialSpec, **fields: Value) -> TrialSpec:
    """The base with policy fields replaced and validated anew. SpecError."""
    return with_fields(base, fields)


def _distribution(d: Dimension) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not d.values:
        return FloatDistribution(d.low, d.high)
    encoded = [d.encode(v) for v in d.values]
    if not d.categorical and len({b - a for a, b in itertools.pairwise(encoded)}) <= 1:  # type: ignore[operator]
        step = encoded[1] - encoded[0] if len(encoded) > 1 else 1  # type: ignore[operator]
        if all(isinstance(v, int) for v in encoded) and step > 0:
            return IntDistribution(int(encoded[0]), int(encoded[-1]), step=int(step))
    return CategoricalDistribution(encoded)


def build_space(spec: SpaceSpec, base: TrialSpec) -> Space:
    """The space over this base; candidates are validated here, before anything runs."""
    notes: list[str] = []
    if spec.isolates == "block_size":
        if base.pool.bytes is None:
            raise SpecError(
                "space block_size holds the pool's bytes fixed: give pool.bytes, not blocks or a budget"
            )
        base = base.model_copy(update={"pool": base.pool.model_copy(update={"tables_inside": True})})
    if spec.fixes and getattr(base.pool, spec.fixes) is None:
        raise SpecError(f"space {spec.name} fixes the device's bytes: give pool.{spec.fixes}, for example 64GiB")
    base = _with_arguments(spec, base, notes)
    found = tuple(_clipped(dimension(name, varied, base), base, notes) for name, varied in spec.vary.items())
    space = without_dead(Space(spec.name, base, found, tuple(notes), spec.isolates))
    _validate(space)
    return space


def without_dead(space: Space) -> Space:
    """Without dimensions that no candidate meets the conditions of, and those that hang on them; each with a note.

    SpecError where nothing is left.
    """
    moving: dict[str, Dimension] = {}  # conditions stand on what comes before
    notes = list(space.notes)
    for d in space.dimensions:
        never = next((other for other, ok in d.when if not _can_be(space, moving, other, ok)), None)
        if never is None:
            moving[d.field] = d
        else:
            notes.append(f"{d.name} left out: it matters only under another {never} than there is here")
    if not moving:
        raise SpecError(f"space {space.name}: nothing is left to vary: {'; '.join(notes)}")
    return replace(space, dimensions=tuple(moving.values()), notes=tuple(notes))


def _can_be(space: Space, moving: Mapping[str, Dimension], field_name: str, ok: tuple[Value, ...]) -> bool:
    """Whether any candidate has one of these there: what moves has its values, and the base's where it does not
    matter; what does not move has the base's."""
    d = moving.get(field_name)
    if d is not None and any(d.holds(v) for v in ok):
        return True
    return (d is None or bool(d.when)) and value_of(space.base, field_name) in ok


def _with_arguments(spec: SpaceSpec, base: TrialSpec, notes: list[str]) -> TrialSpec:
    """The base with every engine argument that moves: where it names none, the space's first is the default."""
    for name, varied in spec.vary.items():
        if name.startswith("engine.args.") and value_of(base, name) is None:
            first = dimension(name, varied, base)
            value = first.values[0] if first.values else first.low
            base = with_fields(base, {name: value})
            notes.append(f"{name} is not set; the default is taken to be {value}, the first of the space")
    return base


def _validate(space: Space) -> None:
    for d in space.dimensions:
        if d.field == "engine.tensor_parallel_size":
            most = space.base.engine.tensor_parallel_size
            if any(int(v) > most for v in d.values):
                raise SpecError(
                    f"vary: {d.field} goes beyond the base's {most}, and a slot has as many devices as the base "
                    "asks for: give the base the largest"
                )
    if space.enumerable and space.num_candidates <= _ALL_CHECKED:
        for params in space.candidates():
            space.suggest(params)
        return
    for d in space.dimensions:
        for value in d.values or (d.low, d.high):
            space.suggest({d.field: value})


def require_grid(space: Space) -> None:
    """SpecError where there are too many candidates to list."""
    if space.num_candidates > MAX_POINTS:
        raise SpecError(
            f"space {space.name}: {space.num_candidates} candidates; narrow it, use larger steps, or sampler: tpe"
        )


def _clipped(d: Dimension, base: TrialSpec, notes: list[str]) -> Dimension:
    """Leave out block sizes that no sequence could ever fill."""
    if d.field != "block_size":
        return d
    longest = base.policy.max_model_len
    kept = tuple(v for v in d.values if int(v) <= longest)
    if not kept:
        raise SpecError(f"every block size of the space exceeds policy.max_model_len {longest}")
    if len(kept) < len(d.values):
        left = ", ".join(str(v) for v in d.values if v not in kept)
        notes.append(f"block sizes left out, larger than max_model_len {longest}: {left}")
    return Dimension(d.field, kept, d.low, d.high, d.exponents, d.when)
