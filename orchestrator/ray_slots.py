"""Trials over Ray: one long-lived actor a slot, a NEW process a trial. Ray is imported here only.

Ray places and connects; it never retries (max_restarts=0, max_task_retries=0), because a silent second run would
measure something else than was recorded. What Ray loses comes back as Lost, and the sweep decides.
"""

import contextlib
import os
import shutil
import socket
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.executors import Done, Event, Job, Lost, Progress, SlotTable, judge, newest
from orchestrator.launch import WORKER, Launch, Outcome, follow
from orchestrator.package import Package, install, pack
from orchestrator.parcel import Parcel, ParcelDamaged, collect, deliver
from orchestrator.process_group import Deadlines
from orchestrator.reach import require_reachable
from trials.spec import TrialSpec

_STORE_BYTES = 100_000_000  # results are KB to MB; Ray would take 30 % of the memory


class NotEnough(ValueError):
    """The cluster has not what the slots ask for; waiting would not help."""


@dataclass(frozen=True, slots=True)
class SlotNeeds:
    """What one slot reserves on ONE node. Timing trials never share a device, so there are no fractions."""

    cpus: int = 1
    gpus: int = 0

    def bundle(self) -> dict[str, float]:
        return {"CPU": float(self.cpus), **({"GPU": float(self.gpus)} if self.gpus else {})}


class _Slot:
    """Lives in a Ray worker process. `run` and `cancel` are called on different threads."""

    def __init__(self, package: Package, worker: tuple[str, ...]) -> None:
        self._launch = (install(package), worker)
        self._stops: dict[str, threading.Event] = {}  # by trial; a cancel may come before the run does

    def where(self) -> str:
        return socket.gethostname()

    def run(self, spec: TrialSpec, deadlines: Deadlines, key: str) -> Iterator[str | Parcel]:
        """Progress texts, then the Parcel with all files. `key` names the trial in the temporary folder."""
        stop = self._stops.setdefault(key, threading.Event())
        out = Path(tempfile.mkdtemp(prefix=f"kvknee-{key}-"))
        try:
            package, worker = self._launch
            for said in follow(spec, out, Launch(package, worker, deadlines), stop):
                yield collect(said, out) if isinstance(said, Outcome) else said
        finally:
            self._stops.pop(key, None)
            shutil.rmtree(out, ignore_errors=True)

    def cancel(self, key: str) -> None:
        self._stops.setdefault(key, threading.Event()).set()


def _key(job: Job) -> str:
    return f"{job.number:04d}-{job.attempt}"


@dataclass(slots=True)
class _Task:
    job: Job
    slot: str
    stream: Any  # ray.ObjectRefGenerator
    began: float = field(default_factory=time.monotonic)


def start_ray(address: str | None, cpus: int, gpus: int | None = None) -> bool:
    """Connect; True when a local cluster was started here, and is ours to end.

    Without an address a private one is started, with the token authentication off: Ray would otherwise write a
    token into the user's home, and nothing but this machine's loopback can reach the cluster.
    """
    import ray

    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "configure_logging": True, "logging_level": "error"}
    if address is not None:
        require_reachable(address)
        ray.init(address=address, **quiet)
        return False
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _importable():
        ray.init(
            address="local",
            num_cpus=max(cpus, os.cpu_count() or 1),
            num_gpus=gpus,
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            **quiet,
        )
    return True


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Ray's processes must find this package, also when it is used from a checkout and another folder."""
    root, before = str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")
    if root in sysconfig.get_paths().values():  # installed: never before the standard library
        yield
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [before])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


