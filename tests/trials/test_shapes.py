"""A shape as real engines read it, and which ids content may use."""

from trials.engines.shapes import content_limit, kv_mismatch, llama_config
from trials.model import PRESETS


def test_the_config_is_the_shape_and_names_no_special_token() -> None:
    model = PRESETS["llama-3.1-8b"]
    config = llama_config(model, 4096)
    assert config["num_key_value_heads"] == 8
    assert config["head_dim"] * config["num_attention_heads"] == 4096
    assert config["max_position_embeddings"] == 4096
    assert content_limit(config) == model.vocab_size


def test_content_stays_below_special_ids_at_the_end_of_a_vocabulary() -> None:
    assert content_limit({"vocab_size": 128256, "bos_token_id": 128000, "eos_token_id": [128001, 128009]}) == 128000
    assert content_limit({"vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}) == 32000


def test_another_models_pool_is_told() -> None:
    model = PRESETS["llama-3.1-8b"]
    assert kv_mismatch(model, model.kv_bytes_per_token) is None
    assert "131072" in str(kv_mismatch(model, 65536))
