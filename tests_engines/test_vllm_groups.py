"""KV of different shapes on vLLM's own managers: accounts a group, one pool, one ledger a rank, at every step."""

from typing import Any

import numpy as np
import pytest
from grouped import FULL, SHAPES, Watched, spec_of

from tests.builders import build_trace
from tests.contracts.engine_laws import load_of, work
from trials.content import Content
from trials.engine import Refused, Work
from trials.engines import vllm_scheduler
from trials.model import PRESETS
from trials.recount import check_rows
from trials.spec import trial_spec

DENSE = {"prefix_cache_retention_interval": None}  # windows and states are kept at every block, as KV is
SEVERAL = [name for name in SHAPES if name not in ("sliding_alone", "latent")]

POLICIES: dict[str, dict[str, Any]] = {
    "plain": {}, "uncached": {"prefix_caching": False}, "small_steps": {"max_num_batched_tokens": 20},
    "priority": {"queue": "priority", "watermark": 0.1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "name"),
    [(shape, "plain") for shape in SHAPES]
    + [(shape, name) for shape in ("sliding", "wider_heads", "states") for name in POLICIES if name != "plain"],
)
def test_accounts_of_all_groups_are_the_pool_and_the_recount_at_every_step(shape: str, name: str) -> None:
    trace, policy = load_of(7), POLICIES[name]
    watched = Watched(spec_of(shape, blocks=70, **policy), trace).add(*range(len(trace))).drain()
    watched.adds_up()
    assert watched.delivered == dict(enumerate(trace.num_output_tokens.tolist()))
    quantum = watched.engine.facts.reuse_quantum_tokens
    if policy.get("prefix_caching") is False:
        assert (quantum, sum(watched.hits)) == (0, 0)
    else:
        assert [hit for hit in watched.hits if hit % quantum] == [], "hits are multiples of the quantum"
        assert sum(watched.hits) > 0
    watched.engine.close()


def test_a_tight_pool_preempts_and_still_adds_up() -> None:
    trace = load_of(9)
    watched = Watched(spec_of("sliding", blocks=66), trace).add(*range(len(trace))).drain()
    assert watched.preempted > 0
    watched.adds_up()
    assert watched.delivered == dict(enumerate(trace.num_output_tokens.tolist()))
    watched.engine.close()


