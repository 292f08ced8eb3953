"""A Ray cluster on this machine: a head without room for trials, and nodes with made-up GPUs, each to be lost.

Everything that it starts carries a TMPDIR of its own, by which what is left behind can be told from others'.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

_STORE_BYTES = 80_000_000
# A dead or frozen node is noticed within about three seconds instead of half a minute.
_QUICK = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_timeout_ms": 1000,
          "health_check_failure_threshold": 4}  # fmt: skip


class Emulated:
    """`nodes` by name. Use as a context: everything is ended by process id, and nothing else is."""

    def __init__(self, num_nodes: int = 3, **node: Any) -> None:
        self.tmp = Path(tempfile.mkdtemp(prefix="kk-", dir="/tmp"))  # short: sockets have paths of 107 characters
        self._node = {"num_cpus": 2, "num_gpus": 1, **node}
        self._num_nodes = num_nodes
        self.nodes: dict[str, Any] = {}

    def __enter__(self) -> "Emulated":
        self._before = {name: os.environ.get(name) for name in ("TMPDIR", "RAY_AUTH_MODE", "PYTHONPATH")}
        root = str(Path(__file__).resolve().parents[2])
        os.environ.update({"TMPDIR": str(self.tmp), "RAY_AUTH_MODE": "disabled", "PYTHONPATH": root})
        tempfile.tempdir = None
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False,
                "_system_config": _QUICK}  # fmt: skip
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        for i in range(self._num_nodes):
            self.add(f"n{i}")
        return self

    def add(self, name: str, **more: Any) -> None:
        """One more node."""
        self.nodes[name] = self.cluster.add_node(object_store_memory=_STORE_BYTES, **(self._node | more))

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def raylet(self, name: str) -> psutil.Process:
        (info,) = self.nodes[name].all_processes["raylet"]
        return psutil.Process(info.process.pid)

    def kill(self, name: str) -> None:
        """The node is gone from one moment to the next."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def actors(self, name: str) -> list[psutil.Process]:
        """Ray's processes of the slots on a node."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [p for p in self.raylet(name).children(recursive=True) if "SlotActor" in _command(p)]
        return []

    def workers(self, name: str) -> list[psutil.Process]:
        """Trials that run on a node: children of fork servers, which lead no group themselves."""
        found = []
        for actor in self.actors(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                family = actor.children(recursive=True)
                servers = {p.pid for p in family if not _leads(p) and "fork_server" in _command(p)}
                found += [p for p in family if p.ppid() in servers and _leads(p)]
        return found

    def left_behind(self) -> list[str]:
        """What of trials still runs: workers, guards, fork servers and their keepers."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get("TMPDIR") == str(self.tmp) and process.status() != "zombie"
                if ours and any(w in _command(process) for w in ("fork_server.py", "guard.py", "trials.worker")):
                    found.append(f"{process.pid}: {_command(process)}")
        return found

    def __exit__(self, *error: object) -> None:
        for node in self.nodes.values():
            for infos in node.all_processes.values():
                for info in infos:
                    with contextlib.suppress(psutil.Error):
                        psutil.Process(info.process.pid).resume()
        self.cluster.shutdown()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None
        shutil.rmtree(self.tmp, ignore_errors=True)


def _command(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def _leads(process: psutil.Process) -> bool:
    """Whether it leads a process group of its own."""
    return os.getpgid(process.pid) == process.pid


def until(what: Any, limit_s: float, every_s: float = 0.05) -> bool:
    """Whether `what()` came true in time."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(every_s)
    return False


@contextlib.contextmanager
def emulated(num_nodes: int = 3, **node: Any) -> Iterator[Emulated]:
    with Emulated(num_nodes, **node) as cluster:
        yield cluster
