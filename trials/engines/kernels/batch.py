"""One step as arrays, whichever kernel computes it: who decodes, which chunks there are, where their KV goes.

Dimension letters: T tokens of the step, S decoding sequences, R rows of the block table.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Ids = NDArray[np.int64]
CLOCKS: dict[str, Callable[[], int]] = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}


class BadBlock(RuntimeError):
    """A block table names a block that the pool does not have."""


class CannotRun(RuntimeError):
    """This process or device cannot run a kernel as it would have to be measured: a refusal, no fault."""


@dataclass(frozen=True, slots=True)
class Span:
    """A prefill chunk inside a step: token rows [first, first + num_tokens), positions from `start` on."""

    first: int
    num_tokens: int
    start: int
    slot: int  # its row of the block table


@dataclass(slots=True)
class Batch:
    """One step as arrays: S decoding sequences first, one token each, then the chunks' tokens."""

    positions_T: Ids
    pool_slots_T: Ids  # block * B + offset where a token's KV goes
    rows_S: Ids  # of the block table
    lengths_S: Ids  # tokens to read, this step's own included
    spans: Sequence[Span] = ()


@dataclass(slots=True)
class AttentionTime:
    """ns of the step so far, by the configured clock."""

    decode_ns: int = 0
    prefill_ns: int = 0


class Attention(Protocol):
    """Owns pool, block table and buffers of attention. `begin(batch)`, `attend` once a layer, then `finish()`."""

    pool: torch.Tensor
    table_RM: NDArray[np.int32]  # on the host: what the scheduler's tables say

    @property
    def spent(self) -> AttentionTime: ...
    def begin(self, batch: Batch) -> None: ...
    def attend(self, layer: int, fused_TE: torch.Tensor, out_TA: torch.Tensor) -> None: ...
    def finish(self) -> None:
        """All that was started has been computed when it returns."""

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None: ...
    def write_entries(self, slot: int, row: int, blocks: Sequence[int], first: int = 0) -> None: ...
    def tables(self) -> list[torch.Tensor]:
        """Block tables on the device."""

    def buffers(self) -> list[torch.Tensor]:
        """What it works in beside pool and tables."""


def check_blocks(row: int, ids: Ids, num_blocks: int, first: int = 0) -> None:
    """BadBlock where entries of request `row`, from entry `first` on, lead outside the pool: kernels would
    read other memory."""
    if ids.size and (ids.min() < 0 or ids.max() >= num_blocks):
        entry = int(np.flatnonzero((ids < 0) | (ids >= num_blocks))[0])
        raise BadBlock(
            f"row {row}: entry {first + entry} of its block table is block {int(ids[entry])}; "
            f"the pool has blocks 0 to {num_blocks - 1}"
        )


def write_row(
    table_RM: NDArray[np.int32], slot: int, row: int, blocks: Sequence[int], first: int, num_blocks: int
) -> None:
    """Entries [first, len(blocks)) of a table row, from request `row`'s block ids; BadBlock, checked first."""
    ids = np.asarray(blocks[first:], np.int64)
    check_blocks(row, ids, num_blocks, first)
    if len(blocks) > table_RM.shape[1]:
        raise ValueError(
            f"row {row}: {len(blocks)} blocks are more than a context of max_model_len needs ({table_RM.shape[1]})"
        )
    table_RM[slot, first : len(blocks)] = ids


def copied(pool: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None:
    """Blocks (from, to) of every layer, as if all at once: read before any is written. Pool [L, 2, N, ..]."""
    ids = np.asarray(copies, np.int64)
    check_blocks(-1, ids.ravel(), pool.shape[2])
    sources, targets = (torch.from_numpy(ids[:, side].copy()).to(pool.device) for side in (0, 1))
    pool.index_copy_(2, targets, pool.index_select(2, sources))
