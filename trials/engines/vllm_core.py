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
from trials.engines.stand_in import KV_DTYPE, StandIn
from trials.engines.vllm_policy import policy_args, policy_knobs
from trials.spec import TrialSpec
from trials.units import SpecError

VOCABULARY = 1 << 30  # so large that no two contents ever spell the same tokens


def model_config(spec: TrialSpec) -> dict[str, Any]:
    """The model's shape as a Hugging Face config of a Llama."""
    model = spec.model
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": model.hidden_size, "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers, "num_attention_heads": model.num_query_heads,
        "num_key_value_heads": model.num_kv_heads, "head_dim": model.head_dim,
        "max_position_embeddings": spec.policy.max_model_len, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def engine_args(spec: TrialSpec, geometry: PoolGeometry, folder: str) -> dict[str, Any]:
    """vLLM's arguments for this candidate; `engine.args` may add others, but contradict none. Raises SpecError."""
    asked = {
        **policy_args(spec, geometry), "model": folder, "load_format": "dummy", "enforce_eager": True,
        "dtype": "bfloat16", "async_scheduling": False, "distributed_executor_backend": StandIn,
        "additional_config": {KV_DTYPE: spec.model.kv_dtype},
    }  # fmt: skip
    twice = sorted(asked.keys() & spec.engine.args.keys())
    if twice:
        raise SpecError(f"engine.args: {', '.join(twice)} follow from pool, policy and model; take them out")
    return {**asked, **spec.engine.args}


def open_core(spec: TrialSpec, geometry: PoolGeometry) -> EngineCore:
    """vLLM's EngineCore in this process. Whatever vLLM raises when it will not start comes through."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(model_config(spec)), encoding="utf-8")
        config = EngineArgs(**engine_args(spec, geometry, folder)).create_engine_config()
        return EngineCore(config, StandIn, log_stats=False)


def geometry_of(core: EngineCore, asked: PoolGeometry) -> PoolGeometry:
    """The pool as vLLM built it: block 0 is its null block and never handed out. SpecError where bytes differ."""
    kv = core.scheduler.kv_cache_config
    (group,) = kv.kv_cache_groups
    block = group.kv_cache_spec
    found = block.page_size_bytes * len(group.layer_names)
    if found != asked.block_bytes:
        raise SpecError(f"vLLM makes blocks of {found} bytes, the model's shape says {asked.block_bytes}")
    quantum = block.block_size if core.vllm_config.cache_config.enable_prefix_caching else 0
    return PoolGeometry(
        block_size=block.block_size, num_blocks=kv.num_blocks, reserve_blocks=1,
        bytes_per_token=asked.bytes_per_token, padding_bytes_per_block=0, pool_bytes=asked.pool_bytes,
        kernel_block_size=block.block_size, reuse_quantum_tokens=quantum,
    )  # fmt: skip


def knobs_of(core: EngineCore, spec: TrialSpec) -> dict[str, str]:
    """Every knob of the candidate, as vLLM's resolved configuration says it."""
    size = core.scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
    return policy_knobs(core.vllm_config, size, spec.policy.layout)
