"""Whether a workload has moved from the one that a recipe was found on: what, by how much, and past which limit.

A limit is what a block size can be expected to stand (a tenth of a distribution, a seventh of the rate), or what
traces of this length differ by chance, whichever is more: a short trace cannot show a small move.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trials.shape import WorkloadShape

KS_LIMIT = 0.10
_KS_CHANCE = 1.63  # sqrt(-ln(0.01 / 2) / 2): two samples differ by more in 1 of 100 cases
RATE_LIMIT, CV_LIMIT = 0.15, 0.30
HIT_LIMIT = 0.05  # of prompt tokens
FORK_LIMIT = TURN_LIMIT = CANCEL_LIMIT = 0.02
_CHANCE = 3.0  # standard errors


@dataclass(frozen=True, slots=True)
class Moved:
    """One property of two workloads. `distance` and `limit` are in the same unit; `None` cannot be compared."""

    name: str
    before: str
    now: str
    distance: float | None
    limit: float
    unit: str  # "relative", "KS" or "share"

    @property
    def stale(self) -> bool:
        return self.distance is not None and self.distance > self.limit

    @property
    def words(self) -> str:
        if self.distance is None:
            return f"{self.name}: {self.before} -> {self.now}, not comparable"
        said = "MOVED" if self.stale else "as it was"
        how = {"relative": "moved by", "KS": "KS distance", "share": "moved by"}[self.unit]
        return (
            f"{self.name}: {self.before} -> {self.now}, {how} {self.distance:.3g} (limit {self.limit:.3g}): {said}"
        )


def drift(before: WorkloadShape, now: WorkloadShape) -> tuple[Moved, ...]:
    """Every property that is compared, moved or not."""
    return tuple(_compared(before, now))


def _compared(before: WorkloadShape, now: WorkloadShape) -> Iterator[Moved]:
    yield _relative("rate, requests/s", before.rate_rps, now.rate_rps, max(RATE_LIMIT, _rate_chance(before, now)))
    yield _relative("burstiness, CV of gaps", before.gap_cv, now.gap_cv, max(CV_LIMIT, _cv_chance(before, now)))
    chance = max(KS_LIMIT, _KS_CHANCE * math.sqrt(1 / before.rows + 1 / now.rows))
    for name in ("prompt", "output"):
        old, new = (getattr(shape, f"{name}_quantiles") for shape in (before, now))
        shown = (f"median {old[50]}, p99 {old[99]}", f"median {new[50]}, p99 {new[99]}")
        yield Moved(f"{name} tokens", *shown, ks_distance(old, new), chance, "KS")
    yield _sharing(before, now)
    for name, limit in (("fork", FORK_LIMIT), ("turn", TURN_LIMIT), ("cancel", CANCEL_LIMIT)):
        yield _share(name, before, now, limit)


def _relative(name: str, old: float | None, new: float | None, limit: float) -> Moved:
    if old is None or new is None:
        both_at_once = old is None and new is None
        return Moved(name, _number(old), _number(new), 0.0 if both_at_once else None, limit, "relative")
    return Moved(name, _number(old), _number(new), abs(new - old) / max(old, 1e-12), limit, "relative")


def _number(value: float | None) -> str:
    return "all at once" if value is None else f"{value:.4g}"


def _rate_chance(before: WorkloadShape, now: WorkloadShape) -> float:
    """By which two counts of arrivals of this burstiness differ by chance."""
    return _CHANCE * math.sqrt(sum((s.gap_cv or 0.0) ** 2 / s.rows for s in (before, now)))


def _cv_chance(before: WorkloadShape, now: WorkloadShape) -> float:
    """For exponential gaps the CV of n of them has a standard error of about 1 / sqrt(n)."""
    return _CHANCE * math.sqrt(1 / before.rows + 1 / now.rows)


def ks_distance(old: tuple[int, ...], new: tuple[int, ...]) -> float:
    """Largest difference of two distributions given by quantiles of nearest rank, to within a percent of each.

    At a value, a distribution given so reaches the share of its last quantile that does not exceed it.
    """
    values = np.unique(np.concatenate([np.asarray(old), np.asarray(new)]))
    reached = [np.searchsorted(np.asarray(q), values, side="right") - 1 for q in (old, new)]
    shares = [np.maximum(r, 0) / (len(q) - 1) for r, q in zip(reached, (old, new), strict=True)]
    return float(np.abs(shares[0] - shares[1]).max())


def _sharing(before: WorkloadShape, now: WorkloadShape) -> Moved:
    """Hit ratios of an infinite cache after the same number of rows, where both were looked at."""
    if before.tokens_per_id != now.tokens_per_id:
        return Moved("sharing", _grain(before), _grain(now), None, HIT_LIMIT, "share")
    if not before.hits:
        return Moved("sharing", "no prefix ids", "no prefix ids", 0.0, HIT_LIMIT, "share")
    old, new = ({h.rows: h.ratio for h in s.hits} for s in (before, now))
    common = old.keys() & new.keys()
    if not common:
        seen = (f"{before.rows} rows", f"{now.rows} rows: too few")
        return Moved("sharing", *seen, None, HIT_LIMIT, "share")
    at = max(common)
    words = tuple(f"{100 * s[at]:.1f} % of prompt tokens after {at} rows" for s in (old, new))
    limit = max(HIT_LIMIT, _CHANCE * 0.5 * math.sqrt(2 / at))  # were each row to hit in full or not at all
    return Moved("sharing", words[0], words[1], abs(old[at] - new[at]), limit, "share")


def _grain(shape: WorkloadShape) -> str:
    return f"{shape.tokens_per_id} tokens an id" if shape.tokens_per_id else "no prefix ids"


def _share(name: str, before: WorkloadShape, now: WorkloadShape, limit: float) -> Moved:
    old, new = (float(getattr(s, f"{name}_share")) for s in (before, now))
    error = math.sqrt(sum(p * (1 - p) / s.rows for p, s in ((old, before), (new, now))))
    words = (f"{100 * old:.1f} %", f"{100 * new:.1f} %")
    return Moved(f"{name} share", *words, abs(new - old), max(limit, _CHANCE * error), "share")
