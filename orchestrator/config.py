"""From YAML to a sweep in which everything is resolved and validated, before anything runs.

A sweep's keys are a TrialSpec's and those of SweepConfig. What is written here as sweep.yaml reads back as itself:
paths absolute, the space in full, the trace's hash beside its path.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from orchestrator.domains import EngineSays, ask, cut
from orchestrator.overrides import apply_goodput, apply_sets
from orchestrator.windows import repeat_windows, rows_in
from search_spaces.objective import OBJECTIVES
from search_spaces.space import (
    CONTROLS,
    Space,
    SpaceSpec,
    Value,
    build_space,
    control_spec,
    load_space_spec,
)
from trials.documents import read_yaml, validated
from trials.fingerprint import file_digest, spec_hash, trace_hash
from trials.geometry import block_bytes, effective_block_size
from trials.spec import MODELLED, TrialSpec, Window, resolve_paths
from trials.trace import Trace, load_trace
from trials.units import SpecError, nearest

SWEEP_ONLY = (
    "space", "trials", "repeats", "controls", "sampler", "objective", "min_gain", "executor", "tracking", "name",
    "calibration", "trace_hash", "engine_says",
)  # fmt: skip
_FEW_WINDOWS = 3  # fewer tell nothing of how far a capacity moves from one to the next
_DEFAULT_CONTROLS = ("contiguous", "one_block", "vendor_default", "smallest", "largest")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ExecutorSpec(_Model):
    """Where trials run. `slots`: how many at once, None = one a CPU; measured CPU trials run one at a time."""

    kind: Literal["ray", "process"] = "ray"
    slots: int | None = Field(default=None, ge=1)
    address: str | None = None
    start_deadline_s: float = Field(default=300.0, gt=0)
    run_deadline_s: float = Field(default=3600.0, gt=0)


class TrackingSpec(_Model):
    """Where runs are remembered."""

    uri: str | None = None  # None: mlflow.db in the sweep's folder


def _named(key: str) -> Any:
    """`executor: process` for `executor: {kind: process}`."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


