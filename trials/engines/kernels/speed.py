"""How fast this machine is right now: CPU seconds of a fixed mix of the work that trials do.

The same work takes 1.2 to 1.5 times longer in CPU seconds from one minute to the next on shared hosts, and CPU
time beside wall time does not show it. Trials are comparable only as far as their probes agree.
"""

import time

import numpy as np
import torch

from trials.engines.kernels import paged
from trials.engines.kernels.calls import compile_kernels

_SEQS, _TOKENS, _HEADS, _DIM, _BLOCK = 32, 192, 4, 64, 16
_GEMM_ROUNDS, _WALK_ROUNDS = 1000, 200


def probe_speed() -> float:
    """CPU seconds of a fixed mix: matrix products of a decode batch, and a walk over a 12 MiB pool.

    About 0.3 s on a quiet 2025 server core, one thread; the same whatever a trial's model, pool or policy. Part of
    it is bound by arithmetic and part by memory, which slow down apart from each other.
    """
    compile_kernels("float32", threads=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _products(20)
        walk = _Walker()
        walk(3)
        begin = time.process_time()
        _products(_GEMM_ROUNDS)
        walk(_WALK_ROUNDS)
        return time.process_time() - begin
    finally:
        torch.set_num_threads(threads)


def _products(rounds: int) -> None:
    x, weight, out = torch.ones(_SEQS, 256), torch.full((1024, 256), 0.5), torch.empty(_SEQS, 1024)
    for _ in range(rounds):
        torch.mm(x, weight.t(), out=out)


class _Walker:
    """Decode attention over 32 sequences of 192 tokens whose blocks of 16 lie scattered."""

    def __init__(self) -> None:
        entries = _TOKENS // _BLOCK
        order = np.random.default_rng(0).permutation(_SEQS * entries)
        self.table = order.astype(np.int32).reshape(_SEQS, entries)
        shape = (_SEQS * entries, _HEADS, _BLOCK, _DIM)
        self.keys, self.values = np.full(shape, 0.25, np.float32), np.full(shape, 0.5, np.float32)
        self.query = np.full((_SEQS, 2 * _HEADS, _DIM), 0.125, np.float32)
        self.out = np.empty_like(self.query)
        self.rows, self.lengths = np.arange(_SEQS), np.full(_SEQS, _TOKENS)

    def __call__(self, rounds: int) -> None:
        for _ in range(rounds):
            paged.decode(
                self.query, self.keys, self.values, self.table, self.rows, self.lengths, self.out, np.float32(0.125)
            )
