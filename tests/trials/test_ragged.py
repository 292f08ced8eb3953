"""Lists of different lengths in flat arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trials.ragged import Ragged

LISTS = st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=5), max_size=8)


def _lists(ragged: Ragged) -> list[list[int]]:
    return [ragged.row(r).tolist() for r in range(len(ragged.offsets) - 1)]


@given(lists=LISTS)
def test_of_and_row_are_inverse(lists: list[list[int]]) -> None:
    ragged = Ragged.of(lists)
    assert _lists(ragged) == lists
    assert ragged.lengths.tolist() == [len(x) for x in lists]


@given(lists=LISTS.filter(bool), data=st.data())
def test_take_picks_rows_in_the_given_order(lists: list[list[int]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=10))
    assert _lists(Ragged.of(lists).take(np.array(rows, np.int64))) == [lists[r] for r in rows]


@given(lists=LISTS)
def test_keep_drops_values_and_no_rows(lists: list[list[int]]) -> None:
    ragged = Ragged.of(lists)
    assert _lists(ragged.keep(ragged.values >= 0)) == [[v for v in x if v >= 0] for x in lists]


def test_empty_has_rows_without_values() -> None:
    assert _lists(Ragged.empty(3)) == [[], [], []]
