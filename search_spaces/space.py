"""Which trials are allowed: the fields of PoolPolicy that move, their values in order, and the controls.

Knows nothing of results. Powers of two are searched as exponents, so that a sampler sees their order
(Optuna has no distribution over powers of two).
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trials.spec import PoolPolicy, TrialSpec, read_yaml
from trials.units import SpecError, nearest

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Value = int | float | str | bool
READY = ("block_size",)
_MAX_POINTS = 1 << 20


class Varied(BaseModel):
    """How one field moves: exactly one of the three."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    powers_of_two: tuple[int, int] | None = None  # lowest and highest value, both powers of two
    one_of: tuple[Value, ...] | None = None
    range: tuple[float, float] | None = None  # both ends included
    step: float | None = Field(default=None, gt=0)  # of `range`; integers without one step by 1

    @model_validator(mode="after")
    def _one(self) -> "Varied":
        given = [n for n in ("powers_of_two", "one_of", "range") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of powers_of_two, one_of, range; got {', '.join(given) or 'none'}")
        if self.step is not None and self.range is None:
            raise ValueError("step belongs to range")
        for end in self.powers_of_two or ():
            if end < 1 or end & (end - 1):
                raise ValueError(f"powers_of_two: {end} is not a power of two")
        low_high = self.powers_of_two or self.range
        if low_high and low_high[0] > low_high[1]:
            raise ValueError(f"the low end {low_high[0]:g} lies above the high end {low_high[1]:g}")
        if self.one_of is not None and not self.one_of:
            raise ValueError("one_of needs at least one value")
        return self


class SpaceSpec(BaseModel):
    """A space as written in YAML. `vary` maps PoolPolicy fields (`policy.block_size`) to how they move."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "custom"
    isolates: Literal["block_size"] | None = None  # fix pool bytes plus device block tables, hold all else
    vary: dict[str, Varied] = Field(min_length=1)

    @model_validator(mode="after")
    def _fields_exist(self) -> "SpaceSpec":
        known = [f"policy.{name}" for name in PoolPolicy.model_fields]
        for name in self.vary:
            if name not in known:
                raise ValueError(f"vary: {name!r} is not a field of the pool policy; {nearest(name, known)}")
        if self.isolates and tuple(self.vary) != (f"policy.{self.isolates}",):
            raise ValueError(f"isolates {self.isolates}: then it is the only field that may vary")
        return self


@dataclass(frozen=True, slots=True)
class Dimension:
    """One varied field. `values` in order; empty for a continuous range between `low` and `high`."""

    field: str  # of PoolPolicy, without the prefix
    values: tuple[Value, ...]
    low: float = 0.0
    high: float = 0.0
    exponents: bool = False

    @property
    def parameter(self) -> str:
        """Optuna's name for it."""
        return f"log2(policy.{self.field})" if self.exponents else f"policy.{self.field}"

    @property
    def categorical(self) -> bool:
        return any(isinstance(v, str | bool) for v in self.values)

    def encode(self, value: Value) -> Value:
        """A policy's value as Optuna holds it."""
        return int(value).bit_length() - 1 if self.exponents else value

    def decode(self, parameter: Value) -> Value:
        return 1 << int(parameter) if self.exponents else parameter


def _dimension(name: str, varied: Varied) -> Dimension:
    field = name.removeprefix("policy.")
    if varied.powers_of_two:
        low, high = varied.powers_of_two
        return Dimension(
            field, tuple(1 << e for e in range(low.bit_length() - 1, high.bit_length())), exponents=True
        )
    if varied.one_of:
        return Dimension(field, varied.one_of)
    assert varied.range is not None
    low_f, high_f = varied.range
    whole = all(float(x).is_integer() for x in (low_f, high_f, varied.step or 1))
    is_float = PoolPolicy.model_fields[field].annotation is float
    step = varied.step if varied.step is not None or is_float else 1.0
    if step is None:
        return Dimension(field, (), low_f, high_f)
    count = int((high_f - low_f) / step + 1e-9) + 1
    if count > _MAX_POINTS:
        raise SpecError(f"vary.{name}: {count} values; use a larger step")
    points = tuple(round(low_f + i * step, 12) for i in range(count))
    return Dimension(field, tuple(int(p) for p in points) if whole and not is_float else points)


@dataclass(frozen=True, slots=True)
class Space:
    """Allowed candidates over a base spec. `notes` says what was left out, and why."""

    name: str
    base: TrialSpec
    dimensions: tuple[Dimension, ...]
    notes: tuple[str, ...] = ()

    def distributions(self) -> "dict[str, BaseDistribution]":
        """Optuna's view; values keep their order wherever they are numbers with one step."""
        return {d.parameter: _distribution(d) for d in self.dimensions}

    @property
    def enumerable(self) -> bool:
        return all(d.values for d in self.dimensions)

    @property
    def num_candidates(self) -> int:
        """0 where a dimension is continuous."""
        count = 1
        for d in self.dimensions:
            count *= len(d.values)
        return count

    def candidates(self) -> Iterator[dict[str, Value]]:
        """Every candidate as {policy field: value}, the last dimension fastest."""
        for values in itertools.product(*(d.values for d in self.dimensions)):
            yield dict(zip((d.field for d in self.dimensions), values, strict=True))

    def encode(self, params: Mapping[str, Value]) -> dict[str, Value]:
        return {d.parameter: d.encode(params[d.field]) for d in self.dimensions}

    def decode(self, parameters: Mapping[str, Value]) -> dict[str, Value]:
        return {d.field: d.decode(parameters[d.parameter]) for d in self.dimensions}

    def contains(self, policy: PoolPolicy) -> bool:
        """Whether the policy is a candidate of this space: the base, moved along the dimensions only."""
        for d in self.dimensions:
            value = getattr(policy, d.field)
            if (value not in d.values) if d.values else not d.low <= value <= d.high:
                return False
        moved = {d.field: getattr(policy, d.field) for d in self.dimensions}
        return self.base.policy.model_copy(update=moved) == policy

    def position(self, policy: PoolPolicy) -> tuple[int, ...] | None:
        """Index along each dimension; None where it is no candidate, or a dimension is continuous."""
        if not self.enumerable or not self.contains(policy):
            return None
        return tuple(d.values.index(getattr(policy, d.field)) for d in self.dimensions)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(d.values) for d in self.dimensions)

    def suggest(self, params: Mapping[str, Value]) -> TrialSpec:
        """The candidate's spec: the base with its policy fields moved. SpecError where it is not valid."""
        return with_policy(self.base, **params)

    def label(self, policy: PoolPolicy) -> str:
        return " ".join(f"{d.field}={getattr(policy, d.field):g}" if _is_number(getattr(policy, d.field))
                        else f"{d.field}={getattr(policy, d.field)}" for d in self.dimensions)  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def with_policy(base: TrialSpec, **fields: Value) -> TrialSpec:
    """The base with policy fields replaced and validated anew; a block never exceeds max_model_len."""
    try:
        policy = PoolPolicy.model_validate({**base.policy.model_dump(), **fields})
    except ValidationError as error:
        asked = ", ".join(f"{k}={v!r}" for k, v in fields.items())
        raise SpecError(f"policy with {asked}: {error.errors()[0]['msg']}") from None
    return base.model_copy(update={"policy": policy})


