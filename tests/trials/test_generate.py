"""Seeded traces: same preset and seed, same trace; each law is what it says."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trials.describe import describe
from trials.documents import validated
from trials.fingerprint import trace_hash
from trials.formats.mooncake import read as read_mooncake
from trials.generate import Preset, generate, load_preset, spread_arrivals
from trials.presets import ready_presets
from trials.trace import NONE, Ints, Ragged, Trace, TraceError, TraceMeta, load_trace, make_trace, save_trace
from trials.units import SpecError

BASE: dict[str, Any] = {
    "name": "made up",
    "rows": 20_000,
    "arrivals": {"kind": "poisson", "rps": 10.0},
    "prompt": {"kind": "fixed", "tokens": 100},
    "output": {"kind": "fixed", "tokens": 7},
}


def preset(**changes: Any) -> Preset:
    return validated(Preset, {**BASE, **changes}, "preset.yaml")


def drawn(**changes: Any) -> Trace:
    return generate(preset(**changes))


def gaps_s(trace: Trace) -> np.ndarray:
    return np.diff(trace.arrival_ns) / 1e9


# --- seeds


@pytest.mark.parametrize("name", ready_presets())
def test_ready_presets_give_the_same_trace_for_the_same_seed_and_another_for_another(name: str) -> None:
    ready = load_preset(name)
    assert trace_hash(generate(ready)) == trace_hash(generate(ready, ready.seed))
    assert trace_hash(generate(ready, 1)) != trace_hash(generate(ready, 2))


def test_ready_presets_are_what_they_were() -> None:
    """Pins what a seed draws: recipes name presets. A change here is a change of every such recipe."""
    assert {name: trace_hash(generate(load_preset(name)))[:16] for name in ready_presets()} == {
        "agents": "37801227dd4d0d66",
        "bursts": "8ebd379ff38b6f47",
        "chat": "9c19c61082879d9c",
        "half_shared": "b0fe3a78a1407e58",
        "rollouts": "9747a9db528a2a0f",
    }


def test_another_law_for_one_column_leaves_the_others_alone() -> None:
    lengths = {"kind": "lognormal", "mean": 100, "sigma": 1.0}
    plain = drawn(prompt=lengths)
    other = drawn(prompt=lengths, arrivals={"kind": "gamma", "rps": 3.0, "cv": 2.0}, output=lengths)
    assert plain.num_prompt_tokens.tolist() == other.num_prompt_tokens.tolist()
    assert plain.arrival_ns.tolist() != other.arrival_ns.tolist()
    with_prefix = drawn(prompt=lengths, prefix={"share": 1.0, "levels": [16]})
    assert with_prefix.arrival_ns.tolist() == plain.arrival_ns.tolist()


def test_every_drawn_column_is_marked_synthetic() -> None:
    assert drawn(rows=3).meta.synthetic == ("arrival_ns", "num_prompt_tokens", "num_output_tokens")
    assert drawn(rows=3, prefix={"share": 1, "levels": [16]}).meta.synthetic[-1] == "prefix_ids"


def test_a_generated_trace_saves_and_loads(tmp_path: Path) -> None:
    trace = generate(load_preset("chat"), 5)
    save_trace(trace, tmp_path / "t.parquet")
    assert trace_hash(load_trace(tmp_path / "t.parquet")) == trace_hash(trace)


# --- arrivals


def test_constant_arrivals_have_equal_gaps() -> None:
    assert drawn(rows=5, arrivals={"kind": "constant", "rps": 4}).arrival_ns.tolist() == [
        0, 250_000_000, 500_000_000, 750_000_000, 1_000_000_000
    ]  # fmt: skip


@pytest.mark.parametrize(("law", "cv"), [({"kind": "poisson", "rps": 10}, 1.0),
                                         ({"kind": "gamma", "rps": 10, "cv": 3.0}, 3.0),
                                         ({"kind": "gamma", "rps": 10, "cv": 0.25}, 0.25)])  # fmt: skip
def test_random_arrivals_have_the_asked_rate_and_burstiness(law: dict[str, Any], cv: float) -> None:
    gaps = gaps_s(drawn(arrivals=law))
    assert gaps.mean() == pytest.approx(0.1, rel=0.08)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.08)


def test_bursts_come_in_turn_inside_their_width_at_a_constant_mean_rate() -> None:
    law = {"kind": "bursts", "sizes": [4, 8], "width": "300ms", "gap_per_request": "100ms"}
    trace = drawn(rows=24, arrivals=law)
    starts = [0, 400, 1200, 1600]  # ms: a burst of n is followed n x 100 ms after its start
    first_ms = trace.arrival_ns / 1e6
    for start, lo, hi in zip(starts, (0, 4, 12, 16), (4, 12, 16, 24), strict=True):
        inside = first_ms[lo:hi]
        assert inside.max() - inside.min() <= 300
        assert abs(inside.min() - start) <= 300


def test_bursts_without_rows_come_once_each() -> None:
    law = {"kind": "bursts", "sizes": [3, 5], "width": "10ms", "gap": "1s"}
    found = validated(Preset, {k: v for k, v in {**BASE, "arrivals": law}.items() if k != "rows"}, "p")
    assert len(generate(found)) == 8


def test_the_first_row_arrives_at_0_and_one_row_is_enough() -> None:
    for law in (BASE["arrivals"], {"kind": "constant", "rps": 2}, {"kind": "gamma", "rps": 2, "cv": 2},
                {"kind": "bursts", "sizes": [2], "width": "1s", "gap": "2s"}):  # fmt: skip
        assert drawn(rows=1, arrivals=law).arrival_ns.tolist() == [0]
        assert drawn(rows=50, arrivals=law).arrival_ns[0] == 0


# --- lengths


def test_uniform_lengths_reach_both_ends() -> None:
    found = Counter(drawn(prompt={"kind": "uniform", "min": 5, "max": 8}).num_prompt_tokens.tolist())
    assert set(found) == {5, 6, 7, 8}
    assert all(count == pytest.approx(5_000, rel=0.1) for count in found.values())


def test_lognormal_lengths_have_the_asked_mean_and_keep_their_bounds() -> None:
    free = drawn(prompt={"kind": "lognormal", "mean": 300, "sigma": 0.5}).num_prompt_tokens
    assert free.mean() == pytest.approx(300, rel=0.03)
    assert np.log(free).std() == pytest.approx(0.5, rel=0.05)
    bound = drawn(prompt={"kind": "lognormal", "mean": 300, "sigma": 0.5, "min": 200, "max": 400}).num_prompt_tokens
    assert (bound.min(), bound.max()) == (200, 400)
    assert drawn(prompt={"kind": "lognormal", "mean": 64, "sigma": 0}).num_prompt_tokens.tolist() == [64] * 20_000


def test_tabulated_lengths_come_by_weight() -> None:
    found = Counter(
        drawn(prompt={"kind": "tabulated", "weights": {16: 3, 900: 1, 7: 0}}).num_prompt_tokens.tolist()
    )
    assert set(found) == {16, 900}
    assert found[16] == pytest.approx(15_000, rel=0.03)


# --- prefix trees


def test_exactly_the_asked_share_of_rows_has_a_prefix() -> None:
    trace = drawn(rows=999, prefix={"share": 0.5, "levels": [32], "tokens_per_id": 16})
    assert Counter(trace.prefix_ids.lengths.tolist()) == {2: 500, 0: 499}
    assert trace.meta.tail_rule == "floor"


def test_an_id_stands_at_one_depth_under_one_parent() -> None:
    trace = drawn(prefix={"share": 1, "roots": 3, "levels": [32, 16, 16], "branching": 4, "tokens_per_id": 16})
    parents: dict[int, set[int]] = {}
    depths: dict[int, set[int]] = {}
    for row in range(2_000):
        before = NONE
        for depth, key in enumerate(trace.prefix_ids.row(row).tolist()):
            parents.setdefault(key, set()).add(before)
            depths.setdefault(key, set()).add(depth)
            before = key
    assert all(len(found) == 1 for found in (*parents.values(), *depths.values()))
    by_depth = Counter(next(iter(found)) for found in depths.values())
    assert by_depth == {0: 3, 1: 3, 2: 12, 3: 48}


def test_listed_lengths_give_each_root_its_own() -> None:
    trace = drawn(prefix={"share": 1, "roots": 4, "lengths": [16, 48], "tokens_per_id": 16})
    by_root = {int(trace.prefix_ids.row(r)[0]): len(trace.prefix_ids.row(r)) for r in range(500)}
    assert sorted(by_root.values()) == [1, 1, 3, 3]


def test_popular_roots_follow_the_skew() -> None:
    trace = drawn(prefix={"share": 1, "roots": 2, "levels": [16], "skew": 1.0})
    first = Counter(int(v) for v in trace.prefix_ids.values)
    assert first[0] / first[1] == pytest.approx(2.0, rel=0.06)


def test_a_short_prompt_shares_what_it_holds_and_that_is_told() -> None:
    trace = drawn(rows=4, prompt={"kind": "fixed", "tokens": 40}, prefix={"share": 1, "levels": [64]})
    assert trace.prefix_ids.lengths.tolist() == [2, 2, 2, 2]
    assert trace.meta.notes == ("4 prompts are shorter than their prefix and share what they hold of it",)


def test_half_shared_hits_all_but_the_first_row_of_each_prefix() -> None:
    trace = generate(load_preset("half_shared"))
    assert len(trace) == 20_000
    assert describe(trace).sharing.hit_tokens == (10_000 - 50) * 320


# --- bad presets


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": None}, "rows is needed"),
        ({"rows": 0}, "rows: must be at least 1"),
        ({"rows": 10**9}, "rows: must be at most"),
        ({"seed": -1}, "seed: must be at least 0"),
        ({"rws": 1}, "rws: unknown key; did you mean 'rows'"),
        (
            {"arrivals": {"kind": "poison", "rps": 1}},
            "arrivals: 'poison' does not exist; known: 'constant', 'poisson'",
        ),
        ({"arrivals": {"kind": "gamma", "rps": 1, "cvv": 2}}, "did you mean 'cv'. known: cv, kind, rps$"),
        ({"arrivals": {"kind": "poisson", "rps": 0}}, "arrivals.poisson.rps: must be at least"),
        ({"arrivals": {"kind": "poisson", "rps": 1e-300}}, "arrivals.poisson.rps: must be at least"),
        ({"arrivals": {"kind": "bursts", "sizes": [3], "width": "1s", "gap": "0.5s"}}, "bursts would overlap"),
        ({"arrivals": {"kind": "bursts", "sizes": [3], "width": "1s"}}, "exactly one of gap, gap_per_request"),
        ({"arrivals": {"kind": "bursts", "sizes": [], "width": "1s", "gap": "1s"}}, "arrivals.bursts.sizes"),
        ({"arrivals": {"kind": "bursts", "sizes": [0], "width": "1s", "gap": "1s"}}, "sizes.0: must be at least 1"),
        ({"prompt": {"kind": "fixed", "tokens": 0}}, "prompt.fixed.tokens: must be at least 1"),
        ({"prompt": {"kind": "uniform", "min": 9, "max": 3}}, "max 3 is below min 9"),
        ({"prompt": {"kind": "lognormal", "mean": 0, "sigma": 1}}, "prompt.lognormal.mean: must be above 0"),
        ({"prompt": {"kind": "tabulated", "weights": {}}}, "at least one length needs a weight above 0"),
        ({"prompt": {"kind": "tabulated", "weights": {0: 1}}}, "must be at least 1"),
        ({"prefix": {"share": 1.5, "levels": [16]}}, "prefix.share: must be at most 1"),
        ({"prefix": {"share": 0.5}}, "exactly one of levels, lengths"),
        ({"prefix": {"share": 0.5, "levels": [16], "lengths": [16]}}, "exactly one of levels, lengths"),
        ({"prefix": {"share": 0.5, "levels": [20]}}, "20 tokens are no multiple of tokens_per_id 16"),
        ({"prefix": {"share": 0.5, "levels": [16] * 40, "branching": 2}}, "the tree has over"),
        ({"prefix": {"share": 0.5, "levels": [16 << 30], "tokens_per_id": 1}}, "over 400000000 prefix ids"),
    ],
)
def test_a_bad_preset_names_the_key(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        preset(**changes)


def test_a_trace_of_lifetimes_is_refused_not_wrapped() -> None:
    with pytest.raises(SpecError, match="over 70 years"):
        drawn(rows=1_000_000, arrivals={"kind": "constant", "rps": 1e-6})


def test_a_preset_is_found_by_name_or_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**BASE, "rows": 9}))
    assert len(generate(load_preset(str(tmp_path / "mine.yaml")))) == 9
    with pytest.raises(
        SpecError, match=r"'chatt' is neither a file nor ready; did you mean 'chat'\? known: agents, bursts"
    ):
        load_preset("chatt")
    with pytest.raises(SpecError, match="no such file"):
        load_preset(str(tmp_path / "absent.yaml"))


# --- spreading bins


def binned(*stamps_s: int, **columns: Ints) -> Trace:
    n = len(stamps_s)
    return make_trace(np.array(stamps_s) * 10**9, np.arange(1, n + 1), np.ones(n, np.int64), **columns)


@settings(max_examples=60, deadline=None)
@given(stamps=st.lists(st.integers(0, 4), min_size=1, max_size=20), seed=st.integers(0, 5))
def test_rows_stay_inside_their_bin_and_rows_of_one_stamp_keep_their_order(stamps: list[int], seed: int) -> None:
    trace = binned(*sorted(3 * s for s in stamps))
    spread = spread_arrivals(trace, 3 * 10**9, seed)
    assert (
        spread.num_prompt_tokens.tolist() == trace.num_prompt_tokens.tolist()
    )  # bins do not overlap: no row moves
    assert ((spread.arrival_ns - trace.arrival_ns >= 0) & (spread.arrival_ns - trace.arrival_ns < 3 * 10**9)).all()
    assert spread.meta.synthetic == ("arrival_ns",)


def test_a_wider_spread_than_the_bins_are_apart_orders_rows_by_new_stamp_with_their_content() -> None:
    trace = binned(*[s for s in range(50) for _ in range(4)])
    spread = spread_arrivals(trace, 10 * 10**9, 1)
    assert (np.diff(spread.arrival_ns) >= 0).all()
    assert sorted(spread.num_prompt_tokens.tolist()) == list(range(1, 201))
    assert spread.num_prompt_tokens.tolist() != list(range(1, 201))


def test_a_spread_is_uniform_and_seeded() -> None:
    trace = binned(*[0] * 4_000)
    spread = spread_arrivals(trace, 10**9, 3)
    assert np.histogram(spread.arrival_ns, 4, (0, 10**9))[0] == pytest.approx(np.full(4, 1_000), rel=0.12)
    assert trace_hash(spread) == trace_hash(spread_arrivals(trace, 10**9, 3))
    assert trace_hash(spread) != trace_hash(spread_arrivals(trace, 10**9, 4))
    assert "spread uniformly over the 1000000000 ns behind each stamp, seed 3" in spread.meta.notes[-1]


def test_prefix_ids_and_sessions_move_with_their_rows() -> None:
    trace = make_trace(
        np.array([0, 0, 1]), np.array([4, 8, 12]), np.array([1, 2, 3]), Ragged.of([[1], [1, 2], [1, 2, 3]]),
        TraceMeta(4, "ceil"), session=np.array([7, 8, 9]),
    )  # fmt: skip
    spread = spread_arrivals(trace, 100, 2)
    for row in range(3):
        length = len(spread.prefix_ids.row(row))
        assert spread.num_prompt_tokens[row] == 4 * length
        assert spread.session[row] == 6 + length


def test_what_cannot_be_spread_is_refused() -> None:
    with pytest.raises(TraceError, match="rows that follow other rows"):
        spread_arrivals(binned(0, 0, parent=np.array([NONE, 0])), 10, 0)
    with pytest.raises(TraceError, match="the arrivals were not observed"):
        spread_arrivals(spread_arrivals(binned(0, 0), 10, 0), 10, 0)
    for width, seed in ((0, 0), (-1, 0), (10, -1)):
        with pytest.raises(TraceError, match="a width and a seed from 0 are needed"):
            spread_arrivals(binned(0), width, seed)


def test_real_bins_become_close_to_poisson(real_traces: Path) -> None:
    trace = read_mooncake([real_traces / "mooncake/conversation_head5000.jsonl"])
    spread = describe(spread_arrivals(trace, 3 * 10**9, 1))
    assert describe(trace).arrivals.distinct_stamps == 532
    assert spread.arrivals.gap_cv == pytest.approx(1.0, abs=0.05)
    assert spread.sharing.tokens_per_id == 512
