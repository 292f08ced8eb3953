"""A model's layers as vLLM's KV cache specs, and vLLM's KV cache configuration as the project's geometry.

vLLM itself puts layers into groups, unifies their pages and pads them; what came of it is read back here. Its
groups share one pool: a block has the same bytes whoever takes it, and what a group leaves of it is padding.
"""

from collections.abc import Mapping
from typing import Any

import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    iter_layer_specs,
)

from trials.engine import PoolGeometry
from trials.model import WINDOWED, LayerKind, Layers, ModelSpec

TORCH_DTYPE = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": torch.float8_e4m3fn,
}  # fmt: skip
_HOLDS_STATES = 2  # the state that is being moved on, and the one that it was moved on from


def heads_of_rank(heads: int, ranks: int) -> int:
    """KV heads of one rank: they are shared out, and each rank has one at least."""
    return max(1, heads // ranks)


def state_bytes_of_rank(state_bytes: int, ranks: int) -> int:
    """A layer's state on one rank, rounded up."""
    return -(-state_bytes // ranks)


def layer_spec(part: Layers, model: ModelSpec, cache: Any, ranks: int) -> Any:
    """vLLM's spec of one layer on one rank. `cache` is vLLM's CacheConfig, its block sizes settled."""
    common: dict[str, Any] = {
        "block_size": cache.block_size, "dtype": TORCH_DTYPE[model.kv_dtype],
        "num_kv_heads": heads_of_rank(part.num_kv_heads or model.num_kv_heads, ranks),
        "head_size": part.head_dim or model.head_dim,
    }  # fmt: skip
    if part.kind == "mla":
        return MLAAttentionSpec(**{**common, "num_kv_heads": 1, "head_size": part.latent_dim})
    if part.kind == "sliding_window":
        return SlidingWindowSpec(**common, sliding_window=part.window)
    if part.kind == "chunked_local":
        return ChunkedLocalAttentionSpec(**common, attention_chunk_size=part.window)
    if part.kind == "mamba":
        return MambaSpec(
            block_size=cache.mamba_block_size, shapes=((state_bytes_of_rank(part.state_bytes, ranks),),),
            dtypes=(torch.uint8,), page_size_padded=cache.mamba_page_size_padded,
            mamba_cache_mode=cache.mamba_cache_mode,
        )  # fmt: skip
    return FullAttentionSpec(**common)


def layer_specs(model: ModelSpec, cache: Any, ranks: int) -> dict[str, Any]:
    """vLLM's spec of every layer on one rank, by the layer's name."""
    specs = [layer_spec(part, model, cache, ranks) for part in model.parts for _ in range(part.num_layers)]
    return {f"model.layers.{i}.self_attn.attn": spec for i, spec in enumerate(specs)}


def kind_of(spec: Any) -> LayerKind:
    """Which of our kinds a layer's spec is. TypeError for one that is none of them."""
    kinds: Mapping[type, LayerKind] = {
        MLAAttentionSpec: "mla", FullAttentionSpec: "full", SlidingWindowSpec: "sliding_window",
        ChunkedLocalAttentionSpec: "chunked_local", MambaSpec: "mamba",
    }  # fmt: skip
    for known, kind in kinds.items():
        if isinstance(spec, known):
            return kind
    raise TypeError(f"KV of the kind {type(spec).__name__} is not known here")


def geometries_of(config: Any, scheduler: Any, pool_bytes: int | None = None) -> tuple[PoolGeometry, ...]:
    """One geometry a group, from one worker's KVCacheConfig and vLLM's scheduler. `pool_bytes`: None = all blocks'.

    A group of several specs (vLLM's UniformTypeKVCacheSpecs) is told by its first layer but for its bytes.
    """
    block_bytes = config.kv_cache_tensors[0].size // config.num_blocks
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    caching = scheduler.kv_cache_manager.enable_caching
    alignment, several = config.cache_hit_alignment_tokens, len(managers) > 1
    out = []
    for group, manager in zip(config.kv_cache_groups, managers, strict=True):
        spec = next(iter(iter_layer_specs(group.kv_cache_spec)))
        kind = kind_of(spec)
        slots = 1 if kind == "mamba" else manager.block_size
        content = _content_bytes(group)
        quantum = min(alignment, manager.block_size) if caching and group.kv_cache_spec.prefix_cacheable else 0
        out.append(PoolGeometry(
            block_size=manager.block_size, num_blocks=config.num_blocks, reserve_blocks=1,
            bytes_per_token=content // slots, padding_bytes_per_block=block_bytes - content // slots * slots,
            pool_bytes=config.num_blocks * block_bytes if pool_bytes is None else pool_bytes,
            kernel_block_size=manager.block_size, reuse_quantum_tokens=quantum, kind=kind,
            num_layers=len(group.layer_names) if several else 0,
            window=_window(spec) if kind in WINDOWED else 0,
            most_blocks=_most_blocks(spec, manager),
        ))  # fmt: skip
    return tuple(out)


def _content_bytes(group: Any) -> int:
    """Bytes of a block that the group's layers use, their pages' padding left out."""
    specs = group.kv_cache_spec
    if isinstance(specs, UniformTypeKVCacheSpecs):
        return sum(int(spec.real_page_size_bytes) for spec in specs.kv_cache_specs.values())
    return int(specs.real_page_size_bytes) * len(group.layer_names)


def _window(spec: Any) -> int:
    return int(getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None) or 0)


def _most_blocks(spec: Any, manager: Any) -> int:
    """Blocks that vLLM grants a sequence at most, in a group that lets go of what lies behind; 0: no such limit."""
    if isinstance(spec, MambaSpec):
        return _HOLDS_STATES if spec.mamba_cache_mode == "align" else 0
    return int(manager.max_admission_blocks_per_request or 0)
