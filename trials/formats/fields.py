"""Values as public formats write them: JSON, CSV, whole numbers, seconds, dates. Each is exact or refused.

Times are integers from here on: a float of seconds is taken at the digits that were written.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal, DecimalException
from functools import cache

from trials.formats.source import Source
from trials.units import shown

_MOST_DIGITS = 19  # of an integer: ns since 1970 take 19
_MOST_NS = 10**_MOST_DIGITS
_DAY_NS = 86_400 * 10**9
_STAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(?:\+00:00|Z)?"
)


def json_object(source: Source, line: int, exact: bool = False) -> dict[str, object]:
    """The JSON object on a line (from 1); `exact`: numbers with a fraction come as Decimal."""
    try:
        found = json.loads(source.lines[line - 1], parse_float=Decimal if exact else None)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", "too deep or too long a number")
        raise source.bad(line, f"not a JSON object: {why}; is the file cut short?", "line") from None
    if not isinstance(found, dict):
        raise source.bad(line, f"a JSON object is needed, found {shown(found)}", "line")
    return found


def json_documents(source: Source) -> list[tuple[int, dict[str, object]]]:
    """(line, object) of a file that is one JSON object, over any number of lines, or one object a line."""
    first = None
    if len(source.lines) > 1:
        try:
            first = json.loads(source.lines[0])
        except (ValueError, RecursionError):
            first = None
    if isinstance(first, dict) or len(source.lines) == 1:
        return [(line, json_object(source, line)) for line in range(1, len(source.lines) + 1)]
    try:
        found = json.loads("\n".join(source.lines))
    except (ValueError, RecursionError) as error:
        line, why = getattr(error, "lineno", 1), getattr(error, "msg", "too deep or too long a number")
        raise source.bad(line, f"not a JSON object: {why}; is the file cut short?", "line") from None
    if not isinstance(found, dict):
        raise source.bad(1, f"a JSON object is needed, found {shown(found)}", "line")
    return [(1, found)]


def csv_records(
    source: Source, check_header: Callable[[list[str]], object] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, cells by column name). The header stands in line 1; every row has as many cells."""
    table = csv.reader(source.lines, strict=True)
    line = 1
    try:
        header = [name.strip() for name in next(table)]
        if len(set(header)) != len(header):
            raise source.bad(1, "a column name stands twice in the header")
        if check_header is not None:
            check_header(header)
        for cells in table:
            line = table.line_num
            if len(cells) != len(header):
                raise source.bad(line, f"{len(cells)} columns instead of {len(header)}; is the file cut short?")
            yield line, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise source.bad(max(line, table.line_num), f"not CSV: {error}") from None


def need(source: Source, place: int, found: Mapping[str, object], *keys: str) -> None:
    """Refuse a row without these keys."""
    missing = [key for key in keys if key not in found]
    if missing:
        raise source.bad(place, f"{', '.join(missing)} missing; a row has {', '.join(keys)}")


def whole(source: Source, line: int, name: str, value: object) -> int:
    """A whole number, from JSON or from text; fractions, texts, true and absent values are refused."""
    if type(value) is int and abs(value) < 10**_MOST_DIGITS:
        return value
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS:
            return int(value)
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    raise source.bad(line, f"{name} is {shown(value)}: a whole number of at most {_MOST_DIGITS} digits is needed")


def time_ns(source: Source, line: int, name: str, value: object, unit_ns: int = 10**9) -> int:
    """A time in units of `unit_ns` as whole ns, at the digits that are written: 0.1 s is 100,000,000 ns."""
    if isinstance(value, int | float | str | Decimal) and not isinstance(value, bool):
        try:
            ns = Decimal(str(value).strip()) * unit_ns
            if ns.is_finite() and abs(ns) < _MOST_NS:
                return int(ns.to_integral_value())
        except (DecimalException, ValueError):
            pass
    raise source.bad(line, f"{name} is {shown(value)}: a finite number is needed")


@cache
def _day_ns(text: str) -> int:
    """Midnight of `YYYY-MM-DD` as ns since the year 1970; ValueError where there is no such day."""
    return (date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()) * _DAY_NS


def utc_ns(source: Source, line: int, name: str, text: object) -> int:
    """`2023-11-16 18:00:00.1234500`, with up to 9 digits of a second, as ns since 1970."""
    match = _STAMP.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise source.bad(line, f"{name} {shown(text)} is not like 2023-11-16 18:00:00.1234500 (UTC)")
    day, hours, minutes, seconds, fraction = match.groups()
    if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
        raise source.bad(line, f"{name} {text!r}: there is no such time of day")
    try:
        midnight = _day_ns(day)
    except ValueError:
        raise source.bad(line, f"{name} {text!r}: there is no such day") from None
    whole_s = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return midnight + whole_s * 10**9 + int((fraction or "").ljust(9, "0"))


def ids_of(source: Source, line: int, found: object, most: int = 1 << 62) -> list[int]:
    """A list of prefix ids: whole numbers from 0."""
    if not isinstance(found, list) or not all(type(i) is int and 0 <= i < most for i in found):
        raise source.bad(line, f"hash_ids is {shown(found)}: a list of whole numbers from 0 is needed")
    return found
