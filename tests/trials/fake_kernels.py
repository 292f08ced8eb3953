"""What the documentation of CUDA's paged attention kernels says, in plain loops on a CPU: for handing arguments to.

Everything that the real ones would read is checked: types, shapes, ids inside the pool. What they leave unread is
NaN in the tests that use this.
"""

from typing import Any

import torch


def attend_one(query_THD: torch.Tensor, keys_CKD: torch.Tensor, values_CKD: torch.Tensor) -> torch.Tensor:
    """Attention of T queries at the end of C tokens, causal, grouped; [T, H, D]."""
    num_tokens, heads, dim = query_THD.shape
    context, kv_heads = keys_CKD.shape[0], keys_CKD.shape[1]
    keys = keys_CKD.float().repeat_interleave(heads // kv_heads, dim=1)
    values = values_CKD.float().repeat_interleave(heads // kv_heads, dim=1)
    out = torch.empty(num_tokens, heads, dim)
    for t in range(num_tokens):
        seen = context - num_tokens + t + 1
        scores = torch.einsum("hd,chd->hc", query_THD[t].float(), keys[:seen]) * dim**-0.5
        out[t] = torch.einsum("hc,chd->hd", scores.softmax(-1), values[:seen])
    return out.to(query_THD.dtype)


def varlen_attn_out(
    out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None, max_q: int, max_k: int, *, return_aux: Any = None, scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False, seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None, num_splits: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """torch.nn.attention.varlen.varlen_attn_out of torch 2.13, for inference."""
    assert window_size == (-1, 0), "causal, the end of the queries at the end of the keys"
    assert enable_gqa or query.shape[1] == key.shape[-2]
    assert scale == query.shape[-1] ** -0.5
    assert seqused_k is not None
    assert cu_seq_q.dtype == seqused_k.dtype == torch.int32
    assert cu_seq_q[0] == 0
    assert cu_seq_q[-1] == len(query) == len(out)
    assert bool((cu_seq_q.diff() > 0).all()), "cumulative, one token at least"
    assert max_q == int(cu_seq_q.diff().max())
    assert max_k == int(seqused_k.max())
    for n, used in enumerate(seqused_k.tolist()):
        rows = slice(int(cu_seq_q[n]), int(cu_seq_q[n + 1]))
        if block_table is None:
            assert cu_seq_k is not None
            assert cu_seq_k.dtype == torch.int32
            assert bool((cu_seq_k.diff() >= 0).all()), "cumulative"
            first = int(cu_seq_k[n])
            assert first + used <= int(cu_seq_k[n + 1]), "no further than the sequence's own room"
            keys, values = key[first : first + used], value[first : first + used]
        else:
            assert cu_seq_k is None, "FlashAttention 3 refuses it beside a block table"
            assert block_table.dtype == torch.int32
            assert block_table.stride(-1) == 1
            keys, values = (_paged(pool, block_table[n], used) for pool in (key, value))
        out[rows] = attend_one(query[rows], keys, values)
    return out


def _paged(pool_NBKD: torch.Tensor, ids: torch.Tensor, used: int) -> torch.Tensor:
    size = pool_NBKD.shape[1]
    entries = ids[: -(-used // size)]
    assert len(entries) * size >= used, "the table holds the whole sequence"
    return pool_NBKD[entries.long()].flatten(0, 1)[:used]


class FakeFlashInfer:
    """The two wrappers of FlashInfer's documentation, layout NHD."""

    def __init__(self) -> None:
        self.BatchDecodeWithPagedKVCacheWrapper = _Decode
        self.BatchPrefillWithPagedKVCacheWrapper = _Prefill


class _Wrapper:
    def __init__(self, workspace: torch.Tensor, kv_layout: str = "NHD", use_tensor_cores: bool = False) -> None:
        assert workspace.dtype == torch.uint8
        assert kv_layout == "NHD"
        self.queries: list[int] = []

    def _planned(
        self, pages: tuple[torch.Tensor, ...], heads: tuple[int, int, int, int], types: dict[str, Any]
    ) -> None:
        indptr, indices, last = pages
        assert indptr.dtype == indices.dtype == last.dtype == torch.int32
        assert indptr[0] == 0
        assert int(indptr[-1]) == len(indices)
        assert len(last) == len(indptr) - 1
        assert bool(((last >= 1) & (last <= heads[3])).all())
        self.indptr, self.indices, self.last = indptr, indices, last
        self.heads, self.types = heads, types

    def _run(
        self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor
    ) -> torch.Tensor:
        num_heads, kv_heads, dim, size = self.heads
        assert query.shape == out.shape == (sum(self.queries), num_heads, dim)
        assert all(pool.shape[1:] == (size, kv_heads, dim) for pool in cache)
        assert self.types["q_data_type"] == query.dtype
        assert self.types["kv_data_type"] == cache[0].dtype
        first = 0
        for n, count in enumerate(self.queries):
            ids = self.indices[int(self.indptr[n]) : int(self.indptr[n + 1])].long()
            used = (len(ids) - 1) * size + int(self.last[n])
            keys, values = (pool[ids].flatten(0, 1)[:used] for pool in cache)
            out[first : first + count] = attend_one(query[first : first + count], keys, values)
            first += count
        return out


class _Decode(_Wrapper):
    def plan(self, indptr: Any, indices: Any, last_page_len: Any, num_qo_heads: int, num_kv_heads: int,
             head_dim: int, page_size: int, **types: Any) -> None:  # fmt: skip
        self._planned((indptr, indices, last_page_len), (num_qo_heads, num_kv_heads, head_dim, page_size), types)
        self.queries = [1] * len(last_page_len)

    def run(self, q: torch.Tensor, paged_kv_cache: Any, *, out: torch.Tensor) -> torch.Tensor:
        return self._run(q, paged_kv_cache, out)


class _Prefill(_Wrapper):
    def plan(self, qo_indptr: Any, paged_kv_indptr: Any, paged_kv_indices: Any, paged_kv_last_page_len: Any,
             num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, *, causal: bool = False,
             **types: Any) -> None:  # fmt: skip
        assert causal
        assert qo_indptr.dtype == torch.int32
        assert qo_indptr[0] == 0
        pages = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        self._planned(pages, (num_qo_heads, num_kv_heads, head_dim_qk, page_size), types)
        self.queries = qo_indptr.diff().tolist()

    def run(self, q: torch.Tensor, paged_kv_cache: Any, *, out: torch.Tensor) -> torch.Tensor:
        return self._run(q, paged_kv_cache, out)
