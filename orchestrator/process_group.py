"""A worker and all that it starts, as one process group behind a guard: started, listened to, ended."""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

EndedBy = Literal["itself", "signal", "start_deadline", "run_deadline", "stop", "never_started"]

_GUARD = Path(__file__).with_name("guard.py")
_LOOK_S = 0.1  # how often a request to stop is looked for
_LINE_BYTES = 1 << 16
_READS = 4  # at a time, of as many bytes; a pipe holds one


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds: until the first `progress` line, after it, and between SIGTERM and SIGKILL."""

    start_s: float = 300.0
    run_s: float = 3600.0
    grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Guarded:
    """A group as its launcher holds it: the process that leads it, and our ends of its stdout and of the report.

    `let_go` ends what is left of the group and gives its id back. `owned`: the id is still the leader's own; where
    it may be anybody's by now, it is not signalled.
    """

    pid: int
    stdout: int
    status: int
    let_go: Callable[[], object]
    owned: Callable[[], bool] = lambda: True


def start_by_exec(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, log: IO[bytes], cores: Sequence[int] = ()
) -> Guarded:
    """A new interpreter behind a new guard. Raises OSError when the guard cannot be started."""
    reading, writing = os.pipe()
    try:
        pinned = ",".join(map(str, cores)) or "-"
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), str(writing), pinned, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            cwd=cwd,
            env=dict(env),
            pass_fds=(writing,),
            start_new_session=True,
        )
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    assert guard.stdout is not None
    stdout = os.dup(guard.stdout.fileno())
    guard.stdout.close()
    return Guarded(guard.pid, stdout, reading, lambda: _let_go(guard))


def _let_go(guard: "subprocess.Popen[bytes]") -> None:
    """Close its stdin: a guard that nobody can signal any more ends its group by this."""
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


class ProcessGroup:
    """A running worker. `exit_code`: negative = killed by that signal; None while it runs, or when ended by us.

    `measuring` is set when its engine has started.
    """

    def __init__(self, guarded: Guarded, log: IO[bytes]) -> None:
        self.exit_code: int | None = None
        self.measuring = threading.Event()
        self._guarded = guarded
        self._lines = _Lines(guarded.stdout, log)

    def listen(
        self, deadlines: Deadlines, stop: threading.Event, every_s: float = 0.0
    ) -> Generator[str, None, EndedBy]:
        """Yields the newest progress, not before `every_s` and then not more often; returns what ended the wait."""
        stdout, status = self._guarded.stdout, self._guarded.status
        limit, started = time.monotonic() + deadlines.start_s, False
        newest, passed_on_s = None, time.monotonic()
        looked_at = select.poll()
        for fd in (stdout, status):
            looked_at.register(fd, select.POLLIN)
        while True:
            wait_s = max(0.0, min(_LOOK_S, limit - time.monotonic()))
            ready = {fd for fd, _ in looked_at.poll(math.ceil(1000 * wait_s))}
            newest = (self._lines.read() if ready else None) or newest
            if self._lines.measuring and not started:
                limit, started = time.monotonic() + deadlines.run_s, True
                self.measuring.set()
            if newest is not None and time.monotonic() - passed_on_s >= every_s:
                yield newest
                newest, passed_on_s = None, time.monotonic()
            if self._lines.ended and stdout in ready:
                looked_at.unregister(stdout)
            if status in ready:
                self.exit_code = self._word()
                return "itself" if self.exit_code >= 0 else "signal"
            if stop.is_set():
                return "stop"
            if time.monotonic() >= limit:
                return "run_deadline" if started else "start_deadline"

    def _word(self) -> int:
        """The guard's report. It says nothing when it was itself killed, which only SIGKILL can do."""
        said = os.read(self._guarded.status, 64)
        return int(said) if said.strip() else -signal.SIGKILL

    def end(self, grace_s: float) -> None:
        """SIGTERM to the group, SIGKILL after `grace_s`. Its leader is reaped after it, so the group id is ours."""
        if self.exit_code is None:
            self._signal(signal.SIGTERM)
            looked_at = select.poll()
            looked_at.register(self._guarded.status, select.POLLIN)
            looked_at.poll(1000 * grace_s)
        self._signal(signal.SIGKILL)
        self._guarded.let_go()
        try:
            self._lines.read()
        finally:  # the log's disk may be full
            os.close(self._guarded.status)
            os.close(self._guarded.stdout)

    def _signal(self, number: signal.Signals) -> None:
        if not self._guarded.owned():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guarded.pid, number)


class _Lines:
    """A worker's stdout: whole lines as they come, JSON objects with `starting` or `progress`; others are logged.

    `measuring`: a `progress` line was seen, so the engine has started.
    """

    def __init__(self, fd: int, log: IO[bytes]) -> None:
        os.set_blocking(fd, False)
        self._fd, self._log, self._rest = fd, log, b""
        self.ended = self.measuring = False

    def read(self) -> str | None:
        """What is there now, at most a few reads of it: it may come faster than it is logged, and whoever reads has
        deadlines to keep. The newest progress in it, if any."""
        newest = None
        for _ in range(_READS):
            try:
                chunk = b"" if self.ended else os.read(self._fd, _LINE_BYTES)
            except BlockingIOError:
                break
            self.ended = not chunk
            lines = (self._rest + (chunk or b"\n" * bool(self._rest))).split(b"\n")
            self._rest = lines.pop()
            if len(self._rest) > _LINE_BYTES:  # no line: never kept in memory
                lines, self._rest = [*lines, self._rest], b""
            newest = self._take(lines) or newest
        return newest

    def _take(self, lines: list[bytes]) -> str | None:
        newest, others = None, []
        for line in lines:
            said = _said(line)
            if said is None:
                others.append(line + b"\n")
            else:
                newest = said[1]
                self.measuring = self.measuring or said[0] == "progress"
        if others:
            self._log.write(b"".join(others))
        return newest


def _said(line: bytes) -> tuple[str, str] | None:
    """`starting` or `progress`, and the text; None where the line is neither."""
    try:
        said = json.loads(line) if line.lstrip().startswith(b"{") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    return next(((kind, str(said[kind])) for kind in ("progress", "starting") if kind in said), None)
