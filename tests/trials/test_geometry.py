"""Bytes to blocks: whole blocks only, the rest named, and a pool that holds nothing is refused with its numbers."""

from typing import Any

import pytest

from trials.engine import PoolGeometry
from trials.geometry import block_table_bytes, effective_block_size, pages_per_block, pool_geometry
from trials.model import PRESETS
from trials.spec import TrialSpec, trial_spec

TOKEN = 131_072  # KV bytes of a llama-3.1-8b token: 2 x 32 layers x 8 heads x 128 x 2 bytes


def spec(pool: dict[str, Any], **policy: Any) -> TrialSpec:
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "constant:1000"}, "model": "llama-3.1-8b", "pool": pool,
        "policy": policy, "trace": {"path": "t"}, "slo": "ttft:p99<500ms",
    })  # fmt: skip


def geometry(pool: dict[str, Any], **policy: Any) -> PoolGeometry:
    found = pool_geometry(spec(pool, **policy))
    assert isinstance(found, PoolGeometry), found
    return found


@pytest.mark.parametrize("size", [1, 3, 16, 256, 8192])
@pytest.mark.parametrize("pool_bytes", [8192 * TOKEN, 10_000 * TOKEN + 17, (1 << 34) - 1])
def test_whole_blocks_and_the_remainder_are_the_pool(size: int, pool_bytes: int) -> None:
    found = geometry({"bytes": pool_bytes}, block_size=size)
    assert found.num_blocks * size * TOKEN + found.remainder_bytes == found.pool_bytes == pool_bytes
    assert 0 <= found.remainder_bytes < found.block_bytes
    assert found.block_bytes == size * TOKEN


def test_worked_value_16_gib_at_57344_bytes_a_token_hold_299584_tokens_in_whole_16_blocks() -> None:
    model = PRESETS["qwen2.5-7b"]
    assert model.kv_bytes_per_token == 57_344
    asked = spec({"bytes": "16GiB"}).model_copy(update={"model": model})
    found = pool_geometry(asked)
    assert isinstance(found, PoolGeometry)
    assert found.num_blocks * 16 == 299_584


def test_blocks_buy_exactly_as_many_and_leave_nothing() -> None:
    found = geometry({"blocks": 100, "reserve_blocks": 1})
    assert (found.num_blocks, found.reserve_blocks, found.remainder_bytes) == (100, 1, 0)


def test_contiguous_is_one_block_of_the_whole_context_a_sequence_without_reuse() -> None:
    asked = spec({"bytes": "16GiB"}, layout="contiguous", max_model_len=1000, block_size=16)
    assert effective_block_size(asked) == 1000
    found = pool_geometry(asked)
    assert isinstance(found, PoolGeometry)
    assert (found.block_size, found.reuse_quantum_tokens) == (1000, 0)
    assert found.num_blocks == (1 << 34) // (1000 * TOKEN)
    assert block_table_bytes(asked) == 256 * 1 * 4


@pytest.mark.parametrize(("size", "columns"), [(1, 1000), (16, 63), (999, 2), (1000, 1), (4096, 1)])
def test_block_tables_have_a_column_for_every_block_of_a_context(size: int, columns: int) -> None:
    asked = spec({"bytes": "16GiB"}, block_size=size, max_model_len=1000, max_num_seqs=7)
    assert block_table_bytes(asked) == 7 * columns * 4


def test_tables_inside_come_out_of_the_pool() -> None:
    tables = 256 * 8192 * 4  # block 1
    with_them = geometry({"bytes": "16GiB", "tables_inside": True}, block_size=1)
    assert with_them.pool_bytes == (1 << 34) - tables
    assert with_them.num_blocks == ((1 << 34) - tables) // TOKEN


def test_device_budget_also_pays_for_weights_tables_and_workspace() -> None:
    asked = spec({"device_budget": "80GiB"})
    found = pool_geometry(asked, workspace_bytes=1 << 30)
    assert isinstance(found, PoolGeometry)
    assert found.pool_bytes == (79 << 30) - asked.model.weights_bytes - block_table_bytes(asked)


@pytest.mark.parametrize(
    ("pool", "policy", "words"),
    [
        ({"bytes": 15 * TOKEN}, {"block_size": 16}, "0 blocks of 16 tokens"),
        ({"bytes": 16 * TOKEN, "reserve_blocks": 1}, {"block_size": 16}, "1 blocks of 16 tokens"),
        ({"bytes": 16 * TOKEN}, {"layout": "contiguous"}, "0 blocks of 8192 tokens"),
        ({"device_budget": "1GiB"}, {}, "0 blocks of 16 tokens"),
        ({"bytes": 1000, "tables_inside": True}, {"block_size": 1}, "in 0 bytes"),
    ],
)
def test_pool_that_can_hand_out_no_block_is_refused_with_its_numbers(
    pool: dict[str, Any], policy: dict[str, Any], words: str
) -> None:
    said = pool_geometry(spec(pool, **policy))
    assert isinstance(said, str)
    assert words in said
    assert "give it more bytes or smaller blocks" in said


def test_a_pool_of_more_blocks_than_can_be_followed_is_refused() -> None:
    found = pool_geometry(spec({"bytes": 2**63 - 1}))
    assert isinstance(found, str)
    assert "at most 67108864 can be followed" in found


def test_reuse_comes_in_whole_blocks_and_not_at_all_without_a_prefix_cache() -> None:
    assert geometry({"bytes": "1GiB"}, block_size=32).reuse_quantum_tokens == 32
    assert geometry({"bytes": "1GiB"}, block_size=32, prefix_caching=False).reuse_quantum_tokens == 0


def test_virtual_block_is_what_one_page_holds_of_a_layer() -> None:
    # 8 heads x 128 x 2 bytes = 2048 bytes of K a layer and token: a 2 MiB page holds 1024 of them exactly.
    found = geometry({"bytes": "16GiB"}, layout="virtual", block_size=16)
    assert (found.block_size, found.padding_bytes_per_block) == (1024, 0)
    assert found.block_bytes == 2 * 32 * (2 << 20)
    assert found.reuse_quantum_tokens == 0


def test_virtual_rounding_is_padding_of_every_page() -> None:
    asked = spec({"bytes": 10 * 64 * 5000 + 3}, layout="virtual", page_bytes=5000)
    found = pool_geometry(asked)
    assert isinstance(found, PoolGeometry)
    assert (found.block_size, found.padding_bytes_per_block) == (2, 64 * (5000 - 2 * 2048))
    assert (found.num_blocks, found.block_bytes, found.remainder_bytes) == (10, 64 * 5000, 3)
    assert pages_per_block(asked) == 64


def test_a_page_that_holds_no_token_is_refused_with_what_a_token_takes() -> None:
    found = pool_geometry(spec({"bytes": "1GiB"}, layout="virtual", page_bytes=2047))
    assert isinstance(found, str)
    assert "page_bytes 2047" in found
    assert "2048 bytes" in found


def test_page_size_moves_nothing_but_the_virtual_layout() -> None:
    assert geometry({"bytes": "1GiB"}, page_bytes=4096) == geometry({"bytes": "1GiB"})
