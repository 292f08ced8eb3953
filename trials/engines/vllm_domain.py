"""What vLLM says of itself before it is started: its resolved configuration, and the block sizes it takes."""

import dataclasses
import functools
import os
import tempfile
from typing import Any

from vllm import EngineArgs
from vllm.config import set_current_vllm_config
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.selector import get_attn_backend

from trials.engines.domain import Domain
from trials.engines.vllm_args import default_args, model_folder
from trials.engines.vllm_parser import parsed_args
from trials.engines.vllm_policy import FIXED
from trials.spec import PoolPolicy, TrialSpec

_SECTIONS = ("attention_config", "cache_config", "compilation_config", "scheduler_config")
_SIZES = ("data_parallel_size", "pipeline_parallel_size", "tensor_parallel_size", "worker_cls")
_PLAIN = (bool, int, float, str, type(None))


def _config(spec: TrialSpec) -> Any:
    """vLLM's configuration of this engine and model with nothing of a candidate in it."""
    neutral = spec.model_copy(update={"policy": PoolPolicy()})
    arguments: dict[str, Any] = {
        **default_args(spec), **parsed_args(spec.engine.args), "dtype": spec.model.dtype,
        "skip_tokenizer_init": True, "tensor_parallel_size": spec.engine.tensor_parallel_size,
        "pipeline_parallel_size": spec.engine.pipeline_parallel_size,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        return EngineArgs(model=model_folder(neutral, scratch), **arguments).create_engine_config()


def resolved_config(spec: TrialSpec) -> dict[str, dict[str, str]]:
    """Every plain value of the sections that decide, defaults included: a default that moved shows."""
    config = _config(spec)
    found = {name: _plain(getattr(config, name)) for name in _SECTIONS}
    found["parallel_config"] = {name: str(getattr(config.parallel_config, name)) for name in _SIZES}
    return found


def _plain(section: Any) -> dict[str, str]:
    values = {field.name: getattr(section, field.name, None) for field in dataclasses.fields(section)}
    return {
        name: str(value) for name, value in sorted(values.items())
        if isinstance(value, _PLAIN) and os.sep not in str(value)
    }  # fmt: skip


def domain(spec: TrialSpec) -> Domain:
    """The attention backend that vLLM selects for this model, and the block sizes that it supports."""
    config = _config(spec)
    model = config.model_config
    with set_current_vllm_config(config):
        backend = get_attn_backend(
            model.get_head_size(), model.dtype, config.cache_config.cache_dtype,
            num_heads=model.get_num_attention_heads(config.parallel_config),
        )  # fmt: skip
        sizes = backend.get_supported_kernel_block_sizes()
    steps = [int(size.base) for size in sizes if isinstance(size, MultipleOf)]
    exact = tuple(int(size) for size in sizes if not isinstance(size, MultipleOf))
    # A block may be several of the kernel's own; it is then cut for the kernel.
    unit = min(steps) if steps else functools.reduce(min, exact)
    return Domain(
        minimum=unit, multiple_of=unit, not_applicable=tuple(sorted(FIXED.keys() & PoolPolicy.model_fields.keys())),
        source=backend.get_name(),
    )  # fmt: skip
