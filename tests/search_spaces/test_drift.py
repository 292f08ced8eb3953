"""What counts as moved: more than the limit, and more than chance; the distance is the right one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.drift import KS_LIMIT, drift, ks_distance
from trials.shape import shape_of
from trials.trace import Ragged, TraceMeta, make_trace


def workload(seed=0, rows=2000, rps=10.0, prompt=200.0, output=50.0, shared=0.5, cancels=0.0, burst=1.0):
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(1 / burst**2, burst**2 / rps * 1e9, rows)
    held = (rng.random(rows) < shared).astype(np.int64) * 4
    ids = Ragged(np.concatenate([[0], np.cumsum(held)]), np.tile(np.arange(4), int(held.sum()) // 4))
    return shape_of(make_trace(
        np.cumsum(gaps).astype(np.int64), 64 + rng.exponential(prompt, rows).astype(np.int64),
        1 + rng.exponential(output, rows).astype(np.int64), prefix_ids=ids, meta=TraceMeta(16, "floor"),
        cancel_after_ns=np.where(rng.random(rows) < cancels, 10**9, -1),
    ))  # fmt: skip


def moved(before, now):
    return [m.name for m in drift(before, now) if m.stale]


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("rows", [100, 2000])
def test_another_draw_of_the_same_workload_has_not_moved(seed, rows):
    assert moved(workload(), workload(seed, rows=rows)) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rps": 13.0}, "rate, requests/s"),
        ({"burst": 2.5}, "burstiness, CV of gaps"),
        ({"prompt": 320.0}, "prompt tokens"),
        ({"output": 80.0}, "output tokens"),
        ({"shared": 0.8}, "sharing"),
        ({"cancels": 0.06}, "cancel share"),
    ],
)
def test_what_moved_is_named_with_both_values_and_the_limit(change, name):
    found = drift(workload(), workload(1, **change))
    (one,) = [m for m in found if m.stale and m.name == name]
    assert one.distance > one.limit
    assert f"{one.before} -> {one.now}" in one.words
    assert "MOVED" in one.words
    others = {m.name for m in found if m.stale} - {name}
    assert not others or change == {"burst": 2.5} or (change == {"prompt": 320.0} and others == {"sharing"})


def test_a_trace_too_short_to_tell_is_given_the_benefit_of_the_doubt():
    limits = {m.name: m.limit for m in drift(workload(), workload(1, rows=40))}
    assert limits["prompt tokens"] > 2 * KS_LIMIT
    assert limits["rate, requests/s"] > 0.3


def test_sharing_is_compared_after_the_same_number_of_rows():
    """A longer trace of the same kind hits more often; that is no move."""
    rows, ids = 4000, np.random.default_rng(0).integers(0, 500, 4000)
    trace = make_trace(
        np.arange(rows) * 10**8, np.full(rows, 32), np.full(rows, 4),
        prefix_ids=Ragged(np.arange(0, rows + 1), ids), meta=TraceMeta(16, "floor"),
    )  # fmt: skip
    whole, part = shape_of(trace), shape_of(trace.take(np.arange(600)))
    assert whole.hits[-1].ratio - part.hits[-1].ratio > 0.01
    sharing = next(m for m in drift(part, whole) if m.name == "sharing")
    assert sharing.distance == 0.0


def test_what_cannot_be_compared_is_said_and_is_no_move():
    plain = workload().model_copy(update={"tokens_per_id": 0, "hits": ()})
    sharing = next(m for m in drift(workload(), plain) if m.name == "sharing")
    assert sharing.distance is None
    assert "not comparable" in sharing.words
    at_once = workload().model_copy(update={"rate_rps": None, "gap_cv": None})
    assert "rate, requests/s" not in moved(at_once, at_once)
    assert drift(workload(), at_once)[0].distance is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(100, 3000), st.floats(0.5, 2.0))
def test_distance_of_quantiles_is_that_of_the_whole_samples_to_two_percent(seed, rows, stretch):
    rng = np.random.default_rng(seed)
    one, other = rng.integers(1, 400, rows), (rng.exponential(150, rows) * stretch).astype(np.int64) + 1
    at = np.unique(np.concatenate([one, other]))
    reached = [np.searchsorted(np.sort(x), at, side="right") / rows for x in (one, other)]
    exact = np.abs(reached[0] - reached[1]).max()
    ones = np.ones(rows, np.int64)
    first, second = (shape_of(make_trace(np.arange(rows), x, ones)).prompt_quantiles for x in (one, other))
    assert ks_distance(first, second) == pytest.approx(exact, abs=0.021)
