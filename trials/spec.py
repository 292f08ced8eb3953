"""TrialSpec: what one trial is asked. Everything that decides the outcome is here, and nothing else.

Paths are locators: they say where content lies, and are replaced by the content's digest in the spec hash
(`fingerprint.spec_hash`).
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from trials.documents import explained, validated
from trials.documents import read_yaml as read_yaml
from trials.model import PRESETS, ModelSpec
from trials.model_folder import with_shape
from trials.secret_names import secrets_in
from trials.units import SpecError, nearest, parse_bytes, parse_count, parse_ns, require_utf8

ENGINE_NAMES = ("simulator", "torch_paged", "vllm_scheduler", "transformers_cb", "vllm")
MODELLED = ("simulator", "vllm_scheduler")  # their time comes from `step_time`, not from a clock


def _quantity(parse: Any) -> Any:
    return BeforeValidator(lambda v: v if v is None else parse(v))


Bytes = Annotated[int, _quantity(parse_bytes), Field(gt=0)]
_AS_NS = PlainSerializer(lambda v: f"{v}ns", return_type=str, when_used="json")  # what is written can be read back
Ns = Annotated[int, _quantity(parse_ns), Field(ge=0), _AS_NS]
Count = Annotated[int, _quantity(parse_count)]


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise SpecError(f"a number is needed; found {value!r}")
    return value


Number = Annotated[float, BeforeValidator(_no_bool)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class EngineSpec(_Model):
    """Which engine, and everything that is its own. `python` is a locator: the engine hash covers what it finds."""

    name: str
    step_time: str | None = None  # roofline:GPU or table:FILE, for engines whose time is modelled
    clock: Literal["wall", "cpu"] | None = None  # measured engines; None = wall
    threads: int = Field(strict=True, default=1, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"
    python: str | None = None
    tensor_parallel_size: int = Field(strict=True, default=1, ge=1)
    pipeline_parallel_size: int = Field(strict=True, default=1, ge=1)
    args: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> "EngineSpec":
        if self.name not in ENGINE_NAMES:
            raise ValueError(f"engine {self.name!r} does not exist; {nearest(self.name, ENGINE_NAMES)}")
        if self.name in MODELLED and self.step_time is None:
            raise ValueError(f"engine {self.name} needs step_time, for example roofline:h100-sxm")
        if odd := [name for name in self.env if not name or "=" in name]:
            raise ValueError(f"env: {odd[0]!r} cannot be the name of a variable")
        self._holds_no_secret()
        return self

    def _holds_no_secret(self) -> None:
        """A spec is hashed, shown and copied; what must stay secret is named in it, and lies in the environment."""
        if found := next(secrets_in({"env": self.env, "args": self.args}), None):
            name = found.rpartition(".")[2]
            raise ValueError(
                f"{found} looks like a secret, and a spec is copied to reports and servers: write "
                f"`env: {{{name.upper()}: env:{name.upper()}}}` and set {name.upper()} where the engine is started"
            )

    @property
    def table(self) -> Path | None:
        """The file of measured step times, a locator; None where time comes from elsewhere."""
        kind, _, path = (self.step_time or "").partition(":")
        return Path(path) if kind == "table" else None

    def with_table(self, path: Path | str) -> "EngineSpec":
        """The same with its table there, or (in a hash) with the table's digest."""
        return self.model_copy(update={"step_time": f"table:{path}"})

    @property
    def num_ranks(self) -> int:
        """Devices that one copy of the model takes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class PoolSpec(_Model):
    """KV memory: exactly one of the three. `blocks` includes `reserve_blocks`."""

    bytes: Bytes | None = None
    blocks: Annotated[int, _quantity(parse_count), Field(gt=0)] | None = None
    device_budget: Bytes | None = None
    reserve_blocks: int = Field(strict=True, default=0, ge=0)
    tables_inside: bool = False  # the byte budget also pays for the device block tables

    @model_validator(mode="after")
    def _one(self) -> "PoolSpec":
        given = [n for n in ("bytes", "blocks", "device_budget") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(
                f"pool needs exactly one of bytes, blocks, device_budget; got {', '.join(given) or 'none'}"
            )
        return self


class PoolPolicy(_Model):
    """The candidate: what the search moves. Defaults are vLLM v1's."""

    block_size: int = Field(default=16, ge=1, le=1 << 20, strict=True)
    layout: Literal["paged", "contiguous", "virtual"] = "paged"
    page_bytes: Bytes = 2 << 20  # layout virtual: a physical page, of one layer's K or V
    sharing: Literal["prefix", "cow"] = "prefix"
    prefix_caching: bool = True
    prefix_match: Literal["block", "partial"] = "block"
    eviction: Literal["lru", "fifo", "lfu", "length_aware"] = "lru"
    victim: Literal["last_admitted", "fewest_outputs", "largest", "priority"] = "last_admitted"
    watermark: Number = Field(default=0.0, ge=0.0, lt=1.0)
    reserve_prompt: bool = True
    reserve_output: Literal["none", "full"] = "none"
    preemption: Literal["recompute"] = "recompute"
    queue: Literal["fcfs", "longest_prefix", "priority", "shortest_job"] = "fcfs"
    free_order: Literal["tail_first", "head_first"] = "tail_first"
    max_model_len: Annotated[int, _quantity(parse_count), Field(gt=0)] = 8192
    max_num_seqs: Annotated[int, _quantity(parse_count), Field(gt=0)] = 256
    max_num_batched_tokens: Annotated[int, _quantity(parse_count), Field(gt=0)] = 2048
    long_prefill_token_threshold: int = Field(strict=True, default=0, ge=0)


