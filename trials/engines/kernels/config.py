"""What a real-tensor execution is built for, and what of it this engine refuses. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from trials.engine import PoolGeometry
from trials.engines.kernels.choice import unfit
from trials.model import DTYPE_BYTES, ModelSpec

CPU_KERNELS = ("walk", "dense")
Layout = Literal["paged", "contiguous"]
MeasuredClock = Literal["wall", "cpu"]
KV_DTYPES = ("float32", "bfloat16")  # of a pool on a CPU


@dataclass(frozen=True, slots=True)
class TorchConfig:
    """Sizes in tokens unless named otherwise. `tied`: the head shares the embedding's weights; `kernel`: the one
    that runs (choice.py)."""

    model: ModelSpec
    geometry: PoolGeometry
    layout: Layout = "paged"
    max_num_seqs: int = 256
    max_model_len: int = 8192
    max_num_batched_tokens: int = 2048
    threads: int = 1
    seed: int = 0
    clock: MeasuredClock = "wall"
    tied: bool = False
    device: str = "cpu"
    kernel: str = "walk"

    @property
    def max_blocks(self) -> int:
        """Entries of one row of the device block table."""
        return -(-self.max_model_len // self.geometry.block_size)

    @property
    def max_tokens(self) -> int:
        """Tokens that one step may compute; its buffers are made for so many."""
        return max(self.max_num_batched_tokens, self.max_num_seqs)


def why_refused(config: TorchConfig) -> str | None:
    """What this engine cannot run, in words, or None. A refusal is an infeasible trial, not a crash."""
    model, geometry = config.model, config.geometry
    if model.path is not None:
        return f"torch_paged runs random weights of a given shape; it does not read {model.path!r}"
    if (words := unfit(config.kernel, model.dtype, model.kv_dtype, model.head_dim)) is not None:
        return f"torch_paged: {words}"
    if config.kernel in CPU_KERNELS and model.kv_dtype not in KV_DTYPES:
        return f"torch_paged keeps KV on a CPU as one of {', '.join(KV_DTYPES)}, not {model.kv_dtype}"
    if config.device == "cuda" and config.clock != "wall":
        return f"clock {config.clock} leaves out what a GPU computes; use engine.clock: wall on cuda"
    if geometry.padding_bytes_per_block or geometry.bytes_per_token != model.kv_bytes_per_token:
        return (
            f"the pool must hold {model.kv_bytes_per_token} bytes a token without padding; it was given "
            f"{geometry.bytes_per_token} and {geometry.padding_bytes_per_block} a block"
        )
    if config.layout == "contiguous" and geometry.block_size < config.max_model_len:
        return (
            f"layout contiguous keeps a sequence in one block: block_size {geometry.block_size} must be "
            f"max_model_len {config.max_model_len}"
        )
    return None


def kernel_block_size(config: TorchConfig) -> int:
    """Tokens of a block as the kernel reads them: one where it copies them out by the token (gather)."""
    return 1 if config.kernel == "gather" else config.geometry.block_size


def kv_bytes(config: TorchConfig) -> int:
    """Bytes of the pool tensor: whole blocks only, the remainder is not allocated."""
    model = config.model
    per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * DTYPE_BYTES[model.kv_dtype]
    return config.geometry.num_blocks * config.geometry.block_size * per_token
