"""Whether a load holds: every clause's observed percentile against its limit, attainment, the backlog's trend."""

import math
from dataclasses import dataclass, replace

import numpy as np

from trials.latency import Latencies
from trials.occupancy import Held
from trials.percentiles import percentile
from trials.recording import Replay
from trials.slo import Slo

ATTAINMENT = "attainment"
DIVERGENCE = "divergence"
_BINS = 16  # of equal covered time
_MIN_T = 3.0  # slope over its standard error, 14 degrees of freedom: about 1 in 200 by chance
_MIN_SHARE = 0.05  # of the prompt tokens that arrived in the window


@dataclass(frozen=True, slots=True)
class Holding:
    """The SLO's answer. `values_ns`: clause text -> observed percentile, 0 where nothing was observed."""

    holds: bool
    attainment: float
    binding: str
    values_ns: dict[str, float]


def attained_share(qualified: int, offered: int) -> float:
    """Qualified per offered request; 0 where nothing was offered, so that nothing can win with it."""
    return qualified / offered if offered else 0.0


def _spent(allowed: float, used: float) -> float:
    """How much of an allowance is used: 1 is the limit."""
    if allowed > 0:
        return used / allowed
    return math.inf if used > 0 else 0.0


def hold(observed: Latencies, slo: Slo, attainment: float) -> Holding:
    """Every clause (a limit is met at equality) and the attainment; the binding one has used most of its limit.

    Attainment is compared by misses: (1 - attained) / (1 - required), so that 1 is the limit there too.
    """
    values: dict[str, float] = {}
    used: dict[str, float] = {}
    for clause in slo.clauses:
        value = percentile(observed.of(clause.metric), clause.percentile)
        values[clause.text] = 0.0 if math.isnan(value) else value
        used[clause.text] = values[clause.text] / clause.limit_ns
    used[ATTAINMENT] = _spent(1 - slo.attainment, 1 - attainment)
    met = all(values[c.text] <= c.limit_ns for c in slo.clauses) and attainment >= slo.attainment
    return Holding(met, attainment, max(used, key=lambda name: used[name]), values)


def with_divergence(held: Holding, short_blocks: int) -> Holding:
    """The same, but that it does not hold where children might part and find no blocks: no clause outweighs it."""
    if short_blocks <= 0:
        return held
    return replace(held, holds=False, binding=DIVERGENCE)


def backlog_grew(replay: Replay, seen: Held) -> bool:
    """Whether the waiting tokens rose over the window by more than queues do at a load that holds.

    Least squares through the time means of 16 equal stretches. It grew if the line rises by more than 5 % of the
    prompt tokens that arrived in the window AND its slope exceeds three standard errors. Chosen on M/D/1 queues:
    with 1,000 arrivals none of 100 at utilisation 0.95 is called growing, all of 100 at 1.2 are.
    """
    lasted = seen.lasted_ns / 1e9
    elapsed = np.concatenate([np.zeros(1), np.cumsum(lasted)])
    if elapsed[-1] <= 0:
        return False
    waited = np.concatenate([np.zeros(1), np.cumsum(lasted * replay.steps["waiting_tokens"])])
    edges = np.linspace(0.0, elapsed[-1], _BINS + 1)
    means = np.diff(np.interp(edges, elapsed, waited)) / (elapsed[-1] / _BINS)
    place = (np.arange(_BINS) + 0.5) / _BINS - 0.5
    rise = float(np.sum(place * means) / np.sum(place**2))
    requests = replay.requests
    arrived = float(requests.num_prompt_tokens[requests.counted == 1].sum())
    if rise <= _MIN_SHARE * arrived or rise <= 0:
        return False
    off = means - means.mean() - rise * place
    error = math.sqrt(float(np.sum(off**2)) / (_BINS - 2) / float(np.sum(place**2)))
    return error == 0 or rise / error > _MIN_T
