"""How the CPU kernels are called: compiled once for fixed types, then closed to new ones; and the control.

A kernel that met a new array layout or dtype would compile again for one to two seconds in the middle of a
measurement. So every signature is built here, before the window, and afterwards a call of another type is a
TypeError.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numba as nb
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from trials.engines.kernels import paged
from trials.engines.kernels.batch import CannotRun

_F32, _I32, _I64 = nb.float32, nb.int32, nb.int64
_STORED = {"float32": nb.float32, "bfloat16": nb.uint16}
_TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _signatures(kv_dtype: str) -> dict[Any, Any]:
    pool = _STORED[kv_dtype][:, :, :, ::1]
    heads, flat, ids = _F32[:, :, ::1], _F32[:, ::1], _I64[::1]
    table = _I32[:, ::1]
    decode = nb.void(heads, pool, pool, table, ids, ids, heads, _F32)
    return {
        paged.decode: decode,
        paged.decode_parallel: decode,
        paged.rotate_and_write: nb.void(flat, ids, ids, flat, flat, heads, pool, pool),
        paged.gather: nb.void(pool, table, _I64, heads),
    }


def compile_kernels(kv_dtype: str, threads: int) -> float:
    """Compile, or load from the cache, all that a pool of this dtype needs; returns seconds.

    Afterwards the kernels take no new types. CannotRun where OpenMP is not there for `threads` > 1.
    """
    begin = time.perf_counter()
    for kernel, signature in _signatures(kv_dtype).items():
        if kernel is (paged.decode if threads > 1 else paged.decode_parallel):
            continue
        kernel.disable_compile(False)
        kernel.compile(signature)
        kernel.disable_compile(True)
    if threads > 1:
        _require_openmp(kv_dtype, threads)
    return time.perf_counter() - begin


def _require_openmp(kv_dtype: str, threads: int) -> None:
    try:
        nb.set_num_threads(threads)
    except ValueError as error:
        raise CannotRun(
            f"{threads} threads asked, numba started with fewer: call prepare_process({threads}) first"
        ) from error
    stored = np.zeros((1, 1, 1, 2), np.float32 if kv_dtype == "float32" else np.uint16)
    query = np.zeros((1, 1, 2), np.float32)
    one = np.ones(1, np.int64)
    paged.decode_parallel(query, stored, stored, np.zeros((1, 1), np.int32), one - 1, one, query, np.float32(1))
    if nb.threading_layer() != "omp":
        raise CannotRun(
            f"numba's threading layer is {nb.threading_layer()}, which is too slow to measure with; OpenMP "
            "(libgomp) is needed: start the process through prepare_process, or use threads: 1"
        )


def decode_kernel(threads: int) -> Callable[..., None]:
    """The block-walking decode attention for so many threads."""
    kernel: Callable[..., None] = paged.decode_parallel if threads > 1 else paged.decode
    return kernel


def num_signatures() -> dict[str, int]:
    """Compiled versions of every kernel so far; must not change inside a window."""
    kernels = (paged.decode, paged.decode_parallel, paged.rotate_and_write, paged.gather)
    return {kernel.__name__: len(kernel.signatures) for kernel in kernels}


def new_pool(shape: Sequence[int], kv_dtype: str) -> torch.Tensor:
    """A pool tensor whose pages are all mapped, so that no page fault falls into a measurement."""
    return torch.empty(*shape, dtype=_TORCH[kv_dtype]).fill_(0.0)


def as_stored(pool: torch.Tensor) -> NDArray[Any]:
    """The pool as kernels take it; shares memory. numpy has no bfloat16, so its bits come as uint16."""
    view: NDArray[Any] = (pool.view(torch.uint16) if pool.dtype is torch.bfloat16 else pool).numpy()
    return view


def dense_decode(
    query_SHD: torch.Tensor,
    pool_2NKBD: torch.Tensor,
    blocks_S: Sequence[int],
    lengths_S: Sequence[int],
    out_SHD: torch.Tensor,
) -> None:
    """The control: each sequence lies contiguous in one block and torch's own attention reads it."""
    for seq, (block, length) in enumerate(zip(blocks_S, lengths_S, strict=True)):
        keys_1KCD, values_1KCD = pool_2NKBD[:, block, None, :, :length]
        query_1H1D = query_SHD[seq, None, :, None].to(keys_1KCD.dtype)
        out_1H1D = F.scaled_dot_product_attention(query_1H1D, keys_1KCD, values_1KCD, enable_gqa=True)
        out_SHD[seq] = out_1H1D[0, :, 0]
