"""Entries on disk until they are sent: two append-only files of lines, safe against a driver that is killed.

entries.jsonl holds the entries, sent.log the offsets of those that arrived. An entry is known by the byte offset
of its line, so that memory holds a number an entry and nothing more. One driver at a time uses a spool.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class Spool:
    """`append` belongs to one thread, `text`, `sync` and `mark` to another."""

    def __init__(self, folder: Path) -> None:
        """Open or create. Where everything is sent, the files begin anew. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._entries, self._sent = folder / "entries.jsonl", folder / "sent.log"
        self._in = os.open(self._entries, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._out = os.open(self._sent, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._end, self._on_disk = self._closed_line(), 0
        marked = self._marked()
        self.unsent = [offset for offset in self._offsets() if offset not in marked]
        """Offsets found unsent when the spool was opened, oldest first."""
        if not self.unsent:
            self._begin_anew()

    def _closed_line(self) -> int:
        """Cut a line that a killed driver left unfinished; returns where the next one begins."""
        content = self._entries.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._in, whole)
        return whole

    def _offsets(self) -> Iterator[int]:
        at = 0
        with self._entries.open("rb") as handle:
            for line in handle:
                yield at
                at += len(line)

    def _marked(self) -> set[int]:
        """Only whole lines count: a torn number could name another entry."""
        lines = self._sent.read_bytes().split(b"\n")[:-1]
        return {int(line) for line in lines if line.isdigit()}

    def _begin_anew(self) -> None:
        os.ftruncate(self._out, 0)  # first: a mark without its entry would hide the next one at that offset
        os.fsync(self._out)
        os.ftruncate(self._in, 0)
        self._end = self._on_disk = 0

    def append(self, text: str) -> int:
        """Write one line into the system's hands (a killed process loses nothing) -> its offset. Raises OSError."""
        if "\n" in text:
            raise ValueError("an entry is one line")
        line = text.encode() + b"\n"
        at, written = self._end, os.write(self._in, line)
        if written != len(line):  # a full disk: take the piece back
            with contextlib.suppress(OSError):
                os.ftruncate(self._in, at)
            raise OSError(f"{self._entries}: only {written} of {len(line)} bytes could be written")
        self._end += written
        return at

    def text(self, offset: int) -> str:
        with self._entries.open("rb") as handle:
            handle.seek(offset)
            return handle.readline().decode()

    def sync(self) -> None:
        """Have the entries on the disk itself; one wait is for all that came since the last."""
        end = self._end
        if end != self._on_disk:
            os.fsync(self._in)
            self._on_disk = end

    def mark(self, offset: int) -> None:
        """This entry arrived."""
        os.write(self._out, b"%d\n" % offset)

    def close(self) -> None:
        """Nothing can be written afterwards (OSError). May be called twice."""
        entries, marks, self._in, self._out = self._in, self._out, -1, -1  # a number may soon be another file's
        for descriptor in (entries, marks):
            if descriptor >= 0:
                os.fsync(descriptor)
                os.close(descriptor)
