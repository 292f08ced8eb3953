"""transformers' continuous batching opened for a test, and six requests that share what they begin with."""

from driving import make_requests, make_spec

from trials.content import Content
from trials.engine import Engine, Refused
from trials.engines import transformers_cb
from trials.trace import Trace

transformers_cb.prepare(make_spec("transformers_cb", 16, 40))  # before anything imports torch
SHARED = [[0, 1, 2, 3, 9], [0, 1, 2, 4], [0, 1, 2, 3], [5, 6], [0, 1, 7], [5, 6]]
PROMPTS, OUTPUTS = [90, 70, 65, 40, 52, 33], [9, 12, 1, 20, 5, 7]


def opened(trace: Trace, block_size: int, num_blocks: int, **more: object) -> Engine:
    """A small model's engine; a refusal fails the test."""
    engine = transformers_cb.open(make_spec("transformers_cb", block_size, num_blocks, **more), Content(trace))
    assert not isinstance(engine, Refused), engine.words
    return engine


def sharing_requests() -> Trace:
    """PROMPTS and OUTPUTS with the prefix ids of SHARED."""
    return make_requests(PROMPTS, OUTPUTS, SHARED)