class Window(_Model):
    """Stretch of trace time that counts, ns from the trace's first arrival, before the load scales it."""

    start: Ns = 0
    duration: Annotated[int, _quantity(parse_ns), Field(gt=0), _AS_NS]


class TraceSpec(_Model):
    """Which trace, which stretch of it counts, and how sessions replay. `path` is a locator.

    `outputs`: whose tokens a turn or a fork inherits of an answer: the trace's (`recorded`), or those that the
    parent really gave (`live`). Lengths are the trace's either way.
    """

    path: str
    window: Window | None = None  # None = the whole trace
    warmup: Ns = 0  # replayed before the window in phase `steady`, not counted
    sessions: Literal["open", "closed"] = "open"
    outputs: Literal["recorded", "live"] = "recorded"
    superpose: int = Field(default=1, ge=1, le=64, strict=True)  # so many shifted copies of the trace at once


class Load(_Model):
    """How hard the trace is driven: exactly one."""

    rate_scale: Annotated[Number, Field(gt=0)] | None = None
    rps: Annotated[Number, Field(gt=0)] | None = None
    concurrency: Annotated[int, Field(gt=0, strict=True)] | None = None

    @model_validator(mode="after")
    def _one(self) -> "Load":
        given = [n for n in ("rate_scale", "rps", "concurrency") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(
                f"load needs exactly one of rate_scale, rps, concurrency; got {', '.join(given) or 'none'}"
            )
        return self

    @property
    def kind(self) -> str:
        return next(n for n in ("rate_scale", "rps", "concurrency") if getattr(self, n) is not None)

    @property
    def value(self) -> float:
        return float(getattr(self, self.kind))

    @property
    def label(self) -> str:
        return f"{self.kind}={self.value:g}"


def _rung(value: Any) -> Any:
    return parse_bytes(value, "ladder") if isinstance(value, str) else _no_bool(value)


Rung = Annotated[float, BeforeValidator(_rung), Field(gt=0)]


_MOST_RUNGS = 100_000


class Ladder(_Model):
    """Search for the largest load that holds, between `low` and `high`, to within a ratio of `within`.

    Over `pool_bytes`: for the smallest pool that holds, at the load that stands beside the ladder. `windows`: the
    window is cut into so many equal ones, each searched for itself, and the median decides. `beat`: a load that has
    to hold first; where it does not, nothing else is searched. `near`: where the answer is thought to be; it moves
    the cost. Both are rounded to the ladder's rungs, `beat` upwards.
    """

    over: Literal["rate_scale", "rps", "concurrency", "pool_bytes"] = "rate_scale"
    low: Rung
    high: Rung
    within: Number = Field(default=0.05, gt=0, lt=1)
    windows: int = Field(default=1, ge=1, le=100, strict=True)
    beat: Rung | None = None
    near: Rung | None = None

    @model_validator(mode="after")
    def _ordered(self) -> "Ladder":
        if self.high < self.low:
            raise ValueError(f"ladder: high {self.high:g} is below low {self.low:g}")
        rungs = (math.log(self.high) - math.log(self.low)) / math.log1p(self.within)
        if rungs > _MOST_RUNGS:
            raise ValueError(f"ladder: {rungs:,.0f} rungs, at most {_MOST_RUNGS:,}: raise within, or low")
        if self.beat is not None and self.over == "pool_bytes":
            raise ValueError("ladder: beat is a load; pools are not raced")
        if self.beat is not None and not self.low <= self.beat <= self.high:
            raise ValueError(f"ladder: beat {self.beat:g} lies outside {self.low:g} to {self.high:g}")
        return self

    @property
    def unraced(self) -> "Ladder":
        """The same question without what a search knew when it asked."""
        return self.model_copy(update={"beat": None, "near": None})


class Measure(_Model):
    """At one load, or up a ladder of loads: exactly one."""

    load: Load | None = None
    ladder: Ladder | None = None

    @property
    def sizes_pool(self) -> bool:
        return self.ladder is not None and self.ladder.over == "pool_bytes"

    @model_validator(mode="after")
    def _one(self) -> "Measure":
        if self.sizes_pool:
            if self.load is None:
                raise ValueError("a ladder over pool_bytes needs the load beside it, at which the pool must hold")
        elif (self.load is None) == (self.ladder is None):
            raise ValueError("measure needs exactly one of load, ladder")
        return self


def _as_model(value: Any, info: ValidationInfo) -> Any:
    """A preset's name, a mapping with a shape, or one with the path of a folder that has it."""
    if isinstance(value, dict) and isinstance(value.get("path"), str):
        return with_shape(value, (info.context or {}).get("folder"))
    if not isinstance(value, str):
        return value
    if value not in PRESETS:
        raise SpecError(f"model {value!r} does not exist; {nearest(value, PRESETS)}")
    return PRESETS[value]


class TrialSpec(_Model):
    """One trial. Read with `load_trial_spec`; hash with `fingerprint.spec_hash`."""

    engine: EngineSpec
    model: Annotated[ModelSpec, BeforeValidator(_as_model)]
    pool: PoolSpec
    policy: PoolPolicy = PoolPolicy()
    trace: TraceSpec
    slo: str
    measure: Measure = Measure(load=Load(rate_scale=1.0))
    phases: tuple[Literal["cold", "steady"], ...] = ("cold", "steady")
    seed: int = Field(default=0, strict=True)
    repeat: int = Field(strict=True, default=0, ge=0)

    @model_validator(mode="after")
    def _coherent(self) -> "TrialSpec":
        from trials.slo import parse_slo

        slo = parse_slo(self.slo)
        if self.measure.ladder is not None and not slo.bounds_waiting:
            raise ValueError(
                f"slo {self.slo!r} has no ttft or e2el clause, so a growing queue would not break it: "
                "a capacity search needs one, for example ttft:p99<500ms"
            )
        if not self.phases or len(set(self.phases)) != len(self.phases):
            raise ValueError(f"phases must name cold, steady or both, once each; got {list(self.phases)}")
        return self


def explain(error: ValidationError, source: str) -> SpecError:
    """pydantic's errors as one message a line: where, what was there, what is known."""
    return explained(error, source, TrialSpec)


def trial_spec(data: dict[str, Any], source: str = "spec") -> TrialSpec:
    """Validate a mapping; every error is a SpecError that names the key."""
    return validated(TrialSpec, data, source)


def load_trial_spec(path: Path) -> TrialSpec:
    """Read a spec; relative paths in it are relative to its own folder."""
    return resolve_paths(trial_spec(read_yaml(path), str(path)), path.parent)


def resolve_paths(spec: TrialSpec, folder: Path) -> TrialSpec:
    """The same spec with absolute locators."""
    trace = spec.trace.model_copy(update={"path": str((folder / spec.trace.path).resolve())})
    require_utf8(trace.path, "trace.path")
    engine = spec.engine
    if engine.table is not None:
        engine = engine.with_table((folder / engine.table).resolve())
    if engine.python and "/" in engine.python:
        # Not resolved: a virtual environment's interpreter is a link, and is known by where it lies.
        engine = engine.model_copy(update={"python": str((folder / engine.python).absolute())})
    return spec.model_copy(update={"trace": trace, "engine": engine})
