"""What a parquet file announces in its footer, read without pyarrow.

pyarrow ends the whole process on some damaged footers when it is asked for a column's size, and the size must be
known before anything is unpacked. The footer is thrift's compact protocol: a tree of numbered fields.
Source: apache/parquet-format (parquet.thrift) and the compact protocol of apache/thrift.
"""

from pathlib import Path
from typing import Any

MOST_TABLE_BYTES = 8 << 30  # of a trial's table, unpacked: a small file may announce more than a machine has
_MAGIC = b"PAR1"
_MOST_FOOTER_BYTES = 64 << 20
_MOST_DEPTH = 16
_FIXED = {3: 1, 7: 8}  # byte, double: skipped
_ROW_GROUPS, _COLUMNS, _META_DATA, _NUM_VALUES, _UNPACKED = 4, 1, 3, 5, 6  # field numbers in parquet.thrift


class FooterError(ValueError):
    """The file has no footer that can be read."""


class _Compact:
    """Reader of the compact protocol; structs come out as {field number: value}, skipped kinds as None."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise FooterError("the footer is cut short")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            found = self.byte()
            value |= (found & 0x7F) << shift
            if found < 0x80:
                return value
        raise FooterError("a number of more than 64 bits")

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise FooterError("a field that is longer than the footer")
        self.at += count

    def value(self, kind: int, depth: int) -> Any:
        """A value of the given kind; booleans in lists take a byte, in structs they are in the kind."""
        if kind in (4, 5, 6):
            return self.zigzag()
        if kind in _FIXED:
            return self.skip(_FIXED[kind])
        if kind == 8:
            return self.skip(self.varint())
        if kind in (9, 10):
            return self.list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise FooterError(f"a field of unknown kind {kind}")

    def list(self, depth: int) -> list[Any]:
        head = self.byte()
        count, kind = head >> 4, head & 0x0F
        if count == 15:
            count = self.varint()
        if count > len(self.data) - self.at:
            raise FooterError("a list that is longer than the footer")
        if kind in (1, 2):
            self.skip(count)
            return []
        return [self.value(kind, depth) for _ in range(count)]

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _MOST_DEPTH:
            raise FooterError("a footer that is nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.zigzag()
            kind = head & 0x0F
            fields[number] = kind == 1 if kind in (1, 2) else self.value(kind, depth)
        return fields


def unpacked_bytes(path: Path) -> int:
    """Bytes that the file's columns take as 64-bit values, or as the file itself puts them, whichever is more.

    FooterError where there is no readable footer; OSError where there is no file.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size < 12:
            raise FooterError("not a parquet file: too short")
        file.seek(size - 8)
        length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
        if magic != _MAGIC:
            raise FooterError("not a parquet file: it does not end in PAR1; is it cut short?")
        if not 0 < length <= min(size - 12, _MOST_FOOTER_BYTES):
            raise FooterError("a footer longer than the file")
        file.seek(size - 8 - length)
        footer = _Compact(file.read(length)).struct()
    try:
        columns = [c[_META_DATA] for group in footer[_ROW_GROUPS] for c in group[_COLUMNS]]
        return sum(max(8 * column[_NUM_VALUES], column[_UNPACKED]) for column in columns)
    except (KeyError, TypeError, IndexError):
        raise FooterError("a footer without sizes") from None


def bounded(path: Path, most_bytes: int = MOST_TABLE_BYTES) -> Path:
    """The path, once what its file announces is within `most_bytes` unpacked. FooterError where it is not."""
    unpacked = unpacked_bytes(path)
    if unpacked > most_bytes:
        raise FooterError(f"{unpacked} bytes unpacked, more than the limit of {most_bytes}")
    return path
