"""The bodies of `run`, `resume`, `status` and `report`."""

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.bounded import bound_first
from orchestrator.cli_errors import Interrupted
from orchestrator.conclude import Conclusion, conclude, judged, outcome_of, publish
from orchestrator.config import Sweep
from orchestrator.damaged import damage, require_grounds
from orchestrator.estimate import estimate
from orchestrator.folder import SweepFolder
from orchestrator.limits import Limits, rules
from orchestrator.live import best_line, open_viewer, states_line
from orchestrator.opening import (
    being_driven,
    build_digest,
    check_tracking,
    open_executor,
    open_tracker,
    prepare_folder,
    sole_driver,
)
from orchestrator.progress import Tally
from orchestrator.remembered import begun_entry, ended_entry
from orchestrator.screened import with_screen
from orchestrator.sweep_file import stored_sweep
from orchestrator.tables import left_out, outcome_lines, plan_lines, print_conclusion
from orchestrator.targets import target_folder
from orchestrator.tracking import Tracker
from search_spaces.verdicts import UNITS
from trials.slo import parse_slo

Say = Callable[[Any], None]
_TRACKER_PATIENCE_S = 120.0
_HURRIED_S = 10.0  # after Ctrl-C; what is unsent stays in the spool and is sent on resume


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options of `run` that stand for keys of the sweep."""

    address: str | None
    trials: int | None
    max_concurrent: int | None

    def sets(self) -> list[str]:
        pairs = {
            "executor.address": self.address,
            "trials": self.trials,
            "executor.slots": self.max_concurrent,
        }
        return [f"{key}={value}" for key, value in pairs.items() if value is not None]


@dataclass(frozen=True, slots=True)
class Status:
    """What `status` says of a sweep's folder."""

    document: dict[str, Any]
    lines: list[str]


def stored(folder: Path) -> Sweep:
    """The sweep of a folder; SpecError where it is none."""
    SweepFolder(folder).require()
    return with_screen(SweepFolder(folder), stored_sweep(SweepFolder(folder).sweep_yaml))


def dry(sweep: Sweep, as_json: bool, say: Say) -> None:
    """What would run."""
    if not as_json:
        print("\n".join(plan_lines(sweep)))
        return
    config = sweep.config.model_dump(mode="json")
    windows = [w.model_dump(mode="json") if w else None for w in sweep.windows]
    candidates = list(sweep.space.candidates()) if sweep.space.enumerable else None
    say({
        "sweep": config, "budget": sweep.budget, "windows": windows, "candidates": candidates,
        "controls": [name for name, _ in sweep.controls], "left_out": left_out(sweep),
        "estimate": asdict(estimate(sweep)), "notes": list(sweep.notes),
    })  # fmt: skip


def run_sweep(path: Path, sweep: Sweep, as_json: bool, say: Say, limits: Limits | None = None) -> int:
    """Drive a sweep to its end in its folder and print what it came to; returns the exit code."""
    path = target_folder(path)
    require_grounds(SweepFolder(path), resumed=True)
    check_tracking(SweepFolder(path), sweep)
    folder = prepare_folder(path, sweep)
    with sole_driver(folder), _stoppable(folder):
        bound_first(folder, sweep)
        sweep = _screened(folder, sweep)
        tracker = open_tracker(folder, sweep)
        tracker.record(begun_entry(folder, sweep))
        try:
            # Libraries that print to stdout must not spoil the one JSON document.
            with redirect_stdout(sys.stderr):
                _drive(folder, sweep, tracker, limits or Limits())
                found = publish(folder, sweep)
        except BaseException as error:
            tracker.record(replace(begun_entry(folder, sweep), status=_ending(error)))
            tracker.close(_HURRIED_S)
            raise
        tracker.record(ended_entry(folder, sweep, found.outcome, found.recipe))
        unsent = _sent(tracker)
    _print(folder, found, unsent, as_json, say)
    return found.exit_code


def _sent(tracker: Tracker) -> int:
    """Wait for what is still to be sent for as long as some of it goes -> entries left."""
    left = tracker.close(_TRACKER_PATIENCE_S)
    while left and (now := tracker.close(_TRACKER_PATIENCE_S)) < left:
        left = now
    return left


def _screened(folder: SweepFolder, sweep: Sweep) -> Sweep:
    if sweep.config.screen is None:
        return sweep
    from orchestrator.screening import screen_first

    return screen_first(folder, sweep)


