"""A batch in the two forms that paged kernels take: cumulative lengths and a table, or compressed rows of pages."""

import numpy as np
import pytest

from trials.engines.kernels.batch import Batch, Span
from trials.engines.kernels.paged_step import paged_step, pages_of

TABLE = np.array([[7, 3, 9, 0], [2, 8, 0, 0], [5, 1, 4, 6]], np.int32)


def batch(rows: list[int], lengths: list[int], spans: list[Span]) -> Batch:
    none = np.empty(0, np.int64)
    return Batch(none, none, np.asarray(rows, np.int64), np.asarray(lengths, np.int64), spans)


def test_decodes_come_first_and_chunks_read_up_to_their_end() -> None:
    step = paged_step(batch([2, 0], [13, 5], [Span(2, 6, 3, 1)]))
    assert step.rows_N.tolist() == [2, 0, 1]
    assert step.cu_queries.tolist() == [0, 1, 2, 8]
    assert step.lengths_N.tolist() == [13, 5, 9]
    assert (step.num_decodes, step.max_query, step.max_length) == (2, 6, 13)
    assert step.tokens == (2, 8)
    assert step.cu_queries.dtype == step.lengths_N.dtype == np.int32


@pytest.mark.parametrize(("size", "indices", "last"), [
    (4, [5, 1, 4, 6, 7, 3, 2, 8, 0], [1, 1, 1]), (13, [5, 7, 2], [13, 5, 9]), (8, [5, 1, 7, 2, 8], [5, 5, 1]),
])  # fmt: skip
def test_pages_are_those_that_hold_a_token_and_the_last_says_how_many(
    size: int, indices: list[int], last: list[int]
) -> None:
    step = paged_step(batch([2, 0], [13, 5], [Span(2, 6, 3, 1)]))
    pages = pages_of(step, TABLE, size)
    assert pages.indices.tolist() == indices
    assert pages.last_page_len.tolist() == last
    assert pages.indptr[-1] == len(indices)
    assert all(column.dtype == np.int32 for column in pages)


def test_a_full_last_page_is_full_and_no_page_more() -> None:
    pages = pages_of(paged_step(batch([0], [8], [])), TABLE, 4)
    assert (pages.indices.tolist(), pages.last_page_len.tolist()) == ([7, 3], [4])


def test_a_part_of_a_step_is_a_step() -> None:
    step = paged_step(batch([2, 0], [13, 5], [Span(2, 6, 3, 1), Span(8, 2, 0, 0)]))
    chunks = step.part(2, 4)
    assert chunks.cu_queries.tolist() == [0, 6, 8]
    assert (chunks.rows_N.tolist(), chunks.lengths_N.tolist()) == ([1, 0], [9, 2])
    assert (chunks.num_decodes, chunks.max_query, chunks.max_length) == (0, 6, 9)
    assert step.part(0, 2).num_decodes == 2
    assert step.part(1, 3).num_decodes == 1


def test_a_step_without_decodes_or_without_chunks() -> None:
    assert paged_step(batch([], [], [Span(0, 3, 0, 1)])).cu_queries.tolist() == [0, 3]
    alone = paged_step(batch([1], [6], []))
    assert (alone.cu_queries.tolist(), alone.max_query, alone.tokens) == ([0, 1], 1, (1, 1))
