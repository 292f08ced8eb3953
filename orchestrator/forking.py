"""The launcher's side of a fork server: one for each kind of worker, asked for a process a trial.

Only trials of our own engines are forked, and only where the server ended its imports with a single thread: a
fork copies no thread, and what another thread held would stay held. Whatever stands in the way of forking is a
reason in words, and the trial gets a new interpreter instead.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from orchestrator.process_group import Guarded
from trials.preload import FORKABLE
from trials.spec import TrialSpec

_SERVER = Path(__file__).with_name("fork_server.py")
_READY_S = 120.0  # imports, on a machine that does much else
_ANSWER_S = 30.0
_END_S = 10.0  # it takes milliseconds


class CannotFork(RuntimeError):
    """Why a trial needs a new interpreter instead."""


class ForkServer:
    """A running server. `start` and `reap` are for one thread at a time; raises CannotFork when it breaks."""

    def __init__(self, python: str, env: Mapping[str, str], worker: Sequence[str], engine: str) -> None:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as failed, theirs:
            failed.callback(ours.close)
            self._process = subprocess.Popen(
                [python, "-P", str(_SERVER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict(env),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            failed.pop_all()
        self._socket = ours
        self._lock = threading.Lock()
        try:
            threads = self._ask({"worker": list(worker), "engine": engine}, limit_s=_READY_S)["threads"]
            if threads != 1:
                raise CannotFork(f"its fork server has {threads} threads after its imports")
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        if self._process.poll() is not None:
            return False
        hung_up = select.poll()
        hung_up.register(self._socket, 0)
        return not hung_up.poll(0)

    @property
    def pid(self) -> int:
        """Of its keeper, whose child it is."""
        return self._process.pid

    def start(self, arguments: Sequence[str], cwd: Path, log: IO[bytes], cores: Sequence[int]) -> Guarded:
        """A forked worker, led as one that was executed."""
        asked = {"argv": list(arguments), "cwd": str(cwd), "cores": list(cores)}
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            stdout, stdout_theirs = _pipe(ours, theirs)
            status, status_theirs = _pipe(ours, theirs)
            pid = self._ask(asked, (stdout_theirs, log.fileno(), status_theirs))["pid"]
            leader = _pidfd(pid)
            ours.pop_all()
        return Guarded(pid, stdout, status, lambda: self._reap(pid, leader), lambda: _is_own(pid, leader))

    def _reap(self, pid: int, leader: int) -> None:
        """A server that cannot do it is of no use any more, and its keeper has killed the worker."""
        os.close(leader)
        with contextlib.suppress(CannotFork):
            self._ask({"reap": pid})

    def _ask(self, asked: dict[str, Any], fds: Sequence[int] = (), limit_s: float = _ANSWER_S) -> dict[str, Any]:
        with self._lock:
            try:
                self._socket.settimeout(limit_s)
                socket.send_fds(self._socket, [json.dumps(asked).encode() + b"\n"], list(fds))
                text = b""
                while not text.endswith(b"\n"):
                    part = self._socket.recv(1 << 16)
                    if not part:
                        raise CannotFork(f"its fork server ended with exit code {self._process.wait(_ANSWER_S)}")
                    text += part
            except (OSError, subprocess.TimeoutExpired) as error:
                self.close()
                raise CannotFork(f"its fork server does not answer: {error or type(error).__name__}") from None
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            raise CannotFork(f"its fork server: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the server and all that it forked: its keeper does, once this end hangs up.

        Where neither does anything, as when both were stopped, they are killed: they are one group.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which a copy of it, in a fork of ours, does not hold up
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise CannotFork("its fork server ended as soon as it had forked") from None


def _is_own(pid: int, leader: int) -> bool:
    """Whether a group `pid` can only be a worker's: it was not reaped (`leader`: its pidfd), or its id is nobody's.

    The latter is so where server and keeper were killed at once, and nobody killed what the worker had started.
    """
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(leader, 0)
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose reading end is closed with `ours`, its writing end with `theirs`."""
    reading, writing = os.pipe()
    ours.callback(os.close, reading)
    theirs.callback(os.close, writing)
    return reading, writing


class ForkServers:
    """The fork server of one slot: started when first needed, again for another kind of worker or when it broke."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._server: ForkServer | None = None
        self._why = ""  # why this kind of worker cannot be forked

    def of(self, spec: TrialSpec, python: str, env: Mapping[str, str], worker: tuple[str, ...]) -> ForkServer:
        """Raises CannotFork, again without trying where the same was tried before."""
        if why := why_not(spec, worker):
            raise CannotFork(why)
        key = (python, tuple(sorted(env.items())), worker, spec.engine.name)
        if key != self._key:
            self.close()
            self._key, self._why = key, ""
        if self._why:
            raise CannotFork(self._why)
        if self._server is None or not self._server.alive:
            self.close()
            try:
                self._server = ForkServer(python, env, worker, spec.engine.name)
            except CannotFork as error:
                self._why = str(error)
                raise
            except OSError as error:  # says nothing of the worker: there may be descriptors and memory next time
                raise CannotFork(f"its fork server could not be started: {error}") from None
        return self._server

    def close(self) -> None:
        """End the server; the next `of` starts another."""
        if self._server is not None:
            self._server.close()
            self._server = None


def why_not(spec: TrialSpec, worker: tuple[str, ...]) -> str:
    """Why trials of this spec are not forked; empty where they may be."""
    if not hasattr(os, "pidfd_open"):
        return f"nothing is forked on {sys.platform}, which has no pidfd_open"
    if spec.engine.name not in FORKABLE or spec.engine.device != "cpu":
        return f"engine {spec.engine.name} on {spec.engine.device} gets an interpreter of its own"
    if worker[-2:-1] != ("-m",) and not worker[-1].endswith(".py"):
        return "this worker is neither a module nor a file"
    return ""
