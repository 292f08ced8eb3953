"""Model shapes: presets by name, and what a token costs in KV bytes, weights and operations.

Knows arithmetic only. Source of the presets: the published config of each model.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

KvDtype = Literal["float32", "bfloat16", "float16", "fp8"]
LayerKind = Literal["full", "sliding_window", "chunked_local", "mla", "mamba"]
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
WINDOWED = ("sliding_window", "chunked_local")


class Layers(BaseModel):
    """Layers whose KV has one shape.

    full: K and V of every token. sliding_window: of the last `window` tokens; chunked_local: of the tokens since
    the last multiple of `window`. mla: one vector of `latent_dim` elements a token, the same for all heads. mamba:
    one state of `state_bytes` a sequence, however long it is. Heads are the model's where they are not given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: LayerKind
    num_layers: int = Field(gt=0, strict=True)
    window: int = Field(default=0, ge=0, strict=True)
    num_kv_heads: int = Field(default=0, ge=0, strict=True)
    head_dim: int = Field(default=0, ge=0, strict=True)
    latent_dim: int = Field(default=0, ge=0, strict=True)
    state_bytes: int = Field(default=0, ge=0, strict=True)  # of one layer, all heads

    @model_validator(mode="after")
    def _complete(self) -> "Layers":
        wanted = {"mla": "latent_dim", "mamba": "state_bytes"} | dict.fromkeys(WINDOWED, "window")
        for name in ("window", "latent_dim", "state_bytes"):
            if (wanted.get(self.kind) == name) != (getattr(self, name) > 0):
                need = f"needs {wanted[self.kind]}" if self.kind in wanted else "has none of these"
                raise ValueError(f"layers of kind {self.kind}: {name} is {getattr(self, name)}; this kind {need}")
        if self.kind in ("mla", "mamba") and (self.num_kv_heads or self.head_dim):
            raise ValueError(f"layers of kind {self.kind} have no num_kv_heads and no head_dim of their own")
        return self

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value}


class ModelSpec(BaseModel):
    """A Llama-shaped model. Sizes in elements; `kv_dtype` is what the cache stores, `dtype` the weights.

    `layers` where not every layer keeps K and V of every token; `num_layers` is then their sum. `total_params`
    where more weights are kept than a token meets (mixture of experts).
    """

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
    layers: tuple[Layers, ...] = ()
    total_params: int = Field(default=0, ge=0, strict=True)

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A plain Llama is written, and hashed, as if there were no other shapes."""
        plain = {"layers": self.layers, "total_params": self.total_params}
        return {name: value for name, value in handler(self).items() if plain.get(name, True)}

    @model_validator(mode="before")
    @classmethod
    def _count_layers(cls, value: Any) -> Any:
        parts = value.get("layers") if isinstance(value, dict) else None
        if isinstance(parts, list | tuple) and parts and "num_layers" not in value:
            counts = [part.get("num_layers") if isinstance(part, dict) else getattr(part, "num_layers", None)
                      for part in parts]  # fmt: skip
            if all(isinstance(count, int) for count in counts):
                return {**value, "num_layers": sum(counts)}
        return value

    @model_validator(mode="after")
    def _layers_add_up(self) -> "ModelSpec":
        said = sum(part.num_layers for part in self.layers)
        if self.layers and said != self.num_layers:
            raise ValueError(f"layers add up to {said}, num_layers is {self.num_layers}; leave num_layers out")
        return self

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelSpec":
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(
                f"num_query_heads {self.num_query_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        return self

    @property
    def parts(self) -> tuple[Layers, ...]:
        """The layers by the shape of their KV; one part where all are alike."""
        return self.layers or (Layers(kind="full", num_layers=self.num_layers),)

    @property
    def uniform(self) -> bool:
        """Whether every layer keeps something of every token, so that one block table serves all of them."""
        return all(part.kind in ("full", "mla") for part in self.layers)

    def part_bytes_per_token(self, part: Layers) -> int:
        """Of one token in all layers of `part`, while they hold it; 0 where a state stands for all tokens."""
        if part.kind == "mamba":
            return 0
        heads, dim = part.num_kv_heads or self.num_kv_heads, part.head_dim or self.head_dim
        width = part.latent_dim if part.kind == "mla" else 2 * heads * dim
        return part.num_layers * width * DTYPE_BYTES[self.kv_dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        """KV of one token over all layers that hold it, in bytes; states are apart."""
        return sum(self.part_bytes_per_token(part) for part in self.parts)

    @property
    def state_bytes(self) -> int:
        """States of one sequence over all layers that have one, in bytes."""
        return sum(part.num_layers * part.state_bytes for part in self.layers)

    @property
    def layer_params(self) -> int:
        """Weights of one layer that take part in matrix products (attention projections and the gated MLP)."""
        q = self.num_query_heads * self.head_dim
        kv = self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (q + 2 * kv) + q * self.hidden_size
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def num_params(self) -> int:
        """All weights: as said, else layers, embedding and output head counted apart."""
        return self.total_params or self.num_layers * self.layer_params + 2 * self.vocab_size * self.hidden_size

    @property
    def weights_bytes(self) -> int:
        return self.num_params * DTYPE_BYTES[self.dtype]


def _llama(
    name: str, shape: tuple[int, int, int, int], sizes: tuple[int, int, int], *layers: Layers, total_params: int = 0
) -> ModelSpec:
    num_layers, kv, heads, dim = shape
    hidden, ffn, vocab = sizes
    return ModelSpec(
        name=name, num_layers=num_layers, num_kv_heads=kv, num_query_heads=heads, head_dim=dim, hidden_size=hidden,
        intermediate_size=ffn, vocab_size=vocab, layers=layers, total_params=total_params,
    )  # fmt: skip


def _window(num_layers: int, window: int) -> Layers:
    return Layers(kind="sliding_window", num_layers=num_layers, window=window)


def _full(num_layers: int) -> Layers:
    return Layers(kind="full", num_layers=num_layers)


# A Mamba-2 layer: 128 heads of 64 with 128 states each, and 3 columns of 8448 that its convolution looks back on.
_BAMBA_STATE_BYTES = 2 * (128 * 64 * 128 + 3 * 8448)


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
        # Five layers of a window to each that sees everything.
        _llama("gemma-3-12b", (48, 8, 16, 256), (3840, 15360, 262208), _window(40, 1024), _full(8)),
        _llama("gemma-3-27b", (62, 16, 32, 128), (5376, 21504, 262208), _window(52, 1024), _full(10)),
        # Latent attention: 512 elements and 64 that carry the position; 6 + 2 of its experts' width 1408 a token.
        _llama(
            "deepseek-v2-lite",
            (27, 16, 16, 192),
            (2048, 8 * 1408, 102400),
            Layers(kind="mla", num_layers=27, latent_dim=576),
            total_params=15_706_484_224,
        ),
        _llama(
            "bamba-9b",
            (32, 8, 32, 128),
            (4096, 14336, 128256),
            Layers(kind="mamba", num_layers=29, state_bytes=_BAMBA_STATE_BYTES),
            _full(3),
        ),
    )
}
