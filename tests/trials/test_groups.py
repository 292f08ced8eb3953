"""Replays of a model with several KV groups, measured: each account by its own bytes, and the pool once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_replays import MS, Line, make_facts, make_replay, toy_server

from trials.breakdown import by_state, byte_shares, shares
from trials.churn import broken_flow
from trials.engine import EngineFacts, GroupAudit, PoolGeometry, StepShape
from trials.geometry import block_table_bytes, pool_geometry
from trials.latency import order_runs
from trials.metrics import measure
from trials.model import PRESETS, Layers, ModelSpec
from trials.occupancy import held, ledger, rows_digest, unbalanced_pools
from trials.pressure import admissible_tokens
from trials.recording import LEDGER_COLUMNS, Replay, Snapshot
from trials.roofline import GPUS, step_time
from trials.segments import segments
from trials.sharing import shared_bytes_saved
from trials.slo import parse_slo
from trials.spec import TrialSpec, trial_spec
from trials.tables import write_ledger, write_ownership
from trials.waste import waste

POOL = 20 * 40 + 7
FULL = PoolGeometry(4, 20, 1, 10, 0, POOL, 4, 4, num_layers=2)
WINDOW = PoolGeometry(4, 20, 1, 5, 20, POOL, 4, 4, "sliding_window", 1, window=6, most_blocks=4)
STATE = PoolGeometry(8, 20, 1, 36, 4, POOL, 8, 8, "mamba", 1, most_blocks=2)


def facts_of(*groups: PoolGeometry, ranks: int = 1, **more: Any) -> EngineFacts:
    return EngineFacts("toy", "e", "modelled", "virtual", groups, ranks, (), shared_pool=True, **more)


FACTS = facts_of(STATE, WINDOW, FULL)
# (payload, slack, ahead, cached, free, reserve, logical, allocated, released, evicted, copied), a row a step.
STATES = [
    (1, 0, 0, 0, 14, 1, 1, 1, 0, 0, 0),
    (2, 0, 0, 0, 13, 1, 2, 1, 0, 0, 0),
    (0, 0, 0, 1, 15, 1, 0, 0, 2, 0, 0),
]
WINDOWS = [(5, 3, 0, 0, 0, 0, 5, 2, 0, 0, 0), (5, 3, 0, 0, 0, 0, 5, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0)]
TOKENS = [(6, 2, 0, 0, 0, 0, 9, 2, 0, 0, 0), (6, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0), (0, 0, 0, 2, 0, 0, 0, 0, 2, 0, 0)]


def by_hand(facts: EngineFacts = FACTS) -> Replay:
    """Three steps of a second each: a request of 6 tokens that a twin holds in part, and the drain."""
    replay = make_replay([Line(0, 6, 2, [(0, 2)])], [1000 * MS] * 3, make_facts())
    rows = [
        (group, rank, *columns[step])
        for step in range(3) for group, columns in enumerate((STATES, WINDOWS, TOKENS))
        for rank in range(facts.ranks)
    ]  # fmt: skip
    replay.ledger = {name: np.array([row[i] for row in rows], np.int64) for i, name in enumerate(LEDGER_COLUMNS)}
    return replay


def test_every_account_is_in_its_groups_own_bytes_and_free_blocks_are_whole() -> None:
    seen = held(by_hand(), FACTS)
    first = {name: int(column[0]) for name, column in seen.accounts.items()}
    assert first == {
        "payload": 36 + 5 * 5 + 6 * 10, "tail_slack": 3 * 5 + 2 * 10, "reserved_ahead": 0, "cached": 0,
        "free": 14 * 40, "reserve": 40, "padding": 4 + 2 * 20, "remainder": 7, "pool_bytes": POOL,
    }  # fmt: skip
    last = {name: int(column[-1]) for name, column in seen.accounts.items()}
    assert (last["cached"], last["padding"]) == (36 + 20 + 2 * 40, 4 + 20)
    assert unbalanced_pools(by_hand(), FACTS) == []


def test_parts_of_groups_and_ranks_add_up_to_the_ledger() -> None:
    facts = replace(FACTS, ranks=2)
    found = ledger(by_hand(facts), facts, held(by_hand(facts), facts))
    assert [(part.group, part.rank) for part in found.groups] == [(g, r) for g in range(3) for r in range(2)]
    for name in ("payload", "tail_slack", "cached", "free", "reserve", "padding", "remainder"):
        assert sum(part.time_mean[name] for part in found.groups) == pytest.approx(found.time_mean[name])
        assert sum(part.peak[name] for part in found.groups) == getattr(found.peak, name)
    assert found.peak.pool_bytes == 2 * POOL
    assert found.pool_slots == 0
    assert found.logical_live_tokens.peak == 9, "tokens are those of the group that keeps all of them"


def test_a_byte_too_many_in_one_rank_is_a_residual_of_that_rank_alone() -> None:
    facts = replace(FACTS, ranks=2)
    replay = by_hand(facts)
    replay.ledger["payload_tokens"][6 + 5] += 1  # second step, group 2, rank 1
    (found,) = unbalanced_pools(replay, facts)
    assert (found.pool, found.residual_bytes, found.at_row, found.rows) == ("rank 1", 10, 1, 1)


def test_token_group_and_quantum_are_those_of_the_whole_model() -> None:
    assert FACTS.token_group == 2
    assert facts_of(STATE, WINDOW).token_group == 1
    assert FACTS.reuse_quantum_tokens == 8
    assert facts_of(replace(FULL, reuse_quantum_tokens=6), WINDOW).reuse_quantum_tokens == 12
    assert facts_of(replace(FULL, reuse_quantum_tokens=0)).reuse_quantum_tokens == 0
    assert (replace(FACTS, ranks=3).pool_bytes, FACTS.pools) == (3 * POOL, (STATE,))


def test_the_digest_tells_groups_apart_and_is_what_it_was_for_a_plain_pool() -> None:
    replay = by_hand()
    other = facts_of(STATE, replace(WINDOW, window=7), FULL)
    assert rows_digest(replay, FACTS) != rows_digest(replay, other)
    plain, _, facts = toy_server(3)
    assert rows_digest(plain, facts) == rows_digest(plain, replace(facts, groups=(replace(facts.groups[0]),)))


def test_block_flow_is_followed_in_every_group_and_the_group_is_named() -> None:
    assert broken_flow(by_hand(), FACTS) == []
    replay = by_hand()
    replay.ledger["released_blocks"][7] -= 1  # last row, second group
    said = broken_flow(replay, FACTS)
    assert said[0].startswith("block flow of group 1 rank 0: 2 live blocks became 0 in row 2")
    assert len(said) == 1


def test_shared_bytes_are_counted_in_every_group_and_on_every_rank() -> None:
    """Three tokens of ten bytes are held twice in two of three seconds."""
    assert shared_bytes_saved(FACTS, held(by_hand(), FACTS)) == 20
    both = replace(FACTS, ranks=2)
    assert shared_bytes_saved(both, held(by_hand(both), both)) == 40


def test_a_state_has_no_slots_to_leave_empty() -> None:
    replay = by_hand()
    kinds = waste(replay, order_runs(replay), FACTS, held(replay, FACTS))
    assert kinds["padding"] == pytest.approx(44 + 48 + 24)
    one = 4 - 7 % 4  # slots of the last block that stay empty, in the two groups that keep tokens
    assert kinds["tail_slack_never_filled"] % (one * 15) == 0
    assert kinds["tail_slack_never_filled"] > 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12)), min_size=1, max_size=12), st.integers(1, 60))
def test_the_longest_admissible_prompt_is_the_last_whose_blocks_in_all_groups_find_room(rows, longest) -> None:
    facts = facts_of(FULL, WINDOW, STATE, max_model_len=longest)
    replay = make_replay([Line(0, 1, 1, [(0, 1)])], [MS] * len(rows), make_facts())
    columns = {name: np.zeros(3 * len(rows), np.int64) for name in LEDGER_COLUMNS}
    columns["free_blocks"][0::3] = [free for free, _ in rows]
    columns["cached_blocks"][1::3] = [cached for _, cached in rows]
    replay.ledger = columns
    for (free, cached), found in zip(rows, admissible_tokens(replay, facts).tolist(), strict=True):
        fits = [n for n in range(1, longest + 1)
                if -(-n // 4) + min(-(-n // 4), 4) + min(-(-n // 8), 1) <= free + cached]  # fmt: skip
        assert found == max(fits, default=0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([("sliding_window", 5), ("sliding_window", 9), ("chunked_local", 8)]))
def test_what_a_window_lets_go_of_is_in_no_full_block(seed: int, window: tuple[str, int]) -> None:
    """Against a walk through every step: n tokens held, of which n - 1 had passed so many whole blocks."""
    kind, look_back = window
    replay, served, facts = toy_server(seed, trouble=0.3, block_size=4)
    group = replace(facts.groups[0], kind=kind, window=look_back)
    runs, seen = order_runs(replay), held(replay, facts)
    found = shares(replay, runs, segments(replay, runs, 4), facts, seen, group)
    seconds = replay.steps["duration_ns"] / 1e9
    expected = np.zeros(len(served))
    for row, one in enumerate(served):
        gave = {s for first, n in one.line.runs for s in range(first, first + n)}
        for step, tokens in (pair for stay in one.stays for pair in stay):
            if step in gave:
                gone = group.passed(tokens - 1) // 4 * 4
                expected[row] += ((tokens - 1) // 4 * 4 - gone) * seconds[step]
    assert found.full == pytest.approx(expected, abs=1e-9)


def test_what_is_held_by_state_is_the_payload_of_all_groups() -> None:
    replay = by_hand()
    runs, seen = order_runs(replay), held(replay, FACTS)
    states = by_state(byte_shares(replay, runs, segments(replay, runs, 4), FACTS, seen), seen)
    whole = seen.byte_seconds(seen.accounts["payload"])
    assert states["full"] + states["tail"] + states["prefill"] - states["shared"] == pytest.approx(whole)
    assert states["cached"] == pytest.approx(36 + 20 + 80)


def test_a_result_of_several_groups_is_measured_and_its_files_show_each(tmp_path) -> None:
    replay = by_hand()
    found = measure(replay, FACTS, parse_slo("ttft:p99<10s"))
    assert found.ledger.broken_laws == ()
    assert found.metrics.churn.lives == 6
    assert found.metrics.alloc_events == 6
    audits = [
        GroupAudit({0: [1, 2]}, {0: 7}, list(range(6, 20)), [], [0]),
        GroupAudit({0: [3]}, {0: 3}, [], [], []),
        GroupAudit({0: [4]}, {0: 3}, [], [5], []),
    ]
    replay.snapshots = [Snapshot("peak", 1, 0, audits)]
    write_ledger([replay], FACTS, tmp_path / "ledger.parquet")
    table = pq.read_table(tmp_path / "ledger.parquet")
    assert table["payload_tokens"].to_pylist() == [12, 13, 0]
    assert table["group2_rank0_payload_tokens"].to_pylist() == [6, 6, 0]
    write_ownership([replay], FACTS, tmp_path / "ownership.parquet")
    blocks = pq.read_table(tmp_path / "ownership.parquet")
    assert sorted(blocks["block"].to_pylist()) == list(range(20)), "every block once"
    assert not set(blocks["state"].to_pylist()) - {"full", "tail", "free", "cached", "reserve"}


# ---- what the shapes mean to those that only count


def spec(model: object, engine: str = "simulator", **policy: Any) -> TrialSpec:
    return trial_spec({
        "engine": {"name": engine, "step_time": "roofline:h100-sxm"}, "model": model, "pool": {"bytes": "4GiB"},
        "policy": policy, "trace": {"path": "t"}, "slo": "ttft:p99<1s",
    })  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            spec("gemma-3-12b"),
            "engine simulator has one block table a sequence; gemma-3-12b has full, sliding_window",
        ),
        (spec("bamba-9b"), "use vllm_scheduler"),
        (spec("deepseek-v2-lite", "torch_paged"), "computes with K and V of every token in every layer"),
        (spec("deepseek-v2-lite", layout="virtual"), "layout virtual is for models whose layers are all alike"),
    ],
)
def test_an_engine_with_one_block_table_refuses_what_needs_several(asked: TrialSpec, said: str) -> None:
    found = pool_geometry(asked)
    assert isinstance(found, str)
    assert said in found


def test_latent_attention_is_one_table_with_its_own_bytes() -> None:
    found = pool_geometry(spec("deepseek-v2-lite"))
    assert isinstance(found, PoolGeometry)
    assert found.bytes_per_token == 27 * 576 * 2


def test_block_tables_are_counted_for_every_group_and_rank() -> None:
    asked = spec("bamba-9b", max_model_len=80, max_num_seqs=3)
    assert block_table_bytes(asked, (FULL, STATE), ranks=2) == 3 * 4 * (20 + 10) * 2


def test_windows_and_states_cost_what_they_read() -> None:
    """Beyond the window a longer context costs only the layers that see it; a state costs the same at any."""
    h100 = GPUS["h100-sxm"]

    def attention(model: ModelSpec, context: int) -> int:
        shape = StepShape(1, context, -(-context // 16), 0, 0, 0, 0, 1)
        return step_time("roofline:h100-sxm", model, 16)(shape)[1]

    gemma = PRESETS["gemma-3-12b"]
    slope = (attention(gemma, 40_960) - attention(gemma, 20_480)) / 20_480
    assert slope == pytest.approx(gemma.part_bytes_per_token(gemma.parts[1]) / h100.bytes_per_ns, rel=1e-3)
    alone = ModelSpec(**{**gemma.model_dump(), "num_layers": 40, "layers": gemma.layers[:1]})
    assert attention(alone, 40_960) == attention(alone, 20_480)
    states = ModelSpec(**{**gemma.model_dump(), "num_layers": 1,
                          "layers": (Layers(kind="mamba", num_layers=1, state_bytes=10**9),)})  # fmt: skip
    assert attention(states, 16) == attention(states, 20_480) == int(2 * 10**9 / h100.bytes_per_ns)
    plain = PRESETS["llama-3.1-8b"]
    same = ModelSpec(**{**plain.model_dump(), "layers": (Layers(kind="full", num_layers=32),)})
    assert attention(same, 5000) == attention(plain, 5000)
