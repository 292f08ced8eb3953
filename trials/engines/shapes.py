"""A model's shape as real engines read it: a Hugging Face config, and which token ids content may use."""

from collections.abc import Mapping
from typing import Any

from trials.model import ModelSpec

TORCH_DTYPES = ("float32", "bfloat16", "float16")
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def llama_config(model: ModelSpec, max_model_len: int) -> dict[str, Any]:
    """config.json of a Llama of this shape. No special tokens: every id below the vocabulary is content."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size, "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers, "num_attention_heads": model.num_query_heads,
        "num_key_value_heads": model.num_kv_heads, "head_dim": model.head_dim,
        "max_position_embeddings": max_model_len, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "dtype": model.dtype,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip


def content_limit(config: Mapping[str, Any]) -> int:
    """Ids of content are below this: below the vocabulary, and below special ids where they lie at its end."""
    vocab = int(config["vocab_size"])
    special: list[int] = []
    for name in _SPECIAL:
        value = config.get(name)
        special += value if isinstance(value, list) else [] if value is None else [int(value)]
    return min((i for i in special if i > vocab // 2), default=vocab)


def kv_mismatch(model: ModelSpec, bytes_per_token: int) -> str | None:
    """Why the pool that an engine built is not the one of this shape, or None."""
    if bytes_per_token == model.kv_bytes_per_token:
        return None
    return (
        f"the engine keeps {bytes_per_token} bytes of KV a token, the model's shape says "
        f"{model.kv_bytes_per_token}; give the shape and kv_dtype of the model that is served"
    )
