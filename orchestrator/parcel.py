"""A trial's files on their way from the node that made them to the driver: bytes with checksums.

The result goes in last, so a folder that holds result.json holds all that belongs to it.
"""

import hashlib
import stat
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.launch import Outcome
from trials.trace import write_whole

_LAST = "result.json"
_ASKED = "spec.json"  # the driver's own stays: that one leads to paths of the node
_LOG_BYTES = 16 << 20
_MOST_BYTES = 4 << 30


class ParcelDamaged(ValueError):
    """What arrived is not what was sent."""


@dataclass(frozen=True, slots=True)
class File:
    """One file: a plain name, its bytes, and their digest where they were read."""

    name: str
    content: bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """How the trial ended, and all that it left."""

    outcome: Outcome
    files: tuple[File, ...]


def collect(outcome: Outcome, out: Path) -> Parcel:
    """All files of `out` that are whole; names that begin with a dot are somebody's temporary files.

    Of a log of more than 16 MiB the end is sent, and how much was left out. Links, and files of more than 4 GiB,
    which a message of Ray's would not carry either, stay where they are.
    """
    files = []
    for name in outcome.files:
        if name.startswith(".") or name == _ASKED:
            continue
        path = out / name
        found = path.lstat()
        if not stat.S_ISLNK(found.st_mode) and (name == "log.txt" or found.st_size <= _MOST_BYTES):
            content = _end_of(path) if name == "log.txt" else path.read_bytes()
            files.append(File(name, content, hashlib.sha256(content).hexdigest()))
    return Parcel(outcome, tuple(files))


def _end_of(log: Path) -> bytes:
    left_out = max(0, log.stat().st_size - _LOG_BYTES)
    with log.open("rb") as handle:
        handle.seek(left_out)
        kept = handle.read()
    return f"... {left_out} bytes left out\n".encode() + kept if left_out else kept


def deliver(parcel: Parcel, folder: Path) -> None:
    """Write every file whole into `folder`. Raises ParcelDamaged before anything is written."""
    for file in parcel.files:
        if hashlib.sha256(file.content).hexdigest() != file.sha256:
            raise ParcelDamaged(f"{file.name} arrived with another checksum than it was sent with")
        if file.name in ("", ".", "..") or Path(file.name).name != file.name or "\0" in file.name:
            raise ParcelDamaged(f"{file.name!r} is not a plain file name")
    (folder / _LAST).unlink(missing_ok=True)
    for file in sorted(parcel.files, key=lambda f: f.name == _LAST):
        write_whole(folder / file.name, partial(_put, file.content))


def _put(content: bytes, path: Path) -> None:
    path.write_bytes(content)
