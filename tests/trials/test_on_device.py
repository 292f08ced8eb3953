"""The pool as tensors of any device, here the CPU: the answers of the CPU's own kernels, and what is mirrored."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_torch_paged import MAX_LEN, MODEL, REQUESTS, Driver, config, prompt_of

from tests.trials import fake_kernels
from tests.trials.fake_kernels import FakeFlashInfer
from trials.content import Content
from trials.engine import Refused
from trials.engines import torch_device, torch_engine
from trials.engines.kernels import on_device
from trials.engines.kernels.adapters import DenseVarlen, FlashInfer, PagedKernel, TorchVarlen
from trials.engines.kernels.batch import BadBlock, CannotRun
from trials.engines.kernels.config import TorchConfig
from trials.engines.torch_device import Tensors, TorchDevice
from trials.engines.torch_paged import TorchExecution, open_execution
from trials.model import ModelSpec
from trials.spec import trial_spec
from trials.trace import make_trace

Builder = Callable[[ModelSpec, TorchConfig], PagedKernel]
FAKES: dict[str, Builder] = {
    "torch_varlen": lambda model, config: TorchVarlen(model, fake_kernels.varlen_attn_out),
    "dense_varlen": lambda model, config: DenseVarlen(model, fake_kernels.varlen_attn_out),
    "flashinfer": lambda model, config: FlashInfer(model, torch.float32, torch.device("cpu"), FakeFlashInfer()),
}


@pytest.fixture(scope="module")
def walked() -> dict[int, list[int]]:
    """What the CPU's own kernels answer."""
    return Driver(TorchExecution(config(4), prompt_of)).serve()


def on_torch(block: int, kernel: str, layout: str = "paged") -> TorchExecution:
    return TorchExecution(config(block, layout, kernel=kernel), prompt_of)


