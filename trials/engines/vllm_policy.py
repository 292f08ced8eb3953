"""A candidate in vLLM's own arguments, and every knob of it as vLLM's resolved configuration says it.

The same for a whole vLLM and for its scheduler alone.
"""

from typing import Any

from trials.engine import PoolGeometry
from trials.spec import TrialSpec

# What vLLM v1 does and no argument changes; a candidate that asks for something else is told.
FIXED = {
    "sharing": "prefix", "eviction": "lru", "preemption": "recompute", "free_order": "tail_first",
    "reserve_output": "none", "prefix_match": "block",
}  # fmt: skip


def policy_args(spec: TrialSpec, geometry: PoolGeometry) -> dict[str, Any]:
    """Arguments of vLLM's EngineArgs that follow from pool and policy. No tokenizer: prompts are token ids."""
    policy = spec.policy
    return {
        "max_model_len": policy.max_model_len, "block_size": geometry.block_size,
        "num_gpu_blocks_override": geometry.num_blocks,
        "enable_prefix_caching": policy.prefix_caching and policy.layout == "paged",
        "max_num_seqs": policy.max_num_seqs, "max_num_batched_tokens": policy.max_num_batched_tokens,
        "watermark": policy.watermark, "scheduler_reserve_full_isl": policy.reserve_prompt,
        "long_prefill_token_threshold": policy.long_prefill_token_threshold,
        "scheduling_policy": "priority" if policy.queue == "priority" else "fcfs",
        "enable_chunked_prefill": True, "skip_tokenizer_init": True,
    }  # fmt: skip


def policy_knobs(config: Any, block_size: int, layout: str) -> dict[str, str]:
    """Every knob of the candidate, read from a VllmConfig; `block_size` as the pool has it, in tokens."""
    cache, scheduler = config.cache_config, config.scheduler_config
    known = {
        **FIXED,
        "block_size": block_size, "layout": layout, "prefix_caching": cache.enable_prefix_caching,
        "watermark": scheduler.watermark, "reserve_prompt": scheduler.scheduler_reserve_full_isl,
        "queue": scheduler.policy, "victim": "priority" if scheduler.policy == "priority" else "last_admitted",
        "max_model_len": config.model_config.max_model_len, "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
    }  # fmt: skip
    return {name: str(value) for name, value in known.items()}
