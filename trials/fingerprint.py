"""Every hash is made here: canonical JSON, and digests of specs, traces, engines and environments.

A hash depends on content alone: not on key order, process, PYTHONHASHSEED, folder, file name or Python.
"""

import hashlib
import importlib.metadata
import json
import math
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trials.spec import TrialSpec
from trials.trace import COLUMNS, Trace

_HERE = Path(__file__).parent


def canonical_json(value: Any) -> str:
    """Sorted keys, no spaces, shortest round-trip floats; NaN and infinity are refused (ValueError)."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        plain = {str(k): _plain(v) for k, v in value.items()}
        if len(plain) < len(value):
            twice = next(k for k in plain if sum(str(key) == k for key in value) > 1)
            raise ValueError(f"key {twice!r} stands twice once keys are text")
        return plain
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value.is_integer() and math.isfinite(value) and abs(value) < 2**53:
        return int(value)  # 1 and 1.0 ask for the same
    return value


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def trace_hash(trace: Trace) -> str:
    """Digest of columns, tokens_per_id and tail rule; name, source and notes do not count."""
    h = hashlib.sha256(b"kvknee-trace-1\n")
    for name in COLUMNS:
        h.update(f"{name}:{len(trace)}\n".encode())
        h.update(np.ascontiguousarray(getattr(trace, name), "<i8").tobytes())
    for name in ("after", "prefix_ids"):
        ragged = getattr(trace, name)
        h.update(f"{name}:{len(ragged.values)}\n".encode())
        h.update(np.ascontiguousarray(ragged.offsets, "<i8").tobytes())
        h.update(np.ascontiguousarray(ragged.values, "<i8").tobytes())
    h.update(f"{trace.meta.tokens_per_id}:{trace.meta.tail_rule}\n".encode())
    return h.hexdigest()


def trace_parts(trace: Trace) -> dict[str, str]:
    """A digest a column, so that two traces that differ can say where: the parts of what `trace_hash` covers."""
    parts = {name: digest(np.ascontiguousarray(getattr(trace, name), "<i8").tobytes()) for name in COLUMNS}
    for name in ("after", "prefix_ids"):
        ragged = getattr(trace, name)
        both = (np.ascontiguousarray(ragged.offsets, "<i8"), np.ascontiguousarray(ragged.values, "<i8"))
        parts[name] = digest(b"".join(column.tobytes() for column in both))
    return {**parts, "tail_rule": trace.meta.tail_rule, "tokens_per_id": str(trace.meta.tokens_per_id)}


def spec_identity(spec: TrialSpec, trace_digest: str, table_digest: str | None = None) -> dict[str, Any]:
    """What the spec hash covers: the spec with locators replaced by digests of what they lead to."""
    identity = spec.model_dump(mode="json")
    identity["trace"].pop("path")
    identity["trace"]["digest"] = trace_digest
    identity["engine"].pop("python")
    if spec.engine.table is not None:
        if table_digest is None:
            raise ValueError(f"{spec.engine.step_time}: the digest of the table is needed, its path does not count")
        identity["engine"]["step_time"] = spec.engine.with_table(table_digest).step_time
    for name in ("name", "path"):
        identity["model"].pop(name)
    return identity


def table_digest_of(spec: TrialSpec) -> str | None:
    """Of the table of step times, where the spec has one. OSError where it is not there."""
    return None if spec.engine.table is None else file_digest(spec.engine.table)


def spec_hash(spec: TrialSpec, trace_digest: str, table_digest: str | None = None) -> str:
    return digest(canonical_json(spec_identity(spec, trace_digest, table_digest)).encode())


def source_digests(names: Iterable[str]) -> dict[str, str]:
    """Digests of files of this package that decide what an engine does; names relative to trials/."""
    return {f"trials/{name}": file_digest(_HERE / name) for name in sorted(names)}


def distribution_versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in sorted(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def engine_hash(identity: Mapping[str, Any]) -> str:
    """Digest of an engine's identity: deciding files, distributions, resolved config, device where measured."""
    return digest(canonical_json(identity).encode())


def environment() -> dict[str, str]:
    """What is printed and compared but never a failure by itself."""
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": platform.system(),
        "machine": platform.machine(),
        **distribution_versions(["numpy", "pyarrow", "pydantic", "torch", "numba", "ray", "optuna", "mlflow"]),
    }


def changed_parts(expected: Mapping[str, Any], found: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every leaf that differs, as `name: old -> new`; absent leaves are called absent."""
    out = []
    for key in sorted(set(expected) | set(found)):
        old, new = expected.get(key, "absent"), found.get(key, "absent")
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            out += changed_parts(old, new, f"{prefix}{key}.")
        elif old != new:
            out.append(f"{prefix}{key}: {old} -> {new}")
    return out
