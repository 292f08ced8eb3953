"""Attention kernels of torch_paged by name: what each runs on, and which one a spec gets. Imports no torch.

    walk          our numba kernel: walks blocks on a CPU
    flashinfer    FlashInfer's paged decode and prefill wrappers; pages of any size
    torch_varlen  torch.nn.attention.varlen over a block table; needs FlashAttention 3 (Hopper) or 4 (Blackwell)
    gather        copies a sequence's blocks side by side, then torch's attention: no paged kernel, runs everywhere
    dense, dense_varlen   layout contiguous, the control: torch's attention over contiguous tokens, on CPU and CUDA

`engine.args: {kernel: NAME}` names the paged one; without it a CPU walks, and CUDA takes the first of flashinfer
and torch_varlen that is there. `gather` is never taken unasked: its time says nothing of a kernel that pages.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from trials.units import nearest

HALVES = ("float16", "bfloat16")
SINGLE = ("float32",)


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a kernel runs on. `head_dims` empty: any multiple of `head_multiple`."""

    devices: tuple[str, ...]
    dtypes: tuple[str, ...]  # the model computes in
    needs: tuple[str, ...] = ()  # modules, by their import names; one of them
    head_dims: tuple[int, ...] = ()
    head_multiple: int = 2  # rotary embedding turns pairs
    narrow_pool: bool = False  # the pool may be kept in another dtype than the model computes in
    distributions: tuple[str, ...] = ("torch",)


KERNELS = {
    "walk": Kernel(("cpu",), SINGLE, ("numba",), narrow_pool=True, distributions=("torch", "numba", "numpy")),
    "flashinfer": Kernel(
        ("cuda",), HALVES, ("flashinfer",), head_dims=(64, 128, 256), distributions=("torch", "flashinfer-python")
    ),
    "torch_varlen": Kernel(
        ("cuda",), HALVES, ("flash_attn_interface", "flash_attn"), head_multiple=8,
        distributions=("torch", "flash-attn-3", "flash-attn", "flash-attn-4"),
    ),
    "gather": Kernel(("cpu", "cuda"), (*SINGLE, *HALVES)),
    "dense": Kernel(("cpu",), SINGLE, ("numba",), narrow_pool=True, distributions=("torch", "numba", "numpy")),
    "dense_varlen": Kernel(("cuda",), HALVES, head_multiple=8),
}  # fmt: skip
DENSE = {"cpu": "dense", "cuda": "dense_varlen"}
_UNASKED = {"cpu": ("walk",), "cuda": ("flashinfer", "torch_varlen")}
_INSTALL = {
    "flashinfer": "pip install flashinfer-python",
    "torch_varlen": "FlashAttention 3 for Hopper, 4 for Blackwell",
}


def installed(module: str) -> bool:
    """Whether a top-level module is there, without importing it."""
    return importlib.util.find_spec(module) is not None


def missing(name: str, there: Callable[[str], bool] = installed) -> str | None:
    """Why a kernel cannot be had in this environment, or None."""
    needs = KERNELS[name].needs
    if not needs or any(there(module) for module in needs):
        return None
    hint = f" ({_INSTALL[name]})" if name in _INSTALL else ""
    return f"kernel {name} needs {' or '.join(needs)}, which this environment does not have{hint}"


def choose(device: str, asked: object, there: Callable[[str], bool] = installed) -> tuple[str, str | None]:
    """(the paged kernel, None), or (its name or "none", why it cannot be had in words)."""
    paged = tuple(name for name in KERNELS if name not in DENSE.values())
    if asked is not None:
        if not isinstance(asked, str) or asked not in paged:
            return "none", f"kernel {asked!r} does not exist; {nearest(str(asked), paged)}"
        if device not in KERNELS[asked].devices:
            return asked, f"kernel {asked} runs on {' and '.join(KERNELS[asked].devices)}, not on {device}"
        return asked, missing(asked, there)
    refusals = []
    for name in _UNASKED[device]:
        why = missing(name, there)
        if why is None:
            return name, None
        refusals.append(why)
    return "none", (
        f"no paged kernel for {device}: {'; '.join(refusals)}; or name engine.args.kernel: gather, which copies "
        "blocks instead of reading them in place, and is labelled so"
    )


def unfit(name: str, dtype: str, kv_dtype: str, head_dim: int) -> str | None:
    """Why a kernel does not compute such a model, in words, or None."""
    kernel = KERNELS[name]
    if dtype not in kernel.dtypes:
        return f"kernel {name} computes in {' or '.join(kernel.dtypes)}, not in {dtype}; set model.dtype"
    if kv_dtype != dtype and not kernel.narrow_pool:
        return f"kernel {name} reads KV in the dtype it computes in, {dtype}, not {kv_dtype}; set model.kv_dtype"
    if kernel.head_dims and head_dim not in kernel.head_dims:
        return f"kernel {name} takes heads of {', '.join(map(str, kernel.head_dims))}, not of {head_dim}"
    if head_dim % kernel.head_multiple:
        return f"kernel {name} takes heads of multiples of {kernel.head_multiple}, not of {head_dim}"
    return None
