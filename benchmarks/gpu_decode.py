"""Decode attention against block size on a device: every kernel over the same scattered tokens, and two controls.

All block sizes are views of one memory, so that nothing but the walk differs. The controls read the same tokens
contiguous: torch's attention over the whole batch at once (`contiguous, torch`), and the kernel itself with one
block a sequence (`one block`). The floor is the time in which the device moves as many bytes as there are keys and
values, at the rate of its own copies (reads and writes counted). Each configuration is held against float32
attention before it is timed; rounds go over all configurations in turn, and over several layers, so that what a
cache keeps of the last call is not measured. Launches are an eager engine's: where a kernel is shorter than its
launch, the launch is what is seen.

Dimension letters: L layers, S sequences, C tokens of each, N blocks, B tokens a block, K KV heads, H query heads,
D head size.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from trials.engines.kernels.adapters import PagedKernel, Planned
from trials.engines.kernels.batch import Batch
from trials.engines.kernels.on_device import Stopwatch
from trials.engines.kernels.paged_step import paged_step

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTIGUOUS, ONE_BLOCK = "contiguous, torch", "one block"


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch that decodes: S sequences of C tokens each."""

    sequences: int
    context: int


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention's shape and dtype; `spread_bytes`: keys and values of all layers together, at least."""

    query: int = 32
    kv: int = 8
    dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    spread_bytes: int = 1 << 30

    def kv_bytes(self, shape: Shape) -> int:
        """Bytes that attention of one layer has to read."""
        return 2 * shape.sequences * shape.context * self.kv * self.dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Timing:
    """ms a layer: of the kernel by the device's own clock, and of planning a step on the host (NaN: nothing to)."""

    kernel: str
    block_size: int
    sequences: int
    context: int
    median_ms: float
    low_ms: float
    high_ms: float
    plan_ms: float
    x_floor: float
    max_error: float


def copy_bandwidth(device: torch.device, num_bytes: int) -> float:
    """Bytes a second, reads and writes together, of the best of ten copies."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target, watch, best = torch.empty_like(source), Stopwatch(device, "wall"), float("inf")
    for _ in range(10):
        watch.reset()
        watch.start()
        target.copy_(source)
        watch.stop()
        best = min(best, watch.total_ns())
    return 2 * num_bytes / (best / 1e9)


class Decodes:
    """One shape over one memory."""

    def __init__(self, device: torch.device, shape: Shape, heads: Heads) -> None:
        self.device, self.shape, self.heads = device, shape, heads
        self.layers = max(2, -(-heads.spread_bytes // heads.kv_bytes(shape)))
        tokens = shape.sequences * shape.context
        self.memory = torch.randn(self.layers, 2, tokens, heads.kv, heads.dim, dtype=heads.dtype, device=device)
        self.query_SHD = torch.randn(shape.sequences, heads.query, heads.dim, dtype=heads.dtype, device=device)
        self.out_SHD = torch.zeros_like(self.query_SHD)
        self.planning_ns = 0

    def table(self, size: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
        """Blocks of every sequence, scattered over the memory; [S, C / size]."""
        order = np.random.default_rng(size).permutation(self.memory.shape[2] // size).astype(np.int32)
        return order.reshape(self.shape.sequences, -1)

    def paged(self, kernel: PagedKernel, size: int) -> Callable[[int], None]:
        """Attention of a layer through the kernel; plans first, as every step does."""
        table, sequences = self.table(size), self.shape.sequences
        none = np.empty(0, np.int64)
        lengths = np.full(sequences, self.shape.context, np.int64)
        planned = Planned(
            paged_step(Batch(none, none, np.arange(sequences), lengths)), table,
            torch.from_numpy(table).to(self.device), size,
        )  # fmt: skip
        pools = self.memory.view(self.layers, 2, -1, size, self.heads.kv, self.heads.dim)

        def call(layer: int) -> None:
            if layer == 0:
                begin = time.perf_counter_ns()
                kernel.plan(planned)
                self.planning_ns = time.perf_counter_ns() - begin
            kernel.run(pools[layer, 0], pools[layer, 1], self.query_SHD, self.out_SHD)

        return call

    def contiguous(self) -> Callable[[int], None]:
        """The control: one call of torch's attention over all sequences, each contiguous."""
        shape = (self.layers, 2, self.shape.sequences, self.shape.context, self.heads.kv, self.heads.dim)
        pools = self.memory.view(shape).transpose(3, 4)

        def call(layer: int) -> None:
            keys, values = pools[layer, 0], pools[layer, 1]
            found = F.scaled_dot_product_attention(self.query_SHD[:, :, None], keys, values, enable_gqa=True)
            self.out_SHD.copy_(found[:, :, 0])

        return call

    def error(self, size: int, call: Callable[[int], None], scattered: bool = True) -> float:
        """Largest difference from float32 attention over the same tokens, layer 0, first and last sequence."""
        self.out_SHD.fill_(float("nan"))
        call(0)
        pools, worst = self.memory.view(self.layers, 2, -1, size, self.heads.kv, self.heads.dim), 0.0
        table = self.table(size) if scattered else np.arange(self.shape.sequences)[:, None]
        for seq in {0, self.shape.sequences - 1}:
            ids = torch.from_numpy(table[seq].astype(np.int64)).to(self.device)
            keys, values = (pools[0, side].index_select(0, ids).flatten(0, 1).float() for side in (0, 1))
            query = self.query_SHD[seq, :, None].float()[None]
            expected = F.scaled_dot_product_attention(
                query, keys.transpose(0, 1)[None], values.transpose(0, 1)[None], enable_gqa=True
            )[0, :, 0]
            worst = max(worst, float((expected - self.out_SHD[seq].float()).abs().max()))
        return worst


