"""From a trial's spec to vLLM's engine core with a stand-in executor, and its configuration read back.

vLLM sees the model's shape as a config.json, no weights, no tokenizer and no network.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from vllm import EngineArgs
from vllm.v1.engine.core import EngineCore

from trials.engine import PoolGeometry
from trials.engines.stand_in import HYBRID, MODEL, RANK_BYTES, StandIn, register_shapes
from trials.engines.vllm_groups import geometries_of
from trials.engines.vllm_policy import policy_args, policy_knobs
from trials.geometry import block_table_bytes, pool_budget, pool_geometry
from trials.spec import TrialSpec
from trials.units import SpecError

VOCABULARY = 1 << 30  # so large that no two contents ever spell the same tokens


def model_config(spec: TrialSpec) -> dict[str, Any]:
    """The model's shape as a Hugging Face config of a Llama; of a hybrid where some layers keep states."""
    model = spec.model
    return {
        "architectures": [HYBRID if model.state_bytes else "LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": VOCABULARY, "hidden_size": model.hidden_size, "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers, "num_attention_heads": model.num_query_heads,
        "num_key_value_heads": model.num_kv_heads, "head_dim": model.head_dim,
        "max_position_embeddings": spec.policy.max_model_len, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def is_plain(spec: TrialSpec) -> bool:
    """Whether one rank keeps K and V of every token in every layer: then our arithmetic says what a block is."""
    return not spec.model.layers and spec.engine.tensor_parallel_size == 1


def rank_bytes(spec: TrialSpec) -> int | None:
    """Bytes of one rank's pool, where vLLM is to say how many blocks they make; None where the spec says it.

    Every rank gets the same part of the budget, rounded down.
    """
    sizes = [] if is_plain(spec) else [spec.policy.block_size] * len(spec.model.parts)
    if not sizes:
        return None
    ranks = spec.engine.tensor_parallel_size
    budget = pool_budget(spec, tables_bytes=block_table_bytes(spec) * len(sizes) * ranks)
    return None if budget is None else max(budget, 0) // ranks


def engine_args(spec: TrialSpec, folder: str) -> dict[str, Any]:
    """vLLM's arguments for this candidate; `engine.args` may add others, but contradict none. Raises SpecError."""
    own = rank_bytes(spec)
    asked = {
        **policy_args(spec, asked_geometry(spec)), "model": folder, "load_format": "dummy", "enforce_eager": True,
        "dtype": "bfloat16", "async_scheduling": False, "distributed_executor_backend": StandIn,
        "tensor_parallel_size": spec.engine.tensor_parallel_size,
        "additional_config": {
            MODEL: spec.model.model_dump(mode="json", exclude={"name", "path"}), RANK_BYTES: own,
        },
    }  # fmt: skip
    twice = sorted(asked.keys() & spec.engine.args.keys())
    if twice:
        raise SpecError(f"engine.args: {', '.join(twice)} follow from pool, policy and model; take them out")
    if own is not None:
        del asked["num_gpu_blocks_override"]
    return {**asked, **spec.engine.args}


def asked_geometry(spec: TrialSpec) -> PoolGeometry:
    """Block size and number of blocks as asked. SpecError where the budget buys no pool."""
    if spec.engine.pipeline_parallel_size > 1:
        raise SpecError(
            "pipeline_parallel_size: the stand-in has ranks of a tensor, not of a pipeline; take it out"
        )
    if not is_plain(spec):
        size, blocks = spec.policy.block_size, spec.pool.blocks or 0
        if spec.policy.layout != "paged":
            raise SpecError(f"layout {spec.policy.layout} is for one rank and layers that are all alike")
        return PoolGeometry(size, blocks, 1, 0, 0, 0, size, size)
    asked = pool_geometry(spec)
    if isinstance(asked, str):
        raise SpecError(asked)
    return asked


def open_core(spec: TrialSpec) -> EngineCore:
    """vLLM's EngineCore in this process. Whatever vLLM raises when it will not start comes through."""
    register_shapes()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(model_config(spec)), encoding="utf-8")
        config = EngineArgs(**engine_args(spec, folder)).create_engine_config()
        return EngineCore(config, StandIn, log_stats=False)


def geometries(core: EngineCore, spec: TrialSpec) -> tuple[PoolGeometry, ...]:
    """The pool of a rank as vLLM built it, one geometry a group: block 0 is its null block and never handed out.

    SpecError where a block is not what the model's shape says, or where vLLM copies blocks on write.
    """
    (pool, *others), own = core.model_executor.pools, rank_bytes(spec)
    if any(other.num_blocks != pool.num_blocks for other in others):
        raise SpecError(f"ranks have pools of {sorted({p.num_blocks for p in (pool, *others)})} blocks")
    if getattr(core.scheduler.kv_cache_manager.coordinator, "enable_partial_hash_hits", False):
        raise SpecError("prefix_match_unit makes vLLM copy a block for a hit inside it, which is not booked here")
    if not is_plain(spec):
        groups = geometries_of(pool, core.scheduler, own)
        quanta = {group.reuse_quantum_tokens for group in groups}
        if len(quanta) > 1 and any(group.kind == "chunked_local" for group in groups):
            raise SpecError(
                "vLLM finds prefixes of chunked local attention only where all groups have one block size; these "
                f"have {sorted(quanta)}: switch prefix_caching off"
            )
        return groups
    asked = asked_geometry(spec)
    (found,) = geometries_of(pool, core.scheduler, asked.pool_bytes)
    if found.block_bytes != asked.block_bytes:
        raise SpecError(
            f"vLLM makes blocks of {found.block_bytes} bytes, the model's shape says {asked.block_bytes}"
        )
    return (found,)


def knobs_of(core: EngineCore, spec: TrialSpec, block_size: int) -> dict[str, str]:
    """Every knob of the candidate, as vLLM's resolved configuration says it; `block_size` as the pool has it."""
    knobs = policy_knobs(core.vllm_config, block_size, spec.policy.layout)
    if not is_plain(spec):
        knobs["tensor_parallel_size"] = str(core.vllm_config.parallel_config.tensor_parallel_size)
        knobs["prefix_cache_retention_interval"] = str(
            core.vllm_config.cache_config.prefix_cache_retention_interval
        )
    return knobs
