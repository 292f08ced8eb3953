"""Laws of the process behind `sampler: gp`: what is modelled, and who is chosen."""

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import norm

from search_spaces.surrogate import Axes, Came, _log_improvement, _unlikely, most_expected, standings


def test_standings_order_the_kept_by_value_and_those_that_miss_by_how_far():
    came = [Came(100), Came(98), Came(50), Came(120, over=0.1), Came(500, over=3.0)]
    found = standings(came, maximize=True)
    assert list(np.argsort(-found)) == [0, 1, 2, 3, 4]
    assert found[0] == pytest.approx(-np.log(0.1))
    assert found[2] == pytest.approx(-np.log(0.6))
    assert found[3] == pytest.approx(-np.log(1.2))


def test_the_least_is_best_where_that_is_asked():
    assert list(np.argsort(-standings([Came(3), Came(1), Came(2)], maximize=False))) == [1, 2, 0]


def test_who_lost_a_race_stands_under_its_bound_and_over_who_misses_limits():
    best, lost, missed = standings([Came(100), Came(102, over=1.0, bounded=True), Came(99, over=0.1)], True)
    assert best > lost > missed


def test_nothing_kept_and_nothing_earned_have_standings_too():
    assert np.isfinite(standings([Came(0), Came(0)], True)).all()
    assert np.isfinite(standings([Came(10, over=1.0), Came(20, over=2.0)], True)).all()


@pytest.mark.parametrize("at", [-30.0, -8.0, -4.0, 0.0, 3.0])
def test_expected_improvement_is_that_of_the_normal_law(at: float):
    found = float(_log_improvement(np.array([at * 0.5]), np.array([0.5]))[0])
    grid = np.linspace(0, 40, 400_001)
    by_quadrature = np.trapezoid(grid * norm.pdf(grid, at * 0.5, 0.5), grid)
    if at > -8:
        assert found == pytest.approx(np.log(by_quadrature), abs=1e-3)
    # far below, by the continued fraction of Mills' ratio: phi(x) / (x^2 + 1) is its leading term
    assert found == pytest.approx(np.log(0.5) + norm.logpdf(at) - np.log(at**2 + 1) if at < -5 else found, rel=0.05)
    assert np.isfinite(log_ndtr(at))


def test_slopes_of_the_likelihood_are_those_of_its_differences():
    rng = np.random.default_rng(0)
    points = rng.random((12, 3))
    apart = (points[:, None, :] - points[None, :, :]) ** 2
    level = rng.standard_normal(12)
    for _ in range(5):
        at = rng.normal(0, 0.7, 6) + np.array([0, 0, 0, 0, -4, 0])
        _, slope = _unlikely(at, apart, level)
        steps = 1e-5 * np.eye(6)
        by_differences = [
            (_unlikely(at + h, apart, level)[0] - _unlikely(at - h, apart, level)[0]) / 2e-5 for h in steps
        ]
        assert slope == pytest.approx(by_differences, rel=1e-4, abs=1e-4)


def plane(count: int = 21) -> Axes:
    """Two ordered axes and a category."""
    places = np.array([(x, y, c) for x in range(count) for y in range(count) for c in range(3)], dtype=float)
    places[:, :2] /= count - 1
    return Axes(places, np.array([False, False, True]))


def test_the_top_of_a_hill_is_found_in_few_candidates():
    axes = plane()
    x, y, c = axes.points.T
    value = np.exp(-8 * (x - 0.7) ** 2 - 3 * (y - 0.2) ** 2) * np.where(c == 1, 1.0, 0.6)
    near = set(np.flatnonzero(value >= 0.98 * value.max()))
    for seed in range(3):
        rows = list(np.random.default_rng(seed).choice(len(value), 5, replace=False))
        while not near & set(rows) and len(rows) < 40:
            free = np.setdiff1d(np.arange(len(value)), rows)
            standing = standings([Came(float(value[r])) for r in rows], True)
            rows.append(most_expected(axes, rows, standing, free, seed))
        assert near & set(rows), f"not found by {len(rows)} of {len(value)}, of which {len(near)} are near the top"


def test_equal_expectations_are_settled_by_the_seed_alone():
    axes = Axes(np.array([[0.0], [0.5], [1.0]]), np.array([False]))
    free = np.array([0, 2])
    chosen = [most_expected(axes, [1], np.array([1.0]), free, seed) for seed in range(20)]
    assert set(chosen) == {0, 2}
    assert chosen == [most_expected(axes, [1], np.array([1.0]), free, seed) for seed in range(20)]


def test_one_more_axis_orders_where_nothing_else_tells():
    """What a screen said, as an axis: of candidates equal in all else the one beside the best is chosen."""
    flat = Axes(np.zeros((5, 1)), np.array([False])).beside(np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    standing = standings([Came(1.0), Came(50.0), Came(90.0)], True)
    assert most_expected(flat, [0, 1, 2], standing, np.array([3, 4]), 0) in (3, 4)
    assert flat.points[:, 1].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
