"""A trial's result as the optimiser sees it: a value, constraints (<= 0 holds), and why it may not win.

The objective is `qualified_output_throughput` of the replay that decides: output tokens of requests that kept
their own limits, per second of the window. No zero-token, unbalanced, refused, failed, void or NaN trial can win.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from search_spaces.idle import Reached, reached
from search_spaces.outcome import ClauseSeen
from trials.result import Metrics, ReplayResult, TrialResult
from trials.slo import Slo

OBJECTIVES: dict[str, Callable[[Metrics], float]] = {
    "qualified_output_throughput": lambda m: m.qualified_output_throughput,
    "capacity_load": lambda m: m.capacity_load or 0.0,
    "pareto": lambda m: m.qualified_output_throughput,  # against waste: no one number says which is best
}
DIRECTIONS = {"pareto": ("maximize", "minimize")}  # of objectives with more than one value
NOT_ISOLATED = "not_isolated"
_VOID = ("void", "unbalanced", NOT_ISOLATED)
RACED_OUT = "raced_out"  # the constraint that a bound misses which is all that is known of a value


@dataclass(frozen=True, slots=True)
class PhaseScore:
    """One phase's objective, and whether the SLO and attainment held there."""

    phase: str
    value: float
    feasible: bool


@dataclass(frozen=True, slots=True)
class Score:
    """`value` None: the trial answered nothing that can be told (failed, or not a number), or it was raced out:
    then its value is `less_than` this. `run` False: raced out without a replay of its own."""

    value: float | None
    constraints: tuple[tuple[str, float], ...]  # <= 0 holds; inf where a limit is missed without bound
    clauses: tuple[ClauseSeen, ...]
    grounds: tuple[str, ...] = ()  # beside its clauses: why it cannot win
    phases: tuple[PhaseScore, ...] = ()
    waste_per_token: tuple[tuple[str, float], ...] = ()  # load -> waste byte-seconds per qualified token
    less_than: float | None = None
    run: bool = True
    reached: Reached | None = None  # how far it went into its limits
    at_least: bool = False  # of a capacity: the ladder ends there, and no load that was tried failed

    @property
    def missed(self) -> tuple[ClauseSeen, ...]:
        return tuple(c for c in self.clauses if c.over is None or c.over > 0)

    @property
    def reasons(self) -> tuple[str, ...]:
        """All that speaks against it; empty where it is feasible."""
        return (*(missed_words(c) for c in self.missed), *self.grounds)

    @property
    def void(self) -> bool:
        """Whether what was measured is no measurement of the candidate, neither for it nor against it."""
        return any(name in _VOID for name, _ in self.constraints)

    @property
    def feasible(self) -> bool:
        return self.value is not None and not self.missed and not self.grounds

    @property
    def wasted(self) -> float | None:
        """Waste byte-seconds per qualified token at the highest load; None where no token qualified."""
        return max(self.waste_per_token, key=lambda w: float(w[0].partition("=")[2] or 0), default=("", None))[1]


def score(result: TrialResult | None, slo: Slo, objective: str, lost: str = "") -> Score:
    """Judge one trial. `result` None: it was lost; `lost` says why."""
    if result is None:
        return Score(None, (), (), (f"no result: {brief(lost) or 'lost'}",))
    if result.status == "failed":
        return Score(None, (), (), (f"failed: {brief(result.reason)}",))
    if result.status == "refused":
        return Score(0.0, (("refused", 1.0),), (), (f"refused: {brief(result.reason)}",))
    if result.capacity is not None and result.capacity.less_than is not None:
        bound = raced_out(result.capacity.less_than, f"raced out: capacity {result.capacity.words}")
        return replace(bound, reached=reached(result))
    value = OBJECTIVES[objective](result.metrics)
    if not math.isfinite(value):
        return Score(None, (), (), (f"{objective} is not a number",))
    decides = _deciding(result)
    if decides is None:
        return Score(value, (("ineligible", 1.0),), (), ("no replay decides",))
    clauses = _clauses(decides, slo)
    marks = _marks(result, decides)
    if not marks and all(c.over is not None and c.over <= 0 for c in clauses):
        marks += _beyond_clauses(result, decides, objective)
    constraints = [(c.text, math.inf if c.over is None else c.over) for c in clauses]
    return Score(
        value, (*constraints, *((name, 1.0) for name, _ in marks)), clauses, tuple(words for _, words in marks),
        tuple(PhaseScore(r.phase, OBJECTIVES[objective](r.metrics), r.holds and not r.void_because)
              for r in _by_phase(result, decides)),
        tuple(
            (r.load, w) for r in result.replays
            if r.phase == decides.phase and _counts(r) and (w := r.metrics.waste_per_qualified_token) is not None
        ),
        reached=reached(result),
        at_least=objective == "capacity_load" and result.capacity is not None and result.capacity.at_least,
    )  # fmt: skip


