"""`kvknee report DIR --rebuild-tracking`: the MLflow store of a sweep made anew from its result files.

A store inside the sweep's folder is moved aside, never deleted. Elsewhere, runs that are missing are made, and
those that stand there are sent once more; runs of other sweeps are not touched.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.conclude import Conclusion
from orchestrator.config import Sweep
from orchestrator.folder import SweepFolder, TrialRecord
from orchestrator.remembered import attempt_entry, begun_entry, ended_entry, facts_of
from orchestrator.spool import Spool
from orchestrator.tracking import MlflowTracker
from orchestrator.tracking_uri import revealed
from trials.units import SpecError

_PATIENCE_S = 3600.0
_OWN = ("mlflow.db", "mlflow.db-wal", "mlflow.db-shm", "mlflow.db-journal", "artifacts")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was sent, what could not be, and where the old store lies, if there was one."""

    runs: int  # or entries that waited
    unsent: int
    trouble: str
    aside: Path | None


def rebuild_tracking(folder: SweepFolder, sweep: Sweep, found: Conclusion) -> Rebuilt:
    """Send everything that stands in the folder to a store. The caller holds the folder. SpecError: no store."""
    if sweep.config.tracking is None:
        raise SpecError(f"{folder.path}: this sweep has tracking: null; there is no store to rebuild")
    asked = sweep.config.tracking.uri
    uri = None if asked is None else revealed(asked)
    aside = _move_aside(folder.path) if uri is None else None
    tracker = MlflowTracker(folder.path, experiment=sweep.config.name, uri=uri, again=True)
    tracker.record(begun_entry(folder, sweep))
    records, facts = folder.load_trials(), facts_of(sweep)
    runs = 0
    for record in records:
        for attempt in record.attempts:
            if attempt.result is not None or attempt.lost is not None:
                tracker.record(attempt_entry(record.card, attempt, facts))
                runs += 1
    ended = ended_entry(folder, sweep, found.outcome, found.recipe)
    tracker.record(ended if _whole(records) else replace(begun_entry(folder, sweep), status="KILLED"))
    unsent = tracker.close(_PATIENCE_S)
    return Rebuilt(runs, unsent, tracker.trouble if unsent else "", aside)


def _whole(records: list[TrialRecord]) -> bool:
    """Whether the sweep came to its end: one that was stopped leaves trials that run."""
    return bool(records) and all(record.state != "running" for record in records)


def send_waiting(folder: SweepFolder, sweep: Sweep) -> Rebuilt | None:
    """Send what an unreachable server missed; None where nothing waits. The caller holds the folder."""
    if sweep.config.tracking is None or not (folder.path / "spool").is_dir():
        return None
    spool = Spool(folder.path / "spool")
    waiting = len(spool.unsent)
    spool.close()
    if not waiting:
        return None
    asked = sweep.config.tracking.uri
    tracker = MlflowTracker(
        folder.path, experiment=sweep.config.name, uri=None if asked is None else revealed(asked)
    )
    unsent = tracker.close(_PATIENCE_S)
    return Rebuilt(waiting, unsent, tracker.trouble if unsent else "", None)


def _move_aside(path: Path) -> Path | None:
    """Whatever of a store lies in the folder, into mlflow-before-N."""
    standing = [path / name for name in _OWN if (path / name).exists()]
    if not standing:
        return None
    number = 1
    while (aside := path / f"mlflow-before-{number}").exists():
        number += 1
    aside.mkdir()
    for one in standing:
        one.rename(aside / one.name)
    return aside
