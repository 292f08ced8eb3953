"""Laws of the objective: what may never win, and what the optimiser is told."""

import math

import pytest
from made_results import SLO, make_replay, make_result

from search_spaces.objective import brief, score
from trials.result import Capacity
from trials.slo import parse_slo


def judge(result, slo=SLO):
    return score(result, parse_slo(slo), "qualified_output_throughput", "its node died")


def test_a_trial_that_keeps_its_slo_is_feasible_and_worth_its_qualified_tokens():
    judged = judge(make_result(123.0))
    assert judged.feasible
    assert judged.value == 123.0
    assert all(value <= 0 for _, value in judged.constraints)


@pytest.mark.parametrize(
    ("result", "ground"),
    [
        (make_result(100.0, ttft=600.0), "ttft:p99<500ms"),
        (make_result(100.0, itl=None, holds=False), "itl:p99<50ms"),
        (make_result(100.0, attainment=0.9), "attainment"),
        (make_result(100.0, eligible=False), "ineligible"),
        (make_result(100.0, unbalanced=1), "unbalanced"),
        (make_result(100.0, void=("lengths differ",)), "void"),
        (make_result(0.0, tokens=0), "no_tokens"),
        (make_result(100.0, status="refused"), "refused"),
        (make_result(100.0, holds=False), "holds"),
    ],
)
def test_whatever_is_wrong_becomes_a_violated_constraint_and_cannot_win(result, ground):
    judged = judge(result)
    assert not judged.feasible
    assert dict(judged.constraints)[ground] > 0
    assert judged.reasons


@pytest.mark.parametrize(
    "result", [None, make_result(100.0, status="failed"), make_result(math.nan), make_result(math.inf)]
)
def test_what_was_lost_failed_or_is_no_number_has_no_value_to_tell(result):
    judged = judge(result)
    assert judged.value is None
    assert not judged.feasible
    assert judged.reasons


def test_an_unbalanced_ledger_in_any_phase_rules_the_trial_out():
    assert not judge(make_result(100.0, cold=make_replay(phase="cold", unbalanced=2))).feasible


def test_overshoot_is_a_share_of_the_limit():
    assert dict(judge(make_result(ttft=750.0)).constraints)["ttft:p99<500ms"] == pytest.approx(0.5)


def test_attainment_is_counted_in_allowed_misses():
    assert dict(judge(make_result(attainment=0.98)).constraints)["attainment"] == pytest.approx(1.0)
    assert dict(judge(make_result(attainment=1.0)).constraints)["attainment"] == -1.0


def test_a_backlog_that_grows_at_every_load_leaves_no_capacity_to_win_with():
    """What went wrong: its SLO held at the lowest load, so a capacity of 0 was feasible, and was shipped."""
    words = "no load of the ladder holds: backlog binds"
    result = make_result(100.0).model_copy(
        update={"capacity": Capacity(over="rate_scale", last=4, value=None, low=None, high=None, words=words)}
    )
    judged = score(result, parse_slo(SLO), "capacity_load")
    assert (judged.value, judged.feasible, judged.grounds) == (0.0, False, (words,))
    assert dict(judged.constraints)["holds"] > 0


def test_full_attainment_required_and_met_is_no_violation():
    slo = SLO + ";attainment>=100%"
    assert judge(make_result(attainment=1.0), slo).feasible
    assert not judge(make_result(attainment=0.999, holds=False), slo).feasible


def test_waste_is_reported_per_qualified_token_at_each_load():
    assert judge(make_result(waste=50.0, tokens=25)).waste_per_token == (("rate_scale=1", 2.0),)


def test_phases_are_judged_apart():
    judged = judge(make_result(100.0, cold=make_replay(70.0, ttft=900.0, phase="cold")))
    assert {p.phase: (p.value, p.feasible) for p in judged.phases} == {
        "cold": (70.0, False),
        "steady": (100.0, True),
    }
    assert judged.feasible


def test_a_long_reason_keeps_its_first_and_last_line():
    assert brief("exit code 1\n  File x\n\nValueError: no\n") == "exit code 1 ... ValueError: no"


def test_a_brief_reason_ends_with_the_engine_s_own_words_and_not_with_the_place_of_its_log():
    reason = "the worker ended with exit code 3\nTraceback\nMemoryError: 9 GiB\nlog: /a/log.txt"
    assert brief(reason) == "the worker ended with exit code 3 ... MemoryError: 9 GiB"
    assert brief("log: /a/log.txt") == "log: /a/log.txt"
    assert brief("") == ""
