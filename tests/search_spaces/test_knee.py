"""Laws of the outcome: ties, kinds, winner and verdicts, from made-up measurements."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_results import SLO, make_replay, make_result
from made_specs import make_spec

from search_spaces.candidates import Measured, group
from search_spaces.controls import control_spec
from search_spaces.knee import Rules, decide
from search_spaces.objective import raced_out, score
from search_spaces.proofs import Again
from search_spaces.space import build_space, load_space_spec, space_spec, with_policy
from search_spaces.verdicts import describe
from trials.slo import parse_slo

RULES = Rules("qualified_output_throughput", 0.02, 3)


def space_of(**policy):
    return build_space(load_space_spec("block_size"), make_spec(policy=policy))


SPACE = space_of()


def measured(number, policy, repeat, result, control=None):
    judged = score(result, parse_slo(SLO), "qualified_output_throughput", "lost")
    return Measured(number, repeat, policy, judged, control, policy.block_size, result.evidence if result else "")


def sweep(values, space=SPACE, **common):
    """Trials of {block size: values by repeat, or results by repeat}."""
    out = []
    for size, of_repeats in values.items():
        for repeat, value in enumerate(of_repeats):
            result = make_result(float(value), **common) if isinstance(value, int | float) else value
            out.append(measured(len(out), with_policy(space.base, block_size=size).policy, repeat, result))
    return out


def outcome(trials, space=SPACE, rules=RULES, again=()):
    return describe(decide(trials, space, rules, again), space, rules)


HILL = {1: 50, 2: 60, 4: 80, 8: 100, 16: 120, 32: 100, 64: 80, 128: 60, 256: 50}


def hill(**changed):
    values = {size: [v, v + 1, v - 1] for size, v in HILL.items()}
    return values | {int(k.removeprefix("b")): v for k, v in changed.items()}


def test_a_measured_best_with_worse_on_both_sides_is_a_knee():
    found = outcome(sweep(hill()))
    assert (found.kind, found.winner, found.tied) == ("knee", "block_size=16", ("block_size=16",))
    assert "block_size=8, block_size=32 measured and worse" in found.sentence
    assert found.winner_trial == 12
    assert found.winner_trials == (12, 13, 14)


def test_the_tied_set_is_listed_and_the_default_wins_inside_it():
    found = outcome(sweep(hill(b8=[122, 119, 121])))
    assert found.tied == ("block_size=8", "block_size=16")
    assert found.winner == "block_size=16"
    assert found.kind == "knee"


def test_a_gain_under_min_gain_is_a_tie_however_steady_it_is():
    found = outcome(sweep(hill(b8=[122, 123, 121])))
    assert found.winner == "block_size=16"
    assert found.candidate("block_size=16").behind_best.low > 0


def test_a_steady_gain_over_min_gain_beats_the_default():
    found = outcome(sweep(hill(b8=[130, 131, 129])))
    assert (found.winner, found.tied) == ("block_size=8", ("block_size=8",))


def test_a_large_mean_gain_that_changes_sign_between_windows_is_a_tie():
    found = outcome(sweep(hill(b8=[200, 200, 118])))
    assert found.tied == ("block_size=8", "block_size=16")
    assert found.winner == "block_size=16"


def test_without_the_default_among_the_tied_the_least_waste_wins():
    space = space_of(block_size=256)
    trials = sweep(hill(), space)
    trials += [measured(90 + r, with_policy(space.base, block_size=8).policy, r, make_result(121.0, waste=1.0))
               for r in range(3)]  # fmt: skip
    trials = [t for t in trials if t.policy.block_size != 8 or t.number >= 90]
    assert outcome(trials, space).winner == "block_size=8"


def test_waste_is_compared_at_one_load_that_all_tied_candidates_met():
    def at(loads, value):
        replays = tuple(make_replay(value, load=load, waste=waste) for load, waste in loads)
        result = make_result(value)
        return result.model_copy(update={"replays": replays, "decides": len(replays) - 1})

    space = space_of(block_size=256)
    low_then_high = at((("rate_scale=1", 50.0), ("rate_scale=2", 1.0)), 100.0)
    only_low = at((("rate_scale=1", 10.0),), 100.0)
    trials = sweep({8: [low_then_high] * 3, 16: [only_low] * 3}, space)
    assert outcome(trials, space).winner == "block_size=16"


def test_everything_tied_is_flat_and_keeps_the_default():
    found = outcome(sweep({size: [100, 101, 99] for size in HILL}))
    assert (found.kind, found.winner) == ("flat", "block_size=16")
    assert len(found.tied) == 9
    assert found.smallest_effect == pytest.approx(0.02)
    assert "keep the default" in found.sentence


def test_the_smallest_effect_of_a_noisy_flat_sweep_is_its_typical_half_interval():
    noisy = {size: [100 + 12 * (-1) ** i, 100 - 12 * (-1) ** i, 100] for i, size in enumerate(HILL)}
    found = outcome(sweep(noisy))
    assert found.kind == "flat"
    assert found.smallest_effect > 0.05


def test_a_best_at_the_end_of_the_domain_is_an_edge():
    found = outcome(sweep({size: [100 + size] * 3 for size in HILL}))
    assert (found.kind, found.winner) == ("edge", "block_size=256")
    assert "edge of the domain" in found.sentence


def test_a_tied_set_that_reaches_the_end_is_an_edge_although_its_winner_is_inside():
    found = outcome(
        sweep({1: [50] * 3, 2: [50] * 3, 4: [50] * 3} | {s: [100] * 3 for s in (8, 16, 32, 64, 128, 256)})
    )
    assert (found.kind, found.winner) == ("edge", "block_size=16")
    assert "block_size=4 measured and worse" in found.sentence


def test_a_sentence_names_six_and_how_many_more_and_the_tables_have_all():
    found = outcome(sweep({size: [100, 100, 100] for size in HILL}))
    assert len(found.tied) == len(HILL) == 9
    assert found.sentence.count("block_size=") == 1 + 6
    assert "and 2 more" in found.sentence
    assert [f"block_size={size}" for size in HILL] == sorted(found.tied, key=lambda t: int(t.split("=")[1]))


def test_what_lies_beyond_is_told_by_why_it_is_not_the_winner():
    """What went wrong: one that holds more and misses its SLO, or falls under bursts, was `measured and worse`."""
    values = hill(b8=[200, 201, 199], b32=[make_result(300.0, ttft=600.0)] * 3)
    (falls,) = held_out({8: [make_result(1.0, ttft=900.0)]})
    found = outcome(sweep(values), again=[replace(falls, survival=True)])
    assert (found.kind, found.winner) == ("knee", "block_size=16")
    assert "; block_size=32 not feasible; block_size=8 does not survive; " in found.sentence


@pytest.mark.parametrize("how", [{"void": ("lengths differ",)}, {"unbalanced": 1}], ids=["void", "unbalanced"])
def test_a_neighbour_whose_measurement_is_void_was_not_measured(how):
    """What went wrong: it counted as measured and worse, and the knee was shipped."""
    found = outcome(sweep(hill(b32=[make_result(500.0, **how)] * 3)))
    assert (found.kind, found.winner) == ("open", "block_size=16")
    assert "block_size=32 (void) not measured" in found.sentence


def test_an_unmeasured_neighbour_leaves_the_search_open_and_the_winner_to_inspect():
    values = hill()
    del values[32]
    found = outcome(sweep(values))
    assert found.kind == "open"
    assert "block_size=32 not measured" in found.sentence
    assert verdict(found, "block_size=16") == "inspect"


def test_a_neighbour_that_failed_was_not_measured():
    found = outcome(sweep(hill(b32=[None, None, None])))
    assert found.kind == "open"


def verdict(found, label):
    return next(row.verdict for row in found.verdicts if row.option.split(" (")[0] == label)


def test_nothing_feasible_names_the_nearest_miss_and_how_far_it_missed():
    values = {s: [make_result(100.0, ttft=500.0 + 10 * s)] * 3 for s in HILL}
    found = outcome(sweep(values))
    assert (found.kind, found.winner) == ("infeasible", None)
    assert found.nearest_miss.label == "block_size=1"
    assert found.nearest_miss.over == pytest.approx(0.02)
    assert found.binding == "ttft:p99<500ms"
    assert all(row.verdict == "reject" for row in found.verdicts)


def test_nothing_measured_at_all_is_infeasible_without_a_near_miss():
    found = outcome(sweep({16: [None]}))
    assert found.kind == "infeasible"
    assert found.nearest_miss is None


def test_an_infinite_miss_is_the_furthest_one():
    values = {8: [make_result(100.0, ttft=None, holds=False)], 16: [make_result(100.0, ttft=5000.0)]}
    assert outcome(sweep(values)).nearest_miss.label == "block_size=16"


RIVALS = {
    "infeasible": make_result(100.0, ttft=600.0),
    "failed": make_result(100.0, status="failed"),
    "nan": make_result(float("nan")),
    "zero tokens": make_result(100.0, tokens=0),
    "unbalanced": make_result(100.0, unbalanced=1),
    "refused": make_result(100.0, status="refused"),
    "void": make_result(100.0, void=("x",)),
    "ineligible": make_result(100.0, eligible=False),
    "lost": None,
}


@pytest.mark.parametrize("rival", RIVALS.values(), ids=RIVALS)
def test_sixty_that_may_win_beats_a_hundred_that_may_not(rival):
    assert outcome(sweep({8: [rival], 16: [60]})).winner == "block_size=16"
    assert outcome(sweep({8: [60], 16: [rival]})).winner == "block_size=8"


def test_of_rivals_that_may_not_win_none_wins():
    found = outcome(
        sweep(dict(zip((1, 2, 4, 8, 16, 32, 64, 128, 256), ([r] for r in RIVALS.values()), strict=True)))
    )
    assert found.kind == "infeasible"


def test_one_bad_repeat_rules_a_candidate_out():
    found = outcome(sweep(hill(b16=[120, make_result(121.0, ttft=600.0), 119])))
    assert found.winner != "block_size=16"
    assert "(repeat 1)" in found.candidate("block_size=16").why_not[0]


def test_with_one_repeat_ties_go_by_min_gain_only_and_it_is_said():
    rules = Rules("qualified_output_throughput", 0.02, 1)
    found = outcome(sweep({8: [101], 16: [100], 32: [90]}), rules=rules)
    assert found.tied == ("block_size=8", "block_size=16")
    assert "1 repeat: no interval" in found.noise
    assert all(c.behind_best is None for c in found.candidates)


def test_measured_once_is_to_inspect():
    rules = Rules("qualified_output_throughput", 0.02, 1)
    found = outcome(sweep({8: [50], 16: [100], 32: [50]}, evidence="measured"), rules=rules)
    assert verdict(found, "block_size=16") == "inspect"


def test_a_winner_that_the_cold_phase_would_not_choose_is_to_inspect():
    cold = {8: make_replay(200.0, phase="cold"), 16: make_replay(50.0, phase="cold")}
    values = {8: [make_result(50.0, cold=cold[8])] * 3, 16: [make_result(100.0, cold=cold[16])] * 3}
    found = outcome(sweep(values | {32: [50] * 3}))
    assert found.winner == "block_size=16"
    assert not found.phases_agree
    assert verdict(found, "block_size=16") == "inspect"


def test_phases_that_agree_ship_the_winner():
    found = outcome(sweep(hill()))
    assert found.phases_agree
    assert [verdict(found, f"block_size={s}") for s in (8, 16, 32)] == ["reject", "ship", "reject"]


def test_how_far_behind_is_told_on_the_windows_that_both_met():
    """What went wrong: means over different windows were held against each other: 95 of 100 looked 52 % behind."""
    values = {4: [50, 150, 200], 8: [95], 16: [100, 200, 300], 32: [50, 150, 200]}
    found = outcome(sweep(values))
    assert reason(found, "block_size=8") == "5.0% behind the best"
    policy = control_spec(SPACE, "contiguous").policy
    control = measured(90, policy, 0, make_result(120.0), "contiguous")
    assert "20.0% ahead of the best" in reason(outcome([*sweep(values), control]), "contiguous")
    tied = outcome(sweep(values | {8: [99]}))
    assert reason(tied, "block_size=8") == "not told apart from the winner (-1.0%)"


def reason(found, label):
    return next(row.reason for row in found.verdicts if row.option.split(" (")[0] == label)


def test_a_winner_that_some_windows_never_saw_is_to_inspect():
    found = outcome(sweep(hill(b8=[130])))
    assert (found.winner, verdict(found, "block_size=8")) == ("block_size=8", "inspect")
    assert "measured on 1 of 3 windows" in reason(found, "block_size=8")


def held_out(values):
    """Trials of {block size: values or results by held-out window}; None where one failed."""
    every = [(size, r, v) for size, of_window in values.items() for r, v in enumerate(of_window)]
    return [
        Again(900 + n, 3 + r, with_policy(SPACE.base, block_size=size).policy,
              measured(0, SPACE.default, 0, make_result(v) if isinstance(v, float) else v).score)
        for n, (size, r, v) in enumerate(every)
    ]  # fmt: skip


def test_a_default_that_missed_its_slo_in_the_search_is_none_to_lose_to():
    values = hill(b8=[130, 131, 129], b16=[make_result(200.0, ttft=600.0)] * 3)
    found = outcome(sweep(values), again=held_out({8: [130.0], 16: [200.0]}))
    assert (found.winner, verdict(found, "block_size=8")) == ("block_size=8", "ship")
    lost = outcome(sweep(hill(b8=[130, 131, 129])), again=held_out({8: [130.0], 16: [200.0]}))
    assert "loses on held-out windows: 130 against 200 of the default" in reason(lost, "block_size=8")


def test_nobody_loses_to_what_may_not_win_itself():
    """What went wrong: a winner was held against the default and the best fixed block, whether or not they survive,
    and against controls outside the space."""
    (falls,) = held_out({16: [make_result(1.0, ttft=900.0)]})
    again = [*held_out({8: [130.0], 16: [200.0]}), replace(falls, number=990, survival=True)]
    found = outcome(sweep(hill(b8=[130, 131, 129])), again=again)
    assert (found.winner, verdict(found, "block_size=8")) == ("block_size=8", "ship")
    policy = control_spec(SPACE, "one_block").policy
    beyond = [measured(80 + r, policy, r, make_result(300.0), "one_block") for r in range(3)]
    decision = decide([*sweep(hill()), *beyond], SPACE, RULES)
    assert decision.best_fixed_block is decision.choice.winner


@pytest.mark.parametrize("first", ["fails", "is raced out"])
def test_a_trial_that_gave_nothing_takes_nothing_from_another_of_the_same_candidate(first):
    """What went wrong: the default was out of the search when its control was lost, though its grid point ran."""
    lost = measured(900, SPACE.default, 0, None, "vendor_default")
    known = measured(901, SPACE.default, 0, make_result(120.0))
    if first == "is raced out":
        known = replace(known, score=raced_out(120.0, "lost"))
    (candidate,) = group([lost, known], SPACE)
    assert candidate.trials[0] is known
    assert candidate.feasible == (first == "fails")


def test_held_out_windows_are_compared_where_both_have_a_value():
    found = outcome(sweep(hill(b8=[130, 131, 129])), again=held_out({8: [100.0, 400.0], 16: [110.0, None]}))
    assert {c.label: c.share_of_winner for c in found.confirmed} == {
        "block_size=8": 1.0, "block_size=16": pytest.approx(1.1),
    }  # fmt: skip
    loses = outcome(sweep(hill(b8=[130, 131, 129])), again=held_out({8: [100.0, 400.0], 16: [110.0]}))
    assert "loses on held-out windows: 100 against 110 of the default" in reason(loses, "block_size=8")


def test_the_trial_of_the_nearest_miss_is_the_one_that_missed_by_so_much():
    values = {s: [make_result(100.0, ttft=500.0 + s), make_result(100.0, ttft=600.0 + s)] for s in (8, 16)}
    found = outcome(sweep(values))
    assert (found.nearest_miss.label, found.nearest_miss.trial, found.nearest_miss.observed) == (
        "block_size=8", 1, 608.0,
    )  # fmt: skip


def test_what_may_not_win_whatever_its_slo_is_no_nearer_miss_than_what_only_missed_it():
    values = {8: [make_result(100.0, ttft=505.0, void=("x",))], 16: [make_result(100.0, ttft=600.0)]}
    assert outcome(sweep(values)).nearest_miss.label == "block_size=16"


def test_a_flat_outcome_says_what_was_not_measured():
    found = outcome(sweep({size: [100, 101, 99] for size in (8, 16)}))
    assert found.kind == "flat"
    assert "7 candidates of the space were not measured" in found.sentence


def test_controls_stay_in_the_table_and_one_outside_the_space_never_wins():
    policy = control_spec(SPACE, "contiguous").policy
    trials = sweep(hill()) + [measured(50 + r, policy, r, make_result(300.0), "contiguous") for r in range(3)]
    found = outcome(trials)
    assert found.winner == "block_size=16"
    row = next(r for r in found.verdicts if r.option == "contiguous")
    assert row.control
    assert row.verdict == "inspect"
    assert "ahead of the best" in row.reason


def test_a_control_that_is_a_grid_point_is_one_candidate_with_both_names():
    trials = sweep(hill())
    twin = [measured(60 + t.repeat, t.policy, t.repeat, make_result(t.score.value), "vendor_default")
            for t in trials if t.policy.block_size == 16]  # fmt: skip
    found = outcome(trials + twin)
    assert found.candidate("block_size=16").controls == ("vendor_default",)
    assert found.candidate("block_size=16").trials == (12, 13, 14)
    assert sum(r.option.startswith("block_size=16") for r in found.verdicts) == 1


def test_every_candidate_and_control_has_a_verdict_and_a_reason():
    policy = control_spec(SPACE, "one_block").policy
    found = outcome([*sweep(hill(b1=[None] * 3)), measured(70, policy, 0, RIVALS["refused"], "one_block")])
    assert len(found.verdicts) == len(found.candidates) == 10
    assert all(row.reason and row.signal for row in found.verdicts)


def test_in_two_dimensions_a_knee_needs_the_neighbours_of_both():
    vary = {"policy.block_size": {"one_of": [8, 16, 32]}, "policy.prefix_caching": {"one_of": [False, True]}}
    space = build_space(space_spec({"vary": vary}), make_spec())
    trials = [
        measured(i, space.suggest(p).policy, 0, make_result(200.0 if p == {"block_size": 16, "prefix_caching": True}
                                                            else 100.0))
        for i, p in enumerate(space.candidates())
    ]  # fmt: skip
    assert outcome(trials, space).kind == "knee"
    gone = [t for t in trials if t.policy.prefix_caching or t.policy.block_size != 16]
    assert outcome(gone, space).kind == "open"


@settings(deadline=None)  # how long one takes is the machine's
@given(st.dictionaries(st.sampled_from(sorted(HILL)), st.lists(st.integers(1, 500), min_size=3, max_size=3),
                       min_size=1))  # fmt: skip
def test_the_winner_is_always_feasible_tied_and_in_the_space(values):
    found = outcome(sweep(values))
    assert found.winner in found.tied
    winner = found.candidate(found.winner)
    assert winner.feasible
    assert winner.in_space
    best = max(c.value for c in found.candidates)
    assert winner.tied
    assert max(c.value for c in found.candidates if c.tied) == best


@settings(deadline=None)  # how long one takes is the machine's
@given(st.permutations(sweep(hill())))
def test_the_outcome_does_not_depend_on_the_order_in_which_trials_finished(trials):
    assert outcome(trials) == outcome(sweep(hill()))