def _distribution(d: Dimension) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not d.values:
        return FloatDistribution(d.low, d.high)
    encoded = [d.encode(v) for v in d.values]
    if not d.categorical and len({b - a for a, b in itertools.pairwise(encoded)}) <= 1:  # type: ignore[operator]
        step = encoded[1] - encoded[0] if len(encoded) > 1 else 1  # type: ignore[operator]
        if all(isinstance(v, int) for v in encoded):
            return IntDistribution(int(encoded[0]), int(encoded[-1]), step=int(step))
    return CategoricalDistribution(encoded)


def load_space_spec(name_or_path: str, folder: Path = Path()) -> SpaceSpec:
    """A YAML file (relative to `folder`), or a ready space by its name, with or without `.yaml`."""
    path = folder / name_or_path
    ready = name_or_path.removesuffix(".yaml")
    if ready in READY and (ready == name_or_path or not path.is_file()):
        text = resources.files("search_spaces").joinpath(f"{ready}.yaml").read_text(encoding="utf-8")
        return space_spec(yaml.safe_load(text), ready)
    if not name_or_path.endswith((".yaml", ".yml")):
        raise SpecError(f"space {name_or_path!r} does not exist; {nearest(name_or_path, READY)}, or a .yaml file")
    return space_spec(read_yaml(path), str(path))


