"""Decode attention against block size: what the walk over a block table costs on this machine's CPU.

    python benchmarks/kernel_block_size.py [--json FILE|-] [--threads N] [--kv-dtype bfloat16] [--rounds N]

The same sequences at every block size, beside two controls: the same kernel with one block of the longest
sequence (what the kernel costs without a walk), and torch's attention over each sequence, contiguous. The two
controls are told apart because torch's attention is another kernel, not the same one without paging. Every
configuration is checked against torch's attention before it is timed; rounds go over all configurations in turn,
so that a machine that slows down slows all of them. Times are CPU ms with one thread, wall ms with more.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trials.engines.kernels.threads import prepare_process

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SEQUENCES, LONGEST, KV_HEADS, GROUP, HEAD_DIM, LAYERS = 64, 512, 4, 2, 64, 4


@dataclass(frozen=True)
class Row:
    """One configuration. `block_size` 0: torch's attention over contiguous sequences."""

    name: str
    block_size: int
    median_ms: float
    low_ms: float
    high_ms: float
    max_error: float


def measure(threads: int, kv_dtype: str, rounds: int) -> list[Row]:
    """Time every configuration; AssertionError where one computes something else than torch."""
    import numpy as np
    import torch
    import torch.nn.functional as F

    from trials.engines.kernels.calls import as_stored, compile_kernels, decode_kernel, dense_decode, new_pool

    torch.set_num_threads(threads)
    compile_kernels(kv_dtype, threads)
    rng = np.random.default_rng(0)
    lengths = rng.integers(100, LONGEST + 1, SEQUENCES)
    flat = new_pool((LAYERS, 2, SEQUENCES * LONGEST, KV_HEADS, 1, HEAD_DIM), kv_dtype).normal_()
    query, out = (
        torch.randn(SEQUENCES, KV_HEADS * GROUP, HEAD_DIM),
        torch.empty(SEQUENCES, KV_HEADS * GROUP, HEAD_DIM),
    )
    rows, scale = np.arange(SEQUENCES), np.float32(HEAD_DIM**-0.5)

    def configuration(block: int) -> tuple[torch.Tensor, "np.ndarray[tuple[int, int], np.dtype[np.int32]]"]:
        """The same bytes seen as blocks of another size, and scattered block tables over them."""
        pool = flat.view(LAYERS, 2, SEQUENCES * LONGEST // block, KV_HEADS, block, HEAD_DIM)
        table = rng.permutation(pool.shape[2]).astype(np.int32).reshape(SEQUENCES, -1)
        return pool, table

    def walk(block: int) -> Callable[[int], None]:
        pool, table = configuration(block)
        stored = [(as_stored(layer[0]), as_stored(layer[1])) for layer in pool]
        kernel = decode_kernel(threads)
        return lambda layer: kernel(query.numpy(), *stored[layer], table, rows, lengths, out.numpy(), scale)

    def dense() -> Callable[[int], None]:
        pool, table = configuration(LONGEST)
        blocks, counts = table[:, 0].tolist(), lengths.tolist()
        return lambda layer: dense_decode(query, pool[layer], blocks, counts, out)

    def expected(block: int) -> torch.Tensor:
        """torch's attention over the tokens of layer 0, gathered; the tables are those of `configuration`."""
        pool, table = configuration(block)
        results = []
        for seq, length in enumerate(lengths.tolist()):
            both = pool[0, :, table[seq]].transpose(1, 2).reshape(2, KV_HEADS, -1, HEAD_DIM)[:, :, :length].float()
            heads = query[seq, None, :, None]
            results.append(F.scaled_dot_product_attention(heads, both[:1], both[1:], enable_gqa=True)[0, :, 0])
        return torch.stack(results)

    runs: dict[str, tuple[int, Callable[[int], None], float]] = {}
    for name, block, make in [
        *((f"block {b}", b, lambda b=b: walk(b)) for b in BLOCKS),
        (f"one block of {LONGEST}", LONGEST, lambda: walk(LONGEST)),
        ("contiguous, torch", 0, dense),
    ]:
        state = rng.bit_generator.state
        call = make()
        rng.bit_generator.state = state  # the oracle draws the same tables
        call(0)
        error = float((expected(block or LONGEST) - out).abs().max())
        assert error < (1e-5 if kv_dtype == "float32" or block else 2e-2), f"{name}: off by {error}"
        runs[name] = (block, call, error)
    clock = time.process_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (_, call, _) in runs.items():
            for layer in range(LAYERS):
                begin = clock()
                call(layer)
                times[name].append((clock() - begin) * 1e3)
    return [
        Row(name, block, *(round(float(np.quantile(times[name], q)), 3) for q in (0.5, 0.1, 0.9)), error)
        for name, (block, _, error) in runs.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the JSON, or - for stdout (then the table goes to stderr)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kv-dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    prepare_process(given.threads)
    found = measure(given.threads, given.kv_dtype, given.rounds)
    best = min(row.median_ms for row in found if row.block_size)
    where = sys.stderr if given.json == "-" else sys.stdout
    print(
        f"{SEQUENCES} sequences of 100 to {LONGEST} tokens, {KV_HEADS} KV heads of {HEAD_DIM}, "
        f"{GROUP} query heads each,",
        file=where,
    )
    print(
        f"{given.kv_dtype}, {given.threads} thread(s); {'CPU' if given.threads == 1 else 'wall'} ms a layer",
        file=where,
    )
    print(f"{'':<20} {'median':>8} {'p10':>8} {'p90':>8} {'x best':>7}", file=where)
    for row in found:
        print(
            f"{row.name:<20} {row.median_ms:>8.2f} {row.low_ms:>8.2f} {row.high_ms:>8.2f} "
            f"{row.median_ms / best:>7.2f}",
            file=where,
        )
    if given.json:
        text = json.dumps(
            {"threads": given.threads, "kv_dtype": given.kv_dtype, "rows": [asdict(r) for r in found]}, indent=1
        )
        print(text) if given.json == "-" else Path(given.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
