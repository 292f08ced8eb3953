"""Models by the shape of their KV: what a token and a state cost, and how a plain Llama is written."""

import pytest
from pydantic import ValidationError

from trials.fingerprint import digest
from trials.model import PRESETS, Layers, ModelSpec

SIZES = {
    "num_kv_heads": 2, "num_query_heads": 4, "head_dim": 8, "hidden_size": 32, "intermediate_size": 64,
    "vocab_size": 100,
}  # fmt: skip


def test_a_plain_model_is_written_as_if_there_were_no_other_shapes() -> None:
    """Else every spec hash would have moved when shapes came."""
    plain = ModelSpec(num_layers=3, **SIZES)
    assert not {"layers", "total_params"} & plain.model_dump(mode="json").keys()
    assert plain.uniform
    assert [part.kind for part in plain.parts] == ["full"]
    assert plain.kv_bytes_per_token == 2 * 3 * 2 * 8 * 2


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_reads_back_what_it_writes(name: str) -> None:
    model = PRESETS[name]
    again = ModelSpec.model_validate_json(model.model_dump_json())
    assert again == model
    assert digest(again.model_dump_json().encode()) == digest(model.model_dump_json().encode())


def test_presets_cost_what_their_published_shapes_say() -> None:
    """K and V of 8 heads of 256 in 48 layers; a latent of 576 in 27; 3 of 32 layers with 8 heads of 128."""
    assert PRESETS["gemma-3-12b"].kv_bytes_per_token == 2 * 48 * 8 * 256 * 2
    assert PRESETS["deepseek-v2-lite"].kv_bytes_per_token == 27 * 576 * 2
    assert PRESETS["bamba-9b"].kv_bytes_per_token == 2 * 3 * 8 * 128 * 2
    assert PRESETS["bamba-9b"].state_bytes == 29 * 2 * (128 * 64 * 128 + 3 * 8448)
    assert not PRESETS["gemma-3-12b"].uniform
    assert PRESETS["deepseek-v2-lite"].uniform
    assert PRESETS["deepseek-v2-lite"].weights_bytes == 2 * PRESETS["deepseek-v2-lite"].total_params


def test_layers_count_themselves_and_have_to_agree_with_what_is_said() -> None:
    parts = [{"kind": "full", "num_layers": 2}, {"kind": "sliding_window", "window": 8, "num_layers": 3}]
    assert ModelSpec(layers=parts, **SIZES).num_layers == 5
    with pytest.raises(ValidationError, match="layers add up to 5, num_layers is 6"):
        ModelSpec(layers=parts, num_layers=6, **SIZES)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"kind": "sliding_window", "num_layers": 1}, "window is 0; this kind needs window"),
        ({"kind": "full", "num_layers": 1, "window": 8}, "this kind has none of these"),
        ({"kind": "mla", "num_layers": 1}, "this kind needs latent_dim"),
        ({"kind": "mamba", "num_layers": 1, "state_bytes": 8, "num_kv_heads": 2}, "no num_kv_heads"),
        ({"kind": "mamba", "num_layers": 0, "state_bytes": 8}, "greater than 0"),
        ({"kind": "linear", "num_layers": 1}, "sliding_window"),
    ],
)
def test_a_part_needs_what_its_kind_lives_on_and_nothing_else(layers: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Layers.model_validate(layers)


@pytest.mark.parametrize("layers", [5, "full", [{"kind": "full"}], [{}], {"kind": "full", "num_layers": 2}])
def test_what_is_no_list_of_layers_is_refused_and_not_a_crash(layers: object) -> None:
    with pytest.raises(ValidationError):
        ModelSpec.model_validate({"layers": layers, **SIZES})