class RayExecutor:
    """`slots` trials at once over a Ray cluster; their files come back as bytes and are written by the driver.

    address: None starts a local cluster, unless this process is connected already. lost_after_s: how long past a
    job's own deadlines its node may stay silent before the job counts as lost (a frozen node never answers).
    """

    def __init__(
        self,
        slots: int = 1,
        *,
        address: str | None = None,
        needs: SlotNeeds = SlotNeeds(),
        package: Package | None = None,
        worker: tuple[str, ...] = WORKER,
        lost_after_s: float = 60.0,
        grace_s: float = 5.0,
    ) -> None:
        self.package = package or pack()
        self._worker, self._needs = worker, needs
        self._lost_after_s, self._grace_s = lost_after_s, grace_s
        self._table = SlotTable(tuple(f"ray-{i}" for i in range(slots)))
        self._tasks: dict[str, _Task] = {}
        self._actors: dict[str, Any] = {}
        self._owns_ray = start_ray(address, slots * needs.cpus)
        try:
            self._group = self._reserve(slots)
        except BaseException:
            self._leave()
            raise

    @property
    def slots(self) -> int:
        return len(self._table.names)

    @property
    def slot_names(self) -> tuple[str, ...]:
        return self._table.names

    def _reserve(self, slots: int) -> Any:
        """A placement group with a bundle a slot. Raises NotEnough at once rather than pending for ever."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        bundle = self._needs.bundle()
        have = ray.cluster_resources()
        wanted = {kind: number * slots for kind, number in bundle.items()}
        short = [f"{n:g} {k}, of {have.get(k, 0):g}" for k, n in wanted.items() if have.get(k, 0) < n]
        if short:
            raise NotEnough(f"{slots} slots need {'; '.join(short)}: ask for fewer slots or add nodes")
        group = placement_group([bundle] * slots, strategy="PACK")
        if not group.wait(30):
            remove_placement_group(group)
            raise NotEnough(f"no node has {bundle} free for each of {slots} slots; ask for fewer, or add nodes")
        return group

    def _actor(self, slot: str) -> Any:
        """The slot's actor, started when it is first needed or was lost."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if slot not in self._actors:
            place = PlacementGroupSchedulingStrategy(self._group, self._table.names.index(slot))
            options = ray.remote(_Slot).options(
                num_cpus=self._needs.cpus,
                num_gpus=self._needs.gpus,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=2,  # so that cancel() is heard while a trial runs
                scheduling_strategy=place,
            )
            self._actors[slot] = options.remote(self.package, self._worker)
        return self._actors[slot]

    def submit(self, job: Job) -> None:
        """Start the job. Raises ValueError when no slot is free, or the named one does not exist."""
        slot = self._table.take(job)
        deadlines = Deadlines(job.start_deadline_s, job.run_deadline_s, self._grace_s)
        run = self._actor(slot).run.options(num_returns="streaming")
        self._tasks[slot] = _Task(job, slot, run.remote(job.spec, deadlines, _key(job)))

    def wait(self, timeout_s: float) -> list[Event]:
        """What happened since the last call: every end, and the newest progress of those that still run."""
        import ray

        until = time.monotonic() + timeout_s
        events: list[Event] = self._overdue()
        while not events and self._tasks:
            streams = [task.stream for task in self._tasks.values()]
            left = min(1.0, max(0.0, until - time.monotonic()))
            ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
            if not ready:
                ready, _ = ray.wait(streams, timeout=left)
            heard = [t for t in self._tasks.values() if any(t.stream is r for r in ready)]
            events += [self._next(task) for task in heard]
            events += self._overdue()
            if time.monotonic() >= until:
                break
        else:
            if not events:
                time.sleep(max(0.0, until - time.monotonic()))
        for event in events:
            if isinstance(event, Done | Lost):
                del self._tasks[event.slot]
                self._table.free(event.slot)
        return newest(events)

    def _next(self, task: _Task) -> Event:
        """The next thing that a running trial said, which may be its end."""
        import ray

        try:
            said = ray.get(next(task.stream))
        except StopIteration:
            return self._lost(task, "the slot ended without an answer", True)
        except ray.exceptions.RayTaskError as error:  # our own code raised on the node: a full disk, no package
            return self._lost(task, f"the slot failed: {error}", True)
        except ray.exceptions.RayError as error:
            self._drop(task.slot)
            return self._lost(task, f"{type(error).__name__}: {error}", True)
        if isinstance(said, str):
            return Progress(task.job, said, task.slot)
        try:
            deliver(said, task.job.folder)
        except (ParcelDamaged, OSError) as error:
            return self._lost(task, f"the trial's files did not arrive: {error}", True)
        return judge(task.job, said.outcome, task.slot)

    def _overdue(self) -> list[Event]:
        """Jobs whose node is silent long past the deadlines that it should have kept itself."""
        now = time.monotonic()
        found: list[Event] = []
        for task in self._tasks.values():
            allowed = task.job.start_deadline_s + task.job.run_deadline_s + self._grace_s + self._lost_after_s
            if now - task.began > allowed:
                self._drop(task.slot)
                found.append(self._lost(task, f"no word from its node for {allowed:g} s", True))
        return found

    def _lost(self, task: _Task, reason: str, infrastructure: bool) -> Lost:
        return Lost(task.job, reason, infrastructure, time.monotonic() - task.began, task.slot)

    def _drop(self, slot: str) -> None:
        """Give an actor up; the slot gets a new one when it is next used."""
        import ray

        actor = self._actors.pop(slot, None)
        if actor is not None:
            ray.kill(actor)

    def cancel(self, job: Job) -> None:
        """Ask for the end of the job's process group; nothing happens if it is over."""
        slot = self._table.of(job)
        if slot is not None:
            self._actors[slot].cancel.remote(_key(job))

    def close(self) -> None:
        """End everything. An actor's death closes its guard's pipe, and the guard kills the worker's group."""
        from ray.util.placement_group import remove_placement_group

        for slot in list(self._actors):
            self._drop(slot)
        self._tasks.clear()
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        self._leave()

    def _leave(self) -> None:
        import ray

        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False


def cluster_says(address: str, timeout_s: float = 5.0) -> str:
    """What the cluster at HOST:PORT or ray://HOST:PORT has. Raises ConnectionError with what to look at."""
    import ray

    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        raise ConnectionError(f"{address!r} is no cluster address; write it like 10.0.0.5:6379")
    try:  # Ray itself tries for minutes
        socket.create_connection((host, int(port)), timeout_s).close()
    except OSError as error:
        raise ConnectionError(
            f"nothing answers at {address} ({error}); is `ray start --head` running there?"
        ) from None
    try:
        ours = not ray.is_initialized()
        start_ray(address, 0)
    except Exception as error:
        hint = "every node and client needs RAY_AUTH_MODE=token and the same token, or disabled everywhere"
        raise ConnectionError(f"{address} answers but does not let us in: {error}; {hint}") from error
    try:
        have, nodes = ray.cluster_resources(), [n for n in ray.nodes() if n["Alive"]]
        return (
            f"{len(nodes)} nodes, {have.get('CPU', 0):g} CPUs, {have.get('GPU', 0):g} GPUs, Ray {ray.__version__}"
        )
    finally:
        if ours:
            ray.shutdown()
