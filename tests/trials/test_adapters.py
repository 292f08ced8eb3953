"""What is handed to CUDA's kernels: a fake that does what their documentation says computes what the CPU's does.

Whatever a sequence does not hold is NaN in these pools: what reads too far, or through another's table, shows.
"""

import inspect

import numpy as np
import pytest
import torch

from tests.trials import fake_kernels
from tests.trials.fake_kernels import FakeFlashInfer, attend_one
from trials.engines.kernels import paged
from trials.engines.kernels.adapters import DenseVarlen, FlashInfer, Gather, PagedKernel, Planned, TorchVarlen
from trials.engines.kernels.batch import Batch, Span
from trials.engines.kernels.calls import compile_kernels
from trials.engines.kernels.paged_step import paged_step
from trials.model import ModelSpec

MODEL = ModelSpec(
    num_layers=1, num_kv_heads=2, num_query_heads=6, head_dim=8, hidden_size=48, intermediate_size=8, vocab_size=9,
    kv_dtype="float32", dtype="float32",
)  # fmt: skip


def kernel(name: str) -> PagedKernel:
    made = {
        "torch_varlen": lambda: TorchVarlen(MODEL, fake_kernels.varlen_attn_out),
        "dense_varlen": lambda: DenseVarlen(MODEL, fake_kernels.varlen_attn_out),
        "flashinfer": lambda: FlashInfer(MODEL, torch.float32, torch.device("cpu"), FakeFlashInfer()),
        "gather": Gather,
    }
    return made[name]()


class Scene:
    """Decodes and chunks (start, tokens) over scattered blocks of a pool of NaN."""

    def __init__(self, size: int, lengths: list[int], chunks: list[tuple[int, int]]) -> None:
        rng = np.random.default_rng(size)
        held = [*lengths, *(start + count for start, count in chunks)]
        entries = [-(-n // size) for n in held]
        order = rng.permutation(sum(entries) + 3).astype(np.int32)
        self.size, self.held = size, held
        rows = rng.permutation(len(held))  # of the table: no row is its sequence's number
        self.table = np.full((len(held) + 1, max(entries) + 1), order[-1], np.int32)
        shape = (len(order), size, MODEL.num_kv_heads, MODEL.head_dim)
        self.keys, self.values = torch.full(shape, float("nan")), torch.full(shape, float("nan"))
        torch.manual_seed(size)
        self.live = []
        for row, count, length in zip(rows, entries, held, strict=True):
            ids, order = order[:count], order[count:]
            self.table[row, :count] = ids
            live = torch.randn(2, length, MODEL.num_kv_heads, MODEL.head_dim)
            for place in range(length):
                self.keys[int(ids[place // size]), place % size] = live[0, place]
                self.values[int(ids[place // size]), place % size] = live[1, place]
            self.live.append(live)
        first, spans = len(lengths), []
        for (start, count), row in zip(chunks, rows[len(lengths) :], strict=True):
            spans.append(Span(first, count, start, int(row)))
            first += count
        none = np.empty(0, np.int64)
        self.batch = Batch(none, none, rows[: len(lengths)].astype(np.int64), np.asarray(lengths, np.int64), spans)
        self.query = torch.randn(first, MODEL.num_query_heads, MODEL.head_dim)

    def computed(self, name: str) -> torch.Tensor:
        made, out = kernel(name), torch.full_like(self.query, float("nan"))
        made.plan(Planned(paged_step(self.batch), self.table, torch.from_numpy(self.table), self.size))
        made.run(self.keys, self.values, self.query, out)
        return out

    def expected(self) -> torch.Tensor:
        counts = [1] * len(self.batch.rows_S) + [span.num_tokens for span in self.batch.spans]
        parts = zip(self.query.split(counts), self.live, strict=True)
        return torch.cat([attend_one(query, live[0], live[1]) for query, live in parts])


NAMES = ("torch_varlen", "flashinfer", "gather")
LENGTHS, CHUNKS = [1, 4, 5, 16, 17, 31], [(0, 7), (9, 3), (16, 1)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 3, 4, 16, 64])
def test_decodes_and_chunks_of_one_step_read_their_own_tokens_and_no_other(name: str, size: int) -> None:
    scene = Scene(size, LENGTHS, CHUNKS)
    torch.testing.assert_close(scene.computed(name), scene.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("lengths", "chunks"), [(LENGTHS, []), ([], CHUNKS), ([1], []), ([], [(0, 1)])])
def test_steps_of_one_kind(name: str, lengths: list[int], chunks: list[tuple[int, int]]) -> None:
    scene = Scene(4, lengths, chunks)
    torch.testing.assert_close(scene.computed(name), scene.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_decodes_equal_the_cpu_kernel_that_walks(name: str) -> None:
    scene = Scene(4, LENGTHS, [])
    compile_kernels("float32", threads=1)
    walked = torch.empty_like(scene.query)
    keys, values = (pool.transpose(1, 2).contiguous().numpy() for pool in (scene.keys, scene.values))
    paged.decode(
        scene.query.numpy(), keys, values, scene.table, scene.batch.rows_S, scene.batch.lengths_S, walked.numpy(),
        np.float32(MODEL.head_dim**-0.5),
    )  # fmt: skip
    torch.testing.assert_close(scene.computed(name), walked, atol=1e-5, rtol=1e-5)


def test_the_control_reads_no_table_and_gives_queries_back_in_their_order() -> None:
    scene = Scene(64, LENGTHS, CHUNKS)
    torch.testing.assert_close(scene.computed("dense_varlen"), scene.expected(), atol=1e-5, rtol=1e-5)


def test_a_kernel_planned_again_forgets_the_step_before() -> None:
    for name in NAMES:
        made = kernel(name)
        for scene in (Scene(4, LENGTHS, CHUNKS), Scene(4, [3], []), Scene(4, [], [(2, 5)])):
            out = torch.full_like(scene.query, float("nan"))
            made.plan(Planned(paged_step(scene.batch), scene.table, torch.from_numpy(scene.table), 4))
            made.run(scene.keys, scene.values, scene.query, out)
            torch.testing.assert_close(out, scene.expected(), atol=1e-5, rtol=1e-5)


def test_the_fake_takes_what_the_installed_torch_takes() -> None:
    from torch.nn.attention.varlen import varlen_attn_out

    real, ours = inspect.signature(varlen_attn_out), inspect.signature(fake_kernels.varlen_attn_out)
    assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
        (p.name, p.kind, p.default) for p in real.parameters.values()
    ]


def test_a_wrong_table_is_noticed_by_these_tests() -> None:
    """The control of this file: one id off, one length off."""
    for spoil in ("table", "length"):
        scene = Scene(4, LENGTHS, CHUNKS)
        if spoil == "table":
            scene.table[scene.batch.rows_S[3], 1] = scene.table[-1, 0]
        else:
            scene.batch.lengths_S[4] += 1
        for name in NAMES:
            assert not torch.allclose(scene.computed(name), scene.expected(), atol=1e-5)
