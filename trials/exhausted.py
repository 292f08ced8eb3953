"""Whether an engine ended because it had not enough memory: an answer to what it was asked, not a fault.

Known by the words that torch, vLLM, numpy, CUDA and Python itself use, since engines wrap the exceptions of others.
"""

import re

_WORDS = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|\bMemoryError\b|ArrayMemoryError"
    r"|DefaultCPUAllocator: can't allocate memory"
    r"|No available memory for the cache blocks|Free memory on device .* is less than desired"
    r"|larger than the available KV cache memory|std::bad_alloc",
)


def ran_out(text: str) -> bool:
    """Whether these last words speak of memory that was not there."""
    return _WORDS.search(text) is not None
