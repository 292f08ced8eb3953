"""A process that has imported what trials need, started no thread and touched no device, and forks one a trial.

Run as a script by path, `python -P fork_server.py SOCKET_FD`, in the environment that a worker would get. It speaks
JSON lines over the socket, one question at a time: `{"worker": [...], "engine": name}` -> `{"threads": n}` or
`{"error": words}`; `{"argv": [...], "cwd": path, "cores": [...]}` with four descriptors (the guard's stdin, the
worker's stdout, the log, the status pipe) -> `{"pid": n}`; `{"reap": pid}` -> `{"reaped": pid}`. Until a guard is
reaped its process id is its own. When the socket ends, so does the server; its guards see to the rest.
"""

import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_MESSAGE_BYTES = 1 << 20


def _guard_module() -> ModuleType:
    """guard.py beside this file; the package that both belong to is not on a worker's path."""
    spec = importlib.util.spec_from_file_location("kvknee_guard", Path(__file__).with_name("guard.py"))
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


def num_threads() -> int:
    """Threads of this process, also those that Python does not know."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        import threading

        return threading.active_count()


class Server:
    """One launcher's questions, answered in order until it hangs up."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._guard = _guard_module()
        self._entry: Callable[[list[str]], object] = lambda _: 127
        self._name = ""

    def serve(self) -> None:
        while True:
            asked, fds = self._receive()
            if not asked:
                return
            if "worker" in asked:
                self._say(self._get_ready(asked))
            elif "reap" in asked:
                os.waitpid(asked["reap"], 0)
                self._say({"reaped": asked["reap"]})
            else:
                self._say({"pid": self._fork(asked, fds)})

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        text, fds, _, _ = socket.recv_fds(self._connection, _MESSAGE_BYTES, 4)
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
        guard = os.fork()
        if guard == 0:
            try:
                self._become_guard(asked, fds)
            finally:
                os._exit(127)
        for fd in fds:
            os.close(fd)
        return guard

    def _become_guard(self, asked: dict[str, Any], fds: list[int]) -> None:
        os.setsid()
        status = os.dup(fds[3])
        for fd, target in zip(fds[:3], (0, 1, 2), strict=True):
            os.dup2(fd, target)
        os.closerange(3, status)
        os.closerange(status + 1, 1 << 12)
        os.chdir(asked["cwd"])
        self._guard.pin(asked["cores"])
        self._guard.stand(status, lambda: self._work(asked["argv"]))

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
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    def _end(self, value: object) -> None:
        if isinstance(value, int):
            raise SystemExit(value)


if __name__ == "__main__":
    Server(socket.socket(fileno=int(sys.argv[1]))).serve()
