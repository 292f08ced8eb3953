"""What is remembered of a sweep: the entries, as text in the spool, and as the fields of a run.

Nothing here knows MLflow; its limits are kept all the same (keys, lengths, finite numbers).
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from trials.result import TrialResult
from trials.spec import TrialSpec

MAX_PARAM_CHARS, MAX_TAG_CHARS, MAX_KEY_CHARS = 6000, 5000, 250
_NO_KEY = re.compile(r"[^\w\-. :]", re.ASCII)  # a key of theirs may not look like a path that means another


@dataclass(frozen=True, slots=True)
class TrialEntry:
    """One attempt, finished. `result` None: the infrastructure lost it."""

    number: int
    attempt: int
    spec: TrialSpec
    result: TrialResult | None
    folder: Path
    started_ms: int
    ended_ms: int
    labels: tuple[tuple[str, str], ...] = ()  # e.g. ("kvknee.control", "contiguous"), ("kvknee.reused", "1")


@dataclass(frozen=True, slots=True)
class Content:
    """A file that trials rest on. `digest` is of what it holds: the trace hash, or sha256 of a table's bytes."""

    kind: Literal["trace", "table"]
    digest: str
    path: Path

    @property
    def name(self) -> str:
        """What it is called wherever it is kept: by its content alone."""
        return content_name(self.kind, self.digest)


def content_name(kind: Literal["trace", "table"], digest: str) -> str:
    """`trace-DIGEST.parquet` or `table-DIGEST.json`."""
    return f"{kind}-{digest}.{'parquet' if kind == 'trace' else 'json'}"


@dataclass(frozen=True, slots=True)
class SweepEntry:
    """The parent run: what was asked, and at the end what came out."""

    name: str
    params: tuple[tuple[str, str], ...] = ()
    metrics: tuple[tuple[str, float], ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    artifacts: tuple[Path, ...] = ()
    status: str = "RUNNING"  # FINISHED | FAILED | KILLED when the sweep ends
    ended_ms: int | None = field(default=None)
    content: tuple[Content, ...] = ()
    recipe: Path | None = None  # recipe.yaml of the winner, to be registered; the files it names lie beside it


Entry = TrialEntry | SweepEntry
_TYPES: dict[str, TypeAdapter[Any]] = {"trial": TypeAdapter(TrialEntry), "sweep": TypeAdapter(SweepEntry)}


def encode(entry: Entry) -> str:
    """One line of JSON; NaN and infinity survive."""
    kind = "trial" if isinstance(entry, TrialEntry) else "sweep"
    return json.dumps({kind: _TYPES[kind].dump_python(entry, mode="json")}, separators=(",", ":"))


def decode(text: str) -> Entry:
    """Raises ValueError where the text is no entry."""
    data = json.loads(text)
    if not isinstance(data, dict) or len(data) != 1 or next(iter(data)) not in _TYPES:
        raise ValueError(f"not an entry: {text[:80]}")
    kind, value = next(iter(data.items()))
    entry: Entry = _TYPES[kind].validate_python(value)
    return entry


def flat(value: Any, prefix: str = "", dot: str = ".") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings, `a.b.c` -> leaf; keys hold only what a store accepts."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = _NO_KEY.sub("_", str(key))
            yield from flat(inner, f"{prefix}{dot}{name}" if prefix else name, dot)
    else:
        yield prefix[:MAX_KEY_CHARS], value


def params_of(spec: TrialSpec) -> dict[str, str]:
    """Every field of the spec as text, cut to what a store holds. Unset fields are left out."""
    leaves = flat(spec.model_dump(mode="json"))
    return {key: cut(str(value), MAX_PARAM_CHARS) for key, value in leaves if value is not None}


def metrics_of(result: TrialResult) -> dict[str, float]:
    """Every finite number: `ttft_ms.p99`, `counts/offered`, `ledger/peak/payload`; exact ones are in artifacts."""
    found = {"eligible": float(result.eligible), "audited_steps": float(result.audited_steps)}
    parts = (
        ("", result.metrics.model_dump(mode="json"), "."),
        ("counts", result.counts.model_dump(mode="json"), "/"),
        ("ledger", result.ledger.model_dump(mode="json"), "/"),
    )
    for prefix, values, dot in parts:
        for key, value in flat(values, prefix, dot):
            if isinstance(value, int | float) and math.isfinite(value):
                found[key] = float(value)
    return found


def tags_of(entry: TrialEntry) -> dict[str, str]:
    """What a child run is found and filtered by; labels may add to them and override."""
    tags = {"kvknee.trial": str(entry.number), "kvknee.attempt": str(entry.attempt), "kvknee.status": "lost"}
    if entry.result is not None:
        hashes, result = entry.result.hashes, entry.result
        tags |= {
            "kvknee.spec_hash": hashes.spec, "kvknee.trace_hash": hashes.trace, "kvknee.engine_hash": hashes.engine,
            "kvknee.status": result.status, "kvknee.evidence": result.evidence,
            "kvknee.eligible": str(result.eligible).lower(),
        }  # fmt: skip
        reasons = "; ".join(result.ineligible_because) or result.reason
        if reasons:
            tags["kvknee.reason"] = reasons
    tags |= dict(entry.labels)
    return {key: cut(value, MAX_TAG_CHARS) for key, value in tags.items()}


def run_status(entry: TrialEntry) -> str:
    """FINISHED: it was measured. FAILED: the engine refused or failed. KILLED: the infrastructure lost it."""
    if entry.result is None:
        return "FAILED" if dict(entry.labels).get("kvknee.status") == "failed" else "KILLED"
    return "FINISHED" if entry.result.status == "complete" else "FAILED"


def cut(text: str, chars: int) -> str:
    """At most `chars` characters; a cut text says so."""
    return text if len(text) <= chars else text[: chars - 1] + "…"
