"""What the demo measures: its YAML, and its train of bursts as a trace with windows at a rate. Runs nothing."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.config import SweepConfig
from trials.documents import read_yaml, validated
from trials.generate import Preset, generate
from trials.laws import Lengths
from trials.spec import TrialSpec, trial_spec
from trials.trace import Trace

Size = Annotated[int, Field(ge=4)]
_WIDTH = 3  # a burst arrives within the service time of so many requests; the smallest burst must outlast it
_CLOSING = _WIDTH  # requests behind the last window, so that the trace covers it


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Train(_Model):
    """Bursts of the sizes in `window`, `windows` times over, behind a burst of `warmup` requests."""

    warmup: Size
    window: tuple[Size, ...] = Field(min_length=1)
    windows: int = Field(ge=1)
    prompt: Lengths
    output: Lengths
    seed: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """All bursts in order."""
        return (self.warmup, *self.window * self.windows, _CLOSING)

    def trace(self, gap_ns: int) -> Trace:
        """The train at one request a `gap_ns`; the same requests in the same order at any rate."""
        width_ns = _WIDTH * gap_ns
        arrivals = {
            "kind": "bursts", "sizes": self.sizes, "width": f"{width_ns}ns", "gap_per_request": f"{gap_ns}ns",
        }  # fmt: skip
        preset = {"name": "demo", "seed": self.seed, "prompt": self.prompt, "output": self.output}
        return generate(Preset.model_validate(preset | {"arrivals": arrivals}))

    def largest_burst(self, gap_ns: int) -> Trace:
        """The largest burst of the train, alone."""
        place = int(np.argmax(self.sizes))
        first = sum(self.sizes[:place])
        return self.trace(gap_ns).take(np.arange(first, first + self.sizes[place]))

    def first_window(self, gap_ns: int) -> dict[str, Any]:
        """Keys of TraceSpec: the first window, and the warm-up in front of it.

        A window begins one burst's width before its first burst may: where in its width a burst begins is drawn.
        """
        before_ns = gap_ns * (self.warmup - _WIDTH)
        window = {"start": f"{before_ns}ns", "duration": f"{gap_ns * sum(self.window)}ns"}
        return {"window": window, "warmup": f"{before_ns}ns"}


class Aims(_Model):
    """What the calibration aims at; demo.yaml says what each is."""

    utilisation: tuple[float, float, float]
    percentile: Literal[50, 90, 99]
    ttft_slack: float
    tpot_slack: float
    sweep_seconds: float


class DemoPlan(_Model):
    """demo.yaml. `sweep`: a sweep's keys but for those that are found: trace, slo, repeats."""

    sweep: dict[str, Any]
    train: Train
    calibration: Aims

    @property
    def num_points(self) -> int:
        """Trials a window: block sizes, and the two controls that are no block size of the space."""
        (varied,) = self.sweep["space"]["vary"].values()
        return len(varied["one_of"]) + 2

    def trial(self, trace: dict[str, Any], slo: str) -> TrialSpec:
        """The base policy as a trial of its own."""
        keys = {k: v for k, v in self.sweep.items() if k in TrialSpec.model_fields}
        return trial_spec(keys | {"trace": trace, "slo": slo}, "demo.yaml")

    def config(self, found: dict[str, Any]) -> SweepConfig:
        """The sweep with what was found."""
        return validated(SweepConfig, self.sweep | found, "demo.yaml")


def load_plan() -> DemoPlan:
    """The plan that comes with the package."""
    path = Path(__file__).with_name("demo.yaml")
    return validated(DemoPlan, read_yaml(path), str(path))