def space_spec(data: Any, source: str = "space") -> SpaceSpec:
    """Validate a mapping; every error is a SpecError."""
    try:
        return SpaceSpec.model_validate(data)
    except ValidationError as error:
        raise SpecError(f"{source}:\n  " + "\n  ".join(_line(e["loc"], e["msg"]) for e in error.errors())) from None


def _line(loc: tuple[int | str, ...], message: str) -> str:
    where = ".".join(str(part) for part in loc) or "space"
    return f"{where}: {message.removeprefix('Value error, ')}"


def build_space(spec: SpaceSpec, base: TrialSpec) -> Space:
    """The space over this base; every enumerable candidate is validated here, before anything runs."""
    notes: list[str] = []
    if spec.isolates == "block_size":
        if base.pool.bytes is None:
            raise SpecError(
                "space block_size holds the pool's bytes fixed: give pool.bytes, not blocks or a budget"
            )
        base = base.model_copy(update={"pool": base.pool.model_copy(update={"tables_inside": True})})
    dimensions = [_clipped(_dimension(name, varied), base, notes) for name, varied in spec.vary.items()]
    space = Space(spec.name, base, tuple(dimensions), tuple(notes))
    if space.enumerable:
        if space.num_candidates > _MAX_POINTS:
            raise SpecError(f"space {spec.name}: {space.num_candidates} candidates; narrow it or use larger steps")
        for params in space.candidates():
            space.suggest(params)
    return space


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
    return Dimension(d.field, kept, d.low, d.high, d.exponents)


def _extreme(space: Space, pick: Callable[[tuple[Value, ...]], Value]) -> TrialSpec | None:
    sizes = next((d.values for d in space.dimensions if d.field == "block_size"), ())
    return with_policy(space.base, block_size=pick(sizes)) if sizes else None


def _contiguous(space: Space) -> TrialSpec:
    """Maximum-context reservation: one block of max_model_len a sequence, nothing shared, dense attention."""
    longest = space.base.policy.max_model_len
    return with_policy(space.base, layout="contiguous", block_size=longest, prefix_caching=False)


# Deliberately chosen points that every verdict table shows. None: this space has no such point.
CONTROLS: dict[str, Callable[[Space], TrialSpec | None]] = {
    "contiguous": _contiguous,
    "one_block": lambda space: with_policy(space.base, layout="paged", block_size=space.base.policy.max_model_len),
    "vendor_default": lambda space: with_policy(space.base, block_size=min(16, space.base.policy.max_model_len)),
    "smallest": lambda space: _extreme(space, lambda sizes: min(sizes, key=lambda v: int(v))),
    "largest": lambda space: _extreme(space, lambda sizes: max(sizes, key=lambda v: int(v))),
}  # fmt: skip


def control_spec(space: Space, name: str) -> TrialSpec | None:
    """The spec of a control over the space's base; None where the space does not move block size."""
    if name not in CONTROLS:
        raise SpecError(f"control {name!r} does not exist; {nearest(name, CONTROLS)}")
    return CONTROLS[name](space)