@pytest.mark.parametrize(("block", "kernel", "layout"), [
    (1, "gather", "paged"), (3, "torch_varlen", "paged"), (16, "flashinfer", "paged"), (64, "gather", "paged"),
    (0, "dense_varlen", "contiguous"),
])  # fmt: skip
def test_answers_are_those_of_the_cpu_kernels(
    block: int, kernel: str, layout: str, walked: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preempted too: a row of the table that is written again reaches the device before it is read."""
    for name, build in FAKES.items():
        monkeypatch.setitem(on_device.BUILDERS, name, build)
    preempt = {5: 0, 11: 1, 13: 1, 20: 3, 30: 5}
    assert Driver(on_torch(block, kernel, layout)).serve(preempt) == walked


def test_the_device_s_table_is_the_host_s_after_every_step() -> None:
    execution = on_torch(4, "gather")
    driver, attention = Driver(execution), execution.attention
    for row in list(REQUESTS)[:4]:
        driver.admit(row)
    for _ in range(20):
        driver.run_step()
        assert torch.equal(attention.tables()[0], torch.from_numpy(attention.table_RM))


def test_a_block_outside_the_pool_never_reaches_the_device() -> None:
    execution = on_torch(16, "gather")
    driver = Driver(execution)
    run = driver.admit(1)
    plan = driver.plan()
    run.table[0] = execution.config.geometry.num_blocks
    with pytest.raises(BadBlock, match="row 1: entry 0"):
        execution.execute(plan)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_serves_at_half_the_bytes(dtype: str) -> None:
    wide = config(4, kernel="gather")
    model = MODEL.model_copy(update={"kv_dtype": dtype, "dtype": dtype})
    old = wide.geometry
    half = replace(old, bytes_per_token=model.kv_bytes_per_token, pool_bytes=old.pool_bytes // 2)
    execution = TorchExecution(replace(wide, model=model, geometry=half), prompt_of)
    assert 2 * execution.device().pool == TorchExecution(wide, prompt_of).device().pool
    assert execution.device().weights == TorchExecution(wide, prompt_of).device().weights // 2
    answers = Driver(execution).serve()
    assert {row: len(tokens) for row, tokens in answers.items()} == {r: o for r, (_, o) in REQUESTS.items()}


def test_device_accounts_name_the_table_on_the_device() -> None:
    device = on_torch(16, "gather").device()
    assert device.block_tables == 8 * (MAX_LEN // 16) * 4


# ---- CUDA, by stand-ins
class Event:
    """A CUDA event: its time is that of the stream when it was recorded."""

    now_ms = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.now_ms
        Event.now_ms += 1.0

    def synchronize(self) -> None:
        """Reached already."""

    def elapsed_time(self, end: "Event") -> float:
        return end.at - self.at


def test_on_cuda_attention_is_timed_by_events_and_a_step_by_its_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    watch = on_device.Stopwatch(torch.device("cuda"), "wall")
    for layers in (3, 2):
        watch.reset()
        assert watch.total_ns() == 0
        for _ in range(layers):
            watch.start()
            watch.stop()
        assert watch.total_ns() == layers * 1_000_000


@pytest.mark.parametrize(
    ("capability", "name"), [((9, 0), "FA3"), ((10, 0), "FA4"), ((8, 9), None), ((12, 0), None)]
)
def test_the_flash_attention_that_reads_tables_is_the_one_of_the_gpu(
    capability: tuple[int, int], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    activated: list[str] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr("torch.nn.attention.activate_flash_attention_impl", activated.append)
    if name is None:
        with pytest.raises(CannotRun, match=f"not {capability[0]}.{capability[1]}"):
            on_device.activate_flash_attention()
    else:
        assert on_device.activate_flash_attention() == name
    assert activated == ([name] if name else [])


def test_cuda_bytes_are_told_apart_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocated at the peak, reserved beyond it, and what was occupied before: nothing else is left over."""
    stats = {
        "max_memory_allocated": 900, "max_memory_reserved": 1000, "memory_allocated": 700,
        "mem_get_info": (5000 - 1300, 5000), "reset_peak_memory_stats": None,
    }  # fmt: skip
    for name, value in stats.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    sizes = iter(({1: 400}, {2: 32}, {3: 200}, {4: 50}))
    monkeypatch.setattr(torch_device, "storages", lambda tensors, device: next(sizes))
    device = TorchDevice("cuda", Tensors([], [], [], []), baseline=300)
    device.reset()
    found = device.bytes()
    assert (found.pool, found.block_tables, found.weights) == (400, 32, 200)
    assert found.workspace == 900 - 400 - 32 - 200
    assert found.allocator_reserve == 300 + (1000 - 900)
    assert (found.observed, found.resident) == (1300, 700)
    named = found.pool + found.block_tables + found.weights + found.workspace + found.allocator_reserve
    assert found.observed - named == 0


def spec(**engine: Any):
    return trial_spec({
        "engine": {"name": "torch_paged", **engine}, "pool": {"blocks": 40}, "trace": {"path": "none"},
        "slo": "ttft:p99<1s", "policy": {"max_model_len": 64, "max_num_seqs": 4},
        "model": {"num_layers": 1, "num_kv_heads": 1, "num_query_heads": 2, "head_dim": 64, "hidden_size": 64,
                  "intermediate_size": 64, "vocab_size": 64, "dtype": "float32", "kv_dtype": "float32"},
    })  # fmt: skip


@pytest.mark.parametrize(("engine", "gpu", "words"), [
    ({"args": {"kernl": "gather"}}, False, "no argument 'kernl'; did you mean 'kernel'"),
    ({"args": {"kernel": "flashinfer"}}, False, "runs on cuda, not on cpu"),
    ({"device": "cuda"}, False, "no CUDA device here"),
    ({"device": "cuda"}, True, "no paged kernel for cuda"),
    ({"device": "cuda", "args": {"kernel": "torch_varlen"}}, True, "FlashAttention 3 for Hopper, 4 for Blackwell"),
])  # fmt: skip
def test_what_this_machine_does_not_have_is_refused_in_words(
    engine: dict[str, Any], gpu: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr("trials.engines.kernels.choice.importlib.util.find_spec", lambda module: None)
    found = torch_engine.open(spec(**engine), Content(make_trace([0], [4], [2])))
    assert isinstance(found, Refused)
    assert words in found.words


def test_kernel_and_its_block_are_read_back_and_part_of_the_identity() -> None:
    content = Content(make_trace([0], [4], [2]))
    walk = torch_engine.open(spec(), content)
    gather = torch_engine.open(spec(args={"kernel": "gather"}), content)
    assert not isinstance(walk, Refused)
    assert not isinstance(gather, Refused)
    assert (dict(walk.facts.effective)["kernel"], walk.facts.groups[0].kernel_block_size) == ("walk", 16)
    assert (dict(gather.facts.effective)["kernel"], gather.facts.groups[0].kernel_block_size) == ("gather", 1)
    assert walk.facts.engine_hash != gather.facts.engine_hash
    assert torch_engine.identity(spec()) == torch_engine.identity(spec(args={"kernel": "walk"}))


def failing(error: Exception) -> Builder:
    def build(model: ModelSpec, config: TorchConfig) -> PagedKernel:
        raise error

    return build


def test_a_library_that_cannot_be_loaded_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(on_device.BUILDERS, "gather", failing(ImportError("libcudart.so.12 is absent")))
    found = open_execution(config(16, kernel="gather"), prompt_of)
    assert found == Refused("kernel gather: libcudart.so.12 is absent")


def test_on_a_cpu_a_fault_of_ours_stays_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(on_device.BUILDERS, "gather", failing(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        open_execution(config(16, kernel="gather"), prompt_of)


def test_what_a_gpu_refuses_in_the_warm_up_is_refused_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB.\nmore")

    monkeypatch.setattr("trials.engines.torch_paged._opened", full)
    model = MODEL.model_copy(update={"dtype": "float16", "kv_dtype": "float16", "head_dim": 64})
    wanted = config(16, kernel="gather", device="cuda")
    size = wanted.geometry.num_blocks * 16 * model.kv_bytes_per_token
    geometry = replace(wanted.geometry, bytes_per_token=model.kv_bytes_per_token, pool_bytes=size)
    found = open_execution(replace(wanted, model=model, geometry=geometry), prompt_of)
    assert isinstance(found, Refused)
    assert found.words == "kernel gather at block size 16: CUDA out of memory. Tried to allocate 80 GiB."
    timed = replace(wanted, model=model, geometry=geometry, clock="cpu")
    found = open_execution(timed, prompt_of)
    assert isinstance(found, Refused)
    assert "use engine.clock: wall on cuda" in found.words
