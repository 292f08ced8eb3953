"""The kernels against torch's own attention and rotation, on pools whose unwritten slots hold NaN."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trials.engines.kernels import paged, threads
from trials.engines.kernels.batch import BadBlock, check_blocks
from trials.engines.kernels.calls import (
    as_stored,
    compile_kernels,
    dense_decode,
    new_pool,
    num_signatures,
)
from trials.engines.kernels.speed import probe_speed
from trials.engines.torch_model import rope_tables
from trials.units import SpecError

SHAPES = {"gqa": (4, 2, 64), "mha": (2, 1, 32), "odd": (1, 3, 20)}  # KV heads, query heads a KV head, head size


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_kernels("float32", threads=1)
    compile_kernels("bfloat16", threads=1)


class Filled:
    """A pool of NaN in which only live tokens are written, in scattered blocks."""

    def __init__(self, block: int, lengths: Sequence[int], shape: tuple[int, int, int], kv_dtype: str) -> None:
        kv_heads, self.group, dim = shape
        rng = np.random.default_rng(block)
        entries = [-(-n // block) for n in lengths]
        order = rng.permutation(sum(entries) + 2).astype(np.int32)
        self.table = np.zeros((len(lengths), max(entries)), np.int32)
        self.pool = new_pool((2, len(order), kv_heads, block, dim), kv_dtype).fill_(float("nan"))
        self.live: list[torch.Tensor] = []  # [2, kv_heads, tokens, dim] a sequence
        torch.manual_seed(block)
        for seq, (length, count) in enumerate(zip(lengths, entries, strict=True)):
            ids, order = order[:count], order[count:]
            self.table[seq, :count] = ids
            live = torch.randn(2, kv_heads, length, dim).to(self.pool.dtype)
            for place in range(length):
                self.pool[:, int(ids[place // block]), :, place % block] = live[:, :, place]
            self.live.append(live.float())
        self.lengths = np.asarray(lengths, np.int64)
        self.query = torch.randn(len(lengths), kv_heads * self.group, dim)

    def expected(self) -> torch.Tensor:
        out = [
            F.scaled_dot_product_attention(q[None, :, None], k[None], v[None], enable_gqa=True)[0, :, 0]
            for q, (k, v) in zip(self.query, self.live, strict=True)
        ]
        return torch.stack(out)

    def walked(self) -> torch.Tensor:
        out = torch.full_like(self.query, float("nan"))
        keys, values = as_stored(self.pool[0]), as_stored(self.pool[1])
        rows = np.arange(len(self.lengths))
        scale = np.float32(self.query.shape[-1] ** -0.5)
        paged.decode(self.query.numpy(), keys, values, self.table, rows, self.lengths, out.numpy(), scale)
        return out


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("block", [1, 2, 3, 4, 16, 64])
def test_decode_equals_torch_attention_and_reads_no_dead_slot(block: int, shape: tuple[int, int, int]) -> None:
    lengths = sorted({1, 2, max(1, block - 1), block, block + 1, 2 * block, 15, 16, 17, 131})
    filled = Filled(block, lengths, shape, "float32")
    torch.testing.assert_close(filled.walked(), filled.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block", [1, 16])
def test_decode_reads_bfloat16_exactly(block: int) -> None:
    filled = Filled(block, [1, 16, 33], SHAPES["gqa"], "bfloat16")
    torch.testing.assert_close(filled.walked(), filled.expected(), atol=1e-5, rtol=1e-5)


def test_large_scores_do_not_overflow() -> None:
    filled = Filled(4, [40, 41], SHAPES["gqa"], "float32")
    filled.query *= 1e3
    torch.testing.assert_close(filled.walked(), filled.expected(), atol=1e-4, rtol=1e-4)


def test_a_nan_in_a_live_slot_is_seen() -> None:
    filled = Filled(4, [9], SHAPES["gqa"], "float32")
    filled.pool[1, int(filled.table[0, 2]), :, 0] = float("nan")
    assert filled.walked().isnan().any()


def test_dense_control_equals_the_walk_over_one_block() -> None:
    filled = Filled(64, [1, 63, 64], SHAPES["gqa"], "float32")
    out = torch.empty_like(filled.query)
    dense_decode(filled.query, filled.pool, filled.table[:, 0].tolist(), filled.lengths.tolist(), out)
    torch.testing.assert_close(out, filled.walked(), atol=1e-5, rtol=1e-5)


def _turned(x_TKD: torch.Tensor, positions: np.ndarray[Any, Any]) -> torch.Tensor:
    """Rotation as complex numbers: pair (d, d + D/2) turned by the position's angle."""
    half = x_TKD.shape[-1] // 2
    angles = torch.from_numpy(positions)[:, None].double() / 10_000.0 ** (torch.arange(half).double() / half)
    turned = torch.complex(x_TKD[..., :half].double(), x_TKD[..., half:].double()) * torch.exp(1j * angles[:, None])
    return torch.cat((turned.real, turned.imag), -1).float()


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
def test_write_turns_and_stores_each_token_in_its_slot_only(kv_dtype: str) -> None:
    heads, kv_heads, dim, block = 4, 2, 16, 3
    positions = np.array([0, 5, 99, 7])
    slots = np.array([4, 0, 11, 8])
    fused = torch.randn(4, (heads + 2 * kv_heads) * dim)
    q, k, v = fused.view(4, heads + 2 * kv_heads, dim).split([heads, kv_heads, kv_heads], 1)
    want_q, want_k = _turned(q, positions), _turned(k, positions)
    want_v = v.clone()
    pool = new_pool((2, 4, kv_heads, block, dim), kv_dtype).fill_(float("nan"))
    query = torch.empty(4, heads, dim)
    cos, sin = rope_tables(100, dim)
    paged.rotate_and_write(
        fused.numpy(), positions, slots, cos.numpy(), sin.numpy(),
        query.numpy(), as_stored(pool[0]), as_stored(pool[1]),
    )  # fmt: skip
    torch.testing.assert_close(query, want_q, atol=1e-5, rtol=1e-5)
    written = pool.transpose(2, 3).reshape(2, 4 * block, kv_heads, dim)
    stored = want_k.to(pool.dtype), want_v.to(pool.dtype)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if kv_dtype == "float32" else {"atol": 1e-5, "rtol": 8e-3}
    torch.testing.assert_close(written[0, slots], stored[0], **tolerance)
    assert torch.equal(written[1, slots], stored[1])  # values are rounded as torch rounds them
    dead = np.setdiff1d(np.arange(4 * block), slots)
    assert written[:, dead].isnan().all()
    own = fused.view(4, heads + 2 * kv_heads, dim)[:, heads:]  # a prefill reads what the pool holds
    assert torch.equal(own, torch.cat((written[0, slots], written[1, slots]), 1).float())