def values_of(score: Score, objective: str) -> tuple[float, ...] | None:
    """What the optimiser is told of a trial, in the order of DIRECTIONS; None where there is nothing to tell."""
    value = score.less_than if score.value is None else score.value
    if value is None:
        return None
    if objective not in DIRECTIONS:
        return (value,)
    return value, math.inf if score.wasted is None else score.wasted


def raced_out(less_than: float | None, why: str, run: bool = True) -> Score:
    """One that cannot win any more, whatever its value is: it is less than what it had to beat."""
    return Score(None, ((RACED_OUT, 1.0),), (), (why,), less_than=less_than, run=run)


def shown(value: float) -> str:
    """Four digits, or whole numbers where they are more."""
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def brief(reason: str) -> str:
    """First and last line of a long reason: what was said, and where a traceback ends; not where its log lies."""
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("log: ")] or lines
    return " ... ".join(line[:200] for line in (lines if len(lines) < 3 else [lines[0], lines[-1]]))


def _deciding(result: TrialResult) -> ReplayResult | None:
    if result.decides is None or not 0 <= result.decides < len(result.replays):
        return None
    return result.replays[result.decides]


def _by_phase(result: TrialResult, decides: ReplayResult) -> list[ReplayResult]:
    """One replay a phase at the load that decides."""
    return [r for r in result.replays if r.load == decides.load]


def _clauses(replay: ReplayResult, slo: Slo) -> tuple[ClauseSeen, ...]:
    seen = []
    for clause in slo.clauses:
        observed = replay.metrics.slo_values_ms.get(clause.text)
        limit = clause.limit_ns / 1e6
        over = None if observed is None else (observed - limit) / limit
        seen.append(ClauseSeen(text=clause.text, observed=observed, limit=limit, over=over))
    over = _attainment_over(replay.attainment, slo.attainment)
    seen.append(ClauseSeen(text="attainment", observed=replay.attainment, limit=slo.attainment, over=over))
    return tuple(seen)


def _attainment_over(attained: float, required: float) -> float | None:
    """In units of the misses that are allowed, so that full attainment never looks like a bound that binds."""
    if attained >= required:
        return min((1 - attained) / (1 - required) - 1, 0.0) if required < 1 else -1.0
    return (1 - attained) / (1 - required) - 1 if required < 1 else None


def _marks(result: TrialResult, decides: ReplayResult) -> list[tuple[str, str]]:
    """Grounds that no number of tokens can outweigh: (constraint's name, words)."""
    marks = []
    if not result.eligible:
        marks.append(("ineligible", f"ineligible: {'; '.join(result.ineligible_because) or 'no ground given'}"))
    if decides.void_because:
        marks.append(("void", f"void: {'; '.join(decides.void_because)}"))
    if any(r.ledger.unbalanced_rows for r in result.replays):
        marks.append(("unbalanced", "a ledger does not balance"))
    if result.metrics.qualified_output_tokens <= 0 or result.metrics.qualified_output_throughput <= 0:
        marks.append(("no_tokens", "no qualified token"))
    return marks


def _beyond_clauses(result: TrialResult, decides: ReplayResult, objective: str) -> list[tuple[str, str]]:
    """What the measuring side knows beyond the clauses: divergence under `cow`, a backlog that always grows."""
    if not decides.holds:
        return [("holds", f"the replay that decides does not hold: {decides.binding or 'its SLO'} binds")]
    if objective != "capacity_load" or result.metrics.capacity_load:
        return []
    return [("holds", result.capacity.words if result.capacity else "no load holds")]


def missed_words(clause: ClauseSeen) -> str:
    """A bound that was missed, with what was seen."""
    if clause.text == "attainment":
        return f"attainment {clause.observed:.3g} under {clause.limit:.3g}"
    seen = "without bound" if clause.observed is None else f"{shown(clause.observed)} ms"
    return f"{clause.text} missed: {seen}"


def _counts(replay: ReplayResult) -> bool:
    return replay.metrics.qualified_output_tokens > 0 and not replay.void_because
