"""The paged KV pool on any device that torch has: pool, table and buffers as tensors, a kernel of one's choice.

The scheduler's table is kept on the host and mirrored on the device: rows that changed are sent before the next
step. Rotation and the write into the pool are torch's own operations.

Dimension letters: L layers, N blocks, B tokens a block, K KV heads, D head size, H query heads, T tokens of the
step, E = (H + 2 K) D, A = H D, R rows of the block table, M blocks a row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from trials.engines.kernels import batch as batches
from trials.engines.kernels.adapters import DenseVarlen, FlashInfer, Gather, PagedKernel, Planned, TorchVarlen
from trials.engines.kernels.batch import CLOCKS, AttentionTime, Batch, CannotRun
from trials.engines.kernels.config import TorchConfig
from trials.engines.kernels.paged_step import paged_step
from trials.engines.torch_model import DTYPES, rope_tables
from trials.model import ModelSpec


class Stopwatch:
    """Time between `start` and `stop`, summed: by events on CUDA, which cost the stream nothing to speak of, by the
    configured clock elsewhere. `total_ns` waits for what is still under way."""

    def __init__(self, device: torch.device, clock: str) -> None:
        self._events: list[tuple[Any, Any]] | None = [] if device.type == "cuda" else None
        self._clock, self._used, self._sum, self._begin = CLOCKS[clock], 0, 0, 0

    def reset(self) -> None:
        self._used = self._sum = 0

    def start(self) -> None:
        if self._events is None:
            self._begin = self._clock()
            return
        if self._used == len(self._events):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        self._events[self._used][0].record()

    def stop(self) -> None:
        if self._events is None:
            self._sum += self._clock() - self._begin
            return
        self._events[self._used][1].record()
        self._used += 1

    def total_ns(self) -> int:
        if self._events is None or not self._used:
            return self._sum
        self._events[self._used - 1][1].synchronize()
        spent_ms: float = sum(begin.elapsed_time(end) for begin, end in self._events[: self._used])
        return round(spent_ms * 1e6)


class DeviceAttention:
    """An `Attention` (batch.py) over tensors of a device. `kernel` is given by who built it."""

    def __init__(self, config: TorchConfig, kernel: PagedKernel) -> None:
        model, geometry = config.model, config.geometry
        self.config, self.kernel, self.device = config, kernel, torch.device(config.device)
        dtype = DTYPES[model.kv_dtype]
        per_block = (geometry.block_size, model.num_kv_heads, model.head_dim)
        self.pool = torch.zeros(
            model.num_layers, 2, geometry.num_blocks, *per_block, dtype=dtype, device=self.device
        )
        self.table_RM = np.zeros((config.max_num_seqs, config.max_blocks), np.int32)
        self.device_table_RM = torch.zeros(self.table_RM.shape, dtype=torch.int32, device=self.device)
        self._rope = rope_tables(config.max_model_len, model.head_dim, config.device)
        self._query_TA = torch.zeros(
            config.max_tokens, model.num_query_heads * model.head_dim, dtype=dtype, device=self.device
        )
        self._watch = Stopwatch(self.device, config.clock)
        self._stale: set[int] = set()  # rows of the table that the device does not have as they are
        self._positions_T = self._slots_T = torch.empty(0)

    def write_entries(self, slot: int, row: int, blocks: Sequence[int], first: int = 0) -> None:
        """Entries [first, len(blocks)) of a table row, from request `row`'s block ids; BadBlock, checked first."""
        batches.write_row(self.table_RM, slot, row, blocks, first, self.config.geometry.num_blocks)
        self._stale.add(slot)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Blocks (from, to) of every layer, as if all at once."""
        batches.copied(self.pool, copies)

    def begin(self, batch: Batch) -> None:
        """Send what changed of the table, and plan the step's attention: part of the step's time."""
        if self._stale:
            rows = np.fromiter(sorted(self._stale), np.int64, len(self._stale))
            sent = torch.from_numpy(self.table_RM[rows]).to(self.device)
            self.device_table_RM.index_copy_(0, torch.from_numpy(rows).to(self.device), sent)
            self._stale.clear()
        self._positions_T = torch.from_numpy(batch.positions_T).to(self.device)
        self._slots_T = torch.from_numpy(batch.pool_slots_T).to(self.device)
        self._watch.reset()
        self.kernel.plan(
            Planned(paged_step(batch), self.table_RM, self.device_table_RM, self.config.geometry.block_size)
        )

    def attend(self, layer: int, fused_TE: torch.Tensor, out_TA: torch.Tensor) -> None:
        """Rotate, write all of this step's keys and values into the layer's pool, and only then attend."""
        model, num_tokens = self.config.model, len(self._positions_T)
        heads = model.num_query_heads + 2 * model.num_kv_heads
        fused_THD = fused_TE.view(num_tokens, heads, model.head_dim)
        turning = model.num_query_heads + model.num_kv_heads
        turned_THD = rotated(fused_THD[:, :turning], self._positions_T, self._rope)
        query_THD = self._query_TA[:num_tokens].view(num_tokens, model.num_query_heads, model.head_dim)
        query_THD.copy_(turned_THD[:, : model.num_query_heads])
        keys_NBKD, values_NBKD = self.pool[layer]
        for pool, written in (
            (keys_NBKD, turned_THD[:, model.num_query_heads :]), (values_NBKD, fused_THD[:, turning:])
        ):  # fmt: skip
            pool.flatten(0, 1).index_copy_(0, self._slots_T, written.to(pool.dtype))
        self._watch.start()
        self.kernel.run(keys_NBKD, values_NBKD, query_THD, out_TA.view_as(query_THD))
        self._watch.stop()

    def finish(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def spent(self) -> AttentionTime:
        """Of the step so far, decodes and chunks together: a kernel may take both in one call."""
        return AttentionTime(decode_ns=self._watch.total_ns())

    def tables(self) -> list[torch.Tensor]:
        return [self.device_table_RM]

    def buffers(self) -> list[torch.Tensor]:
        return [self._query_TA, *self._rope, *self.kernel.buffers()]


def rotated(
    x_TKD: torch.Tensor, positions_T: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Rotary embedding in float32, halves against each other, as the CPU kernel turns them (paged.py)."""
    cos, sin = (table.index_select(0, positions_T)[:, None] for table in rope)
    low, high = x_TKD.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def activate_flash_attention() -> str:
    """The FlashAttention that can read a block table here: 3 for compute capability 9, 4 for 10; its name.

    CannotRun where the device has none, ImportError where its package is not installed.
    """
    from torch.nn.attention import activate_flash_attention_impl

    major, minor = torch.cuda.get_device_capability()
    name = {9: "FA3", 10: "FA4"}.get(major)
    if name is None:
        raise CannotRun(
            f"torch's varlen attention reads a block table on compute capability 9 and 10, not {major}.{minor}"
        )
    activate_flash_attention_impl(name)
    return name


def _torch_varlen(model: ModelSpec, config: TorchConfig) -> PagedKernel:
    from torch.nn.attention.varlen import varlen_attn_out

    activate_flash_attention()
    return TorchVarlen(model, varlen_attn_out)


def _dense_varlen(model: ModelSpec, config: TorchConfig) -> PagedKernel:
    from torch.nn.attention.varlen import varlen_attn_out

    return DenseVarlen(model, varlen_attn_out)


def _flashinfer(model: ModelSpec, config: TorchConfig) -> PagedKernel:
    import flashinfer

    return FlashInfer(model, DTYPES[model.dtype], torch.device(config.device), flashinfer)


def _gather(model: ModelSpec, config: TorchConfig) -> PagedKernel:
    return Gather()


BUILDERS: dict[str, Callable[[ModelSpec, TorchConfig], PagedKernel]] = {
    "torch_varlen": _torch_varlen,
    "dense_varlen": _dense_varlen,
    "flashinfer": _flashinfer,
    "gather": _gather,
}


def device_attention(config: TorchConfig) -> DeviceAttention:
    """Pool, table and the kernel that the config names. ImportError or CannotRun where it cannot be had."""
    return DeviceAttention(config, BUILDERS[config.kernel](config.model, config))
