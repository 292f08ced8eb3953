"""Model shapes: presets by name, and what a token costs in KV bytes, weights and operations.

Knows arithmetic only. Source of the presets: the published config of each model.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

KvDtype = Literal["float32", "bfloat16", "float16", "fp8"]
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


class ModelSpec(BaseModel):
    """A Llama-shaped model. Sizes in elements; `kv_dtype` is what the cache stores, `dtype` the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "custom"
    path: str | None = None
    num_layers: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    num_query_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    kv_dtype: KvDtype = "bfloat16"
    dtype: KvDtype = "bfloat16"

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelSpec":
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(
                f"num_query_heads {self.num_query_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        return self

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token over all layers, in bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.kv_dtype]

    @property
    def layer_params(self) -> int:
        """Weights of one layer that take part in matrix products (attention projections and the gated MLP)."""
        q = self.num_query_heads * self.head_dim
        kv = self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (q + 2 * kv) + q * self.hidden_size
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def num_params(self) -> int:
        """All weights: layers, embedding and output head counted apart."""
        return self.num_layers * self.layer_params + 2 * self.vocab_size * self.hidden_size

    @property
    def weights_bytes(self) -> int:
        return self.num_params * DTYPE_BYTES[self.dtype]


def _llama(name: str, shape: tuple[int, int, int, int], sizes: tuple[int, int, int]) -> ModelSpec:
    layers, kv, heads, dim = shape
    hidden, ffn, vocab = sizes
    return ModelSpec(
        name=name, num_layers=layers, num_kv_heads=kv, num_query_heads=heads, head_dim=dim,
        hidden_size=hidden, intermediate_size=ffn, vocab_size=vocab,
    )  # fmt: skip


PRESETS: dict[str, ModelSpec] = {
    m.name: m
    for m in (
        _llama("llama-3.1-8b", (32, 8, 32, 128), (4096, 14336, 128256)),
        _llama("llama-3.1-70b", (80, 8, 64, 128), (8192, 28672, 128256)),
        _llama("llama-2-7b", (32, 32, 32, 128), (4096, 11008, 32000)),
        _llama("llama-2-70b", (80, 8, 64, 128), (8192, 28672, 32000)),
        _llama("mistral-7b", (32, 8, 32, 128), (4096, 14336, 32000)),
        _llama("qwen2.5-7b", (28, 4, 28, 128), (3584, 18944, 152064)),
        _llama("qwen3-0.6b", (28, 8, 16, 128), (1024, 3072, 151936)),
        _llama("qwen3-8b", (36, 8, 32, 128), (4096, 12288, 151936)),
        _llama("qwen3-32b", (64, 8, 64, 128), (5120, 25600, 151936)),
    )
}
