"""Lists of integers of different lengths in two flat arrays, as Arrow and CSR matrices keep them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ragged:
    """A list of integers a row: row r holds values[offsets[r]:offsets[r + 1]]."""

    offsets: Ints
    values: Ints

    @classmethod
    def empty(cls, rows: int) -> "Ragged":
        return cls(np.zeros(rows + 1, np.int64), np.zeros(0, np.int64))

    @classmethod
    def of(cls, lists: list[list[int]]) -> "Ragged":
        lengths = np.fromiter((len(x) for x in lists), np.int64, len(lists))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        values = np.fromiter((v for x in lists for v in x), np.int64, int(offsets[-1]))
        return cls(offsets, values)

    def row(self, index: int) -> Ints:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def take(self, rows: Ints) -> "Ragged":
        lengths = self.lengths[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        place = np.arange(offsets[-1], dtype=np.int64) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        return Ragged(offsets, self.values[place])

    def keep(self, kept: NDArray[np.bool_]) -> "Ragged":
        """The same rows without the values where `kept` is False."""
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)])
        return Ragged(before[self.offsets], self.values[kept])
