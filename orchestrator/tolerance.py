"""What a recipe promises of its latencies, and whether a later run kept it.

A modelled trial repeats exactly. A measured one may move by max(5 %, 3 x the spread of its repeats); where that is
more than 25 %, or the spread is unknown because it was measured once, nothing is promised and the recipe says why.
"""

import math
import statistics
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from trials.result import Metrics, TrialResult

LEAST, MOST, SPREADS = 0.05, 0.25, 3.0
_LATENCIES = ("ttft_ms.p50", "ttft_ms.p99", "itl_ms.p50", "itl_ms.p99", "tpot_ms.mean", "e2el_ms.p99")
_THROUGHPUTS = ("output_throughput", "qualified_output_throughput")


class ExpectedMetric(BaseModel):
    """One number: `tolerance` is a share of `value`, None where nothing is promised; `note` says why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    value: float
    tolerance: float | None
    spread: float | None  # sample deviation of the repeats as a share of their mean; None = one repeat
    note: str = ""


class Compared(BaseModel):
    """An expected metric beside the one that came out. `moved` is a share of the expected value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    expected: float
    found: float | None
    moved: float | None
    tolerance: float | None
    inside: bool | None  # None: nothing was promised, or the machine is not as fast as it was
    off: float | None = None  # by how much the machine's own speed had moved, where that forbids a judgement


def metric(metrics: Metrics, name: str) -> float | None:
    """`ttft_ms.p99` -> its value."""
    value: object = metrics
    for part in name.split("."):
        value = getattr(value, part)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def expected_metrics(result: TrialResult, repeats: Sequence[TrialResult]) -> tuple[ExpectedMetric, ...]:
    """The winner's numbers with their tolerances; metrics without a finite value are left out."""
    out = []
    for name in (*_LATENCIES, *_THROUGHPUTS):
        value = metric(result.metrics, name)
        if value is not None:
            values = [v for r in repeats if (v := metric(r.metrics, name)) is not None]
            out.append(_expected(name, value, values, result.evidence == "modelled"))
    return tuple(out)


def _expected(name: str, value: float, values: Sequence[float], exact: bool) -> ExpectedMetric:
    mean = statistics.fmean(values) if values else 0.0
    spread = statistics.stdev(values) / mean if len(values) > 1 and mean > 0 else None
    if exact:
        return ExpectedMetric(
            name=name, value=value, tolerance=0.0, spread=spread, note="modelled: repeats exactly"
        )
    if name in _THROUGHPUTS:
        note = "shown beside the latencies, not promised"
        return ExpectedMetric(name=name, value=value, tolerance=None, spread=spread, note=note)
    if spread is None:
        note = "not promised: measured once, so its spread is not known"
        return ExpectedMetric(name=name, value=value, tolerance=None, spread=None, note=note)
    tolerance = max(LEAST, SPREADS * spread)
    if tolerance > MOST:
        note = f"not promised: 3 x the repeats' spread is {tolerance:.1%}, more than {MOST:.0%}"
        return ExpectedMetric(name=name, value=value, tolerance=None, spread=spread, note=note)
    return ExpectedMetric(name=name, value=value, tolerance=tolerance, spread=spread)


def latency_promise(metrics: Sequence[ExpectedMetric], evidence: str) -> str:
    """What the recipe promises, in a sentence."""
    if evidence == "modelled":
        return "modelled latencies repeat exactly; they were never measured"
    held = [m for m in metrics if m.tolerance is not None]
    if not held:
        return "no latency is promised: the repeats of the winner differ too much, or it was measured once"
    words = ", ".join(f"{m.name} within {m.tolerance:.1%}" for m in held)
    return f"measured latencies, max(5 %, 3 x repeat spread): {words}"


def compare(expected: Sequence[ExpectedMetric], found: Metrics) -> tuple[Compared, ...]:
    """Each expected metric beside the found one; inside = |found - expected| <= tolerance x |expected|."""
    out = []
    for e in expected:
        value = metric(found, e.name)
        moved = None if value is None or e.value == 0 else (value - e.value) / abs(e.value)
        inside = None
        if e.tolerance is not None:
            inside = value is not None and abs(value - e.value) <= e.tolerance * abs(e.value)
        out.append(
            Compared(name=e.name, expected=e.value, found=value, moved=moved, tolerance=e.tolerance, inside=inside)
        )
    return tuple(out)