def test_a_window_holds_no_more_than_its_blocks_however_long_the_sequence() -> None:
    """170 tokens, a window of 24 in blocks of 8: the group that keeps all grows to 22 blocks, others stay at 4."""
    trace = build_trace([10], [160])
    watched = Watched(spec_of("sliding"), trace).add(0)
    most = [0] * 4
    while (step := watched.step()) is not None:
        held = [row.payload_tokens + row.tail_slack_tokens for row in step.ledger]
        most = [max(a, b // 8) for a, b in zip(most, held, strict=True)]
        if step.ledger[3].payload_tokens > 60:
            assert all(17 <= row.payload_tokens <= 32 for row in step.ledger[:3]), "the window, and its first block"
    assert most == [4, 4, 4, 22]
    watched.engine.close()


def test_what_left_the_window_can_be_handed_out_again_at_once() -> None:
    """Blocks that slid out are free or cached in the row of the step in which they left."""
    trace = build_trace([100], [40])
    watched = Watched(spec_of("sliding_alone", prefix_caching=False), trace).add(0)
    free = []
    while (step := watched.step()) is not None:
        free.append(step.ledger[0].free_blocks)
    assert free[0] == 119 - 8
    assert min(free[3:]) >= 119 - 4, "a window of 24 and what it grows by never take more than 4 blocks"
    watched.engine.close()


def test_padding_is_an_account_of_its_own_and_follows_the_blocks_of_its_group() -> None:
    """5 windowed layers in groups of 2: the third group has one, and leaves half of every block that it takes."""
    trace = load_of(3)
    watched = Watched(spec_of("sliding_padded"), trace)
    facts = watched.engine.facts
    assert [group.num_layers for group in facts.groups] == [2, 2, 1, 2]
    assert [group.padding_bytes_per_block for group in facts.groups] == [0, 0, facts.groups[0].block_bytes // 2, 0]
    watched.add(*range(len(trace))).drain()
    padding = watched.accounts()["padding"]
    rows = np.array(watched.rows)[2::4]
    owned = (rows[:, 2] + rows[:, 3]) // 8 + rows[:, 5]
    assert (padding == owned * facts.groups[0].block_bytes // 2).all()
    assert padding.max() > 0
    watched.engine.close()


def test_a_block_is_made_as_large_as_a_state_and_that_is_what_is_credited() -> None:
    """A state of 9000 bytes beside 512 bytes a token and layer: 8 tokens a block asked, 24 made."""
    trace = load_of(3)
    watched = Watched(spec_of("states"), trace)
    facts = watched.engine.facts
    assert {group.block_size for group in facts.groups} == {24}
    assert dict(facts.effective)["block_size"] == "24"
    assert facts.reuse_quantum_tokens == 24
    assert [group.kind for group in facts.groups] == ["mamba", "mamba", "mamba", "full"]
    states = facts.groups[0]
    assert states.bytes_per_token == 2 * 9000
    assert states.padding_bytes_per_block == facts.groups[3].block_bytes - 2 * 9000
    watched.engine.close()


def test_a_state_is_one_where_a_block_is_one_token() -> None:
    """A state of 100 bytes fits beside the KV of one token, so that a block stays as small as it was asked."""
    tiny = [{"kind": "mamba", "state_bytes": 100, "num_layers": 4}, FULL]
    trace = load_of(3)
    watched = Watched(spec_of(tiny, block_size=1, blocks=1200), trace)
    assert [group.block_size for group in watched.engine.facts.groups] == [1, 1, 1]
    watched.add(*range(len(trace))).drain()
    watched.adds_up()
    watched.engine.close()


def test_prefixes_of_chunks_need_one_block_size_and_are_refused_before_vllm_dies_of_it() -> None:
    mixed = [{"kind": "chunked_local", "window": 32, "num_layers": 2}, {**FULL, "num_kv_heads": 1}]
    opened = vllm_scheduler.open(spec_of(mixed), Content(load_of(3)))
    assert isinstance(opened, Refused)
    assert "these have [8, 16]: switch prefix_caching off" in opened.words
    trace = load_of(3)
    watched = Watched(spec_of(mixed, prefix_caching=False), trace).add(*range(len(trace))).drain()
    watched.adds_up()
    watched.engine.close()


def test_the_recount_finds_where_vllm_takes_tokens_for_computed_that_the_next_one_looks_at() -> None:
    """vLLM 0.32.0, layers of chunks only, chunks of 40 in blocks of 16: before anything is cached, a prompt of 60
    is taken to hit 32 tokens without blocks, as if they lay behind the chunk; but it begins at 0 until token 40.
    """
    alone = [{"kind": "chunked_local", "window": 40, "num_layers": 2}]
    spec = spec_of(alone, block_size=16, max_num_seqs=4, max_num_batched_tokens=4)
    trace = build_trace([60], [3])
    engine = vllm_scheduler.open(spec, Content(trace))
    assert not isinstance(engine, Refused)
    engine.start(cold=True)
    engine.add(work(trace, 0))
    step = engine.step()
    assert step is not None
    assert list(step.admitted) == [(0, 32)]
    (said,) = check_rows(engine.ledger(), engine.audit().groups, engine.facts)
    assert (
        "row 0 holds 36 tokens of chunked_local: 2 blocks behind the window were let go, 0 to 0 are to be" in said
    )
    engine.close()


def test_a_state_is_one_however_long_the_sequence_and_two_while_it_moves_on() -> None:
    trace = build_trace([10], [160])
    watched = Watched(spec_of("states"), trace).add(0)
    held = []
    while (step := watched.step()) is not None:
        held.append(step.ledger[0].payload_tokens)
        assert step.ledger[0].tail_slack_tokens == 0
    assert set(held) == {1, 2}
    assert held.count(1) > held.count(2)
    watched.engine.close()


def test_groups_with_other_block_sizes_share_only_what_is_a_multiple_for_all() -> None:
    """Twice the heads in the windowed layers: a block of 8 there is one of 16 where heads are fewer."""
    trace = build_trace([64, 64], [3, 3], ids=[[1, 2, 3, 4], [1, 2, 9, 9]])
    watched = Watched(spec_of("wider_heads", args=DENSE), trace)
    assert [group.block_size for group in watched.engine.facts.groups] == [8, 8, 16]
    assert [group.reuse_quantum_tokens for group in watched.engine.facts.groups] == [8, 8, 16]
    assert watched.engine.facts.reuse_quantum_tokens == 16
    watched.add(0).drain()
    watched.add(1).drain()
    assert watched.hits == [0, 32]
    watched.engine.close()


def hits_of_siblings(shape: str, **more: Any) -> list[int]:
    """60 tokens each, of which 40 are common, one after the other in an ample pool."""
    trace = build_trace([60] * 3, [3] * 3, ids=[[1, 2, 3, 4, 5]] * 3, tokens_per_id=8)
    watched = Watched(spec_of(shape, **more), trace)
    for row in range(3):
        watched.add(row).drain()
    watched.engine.close()
    return watched.hits


@pytest.mark.parametrize(("shape", "hit"), [("sliding", 40), ("chunked", 40), ("latent", 40), ("states", 24)])
def test_hits_are_what_the_content_tree_says_down_to_the_quantum(shape: str, hit: int) -> None:
    """40 common tokens are 40 hits where the quantum is 8, and 24 where it is 24, once everything is kept.

    A state is there to be kept only where a step ended, so that steps of 24 tokens are needed to find one at 24.
    """
    more: dict[str, Any] = {} if shape in ("chunked", "latent") else {"args": DENSE}
    if shape == "states":
        assert hits_of_siblings(shape, **more) == [0, 0, hit]
        more["max_num_batched_tokens"] = 24
    assert hits_of_siblings(shape, **more) == [0, hit, hit]


@pytest.mark.parametrize(("shape", "hit"), [("sliding", 40), ("states", 24)])
def test_by_vllms_default_a_prefix_is_kept_where_a_second_one_met_it(shape: str, hit: int) -> None:
    """vLLM keeps windows and states at the end of a prompt only, and where two prompts were seen to part: the first
    sibling finds nothing, the second what the first left there. The knob is told."""
    assert hits_of_siblings(shape) == [0, 0, hit]
    watched = Watched(spec_of(shape), load_of(3))
    assert dict(watched.engine.facts.effective)["prefix_cache_retention_interval"] == "0"
    watched.engine.close()


def test_cancels_and_forks_leave_every_group_in_order() -> None:
    trace = load_of(5)
    for shape in SEVERAL:
        watched = Watched(spec_of(shape), trace).add(*range(12))
        for row in range(12):
            watched.step()
            if row % 3 == 0:
                watched.engine.cancel(row)
        watched.engine.add(Work(12, 30, 4, parent=11, inherited_tokens=8))
        watched.drain()
        watched.adds_up()
        rows = watched.engine.ledger()
        assert not any(row.payload_tokens or row.tail_slack_tokens or row.logical_tokens for row in rows)
        watched.engine.close()


def test_a_cold_start_drops_what_every_group_has_cached() -> None:
    trace = load_of(3)
    for shape in SEVERAL:
        watched = Watched(spec_of(shape), trace).add(*range(len(trace))).drain()
        assert sum(row.cached_blocks for row in watched.engine.ledger()) > 0
        first = list(watched.rows)
        watched.rows.clear()
        watched.engine.start(cold=True)
        assert [row.cached_blocks for row in watched.engine.ledger()] == [0] * len(watched.engine.facts.groups)
        watched.add(*range(len(trace))).drain()
        assert watched.rows == first, "a second replay in the same engine has the same ledger"
        watched.engine.close()


def test_the_budget_is_divided_by_vllms_own_blocks_and_the_rest_is_remainder() -> None:
    spec = spec_of("states", pool={"bytes": 3_000_000})
    watched = Watched(spec, load_of(3))
    facts = watched.engine.facts
    block = facts.groups[0].block_bytes
    assert (facts.groups[0].num_blocks, facts.groups[0].pool_bytes) == (3_000_000 // block, 3_000_000)
    watched.add(*range(8)).drain()
    watched.adds_up()
    assert watched.accounts()["remainder"][0] == 3_000_000 % block
    watched.engine.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"policy": {"layout": "contiguous"}}, "layout contiguous is for one rank and layers that are all alike"),
        ({"pool": {"bytes": "64KiB"}}, "vLLM will not start"),
        ({"engine": {"args": {"tensor_parallel_size": 2}}}, "tensor_parallel_size"),
        ({"engine": {"args": {"prefix_match_unit": 8}}}, "prefix_match_unit"),
    ],
)
def test_what_cannot_be_driven_is_refused_in_words(change: dict[str, Any], said: str) -> None:
    data = spec_of("states").model_dump(mode="json")
    for part, values in change.items():
        data[part] = values if part == "pool" else {**data[part], **values}
    opened = vllm_scheduler.open(trial_spec(data), Content(load_of(3)))
    assert isinstance(opened, Refused), "it was meant to be refused"
    assert said in opened.words


def test_presets_of_every_kind_open_with_the_groups_that_vllm_makes_of_them() -> None:
    expected = {
        "gemma-3-12b": (["sliding_window"] * 5 + ["full"], 16, {0}),
        "gemma-3-27b": (["sliding_window"] * 6 + ["full"], 16, {0, 10, 20}),
        "deepseek-v2-lite": (["mla"], 16, {0}),
        "bamba-9b": (["mamba"] * 10 + ["full"], 528, {0, 0.7, 34}),
    }  # kinds, the block that comes of 16, and what share of a block is padding, %: docs/engines.md has them
    assert expected.keys() == {name for name, model in PRESETS.items() if model.layers}
    for name, (kinds, size, padded) in expected.items():
        spec = spec_of("sliding").model_copy(update={"model": PRESETS[name]})
        policy = spec.policy.model_copy(update={"block_size": 16, "max_model_len": 4096})
        pool = spec.pool.model_copy(update={"blocks": None, "bytes": 8 << 30})
        watched = Watched(spec.model_copy(update={"policy": policy, "pool": pool}), load_of(3))
        facts = watched.engine.facts
        assert [group.kind for group in facts.groups] == kinds, name
        assert facts.groups[facts.token_group].block_size == size
        shares = (100 * group.padding_bytes_per_block / group.block_bytes for group in facts.groups)
        assert {float(f"{share:.1f}" if share < 1 else f"{share:.0f}") for share in shares} == padded, name
        assert facts.pool_bytes == 8 << 30
        assert (
            sum(g.bytes_per_token for g in facts.groups if not g.keeps_states) == PRESETS[name].kv_bytes_per_token
        )
        watched.engine.close()