def _drive(folder: SweepFolder, sweep: Sweep, tracker: Tracker, limits: Limits) -> None:
    from orchestrator.study import SweepStudy
    from orchestrator.sweep import Driver, Rooms

    print(f"sweep {sweep.config.name} in {folder.path}", file=sys.stderr)
    for note in sweep.notes:
        print(f"note: {note}", file=sys.stderr)
    viewer = open_viewer()
    try:
        executor = open_executor(sweep)
        try:
            rooms = Rooms(folder, executor, tracker, viewer, build_digest())
            driver = Driver(sweep, rooms, *rules(limits, sweep, folder))
            gc.freeze()  # what libraries made at import stays: a collector need not walk it again and again
            driver.run()
        finally:
            executor.close()
    finally:
        viewer.close()
    if driver.stopped is not None:
        print(f"ended early: {driver.stopped}; go on with: kvknee resume {folder.path}", file=sys.stderr)
    outcome = conclude(folder, sweep).outcome
    SweepStudy(folder.journal, sweep).name_winner(outcome.winner, outcome.winner_trial)


@contextmanager
def _stoppable(folder: SweepFolder) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop in order; so does a SIGINT sent to a sweep that was started in the background."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; continue with: kvknee resume {folder.path}") from None
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


def _ending(error: BaseException) -> str:
    return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"


def _print(folder: SweepFolder, found: Conclusion, unsent: int, as_json: bool, say: Say) -> None:
    if unsent:
        where = f"they wait in {folder.path}/spool; `kvknee report {folder.path}` sends them"
        print(f"tracking: {unsent} entries could not be sent; {where}", file=sys.stderr)
    if as_json:
        say({
            "folder": str(folder.path), "outcome": found.outcome.model_dump(mode="json"),
            "recipe": str(found.recipe) if found.recipe else None, "report": str(found.report),
            "unbalanced_trials": list(found.unbalanced), "unsent": unsent, "exit_code": found.exit_code,
        })  # fmt: skip
        return
    print_conclusion(found, folder)


def report_on(path: Path, sweep: Sweep, as_json: bool, say: Say, rebuild: bool = False) -> int:
    """Judge the folder anew and write its files; returns the exit code. `rebuild`: the MLflow store too."""
    folder = SweepFolder(target_folder(path))
    require_grounds(folder)
    with redirect_stdout(sys.stderr):
        found = publish(folder, sweep)
        unsent = _tracked(folder, sweep, found, rebuild)
    _print(folder, found, unsent, as_json, say)
    return found.exit_code or (1 if rebuild and unsent else 0)


def _tracked(folder: SweepFolder, sweep: Sweep, found: Conclusion, rebuild: bool) -> int:
    """The store made anew where that was asked, else what waits in the spool sent -> entries left unsent."""
    from orchestrator.rebuild import rebuild_tracking, send_waiting

    if not rebuild and being_driven(folder):
        return 0
    with sole_driver(folder):
        done = rebuild_tracking(folder, sweep, found) if rebuild else send_waiting(folder, sweep)
    if done is None:
        return 0
    what = "runs of trials made anew" if rebuild else "entries that waited sent"
    print(f"tracking: {done.runs} {what}{f'; {done.unsent} not: {done.trouble}' if done.unsent else ''}")
    if done.aside is not None:
        print(f"tracking: the old store lies in {done.aside}; delete it when you do not need it")
    return done.unsent


def status_of(path: Path, sweep: Sweep) -> Status:
    """How far a sweep is, from its folder alone."""
    folder = SweepFolder(path)
    records = folder.load_trials()
    slo = parse_slo(sweep.config.slo)
    driven = being_driven(folder)
    objective = sweep.config.objective
    tally, running = Tally(unit=UNITS.get(objective, objective)), {}
    for record in records:
        if record.state == "running":
            running[record.number] = ""
            continue
        score = judged(record, sweep, slo)
        wins = score.feasible and sweep.space.contains(sweep.space.policy_of(record.spec)) and not record.card.role
        state = "reused" if record.card.reused_from is not None else record.state
        tally.count(state, sweep.space.label(sweep.space.policy_of(record.spec)), score.value if wins else None)
    again = sum(record.card.role is not None for record in records)
    planned = sweep.budget + len(list(sweep.control_points())) + again
    picture = tally.picture(planned, running, 1)
    left = planned - sum(tally.states.values())
    outcome = folder.load_outcome() or (outcome_of(records, sweep) if records and not left else None)
    lines = [states_line(picture), "a driver runs it now" if driven else "no driver runs it"]
    if outcome is None:  # else it says who won: the best of single trials need not
        lines.insert(1, best_line(picture))
    if left and not driven:
        lines.append(f"continue with: kvknee resume {path}")
    if outcome is not None:
        lines += outcome_lines(outcome)
    lines += [f"note: {said}" for said in damage(folder, records) if outcome is None or said not in outcome.notes]
    return Status(
        {
            "folder": str(folder.path.resolve()), "name": sweep.config.name, "planned": planned,
            "states": dict(picture.states), "best": list(picture.best) if picture.best else None,
            "driven": driven, "outcome": outcome.model_dump(mode="json") if outcome else None,
        },
        lines,
    )  # fmt: skip
