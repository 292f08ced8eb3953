"""From a trial's spec to transformers' continuous batching, and its configuration read back.

The model is a shape with random weights, or a folder (`model.path`) with or without them; nothing is fetched.
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager

from trials.engine import PoolGeometry
from trials.engines.shapes import kv_mismatch, llama_config
from trials.model_folder import has_weights
from trials.spec import TrialSpec
from trials.units import SpecError

ATTENTION = "attn_implementation"  # the one argument of engine.args that is the model's
TRASH_SECTORS = 2  # transformers keeps them for padding tokens and hands them to nobody

# What transformers does and no argument changes. `eviction`: all cached blocks go at once when memory is short.
FIXED = {
    "sharing": "prefix", "prefix_match": "block", "eviction": "all_at_once", "victim": "last_admitted",
    "reserve_prompt": "False", "reserve_output": "none", "preemption": "recompute", "queue": "fcfs",
    "free_order": "head_first", "long_prefill_token_threshold": "0",
}  # fmt: skip


def build_model(spec: TrialSpec) -> Any:
    """The model in eval mode on the spec's device, weights drawn from the seed where the folder has none."""
    model, device = spec.model, spec.engine.device
    attention = spec.engine.args.get(ATTENTION, "sdpa")
    dtype = getattr(torch, model.dtype)
    torch.manual_seed(spec.seed)
    if model.path is None:
        config = LlamaConfig(**llama_config(model, spec.policy.max_model_len))
        config._attn_implementation = attention
        config.dtype = dtype
        return LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()
    if has_weights(model.path):
        found = AutoModelForCausalLM.from_pretrained(
            model.path, dtype=dtype, attn_implementation=attention, local_files_only=True, use_safetensors=True
        )
    else:
        config = AutoConfig.from_pretrained(model.path, local_files_only=True)
        found = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    return found.to(device).eval()


def blocks_a_sector(block_bytes: int) -> int:
    """transformers aligns its sectors to 128 bytes; a block that does not divide shares one with others."""
    sector = block_bytes
    while sector % 128:
        sector += block_bytes
    return sector // block_bytes


def batching_args(spec: TrialSpec, geometry: PoolGeometry) -> dict[str, Any]:
    """ContinuousBatchingConfig's arguments; `engine.args` may add others, but contradict none. Raises SpecError."""
    policy, per_sector = spec.policy, blocks_a_sector(geometry.block_bytes)
    sectors = geometry.num_blocks // per_sector - TRASH_SECTORS
    if sectors < 1:
        raise SpecError(
            f"transformers keeps {TRASH_SECTORS * per_sector} blocks for itself: a pool of {geometry.num_blocks} "
            "has none left for requests; give it more bytes or smaller blocks"
        )
    asked = {
        "page_size": geometry.block_size, "num_blocks": sectors * per_sector,
        "max_batch_tokens": policy.max_num_batched_tokens, "max_requests_per_batch": policy.max_num_seqs,
        "allow_block_sharing": policy.prefix_caching and policy.layout == "paged",
        "safety_margin": policy.watermark, "use_async_batching": False, "seed": spec.seed,
        "auto_switch_to_flash": False, "max_queue_size": 0,
    }  # fmt: skip
    own = {name: value for name, value in spec.engine.args.items() if name != ATTENTION}
    twice = sorted(asked.keys() & own.keys())
    if twice:
        raise SpecError(f"engine.args: {', '.join(twice)} follow from pool, policy and the trial; take them out")
    return {**asked, **own}


def open_batching(spec: TrialSpec, geometry: PoolGeometry) -> ContinuousBatchingManager:
    """The manager, not started. Whatever transformers raises when it will not have it comes through."""
    arguments = batching_args(spec, geometry)
    config = ContinuousBatchingConfig(**arguments)
    found = build_model(spec).init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1),
        continuous_batching_config=config,
    )
    if found.continuous_batching_config.scheduler_type not in ("fifo", "prefill_first"):
        raise SpecError("engine.args: scheduler_type: known are fifo and prefill_first")
    return found


def allocator_of(processor: Any) -> Any:
    """The one allocator of a model in which every layer attends to everything. SpecError for others."""
    allocators = processor.cache.cache_allocators
    if list(allocators) != ["full_attention"]:
        raise SpecError(f"a model with {' and '.join(allocators)} layers has more than one pool; not driven yet")
    return allocators["full_attention"]


def geometry_of(processor: Any, asked: PoolGeometry, spec: TrialSpec) -> PoolGeometry:
    """The pool as transformers built it; two sectors are never handed out. SpecError where bytes differ."""
    cache, allocator = processor.cache, allocator_of(processor)
    size = allocator.tokens_per_page
    reserve = TRASH_SECTORS * allocator.blocks_per_sector
    held = cache.cache_tensor.numel() * cache.cache_tensor.itemsize
    blocks = allocator.num_blocks + reserve
    if held != blocks * allocator.bytes_per_block or held > asked.pool_bytes:
        raise SpecError(f"transformers made a pool of {held} bytes for {blocks} blocks; asked {asked.pool_bytes}")
    per_token = allocator.bytes_per_block // size
    if (why := kv_mismatch(spec.model, per_token)) is not None:
        raise SpecError(why)
    return PoolGeometry(
        block_size=size, num_blocks=blocks, reserve_blocks=reserve, bytes_per_token=per_token,
        padding_bytes_per_block=0, pool_bytes=asked.pool_bytes,
        # Without flash kernels the cache is read through an index of single tokens.
        kernel_block_size=size if cache.max_blocks_per_request > 0 else 1,
        reuse_quantum_tokens=size if cache.use_prefix_sharing else 0,
    )  # fmt: skip


def knobs_of(manager: ContinuousBatchingManager, processor: Any, spec: TrialSpec) -> dict[str, str]:
    """Every knob of the candidate, and what else decides, as the running engine has it."""
    config, scheduler, cache = manager.continuous_batching_config, processor.scheduler, processor.cache
    known = {
        **FIXED,
        "block_size": allocator_of(processor).tokens_per_page, "layout": spec.policy.layout,
        "prefix_caching": cache.use_prefix_sharing, "watermark": scheduler.safety_margin,
        "max_model_len": spec.policy.max_model_len, "max_num_seqs": scheduler.max_requests_per_batch,
        "max_num_batched_tokens": processor.max_batch_tokens,
        "attention_backend": manager.model.config._attn_implementation,
        "scheduler_type": config.scheduler_type, "async_scheduling": processor.use_async_batching,
        "dtype": str(cache.dtype).removeprefix("torch."), "outputs": spec.trace.outputs,
        "default_compile_level": config.default_compile_level, "use_cuda_graph": config.use_cuda_graph,
    }  # fmt: skip
    return {name: str(value) for name, value in known.items()}
