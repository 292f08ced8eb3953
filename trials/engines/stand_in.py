"""What vLLM's engine core is given in place of workers: it answers as they would, and computes nothing.

`on_step` is asked for the tokens of every step; it is where time, and the ledger row, come from. vLLM's executor
interface is internal to it: this room holds for the release that `requirements-engines.txt` pins.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import nn
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.v1.executor.abstract import Executor
from vllm.v1.outputs import ModelRunnerOutput

from trials.engines.stand_in_ranks import Rank
from trials.engines.vllm_groups import layer_specs, state_bytes_of_rank
from trials.model import ModelSpec

OnStep = Callable[[Any], list[list[int]]]  # SchedulerOutput -> token ids a scheduled request, in its order

MODEL = "model"  # key of vLLM's additional_config under which the model's shape travels, as JSON
RANK_BYTES = "rank_bytes"  # and the bytes of a rank's pool, where vLLM is to count the blocks
HYBRID = "StandInHybrid"  # the architecture's name of a model with states; others pass for a Llama
_ENDLESS_BYTES = 1 << 62  # where the number of blocks is given, memory is never what limits it


class HybridShape(nn.Module):  # type: ignore[misc]
    """What vLLM asks of a model class with states before there is a model; it is never built."""

    is_hybrid = has_inner_state = supports_mamba_prefix_caching = True

    def __init__(self, vllm_config: Any, prefix: str = "") -> None:
        raise NotImplementedError("there is no model behind a stand-in")

    def embed_input_ids(self, input_ids: Any) -> Any:
        """vLLM takes a class with this name for a model of text."""

    def forward(self, input_ids: Any, positions: Any) -> Any:
        """Likewise."""

    def compute_logits(self, hidden_states: Any) -> Any:
        """Likewise."""

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> tuple[tuple[int, ...], ...]:
        """The largest state of a layer on one rank, in bytes."""
        model = ModelSpec.model_validate(vllm_config.additional_config[MODEL])
        ranks = vllm_config.parallel_config.tensor_parallel_size
        return ((max(state_bytes_of_rank(part.state_bytes, ranks) for part in model.parts),),)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> tuple[Any, ...]:
        return (torch.uint8,)


class _AnyBlock:
    """An attention backend that takes any block size and packs nothing."""

    @staticmethod
    def customize_spec(spec: Any) -> Any:
        return spec

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:
        return [1]


def register_shapes() -> None:
    """Make vLLM know the architecture of models with states."""
    if HYBRID not in ModelRegistry.models:
        ModelRegistry.register_model(HYBRID, HybridShape)


class StandIn(Executor):  # type: ignore[misc]
    """One worker a rank, without a device. Set `on_step` before the first step."""

    supports_pp = False
    max_concurrent_batches = 1
    on_step: OnStep

    def _init_executor(self) -> None:
        config = self.vllm_config
        self.model = ModelSpec.model_validate(config.additional_config[MODEL])
        self.num_ranks = int(config.parallel_config.tensor_parallel_size)
        # What each rank was told is only of interest where there are several.
        self.ranks = [Rank() for _ in range(self.num_ranks)] if self.num_ranks > 1 else []
        self.pools: list[Any] = []  # vLLM's KVCacheConfig of each rank
        if config.model_config.is_hybrid:
            self._align_blocks_with_states()
        rank_bytes = config.additional_config.get(RANK_BYTES) or _ENDLESS_BYTES
        self._answers: dict[str, Callable[[], Any]] = {
            "determine_available_memory": lambda: rank_bytes,
            "get_kv_cache_spec": lambda: layer_specs(self.model, config.cache_config, self.num_ranks),
            "get_supported_kv_cache_layouts": lambda: ["LBHNC"],
            "get_supported_tasks": lambda: ("generate",),
        }

    def _align_blocks_with_states(self) -> None:
        """vLLM's own rule, which its executors run once layers are built: a block is made as large as a state."""
        cache = self.vllm_config.cache_config
        asked, cache.cache_dtype = cache.cache_dtype, self.model.kv_dtype
        try:
            type(current_platform)._align_hybrid_block_size(self.vllm_config, _AnyBlock)
        finally:
            cache.cache_dtype = asked

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        """The pools as vLLM divided them, kept to be read back."""
        self.pools = kv_cache_configs

    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Sequence[Any] = (), kwargs: Any = None,
        non_block: bool = False,
    ) -> Any:  # fmt: skip
        """The same answer of every rank; None to whatever only a device could do."""
        answer = self._answers.get(method if isinstance(method, str) else method.__name__)
        return [answer() if answer else None for _ in range(self.num_ranks)]

    def compile_or_warm_up_model(self) -> None:
        """There is nothing to compile."""

    def check_health(self) -> None:
        """Always healthy."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """The step's tokens, at once."""
        for rank in self.ranks:
            rank.hear(scheduler_output)
        names = list(scheduler_output.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=self.on_step(scheduler_output),
        )
        if not non_block:
            return output
        future: Future[Any] = Future()
        future.set_result(output)
        return future

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> None:
        """Sampled already, in `execute_model`."""
