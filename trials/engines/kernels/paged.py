"""Decode attention that WALKS the blocks of a paged KV pool, and the other ways into and out of that pool.

Every function reads what the block table says and nothing else: slots behind a sequence's length are never
loaded, whatever they hold. Softmax is online over tiles of at most TILE tokens that never cross a block, as in
PagedAttention (Kwon et al., 2023) with the online rescaling of Milakov and Gimelshein (2018); so a block below
TILE tokens pays a softmax step a block, besides the jump to the next address. Nothing here checks bounds:
callers check ids first (`calls.py`).

Dimension letters: S sequences, T tokens, H query heads, K KV heads, G query heads a KV head, D head size,
N blocks, B tokens a block, R rows of the device block table, M blocks a row.
"""

# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call"
import llvmlite.ir as ir
import numba as nb
import numpy as np
from numba import types
from numba.extending import intrinsic, overload

TILE = 16
_LOWEST = np.float32(-3e38)
# nnan and ninf stay off: a NaN that reaches a result must be seen, not optimised away
_OPTIONS = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "cache": True,
    "error_model": "numpy",
    "nogil": True,
}


# numba has no bfloat16, the upper half of a float32: a pool's bits travel as uint16, are widened by a shift on load
# and rounded as integers on store. All of this is module-level, because numba's disk cache never hits for a closure
# that captures an intrinsic, and in this file, because that cache notices changes of the calling file only.
@intrinsic
def _float_of(typing_context, bits):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of(typing_context, number):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def load(stored):
    """An element of the pool -> float32."""
    raise NotImplementedError("only inside compiled code")


@overload(load, inline="always")
def _load(stored):
    if stored == types.uint16:
        return lambda stored: _float_of(np.uint32(stored) << np.uint32(16))
    return lambda stored: stored


def store(pool, block, head, offset, dim, number):
    """Write a float32 into pool[block, head, offset, dim]; returns the value as a later load will see it.

    bfloat16 rounds to nearest, ties to even.
    """
    raise NotImplementedError("only inside compiled code")


@overload(store, inline="always")
def _store(pool, block, head, offset, dim, number):
    if pool.dtype == types.uint16:

        def narrow(pool, block, head, offset, dim, number):
            bits = _bits_of(number)
            upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            pool[block, head, offset, dim] = np.uint16(upper)
            return _float_of(np.uint32(upper) << np.uint32(16))

        return narrow

    def keep(pool, block, head, offset, dim, number):
        pool[block, head, offset, dim] = number
        return number

    return keep


@nb.njit(**_OPTIONS)
def _attend(seq, query_SHD, keys_NKBD, values_NKBD, table_RM, rows_S, lengths_S, out_SHD, scale):
    """One sequence. Each block is visited once, for all its heads: a visit reads K B D numbers in a row, and the
    G query heads that share a KV head read each key once."""
    num_kv_heads, block_size, head_dim = keys_NKBD.shape[1], keys_NKBD.shape[2], keys_NKBD.shape[3]
    num_heads = query_SHD.shape[1]
    group = num_heads // num_kv_heads
    row = rows_S[seq]
    left = lengths_S[seq]
    sums_HD = np.zeros((num_heads, head_dim), np.float32)
    weights_GT = np.empty((group, TILE), np.float32)
    highest_H = np.full(num_heads, _LOWEST)
    total_H = np.zeros(num_heads, np.float32)
    entry = 0
    while left > 0:
        block = table_RM[row, entry]
        entry += 1
        in_block = min(block_size, left)
        left -= in_block
        for head in range(num_kv_heads):
            first = head * group
            start = 0
            while start < in_block:
                count = min(TILE, in_block - start)
                for t in range(count):
                    for g in range(group):
                        dot = np.float32(0)
                        for d in range(head_dim):
                            dot += query_SHD[seq, first + g, d] * load(keys_NKBD[block, head, start + t, d])
                        weights_GT[g, t] = dot * scale
                for g in range(group):
                    h = first + g
                    highest = highest_H[h]
                    for t in range(count):
                        highest = max(highest, weights_GT[g, t])
                    if highest > highest_H[h]:
                        shrink = np.exp(highest_H[h] - highest)
                        highest_H[h] = highest
                        total_H[h] *= shrink
                        for d in range(head_dim):
                            sums_HD[h, d] *= shrink
                    added = np.float32(0)
                    for t in range(count):
                        weight = np.exp(weights_GT[g, t] - highest)
                        weights_GT[g, t] = weight
                        added += weight
                    total_H[h] += added
                for t in range(count):
                    for g in range(group):
                        weight = weights_GT[g, t]
                        for d in range(head_dim):
                            sums_HD[first + g, d] += weight * load(values_NKBD[block, head, start + t, d])
                start += count
    for h in range(num_heads):
        inverse = np.float32(1) / total_H[h]
        for d in range(head_dim):
            out_SHD[seq, h, d] = sums_HD[h, d] * inverse


