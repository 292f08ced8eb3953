"""A database in a file commits with one wait for the disk instead of four while a sweep writes to it.

SQLite's write-ahead log is asked for on every connection that this process opens to the file, before MLflow uses
it; what stands there is as safe as with SQLite's own default, since each commit is still waited for. Readers, such
as `kvknee ui`, do not hold up the writer. The log needs memory that processes share, which network file systems do
not have, so it is used on disks of this machine alone, and ended with the sweep: what stays is one file, as before.
"""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

_LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"}
_PATIENCE_S = 5.0


class WriteAheadLog:
    """For one file, from now on until `close`. Does nothing where the file lies on no disk of this machine."""

    def __init__(self, database: Path) -> None:
        self._database = database.resolve()
        self._connections: list[sqlite3.Connection] = []
        self.used = file_system(self._database) in _LOCAL
        if self.used:
            from sqlalchemy import event
            from sqlalchemy.engine import Engine

            event.listen(Engine, "connect", self._connected)

    def _connected(self, connection: Any, _record: Any) -> None:
        if isinstance(connection, sqlite3.Connection) and _file_of(connection) == self._database:
            self._connections.append(connection)
            with contextlib.suppress(sqlite3.Error):  # somebody holds it just now: it is as safe without
                connection.execute("PRAGMA journal_mode = WAL").close()

    def close(self) -> None:
        """Back to one file; nobody here uses it any more. Where others read it, the log stays until next time."""
        if not self.used or not self._database.is_file():
            return
        from sqlalchemy import event
        from sqlalchemy.engine import Engine

        event.remove(Engine, "connect", self._connected)
        for one in self._connections:
            one.close()
        with contextlib.suppress(sqlite3.Error), contextlib.closing(_opened(self._database)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")


def _opened(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=_PATIENCE_S)


def _file_of(connection: sqlite3.Connection) -> Path | None:
    named = [row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"]
    return Path(named[0]).resolve() if named and named[0] else None


def file_system(path: Path) -> str:
    """What kind of file system a file lies, or would lie, on; empty where this machine does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for _, mount, named, *_rest in (line.split() for line in lines):
        place = mount.replace("\\040", " ")
        if path.is_relative_to(place) and len(place) >= len(best):
            best, kind = place, named
    return kind
