"""How a whole vLLM is brought up: libraries mapped, engine started, every kind of step run once."""

import gc
import time
from collections.abc import Sequence
from typing import Any

import torch
from vllm import SamplingParams, TokensPrompt

from trials.engine import PoolGeometry
from trials.engines.filling import ANSWERED, prompt_ids, prompt_lengths
from trials.engines.kernels.resident import release_freed_memory
from trials.engines.torch_device import Tensors, TorchDevice, occupied, tensors_in
from trials.engines.torch_peak import peak_bytes
from trials.engines.vllm_args import open_llm, runner_of
from trials.geometry import pool_geometry
from trials.spec import PoolSpec, TrialSpec

MOST_SIZES = 128  # so many does vLLM keep a matrix; larger batches are built anew anyway
_MOST_SECONDS = 20.0
_MAPPED: list[bool] = []  # a process maps its libraries once


def baseline_bytes(spec: TrialSpec) -> int:
    """What is occupied before the engine is built. On a CPU a small one serves first, once a process, and is given
    back: what libraries map on first use is then in the baseline. On CUDA, the driver's context is."""
    if spec.engine.device == "cpu":
        if not _MAPPED:
            _serve_small(_small(spec))
            _MAPPED.append(True)
    else:
        torch.zeros(1, device=spec.engine.device)
    release_freed_memory()
    return occupied(spec.engine.device)


def _serve_small(spec: TrialSpec) -> None:
    geometry = pool_geometry(spec)
    assert isinstance(geometry, PoolGeometry)
    llm = open_llm(spec, geometry)
    rehearse(llm, geometry, on_cpu=True)
    shut(llm)


