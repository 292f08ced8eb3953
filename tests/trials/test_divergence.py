"""What the measurement says of sharing: bytes saved net of copies, duplicated tails, and what parting may cost."""

from dataclasses import replace

import numpy as np
from builders import build_engine
from toy_replays import MS, Line, make_facts, make_replay

from trials.latency import order_runs
from trials.load import offer
from trials.metrics import measure
from trials.occupancy import held
from trials.replay import replay as run_replay
from trials.sharing import copied_bytes, divergence, duplicated_tail_bytes, shared_bytes_saved
from trials.slo import parse_slo
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.trace import STARTS, Trace, make_trace

SLO = parse_slo("ttft:p99<100s")


def replay_of(ledger=None, steps=None, facts=None):
    facts = facts or make_facts()
    return make_replay([Line(0, 8, 4, [(0, 4)])], [10 * MS] * 4, facts, ledger=ledger, steps=steps)


def copying():
    return replace(make_facts(), effective=(("sharing", "cow"),))


def family(prompt: int, children: int, output: int = 8) -> Trace:
    n = children + 1
    return make_trace(
        np.zeros(n, np.int64), np.full(n, prompt), np.full(n, output), parent=np.array([-1] + [0] * children),
        inherited_tokens=np.array([0] + [prompt] * children),
        starts=np.array([STARTS["arrival"]] + [STARTS["fork"]] * children),
    )  # fmt: skip


def served(trace: Trace, num_blocks: int = 64, **policy):
    engine = build_engine(trace, PoolPolicy(**policy), num_blocks=num_blocks)
    recorded = run_replay(engine, trace, offer(trace, TraceSpec(path="x"), Load(rate_scale=1.0), "cold"))
    return recorded, engine.facts, measure(recorded, engine.facts, SLO, trace)


def test_sharing_saves_what_is_held_more_than_once():
    facts = make_facts(block_size=16, bytes_per_token=64)
    replay = replay_of({"payload_tokens": [16, 16, 16, 16], "logical_tokens": [16, 48, 48, 16]}, facts=facts)
    assert shared_bytes_saved(facts, held(replay, facts)) == 16 * 64


def test_copies_have_bytes_only_where_the_engine_can_copy():
    facts = make_facts(block_size=16, bytes_per_token=64)
    assert copied_bytes(facts, 3) == 3 * 1024
    assert copied_bytes(replace(facts, not_applicable=("copied_bytes",)), 3) is None
    assert copied_bytes(replace(facts, unknown_columns=("copied_blocks",)), 3) is None


def test_a_bound_up_to_free_and_cached_holds_and_one_block_more_does_not():
    steps = {"bound_blocks": [0, 5, 3, 0], "burst_blocks": [0, 0, 4, 0]}
    ledger = {"free_blocks": [9, 3, 9, 9], "cached_blocks": [0, 2, 0, 0]}
    facts = copying()
    replay = replay_of(ledger, steps, facts)
    assert divergence(replay, facts, held(replay, facts)) == (4, 5, 0)
    ledger["cached_blocks"] = [0, 1, 0, 0]
    replay = replay_of(ledger, steps, facts)
    assert divergence(replay, facts, held(replay, facts)) == (4, 5, 1)
    result = measure(replay, facts, parse_slo("ttft:p99<100s"))
    assert (result.holds, result.binding, result.attainment) == (False, "divergence", 1.0)
    prefix = make_facts()
    assert divergence(replay, prefix, held(replay, prefix))[2] == 0


def test_children_that_part_from_a_half_full_tail_copy_it_and_the_bound_saw_it_coming():
    # 20 tokens in blocks of 16: parent and three children share a tail of 4 tokens; the last to write owns it.
    _, _, result = served(family(20, 3), sharing="cow")
    metrics = result.metrics
    assert (metrics.copy_events, metrics.copied_bytes) == (3, 3 * 16 * 64)
    assert metrics.divergence_burst_blocks == 3
    assert metrics.divergence_bound_blocks >= 3
    assert metrics.duplicated_tail_bytes == 0
    assert metrics.net_shared_bytes_saved > 0
    assert result.holds


def test_observed_burst_never_exceeds_the_bound_of_the_step_before():
    for prompt in (15, 16, 17, 20, 32, 33):
        recorded, _, _ = served(family(prompt, 5, 40), sharing="cow")
        burst, bound = recorded.steps["burst_blocks"][1:], recorded.steps["bound_blocks"][:-1]
        assert (burst <= bound).all(), prompt


def test_whole_block_matching_duplicates_the_tail_that_copy_on_write_would_share():
    for prompt, again in ((20, 4), (32, 16), (33, 1)):
        _, _, result = served(family(prompt, 3))
        assert result.metrics.duplicated_tail_bytes == 3 * again * 64, prompt
        assert result.metrics.copy_events == 0


def test_without_the_trace_nothing_is_said_of_duplicates():
    replay = replay_of()
    assert duplicated_tail_bytes(replay, make_facts(), None) is None
    assert order_runs(replay).request.tolist() == [0]


def test_a_burst_beyond_the_bound_before_it_breaks_a_law():
    facts = copying()
    steps = {"bound_blocks": [0, 2, 0, 0], "burst_blocks": [0, 0, 3, 0]}
    result = measure(replay_of(None, steps, facts), facts, SLO)
    assert any("took 3 blocks" in law and "was 2" in law for law in result.ledger.broken_laws)
