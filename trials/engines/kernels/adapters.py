"""Paged attention kernels behind one interface: a step is planned once, then every layer runs over its own pool.

Each adapter builds the arguments that its kernel documents and nothing else, and takes the kernel as an argument,
so that what it hands over can be looked at on a machine without a GPU. Sources of the conventions:
torch.nn.attention.varlen (torch 2.13: pages [N, B, K, D], int32 block table, `seqused_k`, no `cu_seq_k` beside a
block table, window (-1, 0) = causal and aligned at the end), FlashInfer's wrappers (Ye et al., MLSys 2025: pages in
compressed rows, planned on the host once a step).

Dimension letters: T tokens, N sequences (in `_NM`) or pages (in `_NBKD`), M entries, B tokens a page, K KV heads,
H query heads, D head size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from trials.engines.kernels.paged_step import Int32, PagedStep, pages_of
from trials.model import ModelSpec

FLASHINFER_WORKSPACE_BYTES = 128 << 20  # what FlashInfer's documentation recommends
_PLAIN_GROUPS = (1, 2, 4, 8)  # query heads a KV head that FlashInfer's decode kernel has without tensor cores


@dataclass(slots=True)
class Planned:
    """One step: the host's block table, and the device's, whose rows are up to date."""

    step: PagedStep
    host_RM: Int32
    table_RM: torch.Tensor
    page_size: int


class PagedKernel(Protocol):
    """Attention of a step's sequences over paged keys and values. `run` after `plan`, once a layer."""

    name: str

    def plan(self, planned: Planned) -> None: ...
    def run(
        self, keys_NBKD: torch.Tensor, values_NBKD: torch.Tensor, query_THD: torch.Tensor, out_THD: torch.Tensor
    ) -> None: ...
    def buffers(self) -> list[torch.Tensor]:
        """Tensors that it keeps beside a step's own."""


