"""One field of a trial that a space moves: how it is written, its values in order, when it matters.

Powers of two are searched as exponents, so that a sampler sees their order (Optuna has no distribution over powers
of two). A field is named by where it stands in a trial: `policy.block_size`, `engine.args.scheduler_type`,
`pool.bytes`. Fields of the policy go by their own name in a candidate, all others by the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trials.spec import EngineSpec, PoolPolicy, PoolSpec, TrialSpec
from trials.units import BYTE_UNITS, SpecError, nearest, parse_bytes

Value = int | float | str | bool
MAX_POINTS = 1 << 20
_POLICY, _ARGS = "policy.", "engine.args."
# What says where and as what a trial runs cannot differ between trials that are compared.
_FIXED = ("args", "clock", "device", "env", "name", "python")
_BYTES = ("bytes", "device_budget", "page_bytes")
_SEARCHED = {
    "policy.": tuple(PoolPolicy.model_fields),
    "engine.": tuple(name for name in EngineSpec.model_fields if name not in _FIXED),
    "pool.": ("blocks", "bytes", "device_budget", "reserve_blocks"),
}  # fmt: skip


def _count(value: Any) -> Any:
    return parse_bytes(value, "powers_of_two") if isinstance(value, str) else value


def _several(value: Any) -> Any:
    """`when: {policy.reserve_output: none}` for `{policy.reserve_output: [none]}`."""
    if not isinstance(value, dict):
        return value
    return {name: [v] if isinstance(v, int | float | str) else v for name, v in value.items()}


class Varied(BaseModel):
    """How one field moves: exactly one of the first three. `when`: values of others under which it matters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    powers_of_two: (
        tuple[Annotated[int, BeforeValidator(_count)], Annotated[int, BeforeValidator(_count)]] | None
    ) = None  # lowest and highest value, both powers of two
    one_of: tuple[Value, ...] | None = None
    range: tuple[float, float] | None = None  # both ends included
    step: float | None = Field(default=None, gt=0)  # of `range`; integers without one step by 1
    when: Annotated[dict[str, tuple[Value, ...]], BeforeValidator(_several)] = Field(default_factory=dict)

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
        if self.one_of is not None and len({(type(v) is bool, v) for v in self.one_of}) < len(self.one_of):
            raise ValueError("one_of names a value twice")
        return self


def known_field(name: str) -> None:
    """ValueError, with what it may have meant, where no trial has such a field that a space may move."""
    if name.startswith(_ARGS) and len(name) > len(_ARGS):
        return  # which arguments there are is the engine's word
    known = [f"{prefix}{field}" for prefix, fields in _SEARCHED.items() for field in fields]
    if name not in known:
        what = "the pool policy" if name.startswith(_POLICY) else "a trial that a space may move"
        raise ValueError(f"{name!r} is not a field of {what}; {nearest(name, known)}, or engine.args.NAME")


def short(name: str) -> str:
    """A field as candidates name it."""
    return name.removeprefix(_POLICY)


def value_of(spec: TrialSpec, field: str) -> Any:
    """What the trial has there (`field` as candidates name it); None where it has nothing."""
    if field.startswith(_ARGS):
        return spec.engine.args.get(field.removeprefix(_ARGS))
    room, _, name = field.rpartition(".")
    return getattr({"": spec.policy, "engine": spec.engine, "pool": spec.pool}[room], name)


def moved(spec: TrialSpec, params: Mapping[str, Value]) -> TrialSpec:
    """The trial with these fields replaced and validated anew. pydantic's ValidationError where one cannot be."""
    rooms: dict[str, dict[str, Any]] = {"policy": {}, "engine": {}, "pool": {}, "args": {}}
    for field, value in params.items():
        if field.startswith(_ARGS):
            rooms["args"][field.removeprefix(_ARGS)] = value
        else:
            room, _, name = field.rpartition(".")
            rooms[room or "policy"][name] = value
    update: dict[str, Any] = {}
    if rooms["policy"]:
        update["policy"] = PoolPolicy.model_validate({**spec.policy.model_dump(), **rooms["policy"]})
    if rooms["engine"] or rooms["args"]:
        args = {**spec.engine.args, **rooms["args"]}
        update["engine"] = EngineSpec.model_validate({**spec.engine.model_dump(), **rooms["engine"], "args": args})
    if rooms["pool"]:
        size = {"bytes", "blocks", "device_budget"}
        kept = spec.pool.model_dump(exclude=size if rooms["pool"].keys() & size else set())
        update["pool"] = PoolSpec.model_validate({**kept, **rooms["pool"]})
    return spec.model_copy(update=update)


