"""Trials as subprocesses of this machine, without Ray: for small machines and tests, and as the reference."""

import queue
import threading
import time
from dataclasses import replace
from pathlib import Path

from orchestrator.executors import Done, Event, Job, Lost, Progress, SlotTable, judge, newest
from orchestrator.forking import ForkServers
from orchestrator.launch import WORKER, How, Launch, launch
from orchestrator.package import Package, install, pack
from orchestrator.process_group import Deadlines


class ProcessExecutor:
    """`slots` trials at once, each in its own process, its files written straight into the job's folder.

    package: what workers import (None: the trials/ imported here). cache: where it is unpacked.
    worker: arguments of the interpreter before SPEC and OUT. how: fork or exec; auto forks what can be forked.
    """

    def __init__(
        self,
        slots: int = 1,
        *,
        package: Package | None = None,
        cache: Path | None = None,
        worker: tuple[str, ...] = WORKER,
        how: How = "exec",
        grace_s: float = 5.0,
    ) -> None:
        self.package = package or pack()
        self._launch = Launch(install(self.package, cache), worker, how=how)
        self._grace_s = grace_s
        self._table = SlotTable(tuple(f"process-{i}" for i in range(slots)))
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._running: dict[str, tuple[threading.Thread, threading.Event]] = {}
        self._servers = {name: ForkServers() for name in self._table.names}

    @property
    def slots(self) -> int:
        return len(self._table.names)

    @property
    def slot_names(self) -> tuple[str, ...]:
        return self._table.names

    def submit(self, job: Job) -> None:
        """Start the job now. Raises ValueError when no slot is free, or the named one does not exist."""
        slot = self._table.take(job)
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(job, slot, stop), name=f"trial-{job.number}", daemon=True)
        self._running[slot] = thread, stop
        thread.start()

    def _run(self, job: Job, slot: str, stop: threading.Event) -> None:
        began = time.monotonic()
        limits = Deadlines(job.start_deadline_s, job.run_deadline_s, self._grace_s)
        how = replace(self._launch, deadlines=limits, servers=self._servers[slot], facts={"slot": slot})
        try:
            outcome = launch(
                job.spec, job.folder, how, lambda text: self._events.put(Progress(job, text, slot)), stop
            )
            self._events.put(judge(job, outcome, slot))
        except Exception as error:  # a full disk, a folder that cannot be written: the driver must hear of it
            self._events.put(Lost(job, f"the launcher failed: {error}", True, time.monotonic() - began, slot))

    def wait(self, timeout_s: float) -> list[Event]:
        """What happened since the last call: every end, and the newest progress of those that still run."""
        events: list[Event] = []
        try:
            events.append(self._events.get(timeout=max(0.0, timeout_s)))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            pass
        for event in events:
            if isinstance(event, Done | Lost):
                thread, _ = self._running.pop(event.slot)
                thread.join()
                self._table.free(event.slot)
        return newest(events)

    def cancel(self, job: Job) -> None:
        """Ask for the end of the job's process group; nothing happens if it is over."""
        slot = self._table.of(job)
        if slot is not None:
            self._running[slot][1].set()

    def close(self) -> None:
        """End everything and wait until it is gone."""
        for _, stop in self._running.values():
            stop.set()
        for thread, _ in self._running.values():
            thread.join()
        for servers in self._servers.values():
            servers.close()
