"""When a trial is attempted again, and which attempt counts. Pure.

Infrastructure that lost an attempt gets others. A measured CPU trial whose speed probe is off from the median of
the sweep's so far is measured again: on a shared machine the same work takes 1.2 to 1.5 times as long at times.
"""

from collections.abc import Sequence
from statistics import median

from orchestrator.folder import AttemptRecord

MAX_LOSSES = 3  # attempts that the infrastructure may lose before the trial is given up
MAX_PROBE_REPEATS = 2
PROBE_TOLERANCE = 0.15
_FEWEST_PROBES = 2  # of other trials: before that there is no median to be off from


def off_by(probe_s: float, others_s: Sequence[float]) -> float:
    """Share by which a probe is off from the median of the others; 0 with too few of them."""
    return probe_s / median(others_s) - 1 if len(others_s) >= _FEWEST_PROBES else 0.0


def measure_again(probe_s: float | None, others_s: Sequence[float], measured_before: int) -> bool:
    """Whether this measurement is repeated; `measured_before` = earlier measurements of the same trial."""
    if probe_s is None or measured_before >= MAX_PROBE_REPEATS:
        return False
    return abs(off_by(probe_s, others_s)) > PROBE_TOLERANCE


def deciding(attempts: Sequence[AttemptRecord], others_s: Sequence[float]) -> AttemptRecord | None:
    """Of the attempts that answered, the one on the most usual machine; the last one where probes cannot tell."""
    answered = [a for a in attempts if a.result is not None and a.lost is None]
    if not answered:
        return None
    return min(answered, key=lambda a: (abs(off_by(a.probe_s, others_s)) if a.probe_s else 0.0, -a.number))
