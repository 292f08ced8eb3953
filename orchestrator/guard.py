"""Stands between the launcher and a worker, so that nothing of a trial outlives whoever started it.

Run as a script by path: `python -I -S guard.py STATUS_FD CORES COMMAND...`, leader of a new process group, stdin a
pipe whose other end only the launcher holds. It starts the worker in its own group, writes the worker's exit code
(negative: killed by that signal) to STATUS_FD, and stays until its stdin ends. Then it kills the whole group: after
a trial, and also when the launcher itself is killed, since the kernel closes the pipe. Works for grandchildren,
which PR_SET_PDEATHSIG alone does not; that one is set too, on Linux, in case the guard itself is killed. CORES:
`0,1`, or `-` for whatever the machine gives. A fork server's workers share one guard: keeper.py.
"""

import os
import signal
import sys
from collections.abc import Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
Prctl = Callable[[int, int], object]


def prctl() -> Prctl | None:
    """The system call; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    found: Prctl = ctypes.CDLL(None).prctl
    return found


def die_with(parent: int, call: Prctl | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies; where it cannot, the pipe alone must do.

    `call`: what `prctl` gave, where many processes are forked and should not each look for it.
    """
    call = call or prctl()
    if call is None:
        return
    call(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(1)


def pin(cores: list[int]) -> None:
    """Keep this process and all that it starts on these cores; an empty list leaves it as it is."""
    if cores:
        os.sched_setaffinity(0, cores)


def _execute(command: list[str]) -> None:
    try:
        os.execve(command[0], command, os.environ)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error}\n".encode())


def stand(status: int, command: list[str]) -> None:
    """Start `command` as a worker, and guard it; never returns. Call it with one thread, leading a group."""
    for number in _SIGNALS:  # the group gets SIGTERM first; the guard must see the worker's end
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(status, False)
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        try:
            die_with(guard)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            _execute(command)
        finally:
            os._exit(127)
    import _thread

    _thread.start_new_thread(_report, (worker, status))
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def _report(worker: int, status: int) -> None:
    _, wait_status = os.waitpid(worker, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(wait_status)}\n".encode())
    os.close(status)


if __name__ == "__main__":
    pin([int(core) for core in sys.argv[2].split(",") if core != "-"])
    stand(int(sys.argv[1]), sys.argv[3:])
