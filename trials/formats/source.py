"""One text file as a reader sees it, and how a refusal names a place in it."""

from dataclasses import dataclass, field
from pathlib import Path

from trials.trace import TraceError


@dataclass(frozen=True, slots=True)
class Source:
    """One text file: lines without their ends, trailing empty lines left out."""

    path: Path
    lines: list[str]
    sha256: str
    unread: dict[str, None] = field(default_factory=dict)  # columns that the reader does not know, in order met
    unit: str = "line"  # what rows are counted in: lines, or the requests or spans of a document

    def bad(self, place: int, reason: str, unit: str | None = None) -> TraceError:
        """The refusal of a place, which counts from 1."""
        return TraceError(f"{self.path}, {unit or self.unit} {place}: {reason}")
