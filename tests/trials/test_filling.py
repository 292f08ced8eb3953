"""Made-up prompts of a warm-up fill a pool and fit into it."""

import itertools

import pytest

from trials.engine import PoolGeometry
from trials.engines.filling import ANSWERED, MOST_TOKENS, prompt_ids, prompt_lengths

SIZES = list(itertools.product((4, 32, 256), (3, 20, 2000), (64, 1024), (1, 8, 64), (32, 512)))


@pytest.mark.parametrize(("size", "blocks", "longest", "seqs", "chunk"), SIZES)
def test_prompts_fit_together_and_none_is_longer_than_a_request(
    size: int, blocks: int, longest: int, seqs: int, chunk: int
) -> None:
    geometry = PoolGeometry(size, blocks, 1, 8, 0, blocks * size * 8, size, size)
    lengths = prompt_lengths(geometry, longest, seqs, chunk)
    usable = (blocks - 1) * size
    held = sum(-(-(length + ANSWERED) // size) * size for length in lengths)
    assert held <= min(usable, MOST_TOKENS + size)
    assert all(length >= 1 and length + ANSWERED < longest for length in lengths)
    assert len(lengths) <= seqs
    room = min(usable, MOST_TOKENS, seqs * (longest - ANSWERED - 1))
    assert held >= room // 2 - size, "half of what could be filled stays empty"


def test_prompts_differ_from_their_first_tokens_on() -> None:
    prompts = [prompt_ids(number, 5, 20) for number in range(300)]
    assert len({tuple(p[:2]) for p in prompts}) == 300
    assert all(len(p) == 5 and max(p) < 20 for p in prompts)
    assert len(prompt_ids(3, 1, 20)) == 1
