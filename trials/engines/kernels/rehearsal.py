"""The steps that warm an execution up: every code path and the extremes of size, whatever the block size."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trials.engine import StepShape
from trials.engines.kernels.config import TorchConfig
from trials.plan import Chunk, Plan, Run

_SHAPE = StepShape(0, 0, 0, 0, 0, 0, 0, 0)  # nothing here looks at it
_PREFILLS = ((0, 16), (0, 96), (48, 32), (0, 1 << 30), (1 << 30, 64))  # (start, tokens), clamped to the limits

Rehearsal = tuple[Plan, dict[int, NDArray[np.int64]]]  # a plan, and the prompt of every row in it


def rehearsals(config: TorchConfig) -> Iterator[Rehearsal]:
    """Plans of rows below zero over any blocks: short, long and past-carrying chunks; decodes of every
    power-of-two batch size; one of the longest table; a chunk beside decodes."""
    longest = config.max_model_len
    for start, num_tokens in _PREFILLS:
        tokens = max(1, min(num_tokens, config.max_num_batched_tokens, longest - 1))
        yield _plan(config, [], (min(start, longest - tokens), tokens))
    size = 1
    while size <= config.max_num_seqs:
        yield _plan(config, [min(longest - 1, 17 + 13 * (n % 16)) for n in range(size)], None)
        size *= 2
    yield _plan(config, [longest - 1], None)
    if config.max_num_seqs > 1 and config.max_num_batched_tokens > 1:
        yield _plan(config, [1], (0, min(16, config.max_num_batched_tokens - 1, longest)))


def _plan(config: TorchConfig, lengths: list[int], chunk: tuple[int, int] | None) -> Rehearsal:
    """Decodes with `lengths` tokens before them, and one chunk (start, tokens)."""
    runs = [_run(config, -1 - n, length) for n, length in enumerate(lengths)]
    prompts = {run.row: _ids(config, run.num_prompt_tokens) for run in runs}
    chunks = []
    if chunk is not None:
        start, num_tokens = chunk
        run = _run(config, -1 - len(runs), start + num_tokens)
        prompts[run.row] = _ids(config, run.num_prompt_tokens)
        chunks = [Chunk(run, start, num_tokens, True)]
    return Plan(0, {run.row: run for run in runs}, chunks, (), _SHAPE), prompts


def _run(config: TorchConfig, row: int, length: int) -> Run:
    entries = min(config.max_blocks, length // config.geometry.block_size + 1)
    first = -row * config.max_blocks
    table = [(first + n) % config.geometry.num_blocks for n in range(entries)]
    return Run(row, num_prompt_tokens=length, num_output_tokens=2, sampled=1, computed=length, table=table)


def _ids(config: TorchConfig, count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64) * 7 % config.model.vocab_size
