"""Decode attention against block size: what the walk over a block table costs on this machine's CPU.

    python benchmarks/kernel_block_size.py [--json FILE|-] [--threads N] [--kv-dtype bfloat16] [--rounds N]

The same sequences at every block size, beside two controls: the same kernel with one block of the longest
sequence (what the kernel costs without a walk), and torch's attention over each sequence, contiguous. The two
controls are told apart because torch's attention is another kernel, not the same one without paging. Every
configuration is checked against torch's attention in float32 before it is timed; rounds go over all
configurations in turn, so that a machine that slows down slows all of them. Times are CPU ms with one thread,
wall ms with more.

Dimension letters: L layers, S sequences, N blocks, K KV heads, B tokens a block, D head size, H query heads.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trials.engines.kernels.threads import prepare_process

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LAYERS, SEQUENCES, LONGEST, KV_HEADS, GROUP, HEAD_DIM = 4, 64, 512, 4, 2, 64
DENSE = "contiguous, torch"


@dataclass(frozen=True)
class Row:
    """One configuration: ms a layer at the median and at both tenths, and its largest error before timing."""

    name: str
    block_size: int
    median_ms: float
    low_ms: float
    high_ms: float
    max_error: float


class Bench:
    """One set of sequences over one memory, which every configuration sees as blocks of its own size."""

    def __init__(self, threads: int, kv_dtype: str) -> None:
        import numpy as np
        import torch

        from trials.engines.kernels.calls import compile_kernels, new_pool

        torch.set_num_threads(threads)
        compile_kernels(kv_dtype, threads)
        self.threads, self.kv_dtype = threads, kv_dtype
        self.lengths = np.random.default_rng(0).integers(100, LONGEST + 1, SEQUENCES)
        self.memory = new_pool((LAYERS, 2, SEQUENCES * LONGEST, KV_HEADS, 1, HEAD_DIM), kv_dtype).normal_()
        self.query_SHD = torch.randn(SEQUENCES, KV_HEADS * GROUP, HEAD_DIM)
        self.out_SHD = torch.empty_like(self.query_SHD)

    def _blocks(self, size: int):
        """(pool [L, 2, N, K, B, D], block tables [S, blocks] scattered over it)."""
        import numpy as np

        pool = self.memory.view(LAYERS, 2, SEQUENCES * LONGEST // size, KV_HEADS, size, HEAD_DIM)
        order = np.random.default_rng(size).permutation(pool.shape[2]).astype(np.int32)
        return pool, order.reshape(SEQUENCES, -1)

    def walk(self, size: int) -> Callable[[int], None]:
        """The block-walking kernel; call with a layer."""
        import numpy as np

        from trials.engines.kernels.calls import as_stored, decode_kernel

        pool, table = self._blocks(size)
        stored = [(as_stored(layer[0]), as_stored(layer[1])) for layer in pool]
        query, out, kernel = self.query_SHD.numpy(), self.out_SHD.numpy(), decode_kernel(self.threads)
        rows, scale = np.arange(SEQUENCES), np.float32(HEAD_DIM**-0.5)
        return lambda layer: kernel(query, *stored[layer], table, rows, self.lengths, out, scale)

    def dense(self) -> Callable[[int], None]:
        """The contiguous control; call with a layer."""
        from trials.engines.kernels.calls import dense_decode

        pool, table = self._blocks(LONGEST)
        blocks, lengths = table[:, 0].tolist(), self.lengths.tolist()
        return lambda layer: dense_decode(self.query_SHD, pool[layer], blocks, lengths, self.out_SHD)

    def error(self, size: int, call: Callable[[int], None]) -> float:
        """Largest difference of `call` on layer 0 from torch's float32 attention over the gathered tokens."""
        import torch.nn.functional as F

        call(0)
        pool, table = self._blocks(size)
        worst = 0.0
        for seq, length in enumerate(self.lengths.tolist()):
            both = pool[0, :, table[seq]].transpose(1, 2).reshape(2, KV_HEADS, -1, HEAD_DIM)[:, :, :length].float()
            query = self.query_SHD[seq, None, :, None]
            expected = F.scaled_dot_product_attention(query, both[:1], both[1:], enable_gqa=True)[0, :, 0]
            worst = max(worst, float((expected - self.out_SHD[seq]).abs().max()))
        return worst

    def measure(self, rounds: int) -> list[Row]:
        """All configurations; AssertionError where one computes something else than torch."""
        import numpy as np

        calls = {f"block {size}": (size, self.walk(size)) for size in BLOCKS}
        calls[f"one block of {LONGEST}"] = LONGEST, self.walk(LONGEST)
        calls[DENSE] = LONGEST, self.dense()
        errors = {name: self.error(size, call) for name, (size, call) in calls.items()}
        for name, error in errors.items():
            rounded = name == DENSE and self.kv_dtype != "float32"  # torch multiplies in the pool's own dtype
            assert error < (2e-2 if rounded else 1e-5), f"{name} differs from torch's attention by {error}"
        clock = time.process_time if self.threads == 1 else time.perf_counter
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, (_, call) in calls.items():
                for layer in range(LAYERS):
                    begin = clock()
                    call(layer)
                    times[name].append((clock() - begin) * 1e3)
        spread = {name: np.quantile(found, (0.5, 0.1, 0.9)).round(3).tolist() for name, found in times.items()}
        return [Row(name, calls[name][0], *spread[name], errors[name]) for name in calls]


def table(found: list[Row], bench: Bench, where: TextIO) -> None:
    best = min(row.median_ms for row in found if row.name != DENSE)
    clock = "CPU" if bench.threads == 1 else "wall"
    heads = f"{KV_HEADS} KV heads of {HEAD_DIM}, {GROUP} query heads each"
    print(f"{SEQUENCES} sequences of 100 to {LONGEST} tokens, {heads}", file=where)
    print(f"{bench.kv_dtype}, {bench.threads} thread(s), {clock} ms a layer", file=where)
    print(f"{'':<20} {'median':>8} {'p10':>8} {'p90':>8} {'x best':>7}", file=where)
    for row in found:
        times = f"{row.median_ms:>8.2f} {row.low_ms:>8.2f} {row.high_ms:>8.2f}"
        print(f"{row.name:<20} {times} {row.median_ms / best:>7.2f}", file=where)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the JSON, or - for stdout (then the table goes to stderr)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kv-dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    prepare_process(given.threads)
    bench = Bench(given.threads, given.kv_dtype)
    found = bench.measure(given.rounds)
    table(found, bench, sys.stderr if given.json == "-" else sys.stdout)
    if given.json:
        rows = [asdict(row) for row in found]
        text = json.dumps({"threads": given.threads, "kv_dtype": given.kv_dtype, "rows": rows}, indent=1) + "\n"
        if given.json == "-":
            sys.stdout.write(text)
        else:
            Path(given.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
