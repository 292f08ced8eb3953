"""A step as paged kernels take it: sequences of unlike query lengths, and the pages that each of them reads.

    tokens     | d0 | d1 | ... | chunk a ........ | chunk b ... |     decodes first, one token each
    cu_queries   0    1    ...   S                  S + |a|       T
    pages      | ids of d0 | ids of d1 | ... | ids of a | ids of b |  CSR: indptr, indices, last_page_len

Both forms say the same of a batch: flash-attention's (cumulative query lengths, KV lengths, a padded block table)
and FlashInfer's (pages in compressed rows). Everything is int32, as both take it. Pure numpy.

Dimension letters: N sequences of the step, R rows of the block table, M entries a row.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trials.engines.kernels.batch import Batch

Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PagedStep:
    """N sequences: the decodes, then the chunks. `lengths_N` are KV tokens to read, the step's own included."""

    rows_N: NDArray[np.int64]  # of the block table
    cu_queries: Int32  # [N + 1]
    lengths_N: Int32
    num_decodes: int
    max_query: int
    max_length: int

    def part(self, first: int, last: int) -> "PagedStep":
        """Sequences [first, last) as a step of their own."""
        cu = self.cu_queries[first : last + 1] - self.cu_queries[first]
        lengths = self.lengths_N[first:last]
        decodes = min(max(self.num_decodes - first, 0), last - first)
        return PagedStep(
            self.rows_N[first:last],
            cu,
            lengths,
            decodes,
            int(np.diff(cu).max(initial=0)),
            int(lengths.max(initial=0)),
        )

    @property
    def tokens(self) -> tuple[int, int]:
        """(tokens of the decodes, tokens of all)."""
        return self.num_decodes, int(self.cu_queries[-1])


class Pages(NamedTuple):
    """Pages of N sequences in compressed rows; `last_page_len` is in 1 .. page size."""

    indptr: Int32  # [N + 1]
    indices: Int32  # [indptr[N]]
    last_page_len: Int32  # [N]


def paged_step(batch: Batch) -> PagedStep:
    """The batch's sequences. A chunk reads what stands before it and itself up to each of its tokens."""
    spans = batch.spans
    rows = np.concatenate((batch.rows_S, np.fromiter((s.slot for s in spans), np.int64, len(spans))))
    counts = np.ones(len(rows), np.int64)
    counts[len(batch.rows_S) :] = [span.num_tokens for span in spans]
    ends = np.fromiter((s.start + s.num_tokens for s in spans), np.int64, len(spans))
    lengths = np.concatenate((batch.lengths_S, ends)).astype(np.int32)
    cu = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=cu[1:])
    return PagedStep(rows, cu, lengths, len(batch.rows_S), int(counts.max(initial=0)), int(lengths.max(initial=0)))


def pages_of(step: PagedStep, table_RM: Int32, page_size: int) -> Pages:
    """The pages that hold each sequence's KV tokens, out of the host's block table."""
    lengths = step.lengths_N
    counts = -(-lengths // page_size)
    indptr = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(counts, out=indptr[1:])
    widest = int(counts.max(initial=0))
    taken = np.arange(widest)[None, :] < counts[:, None]
    indices = table_RM[step.rows_N, :widest][taken]
    return Pages(indptr, indices.astype(np.int32), lengths - (counts - 1) * page_size)
