"""Quantities as people write them: `16GiB`, `500ms`, `10min`, `128k`. Integers come out, or a clear error."""

import difflib
import re
from collections.abc import Iterable
from decimal import Decimal, DecimalException
from pathlib import Path

_NUMBER = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?)\s*([A-Za-zµ]*)\s*")
_MOST = 2**63 - 1  # what a column of the trace or the ledger holds
_LONGEST_SHOWN = 60
_MOST_INSIDE = 4  # files of a folder that are named
_BYTES = {
    "": 1, "B": 1,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
BYTE_UNITS = tuple((unit, _BYTES[unit]) for unit in ("GiB", "MiB", "KiB"))  # in which bytes are shown
_NS = {
    "ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9,
    "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9,
}  # fmt: skip
_COUNT = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}


class SpecError(ValueError):
    """A user's request cannot be carried out as written; the message says what was asked and what to do."""


def shown(value: object) -> str:
    """A value as an error message shows it: never longer than a line."""
    if isinstance(value, str | int | float | bool | type(None)):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of over 40 digits"
    else:
        text = f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, list | tuple | dict) else "")
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _parse(text: object, units: dict[str, int], what: str, example: str) -> int:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise SpecError(f"{what}: {shown(text)} is not a quantity; write it like {example}")
    match = _NUMBER.fullmatch(text if isinstance(text, str) else shown(text))
    if not match:
        raise SpecError(f"{what}: {shown(text)} is not a number with a unit; write it like {example}")
    number, unit = match.groups()
    if unit not in units:
        known = ", ".join(u for u in units if u)
        missing = "has no unit" if not unit else f"has the unknown or ambiguous unit {shown(unit)}"
        raise SpecError(f"{what}: {shown(text)} {missing}; one of {known} is needed, for example {example}")
    return _whole(number, unit, units, f"{what}: {shown(text)}")


def _whole(number: str, unit: str, units: dict[str, int], said: str) -> int:
    """`number` times its unit, to the nearest whole; a count is never rounded, and nothing is rounded to 0."""
    try:
        value = Decimal(number) * units[unit]
    except DecimalException:
        raise SpecError(f"{said} is out of range") from None
    if abs(value) > _MOST:
        raise SpecError(f"{said} is out of range: at most {_MOST} of the smallest unit")
    whole = int(value.to_integral_value())
    if whole != value and (whole == 0 or units[unit] == 1 or units is _COUNT):
        raise SpecError(f"{said} is not a whole number of the smallest unit")
    return whole


def parse_bytes(text: object, what: str = "bytes") -> int:
    """`16GiB`, `500MB` or a plain number of bytes -> bytes. `16G` is refused: it has two meanings."""
    return _parse(text, _BYTES, what, "16GiB")


def byte_unit(value: float) -> tuple[str, int]:
    """The largest unit that so many bytes reach, and how many bytes it has."""
    return next(((unit, scale) for unit, scale in BYTE_UNITS if abs(value) >= scale), ("B", 1))


def parse_ns(text: object, what: str = "duration") -> int:
    """`500ms`, `10min`, `0s` -> nanoseconds. A number without a unit is refused, except 0."""
    if not isinstance(text, bool) and text in (0, "0"):
        return 0
    return _parse(text, _NS, what, "500ms")


def parse_count(text: object, what: str = "count") -> int:
    """`8192`, `128k` (= 128,000) -> a whole number."""
    return _parse(text, _COUNT, what, "8192")


def nearest(name: str, known: Iterable[str]) -> str:
    """End of an error message about an unknown name: the known ones, the likeliest first."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(sorted(names))}"


def folder_words(path: Path, needed: str, ending: str = "") -> str:
    """An error message about a folder where a file belongs; of files with that ending, what it holds."""
    inside = sorted(p.name for p in path.glob(f"*{ending}")) if ending else []
    more = f" and {len(inside) - _MOST_INSIDE} more" if len(inside) > _MOST_INSIDE else ""
    holds = f" (it holds {', '.join(inside[:_MOST_INSIDE])}{more})" if inside else ""
    return f"{path}: this is a folder{holds}, and {needed} is needed; name the file itself"


def require_utf8(text: str, what: str) -> None:
    """SpecError where a path has bytes that are no UTF-8: Python keeps them, and no file that names it can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise SpecError(
            f"{what} {text!a}: holds bytes that are no UTF-8, and what is written has to name it; rename it, or "
            "choose another"
        ) from None
