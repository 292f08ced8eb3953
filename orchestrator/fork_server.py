"""A process that has imported what trials need, started no thread and touched no device, and forks one a trial.

Run as a script by path, `python -P fork_server.py SOCKET_FD`, in the environment that a worker would get. It speaks
JSON lines over the socket, one question at a time: `{"worker": [...], "engine": name}` -> `{"threads": n}` or
`{"error": words}`; `{"argv": [...], "cwd": path, "cores": [...]}` with three descriptors (the worker's stdout, the
log, the status pipe) -> `{"pid": n}`; `{"reap": pid}`, which kills its group first -> `{"reaped": pid}`. A worker
leads a session and a group; until it is reaped its process id is its own. How it ended is written to its status
pipe: its exit code, negative where a signal killed it. The process that is executed becomes the keeper (keeper.py)
of the server that it forks; either of them, when the other is gone or the socket ends, kills every group.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

_MESSAGE_BYTES = 1 << 16  # read at a time
_NOT_FLUSHED = 120  # as the interpreter has it


def _beside(name: str) -> ModuleType:
    """A module beside this file; the package that both belong to is not on a worker's path."""
    spec = importlib.util.spec_from_file_location(f"kvknee_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry_of(worker: list[str]) -> Callable[[list[str]], object]:
    """What a worker's command line runs: `... -m MODULE` its `main(arguments)`, `... FILE` the file as a script."""
    if worker[-2:-1] == ["-m"]:
        main: Callable[[list[str]], object] = importlib.import_module(worker[-1]).main
        return main
    return lambda _: runpy.run_path(worker[-1], run_name="__main__")


def _preload(worker: list[str], engine: str) -> None:
    if worker[-2:] == ["-m", "trials.worker"]:
        importlib.import_module("trials.preload").preload(engine)


def _flushed() -> bool:
    """Whether what was printed is written; a worker may have closed its streams, as it may in an interpreter."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:
        return False
    return True


def num_threads() -> int:
    """Threads of this process, also those that Python does not know."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        import threading

        return threading.active_count()


@dataclass(frozen=True, slots=True)
class _Worker:
    """A forked process that was not reaped yet, and where to say how it ended."""

    pid: int
    status: int


class Server:
    """One launcher's questions, answered in order until it hangs up or the keeper is gone."""

    def __init__(self, connection: socket.socket, guard: ModuleType, keeper: ModuleType, prctl: Any) -> None:
        self._connection, self._guard, self._keeper, self._prctl = connection, guard, keeper, prctl
        self._poll = select.poll()
        self._running: dict[int, _Worker] = {}  # by pidfd
        self._pids: set[int] = set()  # not reaped
        self._entry: Callable[[list[str]], object] = lambda _: 127
        self._name = ""

    def serve(self) -> None:
        """Returns when nobody asks any more, or nobody would see to the workers; they are killed before that."""
        connection, keeper = self._connection.fileno(), os.pidfd_open(os.getppid())
        for fd in (connection, keeper):
            self._poll.register(fd, select.POLLIN)
        try:
            while True:
                for fd, _ in self._poll.poll():
                    if fd in self._running:  # where not, it was reaped in this same round
                        self._report(fd)
                    elif fd == keeper or (fd == connection and not self._answer()):
                        return
        finally:
            for pid in self._pids:
                self._keeper.kill_group(pid)

    def _answer(self) -> bool:
        """One question; False where the launcher has hung up."""
        asked, fds = self._receive()
        if "worker" in asked:
            self._say(self._get_ready(asked))
        elif "reap" in asked:
            self._reap(asked["reap"])
            self._say({"reaped": asked["reap"]})
        elif asked:
            self._say({"pid": self._fork(asked, fds)})
        return bool(asked)

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        text, fds, _, _ = socket.recv_fds(self._connection, _MESSAGE_BYTES, 3)
        while text and not text.endswith(b"\n"):
            text += self._connection.recv(_MESSAGE_BYTES)
        return (json.loads(text) if text else {}), list(fds)

    def _say(self, answer: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(answer).encode() + b"\n")

    def _get_ready(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            _preload(asked["worker"], asked["engine"])
            self._entry, self._name = entry_of(asked["worker"]), asked["worker"][-1]
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        gc.collect()
        gc.freeze()  # what is here now is never collected, so children do not copy its pages
        return {"threads": num_threads()}

    def _fork(self, asked: dict[str, Any], fds: list[int]) -> int:
        server, worker = os.getpid(), os.fork()
        if worker == 0:
            try:
                self._become_worker(asked, fds, server)
            finally:
                os._exit(127)
        for fd in fds[:2]:
            os.close(fd)
        self._pids.add(worker)
        ended = os.pidfd_open(worker)
        self._running[ended] = _Worker(worker, fds[2])
        self._poll.register(ended, select.POLLIN)
        return worker

    def _reap(self, pid: int) -> None:
        """Its end is reported first: once it is reaped nobody can tell, and its id may be another's."""
        self._keeper.kill_group(pid)
        for ended in [fd for fd, worker in self._running.items() if worker.pid == pid]:
            self._report(ended)
        os.waitpid(pid, 0)
        self._pids.discard(pid)

    def _report(self, ended: int) -> None:
        """Say how a worker ended. It is not reaped, so its process id stays its own."""
        worker = self._running.pop(ended)
        self._poll.unregister(ended)
        os.close(ended)
        how = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert how is not None
        code = how.si_status if how.si_code == os.CLD_EXITED else -how.si_status
        with contextlib.suppress(BrokenPipeError):  # it was given up meanwhile
            os.write(worker.status, f"{code}\n".encode())
        os.close(worker.status)

    def _become_worker(self, asked: dict[str, Any], fds: list[int], server: int) -> None:
        os.setsid()
        self._guard.die_with(server, self._prctl)
        for fd, target in zip((os.open(os.devnull, os.O_RDONLY), *fds[:2]), (0, 1, 2), strict=True):
            os.dup2(fd, target)
        os.closerange(3, 1 << 12)
        os.chdir(asked["cwd"])
        self._guard.pin(asked["cores"])
        self._work(asked["argv"])

    def _work(self, arguments: list[str]) -> None:
        """In the forked worker: what the interpreter would do, and its exit code."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = [self._name, *arguments]
        code = 0
        try:
            self._end(self._entry(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            os._exit(code if _flushed() else _NOT_FLUSHED)

    def _end(self, value: object) -> None:
        if isinstance(value, int):
            raise SystemExit(value)


def main() -> None:
    """Never returns."""
    guard, keeper = _beside("guard"), _beside("keeper")
    connection, prctl = socket.socket(fileno=int(sys.argv[1])), guard.prctl()
    keeper.keep(connection, prctl, Server(connection, guard, keeper, prctl).serve)


if __name__ == "__main__":
    main()
