"""How much engine time a sweep would take, told before it runs: by its arrivals, since no answer is known yet."""

import math
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config import Sweep
from trials.bracket import rungs
from trials.capacity import load_of
from trials.load import offer
from trials.spec import MODELLED, Load, TrialSpec
from trials.trace import Trace, load_trace


@dataclass(frozen=True, slots=True)
class Estimate:
    """Engine time by arrivals, in s. It leaves out what is not known before: drains, engine starts, early stops."""

    trials: int
    replays_per_trial: int
    engine_s: float
    modelled: bool
    closed: bool  # under a closed load the answers make the arrivals: there is nothing to tell the time by

    @property
    def words(self) -> str:
        """The estimate in a line, with what it leaves out."""
        plural = "" if self.replays_per_trial == 1 else "s"
        what = f"{self.trials} trials of about {self.replays_per_trial} replay{plural}"
        if self.closed:
            return f"{what}; under a closed load the time depends on the answers: measure one with `kvknee trial`"
        kind = "simulated" if self.modelled else "engine"
        return (
            f"{what}, {shown_s(self.engine_s)} of {kind} time by arrivals; engine starts and drains come on top, "
            "early stops and reused results come off"
        )


def shown_s(seconds: float) -> str:
    """`95 s`, `12 min`, `3.4 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def estimate(sweep: Sweep) -> Estimate:
    """Of the budget and the controls beside it, were nothing reused and nothing stopped early."""
    trace = load_trace(Path(sweep.config.trace.path))
    specs = [_on(sweep, repeat) for repeat in range(len(sweep.windows))]
    per_repeat = [_replays(trace, spec) for spec in specs]
    trials = sweep.budget + len(list(sweep.control_points()))
    mean_s = sum(sum(times) for times in per_repeat) / len(per_repeat)
    closed = any(load.concurrency is not None for load, _ in _loads(specs[0]))
    return Estimate(trials, len(per_repeat[0]), trials * mean_s, sweep.config.engine.name in MODELLED, closed)


def _on(sweep: Sweep, repeat: int) -> TrialSpec:
    base = sweep.space.base
    trace = base.trace.model_copy(update={"window": sweep.windows[repeat]})
    return base.model_copy(update={"trace": trace})


def _loads(spec: TrialSpec) -> list[tuple[Load, str]]:
    """What one trial replays; of a ladder, as many rungs as a bracketed search tries, at their middle."""
    ladder = spec.measure.ladder
    if ladder is None or spec.measure.sizes_pool:
        assert spec.measure.load is not None
        return [(spec.measure.load, phase) for phase in spec.phases]
    values = rungs(ladder)
    tries = (2 + math.ceil(math.log2(len(values)))) * ladder.windows
    phase = "steady" if "steady" in spec.phases else "cold"
    return [(load_of(ladder.over, math.sqrt(values[0] * values[-1])), phase)] * tries


def _replays(trace: Trace, spec: TrialSpec) -> list[float]:
    """Seconds until the last counted arrival, of each replay."""
    windows = spec.measure.ladder.windows if spec.measure.ladder else 1
    return [offer(trace, spec.trace, load, phase).window_ns[1] / 1e9 / windows for load, phase in _loads(spec)]
