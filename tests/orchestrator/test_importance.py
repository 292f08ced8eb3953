"""Importance of parameters: the share of the differences that goes with one, however many values it has."""

import random

import pytest

from orchestrator.importance import importances


def test_a_parameter_that_decides_everything_has_it_all_and_names_its_best_value() -> None:
    policies = [{"a": a, "b": b} for a in (1, 2, 3) for b in ("x", "y")]
    found = importances(policies, [10.0 * p["a"] for p in policies])
    assert [f.parameter for f in found] == ["a", "b"]
    assert found[0].share == 1.0
    assert found[0].best == "3"
    assert found[1].share == 0.0


def test_chance_is_not_importance_however_many_values_there_are() -> None:
    draw = random.Random(1)
    policies = [{"many": i % 20} for i in range(60)]
    shares = [importances(policies, [draw.random() for _ in policies])[0].share or 0.0 for _ in range(40)]
    assert sum(shares) / len(shares) < 0.1  # uncorrected it would be 19 / 59


def test_one_value_is_no_parameter_and_one_candidate_a_value_cannot_be_told() -> None:
    assert importances([{"a": 1}, {"a": 1}], [1.0, 2.0]) == []
    (only,) = importances([{"a": 1}, {"a": 2}], [1.0, 2.0])
    assert only.share is None


def test_where_all_are_equal_nothing_is_important() -> None:
    (only,) = importances([{"a": 1}, {"a": 1}, {"a": 2}], [5.0, 5.0, 5.0])
    assert only.share == pytest.approx(0.0)


def test_what_differs_by_rounding_is_equal() -> None:
    policies = [{"a": i % 4, "b": i % 3} for i in range(24)]
    values = [1021.4 * (1 + 2e-16 * (i % 4)) for i in range(24)]
    assert len(set(values)) > 1
    assert [f.share for f in importances(policies, values)] == [0.0, 0.0]
