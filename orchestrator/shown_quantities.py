"""What is plotted against block size, and how it is read: the objective, the SLO's clauses, p99 of TTFT and ITL."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from orchestrator.markup import Cell, Value, number
from orchestrator.plots_knee import KneePoint, Panel
from orchestrator.shown import Shown, Sweep
from trials.result import TrialResult
from trials.slo import Clause, parse_slo

_NAMES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2el": "E2EL"}
_ALWAYS = ("ttft", "itl")
_LOADS = {  # what a capacity was searched over
    "rate_scale": "x the trace's rate",
    "rps": "requests/s",
    "concurrency": "requests at once",
    "pool_bytes": "bytes",
}

Read = Callable[[TrialResult], float | None]


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a panel plots, and how it is read from a result. None = not finite. `spread`: a range of its own.

    `bounded`: a candidate's value can be a lower bound.
    """

    panel: Panel
    read: Read
    spread: Callable[[TrialResult], tuple[float | None, float | None]] = lambda result: (None, None)
    bounded: bool = False


def objective_of(sweep: Sweep) -> Quantity:
    """The objective: qualified tokens a second, or the largest load (smallest pool) that holds."""
    evidence = sweep.short_evidence
    if sweep.objective != "capacity_load":
        panel = Panel("Qualified output", "tokens/s", evidence)
        return Quantity(panel, lambda r: r.metrics.qualified_output_throughput)
    over = next((r.capacity.over for s in sweep.shown for r in s.results if r.capacity is not None), "rate_scale")
    panel = Panel("Capacity", _LOADS.get(over, over), evidence)
    return Quantity(panel, lambda r: r.metrics.capacity_load, _windows, bounded=True)


def _windows(result: TrialResult) -> tuple[float | None, float | None]:
    """The range over a capacity's windows."""
    found = result.capacity
    return (None, None) if found is None else (found.low, found.high)


def quantities(sweep: Sweep) -> list[Quantity]:
    """The objective, each SLO clause with its limit, then p99 of TTFT and ITL where no clause has them."""
    evidence, clauses = sweep.short_evidence, parse_slo(sweep.slo).clauses
    found = [objective_of(sweep)] + [_of_clause(clause, evidence) for clause in clauses]
    bounded = {c.metric for c in clauses if c.percentile == 99}
    return found + [_of_percentile(name, evidence) for name in _ALWAYS if name not in bounded]


def _of_clause(clause: Clause, evidence: str) -> Quantity:
    title = f"{_NAMES[clause.metric]} p{clause.percentile:g}"
    panel = Panel(title, "ms", evidence, clause.limit_ns / 1e6)
    return Quantity(panel, lambda r: r.metrics.slo_values_ms.get(clause.text))


def _of_percentile(name: str, evidence: str) -> Quantity:
    def read(result: TrialResult) -> float | None:
        value: float | None = getattr(result.metrics, f"{name}_ms").p99
        return value

    return Quantity(Panel(f"{_NAMES[name]} p99", "ms", evidence), read)


def knee_points(shown: Sequence[Shown], quantity: Quantity, leads: frozenset[str]) -> list[KneePoint]:
    """One point a candidate: mean over its repeats, and their range; none where a repeat has no finite value.

    leads: labels of those that the line joins.
    """
    points = []
    for s in shown:
        read = [quantity.read(r) for r in s.results]
        values = [v for v in read if v is not None]
        ends = [v for r in s.results for v in quantity.spread(r) if v is not None]
        whole = bool(values) and len(values) == len(read)
        middle, low, high = (
            (fmean(values), min([*values, *ends]), max([*values, *ends])) if whole else (None, None, None)
        )
        points.append(
            KneePoint(
                s.label,
                s.block_size,
                middle,
                low,
                high,
                s.feasible,
                s.role,
                s.in_space,
                s.label in leads,
                bool(s.controls),
                quantity.bounded and s.at_least,
            )
        )
    return points


def goal_cell(shown: Shown, value: float | None) -> Value:
    """A candidate's value of the objective in a table: with what it stays below, or what it is at least."""
    if shown.less_than is not None:
        return Cell(f"< {number(shown.less_than)}", "n")
    return Cell(f">= {number(value)}", "n") if shown.at_least and value is not None else value


def leaders(sweep: Sweep) -> frozenset[str]:
    """The best searched candidate of each block size: feasible first, then by the objective to three digits.

    Among equals the one that differs least from the chosen candidate, so that a line shows block size alone.
    """
    read, chosen = objective_of(sweep).read, _params(sweep.chosen)
    best: dict[int, tuple[bool, float, int, str]] = {}
    for s in sweep.shown:
        values = [v for r in s.results if (v := read(r)) is not None]
        if s.in_space and values:
            alike = sum(chosen.get(name) == value for name, value in _params(s).items())
            rank = (s.feasible, float(f"{fmean(values):.3g}"), alike, s.label)
            best[s.block_size] = max(best.get(s.block_size, rank), rank)
    return frozenset(label for *_, label in best.values())


def _params(shown: Shown | None) -> dict[str, object]:
    return dict(shown.records[0].params) if shown is not None and shown.records else {}