@dataclass(frozen=True, slots=True)
class Dimension:
    """One varied field. `values` in order; empty for a continuous range between `low` and `high`."""

    field: str  # as candidates name it: without the prefix where it is the policy's
    values: tuple[Value, ...]
    low: float = 0.0
    high: float = 0.0
    exponents: bool = False
    when: tuple[tuple[str, tuple[Value, ...]], ...] = ()  # it matters only where each of these fields has one of

    @property
    def name(self) -> str:
        """The field by its whole name."""
        return self.field if self.field.startswith(("engine.", "pool.")) else f"{_POLICY}{self.field}"

    @property
    def parameter(self) -> str:
        """Optuna's name for it."""
        return f"log2({self.name})" if self.exponents else self.name

    @property
    def label(self) -> str:
        """Its name in front of people."""
        return self.field.removeprefix(_ARGS)

    def words(self, value: Any) -> str:
        """A value in front of people: whole numbers whole, bytes in the largest unit that holds them exactly."""
        if isinstance(value, float):
            return f"{value:g}"
        if self.field.rpartition(".")[2] in _BYTES and isinstance(value, int):
            whole = ((unit, scale) for unit, scale in BYTE_UNITS if value and value % scale == 0)
            return next((f"{value // scale}{unit}" for unit, scale in whole), str(value))
        return str(value)

    @property
    def categorical(self) -> bool:
        return any(isinstance(v, str | bool) for v in self.values)

    def encode(self, value: Value) -> Value:
        """A candidate's value as Optuna holds it."""
        return int(value).bit_length() - 1 if self.exponents else value

    def read(self, parameters: Mapping[str, Value]) -> Value | None:
        """Its value among Optuna's parameters, also of a study that held it the other way; None: not there."""
        if self.name in parameters:
            return parameters[self.name]
        exponent = parameters.get(f"log2({self.name})")
        return None if exponent is None else 1 << int(exponent)

    def holds(self, value: Any) -> bool:
        """Whether the value is one of its own."""
        if self.values:
            return any(v == value and isinstance(v, bool) == isinstance(value, bool) for v in self.values)
        return isinstance(value, int | float) and self.low <= value <= self.high


def dimension(name: str, varied: Varied, base: TrialSpec) -> Dimension:
    """The dimension of one entry of `vary`, its values as a trial of this base holds them. SpecError."""
    field = short(name)
    when = tuple((short(o), tuple(_as_held(short(o), v, base) for v in vs)) for o, vs in varied.when.items())
    if varied.powers_of_two:
        low, high = varied.powers_of_two
        exponents = range(low.bit_length() - 1, high.bit_length())
        return Dimension(field, tuple(1 << e for e in exponents), exponents=True, when=when)
    if varied.one_of:
        return Dimension(field, tuple(_as_held(field, value, base) for value in varied.one_of), when=when)
    assert varied.range is not None
    low_f, high_f = varied.range
    whole = all(float(x).is_integer() for x in (low_f, high_f, varied.step or 1))
    is_float = _is_float(field)
    step = varied.step if varied.step is not None or is_float else 1.0
    if step is None:
        return Dimension(field, (), low_f, high_f, when=when)
    count = int((high_f - low_f) / step + 1e-9) + 1
    if count > MAX_POINTS:
        raise SpecError(f"vary.{name}: {count} values; use a larger step")
    points = tuple(round(low_f + i * step, 12) for i in range(count))
    return Dimension(field, tuple(int(p) for p in points) if whole and not is_float else points, when=when)


def _is_float(field: str) -> bool:
    fields = {"policy": PoolPolicy.model_fields, "engine": EngineSpec.model_fields, "pool": PoolSpec.model_fields}
    room, _, name = field.rpartition(".")
    found = fields.get(room or "policy", {}).get(name)
    return room == "engine.args" or (found is not None and found.annotation is float)


def _as_held(field: str, value: Value, base: TrialSpec) -> Value:
    """The value as a trial holds it (`8GiB` is a number there); as written where the trial would refuse it."""
    try:
        held = value_of(moved(base, {field: value}), field)
    except ValueError:
        return value
    return held if isinstance(held, int | float | str | bool) else value
