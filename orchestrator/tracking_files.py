"""The files of a trial's run: what the attempt left, without secrets, and what stands only in its result."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.entries import TrialEntry
from orchestrator.redaction import redacted

_TEXT_BYTES = 8 << 20
_TEXTS = ("spec.json", "result.json", "attempt.json", "lost.json", "log.txt")
_TABLES = ("requests.parquet", "ledger.parquet")


def keep_files(repository: Any, entry: TrialEntry, table_bytes: int) -> list[str]:
    """Put them into the run's artifacts -> tables of more than `table_bytes`, which are left out, in words."""
    left_out = []
    for path in (entry.folder / name for name in _TABLES):
        if path.is_file() and path.stat().st_size <= table_bytes:
            repository.log_artifact(str(path))
        elif path.is_file():
            left_out.append(f"{path.name} ({path.stat().st_size} bytes)")
    with tempfile.TemporaryDirectory(prefix="kvknee-artifacts-") as made:
        for path in _texts_of(entry, Path(made)):
            repository.log_artifact(str(path))
    return left_out


def _texts_of(entry: TrialEntry, made: Path) -> Iterator[Path]:
    """Texts as they are shown; those that are not there as files are written into the folder `made`."""
    for path in (entry.folder / name for name in _TEXTS):
        if path.is_file():
            yield _as_shown(path, made)
    if entry.result is None:
        return
    parts: dict[str, Any] = {"ledger.json": entry.result.ledger}
    if not (entry.folder / "result.json").is_file():
        parts["result.json"] = entry.result
    for name, part in parts.items():
        (made / name).write_text(json.dumps(part.model_dump(mode="json"), indent=2), encoding="utf-8")
        yield made / name


def _as_shown(path: Path, made: Path) -> Path:
    """The file as it is, unless a secret stands in it; of a very long one its end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _TEXT_BYTES))
        text = file.read().decode("utf-8", "replace")
    safe = redacted(text)
    if safe == text and size <= _TEXT_BYTES:
        return path
    (made / path.name).write_text(safe, encoding="utf-8")
    return made / path.name


def shown(values: Mapping[str, str]) -> dict[str, str]:
    """The values without secrets. They are looked through as one text first, since there is hardly ever one."""
    whole = "\n".join(values.values())
    if redacted(whole) == whole:
        return dict(values)
    return {key: redacted(value) for key, value in values.items()}
