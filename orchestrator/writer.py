"""One background thread that carries entries from the spool to wherever they are sent."""

import threading
from collections.abc import Callable
from typing import Protocol

from orchestrator.entries import Entry, encode
from orchestrator.redaction import redacted
from orchestrator.spool import Spool

_HELD_IN_MEMORY = 100
_LONGEST_PAUSE_S = 30.0


class Connection(Protocol):
    """What carries entries on, one after the other."""

    def send(self, text: str, key: int) -> None:
        """Send an entry as it stands in the spool; `key` is its place there. Raises where it did not arrive."""

    def close(self) -> None:
        """Nothing more will be sent. May be called twice."""


class SpoolWriter:
    """`put` never blocks and never raises. `connect` is called on the thread, once, and does not raise.

    Memory holds a number an entry. Only what a full disk refuses is held as text, and never more than 100 of it.
    """

    def __init__(self, spool: Spool, connect: Callable[[], Connection]) -> None:
        self.trouble = ""
        self._spool, self._connect = spool, connect
        self._failures = dict.fromkeys(spool.unsent, 0)  # by offset in the spool; negative: held in memory
        self._held: dict[int, str] = {}
        self._refused = 0
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="kvknee-tracking", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Into the spool, or, where that fails, into memory."""
        try:
            text = encode(entry)
        except Exception as error:
            self.trouble, self._refused = f"an entry cannot be written: {error}", self._refused + 1
            return
        with self._changed:
            key = self._keep(text)
            if key is not None:
                self._failures[key] = 0
                self._changed.notify()

    def _keep(self, text: str) -> int | None:
        try:
            return self._spool.append(text)
        except (OSError, ValueError) as error:
            self.trouble = f"the spool cannot be written: {error}"
        if len(self._held) >= _HELD_IN_MEMORY:
            self._refused += 1
            return None
        key = min(self._held, default=0) - 1
        self._held[key] = text
        return key

    def close(self, timeout_s: float) -> int:
        """Try what is left, each until two rounds in a row were in vain, for at most `timeout_s` -> entries unsent.

        May be called twice.
        """
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(timeout_s)
        with self._changed:
            return len(self._failures) + self._refused

    def _work(self) -> None:
        connection = self._connect()
        try:
            self._until_closed(connection)
        finally:
            connection.close()
            with self._changed:
                self._spool.close()

    def _until_closed(self, connection: Connection) -> None:
        pause_s, in_vain = 0.0, 0
        while True:
            if pause_s:
                self._closing.wait(pause_s)
            with self._changed:
                self._changed.wait_for(lambda: self._failures or self._closing.is_set())
                left = len(self._failures)
            closing = self._closing.is_set()
            if left:
                sent = self._round(connection)
                in_vain = 0 if sent else in_vain + 1
                pause_s = 0.0 if sent else min(_LONGEST_PAUSE_S, max(1.0, 2 * pause_s))
            if closing and (not left or in_vain > 1):  # what failed once may have come too early
                return

    def _round(self, connection: Connection) -> int:
        """Try each once, those that failed before last -> how many went. Two failures in a row end the round."""
        with self._changed:
            due = sorted(self._failures, key=lambda key: (self._failures[key], key))
        sent = in_a_row = 0
        for key in due:
            try:
                self._carry(key, connection)
            except Exception as error:
                self.trouble = redacted(f"{type(error).__name__}: {error}")
                with self._changed:
                    self._failures[key] += 1
                in_a_row += 1
                if in_a_row == 2:
                    break
            else:
                sent, in_a_row = sent + 1, 0
                with self._changed:
                    del self._failures[key]
                    self._held.pop(key, None)
        return sent

    def _carry(self, key: int, connection: Connection) -> None:
        if key < 0:
            connection.send(self._held[key], key)
            return
        self._spool.sync()
        connection.send(self._spool.text(key), key)
        self._spool.mark(key)
