"""Where trials run, as the sweep sees it: jobs go in; what became of them comes out.

An executor never interprets a result. What it must tell apart: the trial answered (`Done`, whatever it says),
or the infrastructure lost it (`Lost`: nothing is known, the same trial may be attempted again).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trials.result import TrialResult
from trials.spec import TrialSpec


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt of one trial. `folder` is where the driver keeps its files (spec.json, result.json, ...)."""

    number: int
    attempt: int
    spec: TrialSpec  # locators absolute
    folder: Path
    start_deadline_s: float = 300.0
    run_deadline_s: float = 3600.0
    slot: str | None = None  # None: any free slot


@dataclass(frozen=True, slots=True)
class Done:
    """The worker answered and its files are whole in `job.folder`."""

    job: Job
    result: TrialResult
    wall_s: float
    slot: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker left no valid result. `infrastructure` False: the engine itself failed (its words in reason)."""

    job: Job
    reason: str
    infrastructure: bool
    wall_s: float
    slot: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Said by a running trial; only the newest matters."""

    job: Job
    text: str
    slot: str


Event = Done | Lost | Progress


class Executor(Protocol):
    """Runs each job in a NEW process. Single-threaded use by the driver."""

    @property
    def slots(self) -> int:
        """How many jobs may run at once."""

    def submit(self, job: Job) -> None:
        """Queue a job; at most `slots` unfinished ones at a time."""

    def wait(self, timeout_s: float) -> list[Event]:
        """What happened since the last call; blocks until something did, or timeout_s passed."""

    def cancel(self, job: Job) -> None:
        """End the job's whole process group; it comes back as Lost(infrastructure=True)."""

    def close(self) -> None:
        """End everything that runs. May be called twice."""
