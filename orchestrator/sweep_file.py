"""The resolved sweep as sweep.yaml, read back, and what tells two of them apart."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config import Sweep, SweepConfig
from orchestrator.resolve import resolve
from search_spaces.widening import lost
from trials.documents import read_yaml, validated, with_end


def sweep_yaml(sweep: Sweep) -> str:
    """The resolved sweep as text; reads back as the same sweep."""
    data = sweep.config.model_dump(mode="json", exclude_none=True)
    data.pop("repeat")
    for name in ("tracking", "survival"):
        data.setdefault(name, None)  # absent would mean the default, None means none
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    return with_end("Resolved by kvknee; continue with `kvknee resume` on this folder.", text)


def differences(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """What tells two resolved sweeps apart, `key: stored -> asked`. Where they run is no difference."""
    return list(_differ(_identity(stored), _identity(asked), ""))


def continues(path: Path, sweep: Sweep) -> list[str]:
    """Why the sweep does not go on with the one in this sweep.yaml; empty where it asks the same, or more of it.

    More is a wider space, and more trials: what was measured stays measured.
    """
    stored, asked = read_yaml(path), yaml.safe_load(sweep_yaml(sweep))
    old_space, old_trials = stored.pop("space", None), stored.pop("trials", 0)
    new_space, new_trials = asked.pop("space"), asked.pop("trials")
    found = differences(stored, asked)
    if old_space != new_space and not found:
        found += [f"space: {words}" for words in lost(stored_sweep(path).space, sweep.space)]
    if new_trials < old_trials:
        found.append(f"trials: {old_trials} -> {new_trials}")
    return found


_NOT_ASKED = ("executor", "tracking", "calibration", "engine_says")


def _identity(data: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in data.items() if k not in _NOT_ASKED}
    kept["trace"] = {k: v for k, v in dict(kept.get("trace", {})).items() if k != "path"}
    return kept


def _differ(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differ(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key}: {a} -> {b}"


def stored_sweep(path: Path) -> Sweep:
    """The sweep of a folder's sweep.yaml."""
    return resolve(validated(SweepConfig, read_yaml(path), str(path)), path.resolve().parent)
