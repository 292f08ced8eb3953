"""A Llama-shaped model with random weights of a given shape, and nothing about where its KV lies.

RMSNorm, fused query/key/value projection, gated MLP, a greedy head. Rotary embedding, the KV cache and attention
come from outside through `attend`, so the same model runs over any pool, layout or device. Buffers of a step are
made once, for the largest step: no allocation of ours falls into a measurement.

Dimension letters: T tokens of the step, S sampled tokens, C hidden size, H query heads, K KV heads, D head size,
E = (H + 2 K) D fused projection, A = H D attention output, F intermediate size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from trials.model import ModelSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
EPSILON = 1e-6
ROPE_BASE = 10_000.0
_RESIDUAL_GAIN = 0.3  # keeps the residual stream from drowning the token that entered it

# (layer, fused projection TE, output TA): rotate, keep keys and values, attend, write the output
Attend = Callable[[int, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer."""

    norm_in_C: torch.Tensor
    fused_EC: torch.Tensor
    out_CA: torch.Tensor
    norm_mlp_C: torch.Tensor
    gate_up_2FC: torch.Tensor
    down_CF: torch.Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model."""

    embedding_VC: torch.Tensor
    layers: tuple[Layer, ...]
    norm_C: torch.Tensor
    head_VC: torch.Tensor  # the embedding itself where tied


def random_weights(spec: ModelSpec, seed: int, tied: bool = False, device: str = "cpu") -> Weights:
    """Gaussian weights of the spec's shape and dtype, scaled by fan-in. The same seed gives the same weights
    everywhere, rounded to the dtype: they are drawn on the host, in float32."""
    dtype = DTYPES[spec.dtype]
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * (gain * columns**-0.5)).to(device, dtype)

    def ones() -> torch.Tensor:
        return torch.ones(spec.hidden_size, dtype=dtype, device=device)

    attention = spec.num_query_heads * spec.head_dim
    fused = attention + 2 * spec.num_kv_heads * spec.head_dim
    embedding_VC = torch.randn(spec.vocab_size, spec.hidden_size, generator=generator).to(device, dtype)
    layers = tuple(
        Layer(
            norm_in_C=ones(),
            fused_EC=matrix(fused, spec.hidden_size),
            out_CA=matrix(spec.hidden_size, attention, _RESIDUAL_GAIN),
            norm_mlp_C=ones(),
            gate_up_2FC=matrix(2 * spec.intermediate_size, spec.hidden_size),
            down_CF=matrix(spec.hidden_size, spec.intermediate_size, _RESIDUAL_GAIN),
        )
        for _ in range(spec.num_layers)
    )
    head_VC = embedding_VC if tied else matrix(spec.vocab_size, spec.hidden_size)
    return Weights(embedding_VC, layers, ones(), head_VC)


def rope_tables(num_positions: int, head_dim: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every position and pair, [positions, D / 2] (Su et al., 2021)."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), ROPE_BASE**-pairs)
    return angles.cos().float().to(device), angles.sin().float().to(device)


class LlamaModel:
    """One step's tokens in, greedy next tokens out. `max_tokens`, `max_samples`: the largest step."""

    def __init__(self, spec: ModelSpec, weights: Weights, max_tokens: int, max_samples: int) -> None:
        self.spec = spec
        self.weights = weights
        device, dtype = weights.norm_C.device, weights.norm_C.dtype
        attention = spec.num_query_heads * spec.head_dim
        fused = attention + 2 * spec.num_kv_heads * spec.head_dim

        def buffer(rows: int, columns: int) -> torch.Tensor:
            return torch.empty(rows, columns, dtype=dtype, device=device).fill_(0.0)

        self._hidden = buffer(max_tokens, spec.hidden_size)
        self._fused = buffer(max_tokens, fused)
        self._attended = buffer(max_tokens, attention)
        self._gate_up = buffer(max_tokens, 2 * spec.intermediate_size)
        self._logits = buffer(max_samples, spec.vocab_size)

    def forward(self, ids_T: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Token ids -> hidden states TC after the last layer; valid until the next call."""
        num_tokens, width = len(ids_T), self.spec.intermediate_size
        x_TC, fused_TE = self._hidden[:num_tokens], self._fused[:num_tokens]
        attended_TA, gate_up_T2F = self._attended[:num_tokens], self._gate_up[:num_tokens]
        gate_TF, up_TF = gate_up_T2F[:, :width], gate_up_T2F[:, width:]
        torch.index_select(self.weights.embedding_VC, 0, ids_T, out=x_TC)
        for index, layer in enumerate(self.weights.layers):
            torch.mm(self._norm(x_TC, layer.norm_in_C), layer.fused_EC.t(), out=fused_TE)
            attend(index, fused_TE, attended_TA)
            x_TC.addmm_(attended_TA, layer.out_CA.t())
            torch.mm(self._norm(x_TC, layer.norm_mlp_C), layer.gate_up_2FC.t(), out=gate_up_T2F)
            F.silu(gate_TF, inplace=True).mul_(up_TF)
            x_TC.addmm_(gate_TF, layer.down_CF.t())
        return x_TC

    def logits(self, hidden_TC: torch.Tensor, chosen_S: torch.Tensor) -> torch.Tensor:
        """Logits SV of the chosen rows; valid until the next call."""
        last_SC = self._norm(hidden_TC.index_select(0, chosen_S), self.weights.norm_C)
        return torch.mm(last_SC, self.weights.head_VC.t(), out=self._logits[: len(chosen_S)])

    def _norm(self, x_TC: torch.Tensor, weight_C: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_TC, (self.spec.hidden_size,), weight_C, EPSILON)

    def weight_tensors(self) -> list[torch.Tensor]:
        """All weights, the head too where it is the embedding."""
        weights = self.weights
        every = [getattr(layer, name) for layer in weights.layers for name in Layer.__slots__]
        return [weights.embedding_VC, weights.norm_C, weights.head_VC, *every]

    @property
    def weights_bytes(self) -> int:
        return storage_bytes(self.weight_tensors())

    def buffers(self) -> list[torch.Tensor]:
        """What a step is computed in."""
        return [self._hidden, self._fused, self._attended, self._gate_up, self._logits]


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, each storage once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
