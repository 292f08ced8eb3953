"""Running out of memory is told from other ends by what engines say of it."""

import pytest

from trials.exhausted import ran_out


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "MemoryError",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 TiB",
        "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "ValueError: 64.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.1 GiB).",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_an_engine_without_memory_is_known_by_its_words(text: str) -> None:
    assert ran_out(f"some log line\n{text}\nanother")


@pytest.mark.parametrize("text", ["", "ValueError: block size 7", "memory usage 3 GiB", "MemoryErrors seen: 0"])
def test_other_ends_are_not_taken_for_it(text: str) -> None:
    assert not ran_out(text)
