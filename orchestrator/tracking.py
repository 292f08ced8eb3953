"""What is remembered of a sweep in MLflow: one parent run, one child a trial attempt. MLflow is imported here only."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trials.result import TrialResult
from trials.spec import TrialSpec


@dataclass(frozen=True, slots=True)
class TrialEntry:
    """One attempt, finished. `result` None: the infrastructure lost it."""

    number: int
    attempt: int
    spec: TrialSpec
    result: TrialResult | None
    folder: Path
    started_ms: int
    ended_ms: int
    labels: tuple[tuple[str, str], ...] = ()  # e.g. ("kvknee.control", "contiguous"), ("kvknee.reused", "1")


@dataclass(frozen=True, slots=True)
class SweepEntry:
    """The parent run: what was asked, and at the end what came out."""

    name: str
    params: tuple[tuple[str, str], ...] = ()
    metrics: tuple[tuple[str, float], ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    artifacts: tuple[Path, ...] = ()
    status: str = "RUNNING"  # FINISHED | FAILED | KILLED when the sweep ends
    ended_ms: int | None = field(default=None)


class Tracker(Protocol):
    """Remembers. `record` never blocks and never raises; what cannot be sent is spooled to disk."""

    def record(self, entry: TrialEntry | SweepEntry) -> None: ...

    def close(self, timeout_s: float) -> int:
        """Send what is left; returns the entries that remain unsent."""
