"""Which rows of a trace are offered, when, and which of them count: a window of the trace driven at a load.

Trace time runs from the first arrival. `rate_scale` divides arrival gaps and nothing else. In phase `steady` the
stretch of trace in front of the window is replayed first, at the same load, and not counted; where the window
starts with the trace, its first `warmup` serves as that stretch, in both phases alike, so that the counted
requests are the same.
"""

from dataclasses import dataclass, replace

import numpy as np

from trials.spec import Load, TraceSpec
from trials.trace import Ints, Trace, TraceError

_LONGEST_NS = 1 << 60  # of a replay's arrivals: sums of times stay below 2**63


@dataclass(frozen=True, slots=True)
class Lock:
    """A recorded schedule: before which step each request of an offer was met and cancelled, [K]; -1: never."""

    met_step: Ints
    cancel_step: Ints
    arrival_ns: Ints  # in which order those met in one step came


@dataclass(frozen=True, slots=True)
class Offer:
    """What a replay offers. Parallel arrays [K]; times are engine ns from the replay's start."""

    phase: str
    load: Load
    rows: Ints  # rows of the trace, in arrival order
    due_ns: Ints
    counted: Ints  # 1 inside the window
    window_ns: tuple[int, int]
    until_ended: bool = False  # arrivals span no time of their own: the window ends with the last counted request
    closed_sessions: bool = False  # a turn comes when those in front of it have ended, not at its stamp
    lock: Lock | None = None  # arrivals and cancels are due before recorded steps, not at their times
    look_ns: int | None = None  # engine time at which it is written down who holds which block

    @property
    def concurrency(self) -> int | None:
        """Closed load: how many requests are under way at once; None = open."""
        return self.load.concurrency

    @property
    def num_warmup(self) -> int:
        return int(len(self.rows) - self.counted.sum())

    def locked(self, met_step: Ints, cancel_step: Ints | None = None, arrival_ns: Ints | None = None) -> "Offer":
        """The same requests by a recorded schedule, [K] steps. TraceError where it is another offer's."""
        if len(met_step) != len(self.rows):
            raise TraceError(
                f"{self.phase} {self.load.label}: the schedule to lock to has {len(met_step)} requests, "
                f"{len(self.rows)} are offered; lock to the requests.parquet of a replay of this spec"
            )
        never = np.full(len(met_step), -1, np.int64)
        cancels = never if cancel_step is None else cancel_step
        return replace(self, lock=Lock(met_step, cancels, self.due_ns if arrival_ns is None else arrival_ns))

    def same_as(self, other: "Offer") -> bool:
        """Whether both offer the same requests at the same times, and count the same of them."""
        return (
            self.load == other.load
            and self.window_ns == other.window_ns
            and self.lock is None
            and other.lock is None
            and self.look_ns == other.look_ns
            and all(np.array_equal(getattr(self, n), getattr(other, n)) for n in ("rows", "due_ns", "counted"))
        )


def window_of(trace: Trace, spec: TraceSpec) -> tuple[int, int, int]:
    """(stretch start, window start, window end) in trace ns. TraceError where no request lies inside."""
    first = int(trace.arrival_ns[0])
    span = int(trace.arrival_ns[-1]) - first
    start = spec.window.start if spec.window else 0
    end = start + spec.window.duration if spec.window else span + 1
    if start < spec.warmup:
        stretch, start = 0, spec.warmup
    else:
        stretch = start - spec.warmup
    at = trace.arrival_ns - first
    if not ((at >= start) & (at < end)).any():
        raise TraceError(
            f"no request arrives in the window {start / 1e9:g}s .. {end / 1e9:g}s (warm-up {spec.warmup / 1e9:g}s "
            f"taken off); the trace covers 0s .. {span / 1e9:g}s"
        )
    return stretch, start, end


def counted(trace: Trace, spec: TraceSpec) -> tuple[int, tuple[float, float]]:
    """(requests that arrive in the window, its ends in seconds of trace time). TraceError where it holds none."""
    _, start, end = window_of(trace, spec)
    at = trace.arrival_ns - int(trace.arrival_ns[0])
    return int(((at >= start) & (at < end)).sum()), (start / 1e9, end / 1e9)


def rate_of(trace: Trace) -> float:
    """Mean arrivals a second over the trace's span."""
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    if span == 0:
        raise TraceError("every request arrives at once: the trace has no rate; use a concurrency load")
    return (len(trace) - 1) / (span / 1e9)


def scale_of(trace: Trace, load: Load) -> float:
    """By what the arrival gaps are divided."""
    if load.rate_scale is not None:
        return load.rate_scale
    if load.rps is not None:
        return load.rps / rate_of(trace)
    return 1.0


def offer(trace: Trace, spec: TraceSpec, load: Load, phase: str) -> Offer:
    """What phase `cold` or `steady` offers of the trace at this load.

    Under a closed load the answers make the arrivals, and a whole trace that arrives at once spans no time: then
    the window lasts until the last counted request has ended, as in vLLM's benchmark.
    """
    stretch, start, end = window_of(trace, spec)
    begin = stretch if phase == "steady" else start
    at = trace.arrival_ns - int(trace.arrival_ns[0])
    rows = np.flatnonzero((at >= begin) & (at < end))
    scale = scale_of(trace, load)
    if (end - begin) / _LONGEST_NS > scale:
        raise TraceError(
            f"{phase} {load.label}: arrivals would last over {_LONGEST_NS / 1e9:.3g} s of engine time, which no "
            "column holds: raise the load, or shorten the window"
        )
    due = np.rint((at[rows] - begin) / scale).astype(np.int64) if scale != 1.0 else at[rows] - begin
    opened = round((start - begin) / scale)
    window = opened, max(round((end - begin) / scale), opened + 1)
    counted = (at[rows] >= start).astype(np.int64)
    inside = at[rows][counted > 0]
    at_once = spec.window is None and inside[0] == inside[-1]
    until_ended = load.concurrency is not None or bool(at_once)
    return Offer(phase, load, rows, due, counted, window, until_ended, spec.sessions == "closed")