def _small(spec: TrialSpec) -> TrialSpec:
    """The same kinds of step at a fraction of the size; what vLLM refuses of the spec, it refuses of this."""
    model = spec.model.model_copy(update={"path": None, "num_layers": 1, "intermediate_size": 64, "vocab_size": 64})
    length = min(spec.policy.max_model_len, 64)
    policy = spec.policy.model_copy(
        update={"max_model_len": length, "max_num_seqs": 4, "max_num_batched_tokens": max(length, 32)}
    )
    blocks = 4 + -(-length // spec.policy.block_size)
    engine = spec.engine.model_copy(update={"args": {**spec.engine.args, "enforce_eager": True}})
    return spec.model_copy(
        update={"model": model, "policy": policy, "pool": PoolSpec(blocks=blocks), "engine": engine}
    )


def rehearse(llm: Any, geometry: PoolGeometry, on_cpu: bool) -> int:
    """Serve a full pool and forget it: largest chunks, mixed steps, decodes. The most bytes a step had live."""
    core = llm.engine_core.engine_core
    vocab = core.vllm_config.model_config.get_vocab_size()
    scheduler, longest = core.vllm_config.scheduler_config, core.vllm_config.model_config.max_model_len
    filling = prompt_lengths(geometry, longest, scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    for number, length in enumerate(filling):
        prompt = TokensPrompt(prompt_token_ids=prompt_ids(number, length, vocab))
        wanted = SamplingParams(max_tokens=ANSWERED, temperature=0.0, ignore_eos=True, detokenize=False)
        llm.add_request(f"rehearsal {number}", prompt, wanted)
    most = 0
    while llm.has_unfinished_requests():
        if on_cpu:
            most = max(most, peak_bytes(llm.step))
        else:
            llm.step()
    return most


def every_batch_size(llm: Any, geometry: PoolGeometry) -> None:
    """One step of every number of tokens, the largest first: a CPU's matrix library builds and keeps kernels for
    each number, and would else build them inside the window."""
    most = min(_most_at_once(llm, geometry), MOST_SIZES)
    until = time.monotonic() + _MOST_SECONDS
    for size in range(most, 0, -1):
        _serve(llm, f"size {size}", [size], answered=1)
        if time.monotonic() > until:
            break


def every_captured_size(llm: Any, geometry: PoolGeometry, sizes: Sequence[int]) -> None:
    """The batches that graphs were captured for: so many tokens of one prompt, and so many decodes."""
    scheduler = llm.engine_core.engine_core.vllm_config.scheduler_config
    usable = geometry.num_blocks - geometry.reserve_blocks
    for size in sorted(sizes, reverse=True):
        if size <= _most_at_once(llm, geometry):
            _serve(llm, f"captured {size}", [size], answered=1)
        if size <= min(scheduler.max_num_seqs, usable):
            _serve(llm, f"captured decodes {size}", [1] * size, answered=3 if geometry.block_size > 2 else 1)


def _most_at_once(llm: Any, geometry: PoolGeometry) -> int:
    """Tokens of the longest prompt that is computed in one step."""
    config = llm.engine_core.engine_core.vllm_config
    usable = (geometry.num_blocks - geometry.reserve_blocks) * geometry.block_size
    longest: int = config.model_config.max_model_len - 2
    return min(int(config.scheduler_config.max_num_batched_tokens), longest, usable)


def _serve(llm: Any, name: str, prompts: Sequence[int], answered: int) -> None:
    """Made-up prompts of these lengths, all at once, until every one has so many answers."""
    vocab = llm.engine_core.engine_core.vllm_config.model_config.get_vocab_size()
    wanted = SamplingParams(max_tokens=answered, temperature=0.0, ignore_eos=True, detokenize=False)
    for number, length in enumerate(prompts):
        prompt = TokensPrompt(prompt_token_ids=prompt_ids(length + number, length, vocab))
        llm.add_request(f"{name} {number}", prompt, wanted)
    while llm.has_unfinished_requests():
        llm.step()


def warm_up(llm: Any, geometry: PoolGeometry, device: TorchDevice) -> None:
    """Every kind of step was run, nothing is left of it, and what its libraries kept is known."""
    release_freed_memory()
    before = occupied(device.device)
    on_cpu = device.device == "cpu"
    device.transient = rehearse(llm, geometry, on_cpu)
    if on_cpu:
        every_batch_size(llm, geometry)
    sizes = llm.engine_core.engine_core.vllm_config.compilation_config.cudagraph_capture_sizes
    every_captured_size(llm, geometry, sizes or ())
    if not llm.engine_core.engine_core.scheduler.reset_prefix_cache():
        raise RuntimeError("vLLM did not drop its cache after the warm-up")
    release_freed_memory()
    device.kept = max(0, occupied(device.device) - before)


def device_of(llm: Any, spec: TrialSpec, baseline: int) -> TorchDevice:
    """Where the bytes of its worker are, as far as a worker of this process can be asked."""
    runner = runner_of(llm.engine_core.engine_core)
    if runner is None:
        return TorchDevice(spec.engine.device, Tensors([], [], [], []), baseline)
    model, packed = runner.model, packed_bytes(runner.model)
    tables = [t for table in _block_tables(runner) for t in tensors_in(vars(table), 2)]
    tensors = Tensors(
        pool=list(tensors_in(runner.kv_caches)), block_tables=tables,
        weights=[*model.parameters(), *model.buffers()], buffers=list(tensors_in(vars(runner))),
    )  # fmt: skip
    return TorchDevice(spec.engine.device, tensors, baseline, packed=packed)


def packed_bytes(model: Any) -> int:
    """Weights that vLLM's CPU kernels keep in a form of their own: the layer's tensor is empty then."""
    total = 0
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and not weight.numel():
            rows: int = getattr(module, "output_size_per_partition", 0) or getattr(
                module, "num_embeddings_padded", 0
            )
            columns: int = getattr(module, "input_size_per_partition", 0) or getattr(module, "embedding_dim", 0)
            total += rows * columns * weight.itemsize
    return total


def _block_tables(runner: Any) -> list[Any]:
    held = getattr(getattr(runner, "input_batch", None), "block_table", None) or getattr(
        runner, "block_tables", None
    )
    return list(getattr(held, "block_tables", [held] if held is not None else []))


def shut(llm: Any) -> None:
    """Give everything back."""
    llm.engine_core.shutdown()
    gc.unfreeze()  # vLLM froze the heap when it started
