"""Load and limits of the demo, found on the machine that runs it.

The service time of one burst at the reference block size sets a first rate. A reference trial of one window at
that rate shows the utilisation, from which the rate is corrected until it is inside the range, and the latencies
that the limits follow. How fast a CPU core is differs several times between machines, and by the hour on one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from orchestrator.attempts import PROBE_TOLERANCE
from orchestrator.demo_plan import Aims, DemoPlan
from orchestrator.folder import AttemptRecord, read_attempt
from orchestrator.reproduce import run_worker
from trials.result import ReplayResult
from trials.trace import save_trace
from trials.units import SpecError

Say = Callable[[str], None]
_MOST_REFERENCES = 4
_ROOMY = "ttft:p{0}<60s;tpot:p{0}<60s"  # while nothing is known of the machine


class Calibration(BaseModel):
    """What was found; stored in the sweep and in its recipe under these names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    clock: str
    reference_block_size: int
    burst_requests: int
    service_ms_per_request: float  # of that burst
    gap_ms_per_request: float  # the rate: one request in so many ms
    utilisation: float  # of the last reference trial, which ran at this rate
    reference_ttft_ms: float
    reference_tpot_ms: float
    slo: str
    calibration_probes_s: tuple[float, ...]
    repeats: int
    trial_seconds: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A calibration trial: seconds of engine time in which it served, in all and inside its window."""

    attempt: AttemptRecord
    replay: ReplayResult
    busy_s: float
    window_busy_s: float
    window_s: float

    @property
    def utilisation(self) -> float:
        return self.window_busy_s / self.window_s

    @property
    def probe_s(self) -> float:
        return self.attempt.probe_s or 0.0

    @property
    def wall_s(self) -> float:
        return float(self.attempt.info["wall_s"])


@dataclass(frozen=True, slots=True)
class Burst:
    """What the first trial showed: seconds of service a request, and the machine's speed meanwhile."""

    requests: int
    service_s: float
    probe_s: float


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate that was settled on, the reference trial that ran at it, and all probes up to it."""

    gap_ns: int
    seen: Seen
    probes: tuple[float, ...]


def calibrate(plan: DemoPlan, folder: Path, say: Say) -> tuple[Calibration, Path]:
    """The load and limits for this machine, and the trace at that load. SpecError where a trial gives no answer."""
    folder.mkdir(parents=True, exist_ok=True)
    burst = plan.train.largest_burst(1_000_000)
    path = folder / "burst.parquet"
    save_trace(burst, path)
    first = run_seen(plan, {"path": str(path)}, folder / "burst")
    served = Burst(len(burst), first.busy_s / len(burst), first.probe_s)
    say(
        f"a burst of {served.requests} is served in {first.busy_s:.2f} s: {served.service_s * 1e3:.1f} ms a request"
    )
    rate = _settle(plan, folder, served, say)
    return _found(plan, served, rate), save_train(plan, folder.parent, rate.gap_ns)


def save_train(plan: DemoPlan, folder: Path, gap_ns: int) -> Path:
    """trace.parquet: the train at this rate."""
    path = folder / "trace.parquet"
    save_trace(plan.train.trace(gap_ns), path)
    return path


def _settle(plan: DemoPlan, folder: Path, burst: Burst, say: Say) -> Rate:
    """Reference trials until one is inside the range of utilisation on a machine of usual speed."""
    low, wanted, high = plan.calibration.utilisation
    gap_ns, probes = round(burst.service_s * 1e9 / wanted), [burst.probe_s]
    in_range: tuple[int, Seen] | None = None  # at an unusual speed: better than nothing
    for number in range(1, _MOST_REFERENCES + 1):
        path = save_train(plan, folder, gap_ns)
        seen = run_seen(plan, {"path": str(path)} | plan.train.first_window(gap_ns), folder / f"reference-{number}")
        off = seen.probe_s / float(np.median(probes)) - 1
        probes.append(seen.probe_s)
        say(f"one request in {gap_ns / 1e6:.1f} ms: utilisation {seen.utilisation:.2f}, probe {seen.probe_s:.2f} s")
        if low <= seen.utilisation <= high:
            if abs(off) <= PROBE_TOLERANCE:
                return Rate(gap_ns, seen, tuple(probes))
            in_range = gap_ns, seen
        if abs(off) > PROBE_TOLERANCE:
            say(f"the machine's speed was off by {off:+.0%}: measured again")
        else:
            gap_ns = round(gap_ns * seen.utilisation / wanted)
    if in_range is not None:
        say("no steady speed was found: the load is that of a reference trial at an unusual one")
        return Rate(*in_range, tuple(probes))
    raise SpecError(
        f"{_MOST_REFERENCES} reference trials did not come to a utilisation of {low} to {high}: "
        "the machine is too busy to measure on; run the demo again when it is quieter"
    )


def run_seen(plan: DemoPlan, trace: dict[str, Any], out: Path) -> Seen:
    """The base policy on a trace, in a new process. SpecError where it gives no measurement."""
    why = run_worker(plan.trial(trace, _ROOMY.format(plan.calibration.percentile)), out, None)
    attempt = read_attempt(out, 1)
    result = attempt.result
    if result is None or result.status != "complete" or result.decides is None:
        reason = why or (result.reason if result else "it left no result")
        raise SpecError(f"the calibration trial in {out} gave no measurement: {reason}")
    return seen_in(attempt, result.replays[result.decides])


def seen_in(attempt: AttemptRecord, replay: ReplayResult) -> Seen:
    """Busy time of the attempt's replay, from the steps that it recorded."""
    at = pq.read_table(attempt.folder / "ledger.parquet", columns=["phase", "start_ns", "duration_ns", "idle"])
    start, duration, idle = (at[n].to_numpy() for n in ("start_ns", "duration_ns", "idle"))
    busy = np.where((idle == 0) & (at["phase"].to_numpy() == replay.phase), duration, 0)
    window = replay.observation
    inside = (start >= window.start_ns) & (start < window.end_ns)
    return Seen(
        attempt, replay, float(busy.sum()) / 1e9, float(busy[inside].sum()) / 1e9,
        (window.end_ns - window.start_ns) / 1e9,
    )  # fmt: skip


