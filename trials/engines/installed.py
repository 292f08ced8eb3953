"""What an installed engine is: digests of the files that decide what it does, wherever its environment lies.

Nothing is imported for it: one changed byte changes the identity, moving the environment does not.
"""

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from trials.fingerprint import file_digest
from trials.model import ModelSpec


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
    return {f"{package}/{path.relative_to(folder).as_posix()}": file_digest(path) for path in sorted(files)}


def model_digests(model: ModelSpec) -> dict[str, str]:
    """sha256 of the JSON files and the name and size of the weights in a model's folder; empty without one."""
    if model.path is None:
        return {}
    out = {}
    for path in sorted(Path(model.path).iterdir()):
        if path.suffix == ".json":
            out[path.name] = file_digest(path)
        elif path.suffix in (".safetensors", ".bin", ".pt"):
            out[path.name] = f"{path.stat().st_size} bytes"
    return out
