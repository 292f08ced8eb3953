"""What outlives a fork server: it sees to the workers when the server, or whoever started both, is gone.

Workers are the server's children, each leading a group and a session, and die with it (PR_SET_PDEATHSIG). For what
they started the keeper is there: as the subreaper above the server it inherits what the server leaves, so that
nobody else can get a worker's process id before that worker's group was killed. One stays for all trials of a
server, and costs them nothing. Linux alone. Loaded by path, as guard.py is.
"""

import _thread
import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SWEEP_S = 5  # for what has left its group, which is let go


def keep(connection: socket.socket, prctl: Callable[[int, int], object], serve: Callable[[], None]) -> None:
    """Fork a server that calls `serve`, stay until it ends, and end it when `connection` hangs up; never returns.

    A server whose keeper dies has to kill its workers' groups by itself.
    """
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server = os.fork()
    if server == 0:
        try:
            serve()
            os._exit(0)
        finally:
            os._exit(1)
    _thread.start_new_thread(_end_with, (connection.fileno(), os.pidfd_open(server)))
    serving, code = True, 0
    with contextlib.suppress(ChildProcessError):  # until nobody is left
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT):
            if ended.si_pid == server:
                serving, code = False, ended.si_status  # where it was killed, the signal
                signal.alarm(_SWEEP_S)
                # First, so that the launcher signals no group whose id may soon be another's.
                connection.shutdown(socket.SHUT_RDWR)
            if not serving:
                kill_group(ended.si_pid)
            os.waitpid(ended.si_pid, 0)
    os._exit(code)


def _end_with(connection: int, server: int) -> None:
    """Kill the server when the launcher is gone. `server`: its pidfd, so that it can be nobody else."""
    hung_up = select.poll()
    hung_up.register(connection, 0)
    hung_up.poll()
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(server, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """SIGKILL to a child that was not waited for, and to its group where it leads one."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