def measure(
    decodes: Decodes, kernels: dict[str, PagedKernel], rounds: int, bandwidth: float, limit: float
) -> tuple[list[Timing], list[str]]:
    """(timings, what a kernel refused or computed wrongly, in words). Errors beyond `limit` are not timed."""
    shape, calls, wrong = decodes.shape, dict[tuple[str, int], Callable[[int], None]](), list[str]()
    calls[CONTIGUOUS, shape.context] = decodes.contiguous()
    for name, kernel in kernels.items():
        for size in (*(b for b in BLOCKS if shape.context % b == 0), shape.context):
            calls[name if size != shape.context else f"{name}, {ONE_BLOCK}", size] = decodes.paged(kernel, size)
    errors: dict[tuple[str, int], float] = {}
    for (name, size), call in list(calls.items()):
        said = ""
        try:
            errors[name, size] = off = decodes.error(size, call, scattered=name != CONTIGUOUS)
            said = "" if off <= limit else f"differs from float32 by {off:.3g}"
        except RuntimeError as error:
            said = str(error).splitlines()[0]
        if said:
            wrong.append(f"{name} at block size {size}, {shape}: {said}")
            del calls[name, size]
    times = _timed(decodes, calls, rounds)
    floor_ms = decodes.heads.kv_bytes(shape) / bandwidth * 1e3
    out = []
    for (name, size), (kernel_ms, plan_ms) in times.items():
        median, low, high = (float(x) for x in np.quantile(kernel_ms, (0.5, 0.1, 0.9)))
        plan = float(np.median(plan_ms)) if name != CONTIGUOUS else float("nan")
        out.append(Timing(name, size, shape.sequences, shape.context, median, low, high, plan,
                          median / floor_ms, errors[name, size]))  # fmt: skip
    return out, wrong


def _timed(
    decodes: Decodes, calls: dict[tuple[str, int], Callable[[int], None]], rounds: int
) -> dict[tuple[str, int], tuple[list[float], list[float]]]:
    """{configuration: (ms a layer, ms of planning) of every round}. Layer 0 plans and is not timed."""
    watch, found = Stopwatch(decodes.device, "wall"), {name: (list[float](), list[float]()) for name in calls}
    for number in range(rounds + 1):  # the first warms
        for name, call in calls.items():
            call(0)
            watch.reset()
            watch.start()
            for layer in range(1, decodes.layers):
                call(layer)
            watch.stop()
            if number:
                found[name][0].append(watch.total_ns() / 1e6 / (decodes.layers - 1))
                found[name][1].append(decodes.planning_ns / 1e6)
    return found
