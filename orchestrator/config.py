"""What a sweep is asked, and the sweep in which everything is resolved.

A sweep's keys are a TrialSpec's and those of SweepConfig. `resolve.py` looks everything up; `sweep_file.py` writes
the resolved sweep so that it reads back as itself.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_serializer, model_validator

from orchestrator.domains import EngineSays
from orchestrator.executor_spec import ExecutorSpec
from orchestrator.points import Point
from orchestrator.redaction import without_password
from orchestrator.screen_spec import ScreenSpec
from orchestrator.survival import SurvivalSpec
from search_spaces.controls import CONTROLS
from search_spaces.objective import OBJECTIVES
from search_spaces.screen import Screen
from search_spaces.space import Space, SpaceSpec, Value
from trials.fingerprint import spec_hash
from trials.secret_names import secrets_in
from trials.spec import MODELLED, Number, TrialSpec, Window
from trials.units import nearest

SWEEP_ONLY = (
    "space", "trials", "repeats", "controls", "sampler", "objective", "min_gain", "executor", "tracking", "name",
    "calibration", "trace_hash", "engine_says", "race", "held_out", "survival", "screen",
)  # fmt: skip
_DEFAULT_CONTROLS = ("contiguous", "one_block", "vendor_default", "smallest", "largest")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrackingSpec(_Model):
    """Where runs are remembered. `uri`: any of MLflow's, or env:NAME; shown and stored without its password."""

    uri: str | None = Field(default=None, repr=False)  # None: mlflow.db in the sweep's folder

    @field_serializer("uri")
    def _without_password(self, uri: str | None) -> str | None:
        return None if uri is None else without_password(uri)


def _named(key: str) -> Any:
    """`executor: process` for `executor: {kind: process}`."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


class SweepConfig(TrialSpec):
    """A sweep as asked. `trials` None: every candidate on every window."""

    name: str = Field(default="sweep", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    space: str | SpaceSpec
    trials: int | None = Field(default=None, ge=1, strict=True)
    repeats: int = Field(default=3, ge=1, le=1000, strict=True)
    controls: tuple[str, ...] = _DEFAULT_CONTROLS
    sampler: Literal["auto", "exhaustive", "tpe", "gp", "nsga2", "random"] = "auto"  # auto: as the budget allows
    objective: str = "qualified_output_throughput"
    min_gain: Number = Field(default=0.02, ge=0, lt=1)
    race: bool | None = None  # None: where it can be, with objective capacity_load
    held_out: int = Field(default=1, ge=0, le=100, strict=True)  # windows at the end that the search never sees
    screen: ScreenSpec | None = None  # a simulator that sees all candidates before the engine sees a few
    survival: SurvivalSpec | None = SurvivalSpec()  # None: a recipe is written without it
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
        if self.race and self.objective != "capacity_load":
            raise ValueError(f"race: only capacity_load can be raced, objective is {self.objective}")
        ladder = self.measure.ladder
        if ladder is not None and ladder.unraced != ladder:
            raise ValueError("measure.ladder: beat and near are set by the race of a sweep, trial by trial")
        return self

    @model_validator(mode="after")
    def _holds_no_secret(self) -> "SweepConfig":
        """All of it is written to sweep.yaml and the recipe, and shown; only tracking.uri is kept without."""
        if found := next(secrets_in(self.model_dump(mode="json", exclude={"tracking"})), None):
            raise ValueError(
                f"{found} looks like a secret, and a sweep is copied to reports and servers: leave it out; what an "
                "engine needs of that kind goes into engine.env as `NAME: env:NAME`"
            )
        return self

    @property
    def races(self) -> bool:
        """Whether a challenger has to beat the best so far before it is searched."""
        return self.objective == "capacity_load" and self.race is not False

    def trial_spec(self) -> TrialSpec:
        """The base candidate: this without the sweep's own keys."""
        return TrialSpec.model_construct(**{name: getattr(self, name) for name in TrialSpec.model_fields})


@dataclass(frozen=True, slots=True)
class Sweep:
    """A resolved sweep: nothing in it is looked up again."""

    config: SweepConfig
    space: Space
    windows: tuple[Window | None, ...]  # one a repeat, the same for all candidates
    held_out: tuple[Window, ...]  # at the trace's end, never searched
    trace_digest: str
    table_digest: str | None
    controls: tuple[tuple[str, TrialSpec], ...]
    budget: int
    notes: tuple[str, ...] = ()
    screen: Screen | None = None  # what is measured, in order, where a simulator saw the space first

    @property
    def timed(self) -> bool:
        """Whether times are taken from a clock, so that slots may differ."""
        return self.config.engine.name not in MODELLED

    @property
    def measured(self) -> bool:
        """Whether times are taken from this machine's CPU: such trials never run beside another."""
        return self.timed and self.config.engine.device == "cpu"

    def spec(self, point: Point) -> TrialSpec:
        """The trial's spec: candidate or control, on the window of its repeat."""
        if point.control is None:
            base = self.space.suggest(dict(point.params))
        else:
            base = dict(self.controls)[point.control]
        trace = base.trace.model_copy(update={"window": self.windows[point.repeat]})
        return base.model_copy(update={"trace": trace, "repeat": point.repeat})

    def hash(self, spec: TrialSpec, trace_digest: str | None = None) -> str:
        """The spec's hash; `trace_digest` where its trace is not the sweep's own."""
        return spec_hash(spec, trace_digest or self.trace_digest, self.table_digest)

    def question(self, spec: TrialSpec) -> str:
        """The hash of what a trial is asked, whatever a race knew when it asked."""
        ladder = spec.measure.ladder
        if ladder is not None and ladder.unraced != ladder:
            spec = spec.model_copy(update={"measure": spec.measure.model_copy(update={"ladder": ladder.unraced})})
        return self.hash(spec)

    def candidate(self, spec: TrialSpec) -> str:
        """The hash of a candidate, whatever window it is on."""
        trace = spec.trace.model_copy(update={"window": None})
        return self.question(spec.model_copy(update={"trace": trace, "repeat": 0}))

    def grid(self) -> Iterator[Point]:
        """Every candidate on the first window, then on the next; cut to the budget. In a race the default first."""
        usual = self.space.params_of(self.space.default) if self.config.races else None
        points = (
            Point(tuple(params.items()), None, repeat)
            for repeat in range(self.config.repeats)
            for params in _first(usual, self.space.candidates())
        )
        yield from itertools.islice(points, self.budget)

    def control_points(self) -> Iterator[Point]:
        """Every control on every window; they stand beside the budget."""
        for repeat in range(self.config.repeats):
            for name, _ in self.controls:
                yield Point((), name, repeat)


def _first(usual: dict[str, Value] | None, candidates: Iterator[dict[str, Value]]) -> Iterator[dict[str, Value]]:
    """The usual candidate in front of the others, each once."""
    yield from [] if usual is None else [usual]
    yield from (params for params in candidates if params != usual)