def _found(plan: DemoPlan, burst: Burst, rate: Rate) -> Calibration:
    seen, quantile = rate.seen, f"p{plan.calibration.percentile}"
    ttft, tpot = (getattr(m, quantile) for m in (seen.replay.metrics.ttft_ms, seen.replay.metrics.tpot_ms))
    if ttft is None or tpot is None:
        raise SpecError(f"the reference trial in {seen.attempt.folder} has no {quantile}: requests were lost")
    return Calibration(
        method="one burst sets the rate; reference trials of one window correct it and set the limits",
        clock=seen.replay.clock,
        reference_block_size=plan.sweep["policy"]["block_size"],
        burst_requests=burst.requests,
        service_ms_per_request=round(burst.service_s * 1e3, 3),
        gap_ms_per_request=rate.gap_ns / 1e6,
        utilisation=round(seen.utilisation, 4),
        reference_ttft_ms=round(ttft, 3),
        reference_tpot_ms=round(tpot, 3),
        slo=limits(plan.calibration, ttft, tpot),
        calibration_probes_s=tuple(round(p, 4) for p in rate.probes),
        repeats=repeats(plan, seen.wall_s),
        trial_seconds=round(seen.wall_s, 2),
    )


def limits(aims: Aims, ttft_ms: float, tpot_ms: float) -> str:
    """SLO text: what the reference showed, with slack, to two digits."""
    ttft, tpot = float(f"{aims.ttft_slack * ttft_ms:.2g}"), float(f"{aims.tpot_slack * tpot_ms:.2g}")
    return f"ttft:p{aims.percentile}<{ttft:g}ms;tpot:p{aims.percentile}<{tpot:g}ms"


def repeats(plan: DemoPlan, trial_s: float) -> int:
    """All windows of the train where every trial fits into the time, else one."""
    fits = plan.num_points * plan.train.windows * trial_s <= plan.calibration.sweep_seconds
    return plan.train.windows if fits else 1