def on(device: torch.device, values: Any) -> torch.Tensor:
    """A small host array on the device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


class TorchVarlen:
    """torch.nn.attention.varlen.varlen_attn_out over a block table. One call for decodes and chunks together."""

    name = "torch_varlen"

    def __init__(self, model: ModelSpec, attend: Callable[..., Any]) -> None:
        self._attend, self._scale = attend, model.head_dim**-0.5
        self._arguments: dict[str, Any] = {}

    def plan(self, planned: Planned) -> None:
        step, device = planned.step, planned.table_RM.device
        entries = -(-step.max_length // planned.page_size)
        rows = on(device, step.rows_N)
        self._arguments = {
            "cu_seq_q": on(device, step.cu_queries), "cu_seq_k": None, "max_q": step.max_query,
            "max_k": step.max_length, "seqused_k": on(device, step.lengths_N),
            "block_table": planned.table_RM.index_select(0, rows)[:, :entries].contiguous(),
        }  # fmt: skip

    def run(
        self, keys_NBKD: torch.Tensor, values_NBKD: torch.Tensor, query_THD: torch.Tensor, out_THD: torch.Tensor
    ) -> None:
        self._attend(
            out_THD, query_THD, keys_NBKD, values_NBKD, scale=self._scale, window_size=(-1, 0), enable_gqa=True,
            **self._arguments,
        )  # fmt: skip

    def buffers(self) -> list[torch.Tensor]:
        return []


class DenseVarlen:
    """The control: every sequence lies contiguous in one page of max_model_len tokens, and no table is read.

    Sequences are handed over in the order in which they lie, so that the cumulative starts of their pages ascend;
    `seqused_k` says how much of each is filled. Queries go along and come back.
    """

    name = "dense_varlen"

    def __init__(self, model: ModelSpec, attend: Callable[..., Any]) -> None:
        self._attend, self._scale = attend, model.head_dim**-0.5
        self._arguments: dict[str, Any] = {}
        self._order_T: torch.Tensor | None = None

    def plan(self, planned: Planned) -> None:
        step, device = planned.step, planned.table_RM.device
        blocks = planned.host_RM[step.rows_N, 0].astype(np.int64)
        order = np.argsort(blocks, kind="stable")
        starts = np.append(blocks[order], blocks.max(initial=-1) + 1) * planned.page_size
        counts = np.diff(step.cu_queries)
        places = [np.arange(step.cu_queries[n], step.cu_queries[n + 1]) for n in order]
        cu_queries = np.zeros(len(order) + 1, np.int32)
        np.cumsum(counts[order], out=cu_queries[1:])
        in_order = bool((order == np.arange(len(order))).all())
        self._order_T = None if in_order else on(device, np.concatenate(places).astype(np.int64))
        self._arguments = {
            "cu_seq_q": on(device, cu_queries), "cu_seq_k": on(device, starts.astype(np.int32)),
            "max_q": step.max_query, "max_k": step.max_length, "seqused_k": on(device, step.lengths_N[order]),
        }  # fmt: skip

    def run(
        self, keys_NBKD: torch.Tensor, values_NBKD: torch.Tensor, query_THD: torch.Tensor, out_THD: torch.Tensor
    ) -> None:
        order = self._order_T
        query = query_THD if order is None else query_THD.index_select(0, order)
        out = out_THD if order is None else torch.empty_like(query)
        self._attend(
            out, query, keys_NBKD.flatten(0, 1), values_NBKD.flatten(0, 1), scale=self._scale, window_size=(-1, 0),
            enable_gqa=True, **self._arguments,
        )  # fmt: skip
        if order is not None:
            out_THD.index_copy_(0, order, out)

    def buffers(self) -> list[torch.Tensor]:
        return []


class FlashInfer:
    """FlashInfer's two wrappers: one for the step's decodes, one for its chunks."""

    name = "flashinfer"

    def __init__(self, model: ModelSpec, dtype: torch.dtype, device: torch.device, library: Any) -> None:
        self._model, self._dtype = model, dtype
        group = model.num_query_heads // model.num_kv_heads
        self._workspace = torch.zeros(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._decode = library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, "NHD", use_tensor_cores=group not in _PLAIN_GROUPS
        )
        # planned before the decodes of the step have run: what it plans must not lie where theirs does
        self._room = torch.zeros_like(self._workspace)
        self._prefill = library.BatchPrefillWithPagedKVCacheWrapper(self._room, "NHD")
        self._decodes = self._tokens = 0

    def plan(self, planned: Planned) -> None:
        step, model = planned.step, self._model
        device = planned.table_RM.device
        self._decodes, self._tokens = step.tokens
        heads = (model.num_query_heads, model.num_kv_heads, model.head_dim, planned.page_size)
        kept = {"q_data_type": self._dtype, "kv_data_type": self._dtype}
        if step.num_decodes:
            pages = pages_of(step.part(0, step.num_decodes), planned.host_RM, planned.page_size)
            self._decode.plan(
                torch.from_numpy(pages.indptr), on(device, pages.indices), torch.from_numpy(pages.last_page_len),
                *heads, **kept,
            )  # fmt: skip
        if self._tokens > self._decodes:
            chunks = step.part(step.num_decodes, len(step.rows_N))
            pages = pages_of(chunks, planned.host_RM, planned.page_size)
            self._prefill.plan(
                torch.from_numpy(chunks.cu_queries), torch.from_numpy(pages.indptr), on(device, pages.indices),
                torch.from_numpy(pages.last_page_len), *heads, causal=True, **kept,
            )  # fmt: skip

    def run(
        self, keys_NBKD: torch.Tensor, values_NBKD: torch.Tensor, query_THD: torch.Tensor, out_THD: torch.Tensor
    ) -> None:
        cache, first, last = (keys_NBKD, values_NBKD), self._decodes, self._tokens
        if first:
            self._decode.run(query_THD[:first], cache, out=out_THD[:first])
        if last > first:
            self._prefill.run(query_THD[first:last], cache, out=out_THD[first:last])

    def buffers(self) -> list[torch.Tensor]:
        return [self._workspace, self._room]


class Gather:
    """No paged kernel: a sequence's tokens are copied side by side, then torch's own attention reads the copy.

    Its time grows with what is copied and hardly with the block size: never to be read as a paged kernel's.
    """

    name = "gather"

    def __init__(self) -> None:
        self._decodes = 0
        self._slots_NC: torch.Tensor | None = None
        self._live_NC: torch.Tensor | None = None
        self._chunks: list[tuple[slice, torch.Tensor, torch.Tensor]] = []

    def plan(self, planned: Planned) -> None:
        step, device = planned.step, planned.table_RM.device
        self._decodes = step.num_decodes
        slots = [self._slots(planned, row, n) for row, n in zip(step.rows_N, step.lengths_N, strict=True)]
        if self._decodes:
            lengths = step.lengths_N[: self._decodes]
            padded = np.zeros((self._decodes, int(lengths.max())), np.int64)
            for n, length in enumerate(lengths):
                padded[n, :length] = slots[n]
                padded[n, length:] = slots[n][0]  # a slot of its own that is filled: never one that nobody wrote
            self._slots_NC = on(device, padded)
            self._live_NC = on(device, np.arange(padded.shape[1])[None] < lengths[:, None])
        self._chunks = []
        for n in range(self._decodes, len(step.rows_N)):
            rows = slice(int(step.cu_queries[n]), int(step.cu_queries[n + 1]))
            count, context = rows.stop - rows.start, int(step.lengths_N[n])
            mask = torch.ones(count, context, dtype=torch.bool, device=device).tril(context - count)
            self._chunks.append((rows, on(device, slots[n]), mask))

    @staticmethod
    def _slots(planned: Planned, row: int, length: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        places = np.arange(length)
        blocks = planned.host_RM[row, places // planned.page_size].astype(np.int64)
        slots: np.ndarray[Any, np.dtype[np.int64]] = blocks * planned.page_size + places % planned.page_size
        return slots

    def run(
        self, keys_NBKD: torch.Tensor, values_NBKD: torch.Tensor, query_THD: torch.Tensor, out_THD: torch.Tensor
    ) -> None:
        keys_SKD, values_SKD = keys_NBKD.flatten(0, 1), values_NBKD.flatten(0, 1)
        if self._decodes:
            assert self._slots_NC is not None
            assert self._live_NC is not None
            both = [x.index_select(0, self._slots_NC.flatten()) for x in (keys_SKD, values_SKD)]
            keys, values = (
                x.view(*self._slots_NC.shape, *x.shape[1:]).transpose(1, 2) for x in both
            )  # [N, K, C, D]
            out_THD[: self._decodes] = F.scaled_dot_product_attention(
                query_THD[: self._decodes, :, None], keys, values, attn_mask=self._live_NC[:, None, None],
                enable_gqa=True,
            )[:, :, 0]  # fmt: skip
        for rows, slots, mask in self._chunks:
            keys, values = (x.index_select(0, slots).transpose(0, 1)[None] for x in (keys_SKD, values_SKD))
            found = F.scaled_dot_product_attention(
                query_THD[rows].transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=True
            )
            out_THD[rows] = found[0].transpose(0, 1)

    def buffers(self) -> list[torch.Tensor]:
        return []
