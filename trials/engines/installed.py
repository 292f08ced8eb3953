"""What an installed engine is: digests of the files that decide what it does, wherever its environment lies.

Nothing is imported for it: one changed byte changes the identity, moving the environment does not.
"""

import functools
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from trials.fingerprint import digest, file_digest
from trials.model import ModelSpec
from trials.model_folder import WEIGHTS

_WHOLE_BYTES = 64 << 20  # larger weights are known by their beginning, which names every tensor, and their size
_BEGINNING_BYTES = 1 << 20


def installed_folder(package: str) -> Path | None:
    """The folder of an installed top-level package, without importing it; None where it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent


def installed_digests(package: str, patterns: Iterable[str]) -> dict[str, str]:
    """sha256 by `package/relative/path` of every file that a pattern names; says so where there is no package."""
    folder = installed_folder(package)
    if folder is None:
        return {package: "absent"}
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {f"{package}/{path.relative_to(folder).as_posix()}": _digest_of(path) for path in sorted(files)}


def _digest_of(path: Path) -> str:
    """Read once a process: a trial asks what its engine is before it opens it, and again when it is open."""
    found = path.stat()
    return _read(path, found.st_ino, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _read(path: Path, inode: int, size: int, mtime_ns: int) -> str:
    return file_digest(path)


def model_digests(model: ModelSpec) -> dict[str, str]:
    """What a model's folder holds that decides, by file name: JSON files and weights. Empty without a folder."""
    if model.path is None:
        return {}
    folder = Path(model.path)
    if not folder.is_dir():
        return {"folder": "absent"}
    return {
        path.name: _digest_of(path) if path.suffix == ".json" else _weights_digest(path)
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", *WEIGHTS)
    }


def _weights_digest(path: Path) -> str:
    size = path.stat().st_size
    if size <= _WHOLE_BYTES:
        return _digest_of(path)
    with path.open("rb") as handle:
        return f"{digest(handle.read(_BEGINNING_BYTES))} of the first MiB, {size} bytes"