@nb.njit(**_OPTIONS)
def decode(query_SHD, keys_NKBD, values_NKBD, table_RM, rows_S, lengths_S, out_SHD, scale):
    """Attention of one query a sequence over its blocks, on the calling thread."""
    for seq in range(query_SHD.shape[0]):
        _attend(seq, query_SHD, keys_NKBD, values_NKBD, table_RM, rows_S, lengths_S, out_SHD, scale)


def _decode_on_threads(query_SHD, keys_NKBD, values_NKBD, table_RM, rows_S, lengths_S, out_SHD, scale):
    """The same with sequences spread over threads. A function of its own: numba's cache key ignores `parallel`,
    so one source position compiled both ways would hand out the serial code for the parallel one."""
    for seq in nb.prange(query_SHD.shape[0]):
        _attend(seq, query_SHD, keys_NKBD, values_NKBD, table_RM, rows_S, lengths_S, out_SHD, scale)


decode_parallel = nb.njit(parallel=True, **_OPTIONS)(_decode_on_threads)


@nb.njit(**_OPTIONS)
def rotate_and_write(fused_TE, positions_T, slots_T, cos_PD, sin_PD, query_THD, keys_NKBD, values_NKBD):
    """Rotary embedding of queries and keys, and the write of keys and values into their slots.

    `fused_TE` holds H query, K key and K value heads side by side; its keys and values are left as the pool
    holds them (rotated, and rounded where the pool is narrower), so that a prefill which reads them from here
    and one which reads them back from the pool see the same numbers. Halves rotate against each other, the
    layout of Llama checkpoints; `cos_PD` has D / 2 columns. A slot is block * B + offset.
    """
    num_heads, head_dim = query_THD.shape[1], query_THD.shape[2]
    num_kv_heads, block_size = keys_NKBD.shape[1], keys_NKBD.shape[2]
    half = head_dim // 2
    for t in range(fused_TE.shape[0]):
        p = positions_T[t]
        block = slots_T[t] // block_size
        offset = slots_T[t] - block * block_size
        for h in range(num_heads):
            e = h * head_dim
            for d in range(half):
                low, high = fused_TE[t, e + d], fused_TE[t, e + half + d]
                query_THD[t, h, d] = low * cos_PD[p, d] - high * sin_PD[p, d]
                query_THD[t, h, half + d] = high * cos_PD[p, d] + low * sin_PD[p, d]
        for h in range(num_kv_heads):
            e = (num_heads + h) * head_dim
            for d in range(half):
                low, high = fused_TE[t, e + d], fused_TE[t, e + half + d]
                turned = low * cos_PD[p, d] - high * sin_PD[p, d]
                fused_TE[t, e + d] = store(keys_NKBD, block, h, offset, d, turned)
                turned = high * cos_PD[p, d] + low * sin_PD[p, d]
                fused_TE[t, e + half + d] = store(keys_NKBD, block, h, offset, half + d, turned)
            e = (num_heads + num_kv_heads + h) * head_dim
            for d in range(head_dim):
                fused_TE[t, e + d] = store(values_NKBD, block, h, offset, d, fused_TE[t, e + d])


@nb.njit(**_OPTIONS)
def gather(pool_NKBD, table_RM, row, out_KCD):
    """The first C tokens of a table row, copied side by side (float32), for a prefill over what stands before."""
    num_tokens, head_dim = out_KCD.shape[1], out_KCD.shape[2]
    block_size = pool_NKBD.shape[2]
    for h in range(out_KCD.shape[0]):
        for entry in range((num_tokens + block_size - 1) // block_size):
            block = table_RM[row, entry]
            start = entry * block_size
            for t in range(min(block_size, num_tokens - start)):
                for d in range(head_dim):
                    out_KCD[h, start + t, d] = load(pool_NKBD[block, h, t, d])
