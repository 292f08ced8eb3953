"""Requests for a warm-up: made-up prompts that fill a pool, so that the largest steps are run before any counts."""

from trials.engine import PoolGeometry

MOST_TOKENS = 16384  # a larger pool is not filled whole
ANSWERED = 3  # tokens that each is to answer


def prompt_lengths(geometry: PoolGeometry, max_model_len: int, max_num_seqs: int, max_chunk: int) -> list[int]:
    """Lengths that together fill the pool, each no longer than a request may be."""
    usable = (geometry.num_blocks - geometry.reserve_blocks) * geometry.block_size
    each = max(1, min(max_model_len - ANSWERED - 1, max(max_chunk, usable // max_num_seqs)))
    left, out = min(usable, MOST_TOKENS), list[int]()
    while left > geometry.block_size and len(out) < max_num_seqs:
        length = max(1, min(each, left - geometry.block_size))
        out.append(length)
        left -= -(-(length + ANSWERED) // geometry.block_size) * geometry.block_size
    return out


def prompt_ids(number: int, length: int, vocab_size: int) -> list[int]:
    """Ids below `vocab_size`; prompts are told apart by their first two, so that nothing of them is shared."""
    ids = [number % vocab_size, number // vocab_size % vocab_size]
    return (ids + [(7 * i + number) % vocab_size for i in range(2, length)])[:length]
