"""Sends to MLflow from a process of its own, so that a search does not share its interpreter with MLflow's work.

Run as `python -m orchestrator.tracking_apart DRIVER_PID`. It reads lines from stdin: first where to send, then
entries as they stand in the spool, each after its key; it answers each with a line of JSON, "" or why it did not
arrive. It ends when its stdin does, when the database that it opened is another file, and on Linux at once when its
driver dies, before another driver can take over.
"""

import contextlib
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from orchestrator.guard import die_with
from orchestrator.sqlite_log import WriteAheadLog
from orchestrator.tracking_send import Logged, Sender, Target
from orchestrator.tracking_uri import local_database

_ORDER = TypeAdapter(tuple[Target, Logged])
_END_S = 10.0
_REMEDY = "what it held of this sweep is made anew with `kvknee report DIR --rebuild-tracking`"


class NotSent(Exception):
    """An entry did not arrive; the words are the store's, or say that the sending process ended."""


class ApartSender:
    """A connection for the spool's writer. The process starts with the first entry, and anew where it ended."""

    def __init__(self, target: Target, logged: Logged) -> None:
        self._order = _ORDER.dump_json((target, logged)) + b"\n"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, where one runs."""
        return None if self._process is None else self._process.pid

    def send(self, text: str, key: int) -> None:
        try:
            self._process = self._process or self._started()
            answer = _asked(self._process, b"%d %s\n" % (key, text.strip().encode()))
        except OSError as error:
            self._ended()
            raise NotSent(f"the process that sends to MLflow: {error}") from None
        if not answer:
            code = self._ended()
            raise NotSent(f"the process that sends to MLflow ended with exit code {code}")
        if why := json.loads(answer):
            raise NotSent(why)

    def _started(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.tracking_apart", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # an interrupt from the terminal is for the driver, which ends this in order
        )
        assert process.stdin is not None
        process.stdin.write(self._order)
        return process

    def close(self) -> None:
        """Let it end, which it does once its entry is over."""
        self._ended()

    def _ended(self) -> int | None:
        """End it -> its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it is gone, and so is what was to be said
            process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        process.stdout.close()
        return process.wait()


def _asked(process: "subprocess.Popen[bytes]", line: bytes) -> bytes:
    """The answer to a line; empty where the process ended instead."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    answer = process.stdout.readline()
    return answer if answer.endswith(b"\n") else b""


def serve(lines: IO[bytes], answers: IO[bytes]) -> None:
    """Send what comes, until it ends."""
    target, logged = _ORDER.validate_json(lines.readline())
    database = local_database(target.uri)
    log = WriteAheadLog(database) if database is not None else None
    sender, opened = Sender(target, logged), None
    try:
        for number, line in enumerate(lines):
            key, _, text = line.partition(b" ")
            why = _sent(sender, text.decode(), int(key))
            opened, before = _file(database), opened
            if moved := before is not None and opened != before:
                why = f"{database} was moved, deleted or replaced; {_REMEDY}"
                print(f"tracking: {why}", file=sys.stderr, flush=True)  # what is lost is not sent again by itself
            answers.write(json.dumps(why).encode() + b"\n")
            answers.flush()
            if moved:  # whoever comes next opens the one that is there
                return
            if not number:
                gc.collect()
                gc.freeze()  # MLflow is imported now: a tenth of each entry would go into looking through it
    finally:
        if log is not None:
            log.close()


def _file(database: Path | None) -> tuple[int, int] | None:
    """Which file it is now; None where there is none, or a server."""
    try:
        found = database.stat() if database is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _sent(sender: Sender, text: str, key: int) -> str:
    try:
        sender.send(text, key)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    serve(sys.stdin.buffer, own)
