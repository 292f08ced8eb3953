"""Which kernel a spec gets: the one it names, or the first that is there and pages; none that copies, unasked."""

import pytest

from trials.engines.kernels.choice import KERNELS, choose, missing, unfit


def having(*modules: str):
    return lambda module: module in modules


def test_unasked_a_cpu_walks_and_cuda_takes_the_first_paged_kernel_that_is_there() -> None:
    assert choose("cpu", None, having("numba")) == ("walk", None)
    assert choose("cuda", None, having("flashinfer", "flash_attn_interface")) == ("flashinfer", None)
    assert choose("cuda", None, having("flash_attn_interface")) == ("torch_varlen", None)


def test_a_kernel_that_copies_is_never_taken_unasked() -> None:
    name, why = choose("cuda", None, having())
    assert name == "none"
    assert why is not None
    assert "pip install flashinfer-python" in why
    assert "engine.args.kernel: gather" in why
    assert choose("cuda", "gather", having()) == ("gather", None)


def test_a_named_kernel_wins_or_says_why_not() -> None:
    assert choose("cuda", "torch_varlen", having("flashinfer", "flash_attn_interface")) == ("torch_varlen", None)
    name, why = choose("cuda", "torch_varlen", having("flashinfer"))
    assert (name, why) == ("torch_varlen", missing("torch_varlen", having("flashinfer")))
    assert "flash_attn_interface" in str(why)
    assert "runs on cuda, not on cpu" in str(choose("cpu", "flashinfer", having("flashinfer"))[1])
    assert "runs on cpu, not on cuda" in str(choose("cuda", "walk", having("numba"))[1])


@pytest.mark.parametrize("asked", ["flash_infer", "dense", 7])
def test_unknown_names_are_answered_with_the_known_ones(asked: object) -> None:
    name, why = choose("cuda", asked, having())
    assert name == "none"
    assert "known: flashinfer, gather, torch_varlen, walk" in str(why)


@pytest.mark.parametrize(("name", "dtype", "kv", "head", "words"), [
    ("flashinfer", "float32", "float32", 64, "float16 or bfloat16, not in float32"),
    ("flashinfer", "float16", "bfloat16", 64, "the dtype it computes in, float16, not bfloat16"),
    ("flashinfer", "float16", "float16", 80, "heads of 64, 128, 256, not of 80"),
    ("torch_varlen", "bfloat16", "bfloat16", 20, "heads of multiples of 8, not of 20"),
    ("walk", "bfloat16", "bfloat16", 64, "float32, not in bfloat16"),
    ("gather", "float32", "float32", 7, "heads of multiples of 2, not of 7"),
])  # fmt: skip
def test_models_that_a_kernel_does_not_compute(name: str, dtype: str, kv: str, head: int, words: str) -> None:
    assert words in str(unfit(name, dtype, kv, head))


@pytest.mark.parametrize(("name", "dtype", "kv"), [
    ("walk", "float32", "bfloat16"), ("dense", "float32", "bfloat16"), ("gather", "float32", "float32"),
    ("flashinfer", "bfloat16", "bfloat16"), ("torch_varlen", "float16", "float16"),
])  # fmt: skip
def test_models_that_it_does(name: str, dtype: str, kv: str) -> None:
    assert unfit(name, dtype, kv, 64) is None


def test_every_kernel_names_what_its_engine_hash_covers() -> None:
    assert all("torch" in kernel.distributions for kernel in KERNELS.values())
