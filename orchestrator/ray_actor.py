"""A slot on its node: one long-lived actor that starts each trial in a new process. Never touches a device itself.

It lives as long as its driver speaks to it: one that hears nothing for `lease_s` while a trial runs ends the trial
and itself, so that nothing runs on for a driver, or behind a network, that is gone.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.devices import Reader, open_reader, settle
from orchestrator.forking import ForkServers
from orchestrator.launch import WORKER, How, Launch, Outcome, environment, follow, interpreter
from orchestrator.package import Package, install, own_folder
from orchestrator.parcel import Parcel, collect
from orchestrator.process_group import Deadlines
from orchestrator.ray_content import Delivery
from orchestrator.stock import NotDelivered, Stock
from trials.spec import TrialSpec

_DESCRIBE_S = 300.0
_PROGRESS_S = 0.1  # each text is an object of Ray's
SETTLE_S = 60.0  # for device memory to come back after a trial


@dataclass(frozen=True, slots=True)
class Terms:
    """What every slot of an executor has in common. `readers`: opens what looks at the slot's devices."""

    package: Package
    worker: tuple[str, ...] = WORKER
    how: How = "auto"
    lease_s: float = 60.0
    settle_s: float = field(default_factory=lambda: SETTLE_S)
    readers: Callable[[], Reader | None] = open_reader


@dataclass(frozen=True, slots=True)
class Order:
    """One attempt as it is sent to a slot. `key` names it among the slot's; `cores`: how many to keep it on."""

    key: str
    spec: TrialSpec
    deadlines: Deadlines
    delivery: Delivery
    cores: range
    facts: Mapping[str, Any]
    engine_hash: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of an attempt. `unfit`: why the slot must not be used again, empty where it may."""

    parcel: Parcel
    unfit: str = ""


class SlotActor:
    """Lives in a Ray worker process; its methods are called on different threads."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._folder = own_folder()
        self._package = install(terms.package)
        self._stock = Stock(self._folder / "content")
        self._servers = ForkServers()
        self._reader = terms.readers()
        self._baseline = list(self._reader.read()) if self._reader is not None else []
        self._stops: dict[str, threading.Event] = {}  # by attempt; a cancel may come before the run does
        self._heard_s = time.monotonic()
        threading.Thread(target=self._keep_lease, name="lease", daemon=True).start()

    def join(self, spec: TrialSpec | None, delivery: Delivery) -> dict[str, Any]:
        """What the driver must know before a trial comes: where this is, and what its engine says of itself."""
        self.beat()
        facts: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "cpus": len(_cpus())}
        if spec is None:
            return facts
        try:
            return facts | {"engine": self._describe(self._located(spec, delivery))}
        except (OSError, ValueError, NotDelivered, subprocess.TimeoutExpired) as error:
            return facts | {"trouble": str(error)}

    def _describe(self, spec: TrialSpec) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "spec.json"
            path.write_text(spec.model_dump_json(), encoding="utf-8")
            command = [interpreter(spec), *self._terms.worker, "--describe", str(path)]
            ended = subprocess.run(
                command, env=environment(spec, self._package), cwd=folder, capture_output=True, text=True,
                timeout=_DESCRIBE_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        if ended.returncode:
            raise ValueError((ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1])
        said: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
        return said

    def _located(self, spec: TrialSpec, delivery: Delivery) -> TrialSpec:
        return delivery.brought(spec, self._stock)

    def run(self, order: Order) -> Iterator[str | Answer]:
        """Progress texts, then the answer with all files."""
        self.beat()
        stop = self._stops.setdefault(order.key, threading.Event())
        out = Path(tempfile.mkdtemp(prefix=f"kvknee-{order.key}-"))
        try:
            how = self._how(order)
            for said in follow(self._located(order.spec, order.delivery), out, how, stop):
                if not isinstance(said, Outcome):
                    yield said
                    continue
                answer = self._answer(said, out)
                # Before it is said: who hears the answer may send another attempt of this key, and cancel it.
                self._forget(order.key, stop)
                yield answer
        finally:
            self._forget(order.key, stop)
            shutil.rmtree(out, ignore_errors=True)

    def _forget(self, key: str, stop: threading.Event) -> None:
        """This attempt is over; a later one of the same key keeps its own signal."""
        if self._stops.get(key) is stop:
            del self._stops[key]

    def _how(self, order: Order) -> Launch:
        terms, facts = self._terms, dict(order.facts)
        cores = tuple(_cpus()[order.cores.start : order.cores.stop])
        if len(cores) < len(order.cores):
            facts["cores_because"] = f"cores {order.cores} of {len(_cpus())}: there are not so many to keep it on"
            cores = ()
        with contextlib.suppress(OSError):
            facts["load_before"] = os.getloadavg()[0]
        return Launch(
            self._package, terms.worker, order.deadlines, terms.how, self._servers, cores, facts, self._reader,
            compile_caches(self._folder, order.engine_hash), passing=True, progress_s=_PROGRESS_S,
        )  # fmt: skip

    def _answer(self, outcome: Outcome, out: Path) -> Answer:
        parcel = collect(outcome, out)
        if self._reader is None:
            return Answer(parcel)
        return Answer(parcel, settle(self._reader, self._baseline, self._terms.settle_s, time.sleep))

    def cancel(self, key: str) -> None:
        """End an attempt, also one that has not come yet."""
        self._stops.setdefault(key, threading.Event()).set()

    def beat(self) -> None:
        """The driver lives."""
        self._heard_s = time.monotonic()

    def _keep_lease(self) -> None:
        while time.monotonic() - self._heard_s < self._terms.lease_s:
            time.sleep(self._terms.lease_s / 20)
        for stop in list(self._stops.values()):
            stop.set()
        until = time.monotonic() + self._terms.lease_s
        while self._stops and time.monotonic() < until:
            time.sleep(0.1)
        self._servers.close()
        os._exit(1)  # what still runs is ended by its guard, whose pipe this closes


def _cpus() -> list[int]:
    """Cores that this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:
        return list(range(os.cpu_count() or 1))


def compile_caches(folder: Path, engine_hash: str) -> dict[str, str]:
    """Where engines keep what they compile: one folder of this node an engine, so that each compiles once and no
    engine ever loads what another build compiled."""
    if not engine_hash:
        return {}
    kept = folder / "compiled" / engine_hash[:16]
    names = {
        "VLLM_CACHE_ROOT": "vllm",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
    }
    return {name: str(kept / sub) for name, sub in names.items()}
