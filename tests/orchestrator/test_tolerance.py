"""What a recipe promises of its latencies."""

import pytest

from orchestrator.tolerance import compare, expected_metrics, latency_promise
from trials.result import Hashes, Metrics, Percentiles, TrialResult


def _result(p99: float, evidence: str = "measured") -> TrialResult:
    metrics = Metrics(ttft_ms=Percentiles(n=9, p99=p99), output_throughput=10.0)
    return TrialResult.model_validate(
        {"status": "complete", "evidence": evidence, "hashes": Hashes(spec="s", trace="t", engine="e"),
         "requested": {}, "metrics": metrics}
    )  # fmt: skip


def _tolerance(*values: float, evidence: str = "measured") -> float | None:
    results = [_result(v, evidence) for v in values]
    return next(m for m in expected_metrics(results[0], results) if m.name == "ttft_ms.p99").tolerance


def test_a_modelled_metric_repeats_exactly() -> None:
    assert _tolerance(100.0, 130.0, evidence="modelled") == 0.0


def test_close_repeats_get_five_percent() -> None:
    assert _tolerance(100.0, 100.5, 99.5) == 0.05


def test_wider_repeats_get_three_times_their_spread() -> None:
    assert _tolerance(96.0, 100.0, 104.0) == pytest.approx(3 * 4 / 100)


def test_beyond_a_quarter_nothing_is_promised_and_it_says_so() -> None:
    results = [_result(v) for v in (80.0, 100.0, 120.0)]
    metrics = expected_metrics(results[0], results)
    assert metrics[0].tolerance is None
    assert "60.0%" in metrics[0].note
    assert latency_promise(metrics, "measured").startswith("no latency is promised")


def test_one_repeat_promises_nothing() -> None:
    results = [_result(100.0)]
    metrics = expected_metrics(results[0], results)
    assert metrics[0].tolerance is None
    assert "measured once" in metrics[0].note


def test_a_measured_throughput_is_shown_but_not_promised() -> None:
    results = [_result(100.0), _result(100.0)]
    tolerances = {m.name: m.tolerance for m in expected_metrics(results[0], results)}
    assert tolerances == {"ttft_ms.p99": 0.05, "output_throughput": None, "qualified_output_throughput": None}


@pytest.mark.parametrize(("found", "inside"), [(95.0, True), (105.0, True), (94.9, False), (105.1, False)])
def test_the_tolerance_holds_on_both_sides(found: float, inside: bool) -> None:
    results = [_result(100.0), _result(100.0)]
    seen = compare(expected_metrics(results[0], results), _result(found).metrics)
    assert seen[0].inside is inside


def test_a_latency_that_has_no_finite_value_any_more_is_outside() -> None:
    results = [_result(100.0), _result(100.0)]
    seen = compare(expected_metrics(results[0], results), Metrics())[0]
    assert (seen.found, seen.inside) == (None, False)
