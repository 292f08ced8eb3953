"""Command-line changes to a YAML mapping: `--set a.b=c` and `--goodput "ttft:500 tpot:50"`."""

import copy
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from trials.documents import parse_value
from trials.slo import slo_from_goodput
from trials.units import SpecError, nearest, shown


def apply_sets(data: dict[str, Any], sets: Sequence[str], model: type[BaseModel]) -> dict[str, Any]:
    """A copy with each `a.b=c` put in; c is read as YAML. An unknown first key is answered with the nearest."""
    out = copy.deepcopy(data)
    for text in sets:
        path, equals, value = text.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise SpecError(f"--set {shown(text)} cannot be read; write it like --set policy.block_size=32")
        if keys[0] not in model.model_fields:
            raise SpecError(f"--set {path}: unknown key {keys[0]!r}; {nearest(keys[0], model.model_fields)}")
        _put(out, keys, parse_value(value, f"--set {shown(text)}"), text)
    return out


def _put(data: dict[str, Any], keys: list[str], value: Any, text: str) -> None:
    """Deeper keys are checked by the model itself when the mapping is validated."""
    at: Any = data
    for depth, key in enumerate(keys[:-1]):
        inner = at.get(key)
        if inner is None:
            inner = at[key] = {}
        if not isinstance(inner, dict):
            here = ".".join(keys[: depth + 1])
            raise SpecError(
                f"--set {shown(text)}: {here} is {shown(inner)}, which has no keys; set {here} as a whole"
            )
        at = inner
    at[keys[-1]] = value


def apply_goodput(data: dict[str, Any], goodput: str | None) -> dict[str, Any]:
    """`--goodput` replaces the SLO text."""
    return data if goodput is None else {**data, "slo": slo_from_goodput(goodput)}
