"""The worker's code: an archive that holds only trials/, unpacked once a digest and put on a worker's path.

Unpacked rather than imported from the zip, because numba keeps compiled kernels beside their source: with one
folder a digest, the first trial compiles and the others load. The folder is named by its content, and its content
is checked again before it is used, so the digest that is recorded is the code that runs.
"""

import hashlib
import io
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trials

_MOST_BYTES = 64 << 20  # unpacked
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the archive depends on content alone


@dataclass(frozen=True, slots=True)
class Package:
    """`digest`: sha256 over names and contents. `archive`: a zip, the same bytes for the same content."""

    digest: str
    archive: bytes


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Files below root/trials, sorted by name; compiled things are not content."""
    for path in sorted((root / "trials").rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield name, path


def _digest(root: Path) -> str:
    h = hashlib.sha256(b"kvknee-package-1\n")
    for name, path in _files(root):
        h.update(f"{name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return h.hexdigest()


def pack(root: Path | None = None) -> Package:
    """Archive `root`/trials; None: the package that is imported here."""
    root = Path(trials.__file__).resolve().parent.parent if root is None else root
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _files(root):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return Package(_digest(root), buffer.getvalue())


def install(package: Package, cache: Path | None = None) -> Path:
    """The folder to put on PYTHONPATH. `cache` None: one of this user in the system's temporary folder.

    Several processes may install at once: each unpacks aside and renames, and the first one stays.
    Raises ValueError when the archive is not what its digest says.
    """
    cache = own_folder() if cache is None else cache
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"trials-{package.digest[:16]}"
    if folder.is_dir() and _digest(folder) == package.digest:
        return folder
    aside = Path(tempfile.mkdtemp(dir=cache, prefix=".trials-"))
    try:
        with zipfile.ZipFile(io.BytesIO(package.archive)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > _MOST_BYTES:
                raise ValueError(f"the package of trials/ has {unpacked} bytes unpacked, more than {_MOST_BYTES}")
            archive.extractall(aside)  # names that would lead out of the folder are made to stay in it
        if _digest(aside) != package.digest:
            raise ValueError("the package of trials/ is damaged: its content is not what its digest says")
        return _settle(aside, folder, package.digest)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _settle(aside: Path, folder: Path, digest: str) -> Path:
    if folder.is_dir() and _digest(folder) != digest:  # edited by hand or half deleted
        shutil.rmtree(folder, ignore_errors=True)
    try:
        aside.rename(folder)
    except OSError:
        if not folder.is_dir() or _digest(folder) != digest:
            raise
    return folder


def own_folder() -> Path:
    """This user's cache on this machine: code, content, compiled kernels.

    A foreign or open one of that name is never trusted.
    """
    folder = Path(tempfile.gettempdir()) / f"kvknee-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    mine = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
    return folder if mine else Path(tempfile.mkdtemp(prefix="kvknee-"))
