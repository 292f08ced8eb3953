"""From a trial's spec to vLLM's own arguments, and what the running engine made of them, read back."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from vllm import EngineArgs, LLMEngine

from trials.engine import PoolGeometry
from trials.engines.shapes import kv_mismatch, llama_config
from trials.engines.vllm_parser import parsed_args, read_back
from trials.engines.vllm_policy import policy_args, policy_knobs
from trials.model_folder import has_weights
from trials.spec import TrialSpec
from trials.units import SpecError


def asked_args(spec: TrialSpec, geometry: PoolGeometry) -> dict[str, Any]:
    """Arguments that follow from pool, policy, model and device."""
    model, engine = spec.model, spec.engine
    return {
        **policy_args(spec, geometry), "dtype": model.dtype,
        "kv_cache_dtype": "auto" if model.kv_dtype == model.dtype else model.kv_dtype,
        "kv_cache_memory_bytes": geometry.num_blocks * geometry.block_bytes, "seed": spec.seed,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "pipeline_parallel_size": engine.pipeline_parallel_size,
    }  # fmt: skip


def default_args(spec: TrialSpec) -> dict[str, Any]:
    """Arguments that `engine.args` may set otherwise. On a CPU nothing is compiled unless it is asked for."""
    return {
        "enforce_eager": spec.engine.device == "cpu", "async_scheduling": False, "disable_log_stats": True,
        "load_format": "auto" if has_weights(spec.model.path) else "dummy",
    }  # fmt: skip


def engine_args(spec: TrialSpec, geometry: PoolGeometry) -> dict[str, Any]:
    """All of them but the model's folder; SpecError where `engine.args` contradicts the rest of the spec."""
    asked = asked_args(spec, geometry)
    twice = sorted(({*asked, "model"}) & spec.engine.args.keys())
    if twice:
        raise SpecError(f"engine.args: {', '.join(twice)} follow from pool, policy, model and seed; take them out")
    return {**default_args(spec), **parsed_args(spec.engine.args), **asked}


def model_folder(spec: TrialSpec, scratch: str) -> str:
    """The model's own folder, or `scratch` with the config of its shape."""
    if spec.model.path is not None:
        return spec.model.path
    config = json.dumps(llama_config(spec.model, spec.policy.max_model_len))
    (Path(scratch) / "config.json").write_text(config, encoding="utf-8")
    return scratch


def open_llm(spec: TrialSpec, geometry: PoolGeometry) -> LLMEngine:
    """vLLM's LLMEngine, its core in this process. Whatever vLLM raises when it will not start comes through."""
    arguments = engine_args(spec, geometry)
    with tempfile.TemporaryDirectory() as scratch:
        return LLMEngine.from_engine_args(EngineArgs(model=model_folder(spec, scratch), **arguments))


def runner_of(core: Any) -> Any:
    """The model runner of a worker in this process; None where workers are other processes."""
    wrapper = getattr(core.model_executor, "driver_worker", None)
    worker = getattr(wrapper, "worker", None)
    return getattr(worker, "model_runner", None)


def geometry_of(core: Any, asked: PoolGeometry, spec: TrialSpec) -> PoolGeometry:
    """The pool as vLLM built it: block 0 is its null block and never handed out. SpecError where bytes differ."""
    kv = core.scheduler.kv_cache_config
    if len(kv.kv_cache_groups) != 1:
        raise SpecError(f"a model with {len(kv.kv_cache_groups)} KV groups has more than one pool; not driven yet")
    (group,) = kv.kv_cache_groups
    block = group.kv_cache_spec
    ranks = spec.engine.num_ranks
    block_bytes = block.page_size_bytes * len(group.layer_names) * ranks
    if (why := kv_mismatch(spec.model, block_bytes // block.block_size)) is not None:
        raise SpecError(why)
    held = sum(tensor.size for tensor in kv.kv_cache_tensors) * ranks
    if held != kv.num_blocks * block_bytes or held > asked.pool_bytes:
        raise SpecError(f"vLLM made a pool of {held} bytes for {kv.num_blocks} blocks; asked {asked.pool_bytes}")
    caching = core.vllm_config.cache_config.enable_prefix_caching
    return PoolGeometry(
        block_size=block.block_size, num_blocks=kv.num_blocks, reserve_blocks=1,
        bytes_per_token=block_bytes // block.block_size, padding_bytes_per_block=0, pool_bytes=asked.pool_bytes,
        kernel_block_size=kernel_block_size(core) or block.block_size,
        reuse_quantum_tokens=block.block_size if caching else 0,
    )  # fmt: skip


def kernel_block_size(core: Any) -> int | None:
    """What the attention kernel walks, in tokens; None where no worker of this process can be asked."""
    runner = runner_of(core)
    sizes = getattr(runner, "_kernel_block_sizes", None) or getattr(runner, "kernel_block_sizes", None)
    return int(sizes[0]) if sizes else None


def backend_of(core: Any) -> str:
    """The attention backend that runs, by vLLM's name."""
    groups = getattr(runner_of(core), "attn_groups", None)
    return str(groups[0][0].backend.get_name()) if groups else "unknown"


def knobs_of(core: Any, spec: TrialSpec, outputs: str) -> dict[str, str]:
    """Every knob of the candidate, and what else decides, as vLLM's resolved configuration says it."""
    config = core.vllm_config
    cache, parallel = config.cache_config, config.parallel_config
    size = core.scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
    known = {
        **policy_knobs(config, size, spec.policy.layout),
        "attention_backend": backend_of(core), "async_scheduling": config.scheduler_config.async_scheduling,
        "enforce_eager": config.model_config.enforce_eager, "compilation": config.compilation_config.mode.name,
        "kv_cache_dtype": cache.cache_dtype, "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "runner": type(runner_of(core)).__module__.removeprefix("vllm."),
        "prefix_caching_hash_algo": cache.prefix_caching_hash_algo, "outputs": outputs,
        "onednn_primitive_cache": os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "default"),
    }  # fmt: skip
    return {name: str(value) for name, value in known.items()} | read_back(config, spec.engine.args)
