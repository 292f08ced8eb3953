"""Trials over Ray: a reserved place and a long-lived actor a slot, a NEW process a trial.

Ray places and connects; it never retries (max_restarts=0, max_task_retries=0), because a silent second run would
measure something else than was recorded. What Ray loses comes back as Lost, and the sweep decides. A slot takes
trials only while its actor has answered from a living node whose engine is the others'.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.devices import Reader, open_reader
from orchestrator.executors import Event, Job, Lost, Progress, SlotTable, judge, newest
from orchestrator.launch import WORKER, How, ask
from orchestrator.package import Package, pack
from orchestrator.parcel import ParcelDamaged, deliver
from orchestrator.process_group import Deadlines
from orchestrator.ray_actor import Answer, Order, Terms
from orchestrator.ray_content import Delivery, Dispatch
from orchestrator.ray_crew import Crew
from orchestrator.ray_places import Places
from orchestrator.ray_session import start_ray
from orchestrator.slot_needs import NotEnough as NotEnough
from orchestrator.slot_needs import SlotNeeds
from trials.spec import TrialSpec

_STEP_S = 0.5  # how long to wait for trials before the cluster is looked at again
_BUSY_S = 30.0  # how long what others hold may take to become free, at least


@dataclass(frozen=True, slots=True)
class RayTerms:
    """How an executor uses its cluster. `describe`: a spec whose engine must be the same on every slot (None: not
    asked). `wait_for_nodes_s`: a cluster that grows may take so long. `lost_after_s`: how long past a job's own
    deadlines its node may stay silent. `pin`: trials stay on cores of their own. `content`: a place that driver and
    nodes reach. `readers`: opens, on a node, what looks at a slot's devices.
    """

    needs: SlotNeeds = field(default_factory=SlotNeeds)
    package: Package | None = None
    worker: tuple[str, ...] = WORKER
    how: How = "auto"
    describe: TrialSpec | None = None
    wait_for_nodes_s: float = 0.0
    lost_after_s: float = 60.0
    grace_s: float = 5.0
    lease_s: float = 60.0
    pin: bool = False
    content: str | None = None
    readers: Callable[[], Reader | None] = open_reader

    @property
    def patience_s(self) -> float:
        """How long what others hold may take to become free: a killed driver holds its slots for a lease."""
        return max(_BUSY_S, 1.5 * self.lease_s)


@dataclass(slots=True)
class _Task:
    job: Job
    slot: str
    stream: Any  # ray.ObjectRefGenerator
    began: float = field(default_factory=time.monotonic)


class RayExecutor:
    """At most `slots` trials at once over a Ray cluster; their files come back as bytes, written by the driver.

    address: None starts a local cluster, unless this process is connected already. Raises NotEnough for what no
    node can give, and where no slot came into service.
    """

    def __init__(self, slots: int = 1, *, address: str | None = None, terms: RayTerms = RayTerms()) -> None:
        self._terms = terms
        self.package = terms.package or pack()
        self._tasks: dict[str, _Task] = {}
        self._queued: dict[str, tuple[Job, float]] = {}  # by slot: jobs for that very one, and since when
        self._owns_ray = start_ray(address, slots * terms.needs.cpus)
        self._places = Places(terms.needs)
        self._table = SlotTable(tuple(f"ray-{i}" for i in range(slots)), self._places.neighbours)
        self._dispatch = Dispatch(terms.content)
        shared = Terms(self.package, terms.worker, terms.how, terms.lease_s, readers=terms.readers)
        self._crew = Crew(self._places, shared, terms.describe, self._dispatch)
        self._idle_since: float | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Reserve, and wait until slots serve: all of them, or those that came while a growing cluster was given
        its time."""
        grows = self._terms.wait_for_nodes_s > 0
        self._places.reserve(self._table.names, grows)
        until = time.monotonic() + (self._terms.wait_for_nodes_s if grows else self._terms.patience_s)
        self._look(now=True)
        while self._crew.hopeful and time.monotonic() < until:
            time.sleep(0.05)
            self._look(now=True)
        serving = len(self._table.serving)
        if serving < len(self._table.names) and not (serving and (grows or not self._crew.hopeful)):
            raise NotEnough(self._crew.why_not(len(self._table.names)))

    def _look(self, now: bool = False) -> list[Event]:
        """See to the cluster; trials of nodes that are gone are lost."""
        gone = self._crew.look(now)
        for slot in self._table.names:
            self._table.serve(slot, self._crew.serves(slot))
        events: list[Event] = []
        for slot, why in gone.items():
            if slot in self._tasks:
                events.append(self._lost(self._tasks[slot], why))
        return [*events, *self._dequeue()]

    def _dequeue(self) -> list[Event]:
        """Start what waited for its slot; what has waited long, or in vain, is lost."""
        events: list[Event] = []
        for slot, (job, since_s) in list(self._queued.items()):
            waited_s = time.monotonic() - since_s
            if self._crew.serves(slot):
                del self._queued[slot]
                self._start(job, slot)
            elif self._crew.is_left_out(slot) or waited_s > self._terms.lost_after_s:
                del self._queued[slot]
                self._table.free(slot)
                events.append(Lost(job, f"slot {slot} is not in service", True, waited_s, slot))
        return events

    @property
    def slots(self) -> int:
        """How many are in service now; nodes come and go."""
        return len(self._table.serving)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Those that serve, or may again."""
        return tuple(name for name in self._table.names if not self._crew.is_left_out(name))

    @property
    def left_out(self) -> dict[str, str]:
        """Nodes that take no part, and why."""
        return dict(self._crew.left_out)

    def submit(self, job: Job) -> None:
        """Start the job. Raises ValueError when no slot is free, or the named one does not exist."""
        slot = self._table.take(job)
        if self._crew.serves(slot):
            self._start(job, slot)
        else:  # asked for by name, and being begun again just now
            self._queued[slot] = job, time.monotonic()

    def _start(self, job: Job, slot: str) -> None:
        limits = Deadlines(job.start_deadline_s, job.run_deadline_s, self._terms.grace_s)
        place, cpus = self._places.by_slot[slot], self._terms.needs.cpus
        cores = range(place.index * cpus, (place.index + 1) * cpus) if self._terms.pin else range(0)
        ask(job.spec, job.folder)
        facts = self._places.facts(slot)
        order = Order(_key(job), job.spec, limits, self._delivery(job.spec), cores, facts, self._crew.engine_hash)
        run = self._crew.actor(slot).run.options(num_returns="streaming")
        self._tasks[slot] = _Task(job, slot, run.remote(order))

    def _delivery(self, spec: TrialSpec) -> Delivery:
        return self._dispatch.of(spec)

    def wait(self, timeout_s: float) -> list[Event]:
        """What happened since the last call: every end, and the newest progress of those that still run.

        Raises NotEnough when no slot has been in service for long, and none is coming.
        """
        import ray

        until = time.monotonic() + timeout_s
        events: list[Event] = [*self._look(), *self._overdue()]
        while not events:
            left = min(_STEP_S, max(0.0, until - time.monotonic()))
            streams = [task.stream for task in self._tasks.values()]
            if streams:
                ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
                if not ready:
                    ready, _ = ray.wait(streams, timeout=left)
                heard = [t for t in self._tasks.values() if any(t.stream is r for r in ready)]
                events += [self._next(task) for task in heard]
            else:
                self._bear_idleness()
                time.sleep(left)
            events += [*self._look(), *self._overdue()]
            if time.monotonic() >= until:
                break
        return newest(self._ended(events))

    def _ended(self, events: list[Event]) -> list[Event]:
        """Each end once; its slot is free."""
        kept: list[Event] = []
        ended: set[tuple[int, int]] = set()
        for event in events:
            if not isinstance(event, Progress):
                key = event.job.number, event.job.attempt
                if key in ended:
                    continue
                ended.add(key)
                if event.slot in self._tasks and self._tasks[event.slot].job == event.job:
                    del self._tasks[event.slot]
                    self._table.free(event.slot)
            kept.append(event)
        return kept

    def _bear_idleness(self) -> None:
        """Without a slot in service nothing will ever happen again: that is said after a while."""
        if self._table.serving:
            self._idle_since = None
            return
        now = time.monotonic()
        self._idle_since = self._idle_since or now
        if now - self._idle_since > max(2 * _BUSY_S, self._terms.wait_for_nodes_s):
            raise NotEnough(self._crew.why_not(len(self._table.names)))

    def _next(self, task: _Task) -> Event:
        """The next thing that a running trial said, which may be its end."""
        import ray

        try:
            said = ray.get(next(task.stream))
        except StopIteration:
            return self._lost(task, "the slot ended without an answer")
        except ray.exceptions.RayTaskError as error:  # our own code raised on the node: a full disk, no content
            return self._lost(task, f"the slot failed: {error}")
        except ray.exceptions.RayError as error:
            self._crew.drop(task.slot)
            return self._lost(task, f"{type(error).__name__}: {error}")
        if isinstance(said, str):
            return Progress(task.job, said, task.slot)
        return self._delivered(task, said)

    def _delivered(self, task: _Task, answer: Answer) -> Event:
        if answer.unfit:
            self._crew.drop(task.slot, because=answer.unfit)
        try:
            deliver(answer.parcel, task.job.folder)
        except (ParcelDamaged, OSError) as error:
            return self._lost(task, f"the trial's files did not arrive: {error}")
        return judge(task.job, answer.parcel.outcome, task.slot)

    def _overdue(self) -> list[Event]:
        """Jobs whose node is silent long past the deadlines that it should have kept itself."""
        now = time.monotonic()
        found: list[Event] = []
        for task in self._tasks.values():
            allowed = (
                task.job.start_deadline_s + task.job.run_deadline_s + self._terms.grace_s + self._terms.lost_after_s
            )
            if now - task.began > allowed:
                self._crew.drop(task.slot)
                found.append(self._lost(task, f"no word from its node for {allowed:g} s"))
        return found

    def _lost(self, task: _Task, reason: str) -> Lost:
        return Lost(task.job, reason, True, time.monotonic() - task.began, task.slot)

    def cancel(self, job: Job) -> None:
        """Ask for the end of the job's process group; nothing happens if it is over."""
        slot = self._table.of(job)
        if slot in self._queued:
            self._queued[slot] = job, -1e9  # lost at the next look
            return
        if slot is not None and self._crew.has(slot):
            self._crew.actor(slot).cancel.remote(_key(job))

    def close(self) -> None:
        """End everything. An actor's death closes its guards' pipes, and the guards kill their groups."""
        import ray

        self._crew.close()
        self._tasks.clear()
        with contextlib.suppress(Exception):  # the cluster may be gone already
            self._places.release()
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False


def _key(job: Job) -> str:
    return f"{job.number:04d}-{job.attempt}"