class SweepConfig(TrialSpec):
    """A sweep as asked. `trials` None: every candidate on every window."""

    name: str = Field(default="sweep", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    space: str | SpaceSpec
    trials: int | None = Field(default=None, ge=1)
    repeats: int = Field(default=3, ge=1, le=1000)
    controls: tuple[str, ...] = _DEFAULT_CONTROLS
    sampler: Literal["exhaustive", "tpe"] = "exhaustive"
    objective: str = "qualified_output_throughput"
    min_gain: float = Field(default=0.02, ge=0, lt=1)
    executor: Annotated[ExecutorSpec, _named("kind")] = ExecutorSpec()
    tracking: Annotated[TrackingSpec, _named("uri")] | None = TrackingSpec()
    trace_hash: str | None = None  # what the trace must hash to; filled in when it is resolved
    engine_says: EngineSays | None = None  # what the engine accepts; asked of it when the sweep is resolved
    calibration: dict[str, Any] = Field(default_factory=dict)  # how the load was found, kept for the recipe

    @model_validator(mode="after")
    def _names_known(self) -> "SweepConfig":
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective {self.objective!r} does not exist; {nearest(self.objective, OBJECTIVES)}")
        for name in self.controls:
            if name not in CONTROLS:
                raise ValueError(f"control {name!r} does not exist; {nearest(name, CONTROLS)}")
        if len(set(self.controls)) != len(self.controls):
            raise ValueError(f"controls name one twice: {', '.join(self.controls)}")
        if self.repeat:
            raise ValueError("repeat belongs to a trial; a sweep says repeats")
        if self.measure.sizes_pool:
            raise ValueError("a ladder over pool_bytes belongs to a trial: candidates are compared on equal pools")
        if self.objective == "capacity_load" and self.measure.ladder is None:
            raise ValueError("objective capacity_load needs measure.ladder: the loads that are searched")
        return self

    def trial_spec(self) -> TrialSpec:
        """The base candidate: this without the sweep's own keys."""
        return TrialSpec.model_construct(**{name: getattr(self, name) for name in TrialSpec.model_fields})


@dataclass(frozen=True, slots=True)
class Point:
    """One trial to be: a candidate of the space (`params`, policy fields) or a control, on one window."""

    params: tuple[tuple[str, Value], ...]
    control: str | None
    repeat: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """A resolved sweep: nothing in it is looked up again."""

    config: SweepConfig
    space: Space
    windows: tuple[Window | None, ...]  # one a repeat, the same for all candidates
    trace_digest: str
    table_digest: str | None
    controls: tuple[tuple[str, TrialSpec], ...]
    budget: int
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether times are taken from this machine's CPU: such trials never run beside another."""
        return self.config.engine.name not in MODELLED and self.config.engine.device == "cpu"

    def spec(self, point: Point) -> TrialSpec:
        """The trial's spec: candidate or control, on the window of its repeat."""
        if point.control is None:
            base = self.space.suggest(dict(point.params))
        else:
            base = dict(self.controls)[point.control]
        trace = base.trace.model_copy(update={"window": self.windows[point.repeat]})
        return base.model_copy(update={"trace": trace, "repeat": point.repeat})

    def hash(self, spec: TrialSpec) -> str:
        return spec_hash(spec, self.trace_digest, self.table_digest)

    def grid(self) -> Iterator[Point]:
        """Every candidate on the first window, then on the next; cut to the budget."""
        points = (
            Point(tuple(params.items()), None, repeat)
            for repeat in range(self.config.repeats)
            for params in self.space.candidates()
        )
        yield from itertools.islice(points, self.budget)

    def control_points(self) -> Iterator[Point]:
        """Every control on every window; they stand beside the budget."""
        for repeat in range(self.config.repeats):
            for name, _ in self.controls:
                yield Point((), name, repeat)


def load_sweep(path: Path, sets: Sequence[str] = (), goodput: str | None = None) -> Sweep:
    """Read and resolve a sweep's YAML; relative paths in it are relative to its own folder. SpecError."""
    data = read_yaml(path)
    if isinstance(data.get("executor"), str):
        data["executor"] = {"kind": data["executor"]}  # so that --set executor.slots=2 has where to go
    data = apply_goodput(apply_sets(data, sets, SweepConfig), goodput)
    return resolve(validated(SweepConfig, data, str(path)), path.resolve().parent)


def load_trial(path: Path, sets: Sequence[str] = (), goodput: str | None = None) -> TrialSpec:
    """Read and resolve a trial's YAML; the keys of a sweep are refused with a word on where they belong."""
    data = read_yaml(path)
    foreign = [key for key in data if key in SWEEP_ONLY]
    if foreign:
        raise SpecError(f"{path}: {', '.join(foreign)}: key of a sweep, not of a trial; use `kvknee run {path}`")
    data = apply_goodput(apply_sets(data, sets, TrialSpec), goodput)
    spec = resolve_paths(validated(TrialSpec, data, str(path)), path.resolve().parent)
    trace = load_trace(Path(spec.trace.path))
    rows = rows_in(trace, spec.trace.window)
    if not len(rows):
        raise SpecError(f"{path}: no request of the trace arrives inside trace.window")
    short = holds_none(spec, trace)
    if short:
        raise SpecError(f"{path}: {short}")
    return spec


def resolve(config: SweepConfig, folder: Path) -> Sweep:
    """Look everything up once: trace, hash, step table, space, windows, controls, budget."""
    base = resolve_paths(config.trial_spec(), folder)
    trace = load_trace(Path(base.trace.path))
    digest = _checked_hash(config, trace, base)
    spec = config.space if isinstance(config.space, SpaceSpec) else load_space_spec(config.space, folder)
    says = config.engine_says or ask(base)
    space = cut(build_space(spec, base), says)
    windows = repeat_windows(trace, config.trace.window, config.repeats)
    controls = tuple((n, s) for n in config.controls if (s := control_spec(space, n)) is not None)
    budget = _budget(config, space)
    notes = [*space.notes, *_pool_notes(space, controls, trace), *_window_notes(config)]
    resolved = config.model_copy(
        update={
            "trace": base.trace,
            "engine": base.engine,
            "space": spec,
            "trials": budget,
            "trace_hash": digest,
            "engine_says": says,
        }
    )
    return Sweep(resolved, space, windows, digest, _table_digest(base), controls, budget, tuple(notes))


def _checked_hash(config: SweepConfig, trace: Trace, base: TrialSpec) -> str:
    digest = trace_hash(trace)
    if config.trace_hash not in (None, digest):
        raise SpecError(
            f"trace {base.trace.path} hashes to {digest[:12]}, the sweep expects {str(config.trace_hash)[:12]}: "
            "restore the file, or drop trace_hash to start another sweep"
        )
    return digest


def _table_digest(base: TrialSpec) -> str | None:
    step_time = base.engine.step_time or ""
    if not step_time.startswith("table:"):
        return None
    path = Path(step_time.removeprefix("table:"))
    if not path.is_file():
        raise SpecError(f"engine.step_time: {path}: no such table; make one with `kvknee calibrate`")
    return file_digest(path)


def _budget(config: SweepConfig, space: Space) -> int:
    every = space.num_candidates * config.repeats
    if config.sampler == "exhaustive":
        if not space.enumerable:
            raise SpecError(f"space {space.name} is continuous: use sampler: tpe, or give the range a step")
        if config.trials is not None and config.trials > every:
            raise SpecError(
                f"trials: {config.trials} asked, but the space has {space.num_candidates} candidates x "
                f"{config.repeats} repeats = {every}; lower trials or raise repeats"
            )
        return config.trials or every
    if config.trials is None and not every:
        raise SpecError("trials: a continuous space needs a budget, for example trials: 60")
    return config.trials or every


def holds_none(spec: TrialSpec, trace: Trace) -> str | None:
    """Why the pool, or max_model_len, holds not one request of the trace; None where it holds some."""
    tokens = trace.num_prompt_tokens + trace.num_output_tokens
    fits = tokens <= spec.policy.max_model_len
    if not fits.any():
        return (
            f"no request of the trace fits policy.max_model_len {spec.policy.max_model_len}: "
            f"the shortest has {int(tokens.min())} tokens"
        )
    size = effective_block_size(spec)
    blocks = spec.pool.blocks
    if size and spec.pool.bytes is not None:
        blocks = spec.pool.bytes // block_bytes(spec)
    if blocks is None or not size:
        return None  # a device budget: what it leaves for the pool is the engine's word
    usable = max(blocks - spec.pool.reserve_blocks, 0)
    # The last sampled token never has KV, so a request holds one token less than it has.
    need = -(-(int(tokens[fits].min()) - 1) // size)
    if need <= usable:
        return None
    return (
        f"the pool holds no request of the trace: block_size {size} leaves {usable} usable blocks, "
        f"the shortest request needs {need}; enlarge pool or use smaller blocks"
    )


def _pool_notes(space: Space, controls: Sequence[tuple[str, TrialSpec]], trace: Trace) -> list[str]:
    """What cannot hold a request is noted and will be refused; where nothing can, the sweep is refused."""
    candidates = [space.suggest(p) for p in space.candidates()] if space.enumerable else [space.base]
    short = [why for c in candidates if (why := holds_none(c, trace))]
    if len(short) == len(candidates):
        raise SpecError(short[0])
    words = [f"control {name}: {why}" for name, c in controls if (why := holds_none(c, trace))]
    return [*(f"candidate: {why}" for why in short), *words]


def _window_notes(config: SweepConfig) -> list[str]:
    ladder = config.measure.ladder
    count = config.repeats * ladder.windows if ladder else _FEW_WINDOWS
    if count >= _FEW_WINDOWS:
        return []
    return [f"capacity on {count} windows: its range is not known; use repeats: {_FEW_WINDOWS}"]


def sweep_yaml(sweep: Sweep) -> str:
    """The resolved sweep as text; reads back as the same sweep."""
    data = sweep.config.model_dump(mode="json", exclude_none=True)
    data.pop("repeat")
    data.setdefault("tracking", None)  # absent would mean the default tracker, None means none
    return "# Resolved by kvknee; continue with `kvknee resume` on this folder.\n" + yaml.safe_dump(
        data, sort_keys=False, allow_unicode=True, width=110
    )


def differences(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """What tells two resolved sweeps apart, `key: stored -> asked`. Where they run is no difference."""
    return list(_differ(_identity(stored), _identity(asked), ""))


_NOT_ASKED = ("executor", "tracking", "calibration", "engine_says")


def _identity(data: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in data.items() if k not in _NOT_ASKED}
    kept["trace"] = {k: v for k, v in dict(kept.get("trace", {})).items() if k != "path"}
    return kept


def _differ(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differ(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key}: {a} -> {b}"


def stored_sweep(path: Path) -> Sweep:
    """The sweep of a folder's sweep.yaml."""
    return resolve(validated(SweepConfig, read_yaml(path), str(path)), path.resolve().parent)
