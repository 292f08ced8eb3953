"""What vLLM's engine core is given in place of workers: it answers as they would, and computes nothing.

`on_step` is asked for the tokens of every step; it is where time, and the ledger row, come from. vLLM's executor
interface is internal to it: this room holds for the release that `requirements-engines.txt` pins.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

OnStep = Callable[[Any], list[list[int]]]  # SchedulerOutput -> token ids a scheduled request, in its order

KV_DTYPE = "kv_dtype"  # key of vLLM's additional_config under which the cache's own dtype travels
_TORCH = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": torch.float8_e4m3fn,
}  # fmt: skip
_ENDLESS_BYTES = 1 << 62  # the number of blocks is given, so memory is never what limits it


class StandIn(Executor):  # type: ignore[misc]
    """One worker without a device. Set `on_step` before the first step."""

    supports_pp = False
    max_concurrent_batches = 1
    on_step: OnStep

    def _init_executor(self) -> None:
        self._answers: dict[str, Callable[[], Any]] = {
            "determine_available_memory": lambda: _ENDLESS_BYTES,
            "get_kv_cache_spec": self._kv_cache_spec,
            "get_supported_kv_cache_layouts": lambda: ["LBHNC"],
            "get_supported_tasks": lambda: ("generate",),
        }

    def _kv_cache_spec(self) -> dict[str, Any]:
        """Full attention in every layer, in the block size and shape of the config."""
        model, parallel = self.vllm_config.model_config, self.vllm_config.parallel_config
        spec = FullAttentionSpec(
            block_size=self.vllm_config.cache_config.block_size,
            num_kv_heads=model.get_num_kv_heads(parallel),
            head_size=model.get_head_size(),
            dtype=_TORCH[self.vllm_config.additional_config[KV_DTYPE]],
        )
        return {f"model.layers.{i}.self_attn.attn": spec for i in range(model.get_num_layers(parallel))}

    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Sequence[Any] = (), kwargs: Any = None,
        non_block: bool = False,
    ) -> Any:  # fmt: skip
        """The answers of the one worker; None to whatever only a device could do."""
        answer = self._answers.get(method if isinstance(method, str) else method.__name__)
        return [answer() if answer else None]

    def compile_or_warm_up_model(self) -> None:
        """There is nothing to compile."""

    def check_health(self) -> None:
        """Always healthy."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """The step's tokens, at once."""
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