@pytest.mark.parametrize("block", [1, 3, 16, 64])
def test_gather_puts_a_sequence_side_by_side(block: int) -> None:
    filled = Filled(block, [50, 33], SHAPES["gqa"], "float32")
    for seq in (0, 1):
        out = torch.empty_like(filled.live[seq][0])
        paged.gather(as_stored(filled.pool[0]), filled.table, seq, out.numpy())
        assert torch.equal(out, filled.live[seq][0])


@pytest.mark.parametrize("bad", [-1, 8, 1 << 40])
def test_a_block_outside_the_pool_is_named_with_its_row(bad: int) -> None:
    check_blocks(3, np.array([0, 7], np.int64), 8)
    with pytest.raises(BadBlock, match=rf"row 3: entry 1 .* block {bad}; the pool has blocks 0 to 7"):
        check_blocks(3, np.array([0, bad], np.int64), 8)


def test_another_type_is_refused_and_compiles_nothing() -> None:
    filled = Filled(4, [9, 12], SHAPES["gqa"], "float32")
    before = num_signatures()
    assert before["decode"] == 2  # float32 and bfloat16 pools
    filled.table = np.ascontiguousarray(filled.table.astype(np.int64))
    with pytest.raises(TypeError):
        filled.walked()
    filled.table = filled.table.astype(np.int32)[:, :3][:, ::-1]
    with pytest.raises(TypeError):
        filled.walked()
    assert num_signatures() == before


def test_speed_probe_measures_work_and_leaves_the_thread_count() -> None:
    before = torch.get_num_threads()
    assert 0.02 < probe_speed() < 10
    assert torch.get_num_threads() == before


def test_threads_are_settled_before_the_libraries_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER"):
        monkeypatch.setenv(name, "77")
    assert "torch" in sys.modules
    with pytest.raises(SpecError, match="cannot be set any more, torch and numba are imported already"):
        threads.prepare_process(3)
    with pytest.raises(SpecError, match="threads: 0"):
        threads.prepare_process(0)
    for name in ("torch", "numba"):
        monkeypatch.delitem(sys.modules, name)
    threads.prepare_process(3)
    assert threads.os.environ["OMP_NUM_THREADS"] == threads.os.environ["NUMBA_NUM_THREADS"] == "3"
    assert threads.os.environ["NUMBA_THREADING_LAYER"] == "omp"
