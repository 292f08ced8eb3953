"""Where trials run, as the sweep sees it: jobs go in; what became of them comes out.

An executor never interprets a result. What it must tell apart: the trial answered (`Done`, whatever it says),
or the infrastructure lost it (`Lost`: nothing is known, the same trial may be attempted again).
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.launch import Outcome
from trials.exhausted import ran_out
from trials.result import TrialResult, load_result
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
    avoid: tuple[str, ...] = ()  # slots that lost an earlier attempt: taken only where nothing else is free


@dataclass(frozen=True, slots=True)
class Done:
    """The worker answered and its files are whole in `job.folder`."""

    job: Job
    result: TrialResult
    wall_s: float
    slot: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker left no valid result. `infrastructure` False: the engine itself failed (its words in reason),
    or, `refused`, had not the memory for what it was asked.
    """

    job: Job
    reason: str
    infrastructure: bool
    wall_s: float
    slot: str
    refused: bool = False


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

    @property
    def slot_names(self) -> tuple[str, ...]:
        """By which a job can ask for one; in service or not."""

    def submit(self, job: Job) -> None:
        """Queue a job; at most `slots` unfinished ones at a time."""

    def wait(self, timeout_s: float) -> list[Event]:
        """What happened since the last call; blocks until something did, or timeout_s passed."""

    def cancel(self, job: Job) -> None:
        """End the job's whole process group; it comes back as Lost(infrastructure=True)."""

    def close(self) -> None:
        """End everything that runs. May be called twice."""


_ENGINE_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def judge(job: Job, outcome: Outcome, slot: str) -> Done | Lost:
    """What a worker's end means, from how it ended and from what lies in `job.folder`.

    The engine's fault: it exited with an error, crashed, or hung past a deadline; trying again would do the same.
    One that had not enough memory for what it was asked has refused it.
    The infrastructure's: it was cancelled, killed from outside (also by the kernel for want of memory), or it
    ended well and its result is absent or torn.
    """
    if outcome.ended_by != "itself" or outcome.exit_code != 0:
        infrastructure = _from_outside(outcome)
        reason = f"{outcome.reason}\n{outcome.log_tail}".strip()
        if not infrastructure:
            reason += f"\nlog: {job.folder / 'log.txt'}"
        refused = not infrastructure and outcome.ended_by == "itself" and ran_out(outcome.log_tail)
        return Lost(job, reason, infrastructure, outcome.wall_s, slot, refused)
    try:
        result = load_result(job.folder / "result.json")
    except FileNotFoundError:
        return Lost(job, "the worker ended well but left no result.json", True, outcome.wall_s, slot)
    except (OSError, ValueError) as error:
        reason = f"result.json is not a whole, valid result: {error}"
        return Lost(job, reason, True, outcome.wall_s, slot)
    return Done(job, result, outcome.wall_s, slot)


def _from_outside(outcome: Outcome) -> bool:
    if outcome.ended_by == "signal" and outcome.exit_code is not None:
        return -outcome.exit_code not in _ENGINE_SIGNALS
    return outcome.ended_by == "stop"


def newest(events: list[Event]) -> list[Event]:
    """The same events in order, with only the last Progress of each job, and none beside its end."""
    ended = {(e.job.number, e.job.attempt) for e in events if not isinstance(e, Progress)}
    last = {(e.job.number, e.job.attempt): i for i, e in enumerate(events) if isinstance(e, Progress)}
    keep = {i for key, i in last.items() if key not in ended}
    return [e for i, e in enumerate(events) if not isinstance(e, Progress) or i in keep]


class SlotTable:
    """Which slot is busy with which job. A slot runs one job at a time; only those in service take any."""

    def __init__(self, names: tuple[str, ...], neighbours: Callable[[str, str], bool] | None = None) -> None:
        """`neighbours`: whether two slots would be lost together, being on one node."""
        if not names:
            raise ValueError("an executor needs at least one slot")
        self.names = names
        self._neighbours = neighbours or (lambda a, b: a == b)
        self._out: set[str] = set()
        self._busy: dict[str, Job] = {}

    @property
    def serving(self) -> tuple[str, ...]:
        """Slots in service, busy or not."""
        return tuple(name for name in self.names if name not in self._out)

    def serve(self, name: str, serves: bool) -> None:
        """Put a slot into service, or out of it; what it is busy with goes on."""
        (self._out.discard if serves else self._out.add)(name)

    def take(self, job: Job) -> str:
        """The job's slot, from now on busy. Raises ValueError: unknown, busy, or none free."""
        if job.slot is not None and job.slot not in self.names:
            raise ValueError(f"slot {job.slot!r} does not exist; known: {', '.join(self.names)}")
        wanted = self.serving if job.slot is None else (job.slot,)
        free = [name for name in wanted if name not in self._busy]
        if not free:
            raise ValueError(
                f"trial {job.number}: no free slot among {', '.join(wanted) or 'none'}; wait() for one first"
            )
        chosen = min(free, key=lambda name: sum(self._neighbours(name, shunned) for shunned in job.avoid))
        self._busy[chosen] = job
        return chosen

    def free(self, name: str) -> None:
        self._busy.pop(name, None)

    def of(self, job: Job) -> str | None:
        """Where this attempt runs, or None when it is over."""
        key = (job.number, job.attempt)
        return next((s for s, busy in self._busy.items() if (busy.number, busy.attempt) == key), None)
