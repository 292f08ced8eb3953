"""The paged KV pool on CPU: one tensor, the device block table, and attention of a step's tokens over both.

Dimension letters: L layers, N blocks, K KV heads, B tokens a block, D head size, H query heads, T tokens of the
step, S decoding sequences, E = (H + 2 K) D, A = H D, R rows of the block table, M blocks a row, C context tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from trials.engines.kernels import batch as batches
from trials.engines.kernels import paged
from trials.engines.kernels.batch import CLOCKS, AttentionTime, Batch, Span
from trials.engines.kernels.calls import as_stored, decode_kernel, dense_decode, new_pool
from trials.engines.kernels.config import TorchConfig
from trials.engines.torch_model import rope_tables


@dataclass(slots=True)
class _Prefill:
    span: Span
    mask_TC: torch.Tensor | None  # None: nothing stood before it


@dataclass(slots=True)
class PagedAttention:
    """Owns pool, block table and attention buffers. `begin(batch)`, then `attend` once a layer."""

    config: TorchConfig
    pool: torch.Tensor = field(init=False)  # [L, 2, N, K, B, D]
    table_RM: NDArray[np.int32] = field(init=False)
    spent: AttentionTime = field(init=False, default_factory=AttentionTime)
    _stored: list[tuple[NDArray[np.generic], NDArray[np.generic]]] = field(init=False)
    _rope: tuple[torch.Tensor, torch.Tensor] = field(init=False)
    _query_TA: torch.Tensor = field(init=False)
    _past: tuple[torch.Tensor, torch.Tensor] = field(init=False)
    _batch: Batch = field(init=False)
    _prefills: list[_Prefill] = field(init=False)
    _scale: np.float32 = field(init=False)

    def __post_init__(self) -> None:
        config, model, geometry = self.config, self.config.model, self.config.geometry
        per_block = (model.num_kv_heads, geometry.block_size, model.head_dim)
        self.pool = new_pool((model.num_layers, 2, geometry.num_blocks, *per_block), model.kv_dtype)
        self._stored = [(as_stored(layer[0]), as_stored(layer[1])) for layer in self.pool]
        self.table_RM = np.full((config.max_num_seqs, config.max_blocks), 0, np.int32)
        self._rope = rope_tables(config.max_model_len, model.head_dim)
        self._query_TA = torch.empty(config.max_tokens, model.num_query_heads * model.head_dim).fill_(0.0)
        context = model.num_kv_heads * config.max_model_len * model.head_dim
        self._past = (torch.empty(context).fill_(0.0), torch.empty(context).fill_(0.0))
        self._scale = np.float32(model.head_dim**-0.5)

    def write_entries(self, slot: int, row: int, blocks: Sequence[int], first: int = 0) -> None:
        """Entries [first, len(blocks)) of a table row, from request `row`'s block ids; BadBlock, checked first."""
        batches.write_row(self.table_RM, slot, row, blocks, first, self.config.geometry.num_blocks)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Blocks (from, to) of every layer, as if all at once."""
        batches.copied(self.pool, copies)

    def begin(self, batch: Batch) -> None:
        """Take over the step's batch; its block ids have been checked when they entered the table."""
        self._batch = batch
        self.spent = AttentionTime()
        self._prefills = [_Prefill(span, _causal_mask(span) if span.start else None) for span in batch.spans]

    def attend(self, layer: int, fused_TE: torch.Tensor, out_TA: torch.Tensor) -> None:
        """Rotate, write this step's keys and values into the pool, then attend: decodes and chunks.

        All writes of a layer come before all reads, so a chunk may read blocks that another one of the same
        step fills.
        """
        batch, model = self._batch, self.config.model
        keys_NKBD, values_NKBD = self._stored[layer]
        num_tokens = len(batch.positions_T)
        query_THD = self._query_TA[:num_tokens].view(num_tokens, model.num_query_heads, model.head_dim)
        out_THD = out_TA.view_as(query_THD)
        cos_PD, sin_PD = (table.numpy() for table in self._rope)
        paged.rotate_and_write(
            fused_TE.numpy(), batch.positions_T, batch.pool_slots_T, cos_PD, sin_PD,
            query_THD.numpy(), keys_NKBD, values_NKBD,
        )  # fmt: skip
        clock = CLOCKS[self.config.clock]
        begin = clock()
        if len(batch.rows_S):
            self._decode(layer, query_THD, out_THD)
        middle = clock()
        for prefill in self._prefills:
            self._prefill(layer, prefill, (fused_TE, query_THD, out_THD))
        self.spent.decode_ns += middle - begin
        self.spent.prefill_ns += clock() - middle

    def _decode(self, layer: int, query_THD: torch.Tensor, out_THD: torch.Tensor) -> None:
        batch, num_seqs = self._batch, len(self._batch.rows_S)
        if self.config.layout == "contiguous":
            blocks = self.table_RM[batch.rows_S, 0].tolist()
            dense_decode(query_THD, self.pool[layer], blocks, batch.lengths_S.tolist(), out_THD)
            return
        keys_NKBD, values_NKBD = self._stored[layer]
        decode_kernel(self.config.threads)(
            query_THD[:num_seqs].numpy(), keys_NKBD, values_NKBD, self.table_RM, batch.rows_S, batch.lengths_S,
            out_THD[:num_seqs].numpy(), self._scale,
        )  # fmt: skip

    def _prefill(
        self, layer: int, prefill: _Prefill, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    ) -> None:
        span, model = prefill.span, self.config.model
        fused_TE, query_THD, out_THD = tensors
        rows = slice(span.first, span.first + span.num_tokens)
        if prefill.mask_TC is None:
            own_T2KD = fused_TE[rows, -2 * model.num_kv_heads * model.head_dim :].view(
                span.num_tokens, 2, model.num_kv_heads, model.head_dim
            )
            keys_KCD, values_KCD = own_T2KD.permute(1, 2, 0, 3)
        else:
            keys_KCD, values_KCD = (self._gathered(layer, side, span) for side in (0, 1))
        out_1HTD = F.scaled_dot_product_attention(
            query_THD[rows].transpose(0, 1)[None], keys_KCD[None], values_KCD[None],
            attn_mask=prefill.mask_TC, is_causal=prefill.mask_TC is None, enable_gqa=True,
        )  # fmt: skip
        out_THD[rows] = out_1HTD[0].transpose(0, 1)

    def _gathered(self, layer: int, side: int, span: Span) -> torch.Tensor:
        """Keys (side 0) or values (1) of a chunk and of all that stands before it, side by side."""
        model, context = self.config.model, span.start + span.num_tokens
        size = model.num_kv_heads * context * model.head_dim
        out_KCD = self._past[side][:size].view(model.num_kv_heads, context, model.head_dim)
        paged.gather(self._stored[layer][side], self.table_RM, span.slot, out_KCD.numpy())
        return out_KCD

    def finish(self) -> None:
        """Nothing is under way on a CPU."""

    def tables(self) -> list[torch.Tensor]:
        """Block tables on the device; shares memory with `table_RM`."""
        return [torch.from_numpy(self.table_RM)]

    def buffers(self) -> list[torch.Tensor]:
        """What it works in beside pool and tables."""
        return [self._query_TA, *self._past, *self._rope]


def _causal_mask(span: Span) -> torch.Tensor:
    """[T, C]: a query sees what stood before the chunk, and the chunk up to itself."""
    return torch.ones(span.num_tokens, span.start + span.num_tokens, dtype=torch.bool).tril(span.start)
