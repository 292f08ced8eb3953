"""The model against a second implementation in float64 that computes whole sequences without any cache."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from trials.engines.torch_model import LlamaModel, Weights, random_weights, rope_tables
from trials.model import ModelSpec

SPEC = ModelSpec(
    num_layers=2, num_kv_heads=2, num_query_heads=4, head_dim=16, hidden_size=48,
    intermediate_size=40, vocab_size=61, kv_dtype="float32", dtype="float32",
)  # fmt: skip


def reference_logits(spec: ModelSpec, weights: Weights, ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of a whole sequence, float64, head by head."""
    heads, kv_heads, dim = spec.num_query_heads, spec.num_kv_heads, spec.head_dim
    half = dim // 2
    angles = np.outer(np.arange(len(ids)), 10_000.0 ** (-np.arange(half) / half))
    turn = torch.from_numpy(np.exp(1j * angles))

    def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w.double()

    def rotate(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x[:, :half], x[:, half:]) * turn
        return torch.cat((z.real, z.imag), 1)

    x = weights.embedding_VC.double()[ids]
    future = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    for layer in weights.layers:
        parts = (norm(x, layer.norm_in_C) @ layer.fused_EC.double().T).split(dim, 1)
        outs = []
        for h in range(heads):
            kv = h // (heads // kv_heads)
            q, k, v = rotate(parts[h]), rotate(parts[heads + kv]), parts[heads + kv_heads + kv]
            scores = (q @ k.T / math.sqrt(dim)).masked_fill(future, -math.inf)
            outs.append(scores.softmax(-1) @ v)
        x = x + torch.cat(outs, 1) @ layer.out_CA.double().T
        gate, up = (norm(x, layer.norm_mlp_C) @ layer.gate_up_2FC.double().T).chunk(2, 1)
        x = x + (gate * torch.sigmoid(gate) * up) @ layer.down_CF.double().T
    return norm(x, weights.norm_C) @ weights.head_VC.double().T


class WholeSequence:
    """`attend` for one sequence computed from position 0, in plain torch."""

    def __init__(self, spec: ModelSpec, num_tokens: int) -> None:
        self.spec = spec
        self.cos, self.sin = (t[:num_tokens, None] for t in rope_tables(num_tokens, spec.head_dim))

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        return torch.cat((low * self.cos - high * self.sin, high * self.cos + low * self.sin), -1)

    def __call__(self, layer: int, fused: torch.Tensor, out: torch.Tensor) -> None:
        spec = self.spec
        heads, kv_heads = spec.num_query_heads, spec.num_kv_heads
        q, k, v = fused.view(len(fused), -1, spec.head_dim).split([heads, kv_heads, kv_heads], 1)
        q, k, v = (x.transpose(0, 1)[None] for x in (self._rotate(q), self._rotate(k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out.view(len(fused), heads, spec.head_dim).copy_(y[0].transpose(0, 1))


def test_forward_equals_the_reference() -> None:
    for tied in (False, True):
        weights = random_weights(SPEC, seed=3, tied=tied)
        model = LlamaModel(SPEC, weights, max_tokens=32, max_samples=32)
        ids = [int(i) for i in np.random.default_rng(0).integers(0, SPEC.vocab_size, 20)]
        hidden = model.forward(torch.tensor(ids), WholeSequence(SPEC, len(ids)))
        got = model.logits(hidden, torch.arange(len(ids)))
        torch.testing.assert_close(got.double(), reference_logits(SPEC, weights, ids), atol=1e-4, rtol=1e-4)


def test_logits_are_those_of_the_chosen_rows() -> None:
    model = LlamaModel(SPEC, random_weights(SPEC, seed=3), 8, 8)
    hidden = model.forward(torch.tensor([5, 6, 7]), WholeSequence(SPEC, 3))
    every = model.logits(hidden, torch.arange(3)).clone()
    torch.testing.assert_close(model.logits(hidden, torch.tensor([2, 0])), every[[2, 0]], atol=1e-6, rtol=1e-6)


def test_the_seed_decides_the_weights() -> None:
    one, same, other = (random_weights(SPEC, seed) for seed in (1, 1, 2))
    assert torch.equal(one.layers[1].down_CF, same.layers[1].down_CF)
    assert torch.equal(one.head_VC, same.head_VC)
    assert not torch.equal(one.layers[1].down_CF, other.layers[1].down_CF)


def test_weights_bytes_are_the_specs_and_the_norms() -> None:
    norms = (2 * SPEC.num_layers + 1) * SPEC.hidden_size * 4
    untied = LlamaModel(SPEC, random_weights(SPEC, 0), 4, 4)
    assert untied.weights_bytes == SPEC.weights_bytes + norms
    tied = LlamaModel(SPEC, random_weights(SPEC, 0, tied=True), 4, 4)
    assert untied.weights_bytes - tied.weights_bytes == SPEC.vocab_size * SPEC.hidden_size * 4


def test_answers_do_not_collapse_to_one_token() -> None:
    model = LlamaModel(SPEC, random_weights(SPEC, seed=0), 64, 64)
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, SPEC.vocab_size, 64))
    chosen = model.logits(model.forward(ids, WholeSequence(SPEC, 64)), torch.arange(64)).argmax(-1)
    assert len(chosen.unique()) > 20
