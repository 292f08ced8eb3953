"""The sweep's Optuna study: one journal file, asked and told by the driver alone.

A trial's number is Optuna's number is its folder. A trial that a killed driver left RUNNING is finished under its
own number, so the journal ends with exactly the budget and the controls beside it. Controls outside the space are
trials without parameters, and carry the attribute kvknee.control. Which candidate comes next is the samplers' word
(`samplers`); it is enqueued here, so nothing is drawn in this study itself.
"""

import warnings
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import optuna
from optuna.trial import TrialState

from orchestrator.config import Sweep
from orchestrator.folder import SweepFolder
from orchestrator.history import INSTEAD, REACHED, ROLE, History, attributes
from orchestrator.journal import open_study
from orchestrator.points import Point
from orchestrator.samplers import Search, listed_next, propose
from orchestrator.screened import drop_screen
from search_spaces.neighbours import Key, key_of
from search_spaces.objective import DIRECTIONS, RACED_OUT, Score, values_of
from search_spaces.screen import Screened
from search_spaces.space import Value


@dataclass(frozen=True, slots=True)
class Asked:
    """What the study wants measured next. `note`: what has to be said of it."""

    number: int
    point: Point
    note: str = ""


class SweepStudy:
    """Asks for trials until budget and controls are met, and tells what came of them."""

    def __init__(self, journal: Path, sweep: Sweep, on_disk: Mapping[int, Point] | None = None) -> None:
        """`on_disk`: what the trials in the sweep's folder were asked. Those that the journal lacks are taken in
        under their numbers, as trials that run: what stands of them is told when they are asked for."""
        self._sweep, self._space = sweep, sweep.space
        self._directions = DIRECTIONS.get(sweep.config.objective, ("maximize",))
        self._journal = open_study(journal, sweep.config.name, sweep.space, self._directions)
        self._history = History(sweep.space, {
            name: params for name, spec in sweep.controls
            if (params := sweep.space.params_of(sweep.space.policy_of(spec))) is not None
        })  # fmt: skip
        self._handles: dict[int, optuna.Trial] = {}
        self._folder = SweepFolder(journal.parent)
        self._dropped = "" if sweep.screen is None else sweep.screen.dropped  # why the screen is not followed
        self._searching: Search | None = None
        for trial in self._journal.trials():
            self._history.take(trial)
        self.regained = self._regain(on_disk or {})
        self._open: deque[int] = deque()  # told, and to be taken up again
        standing = self._journal.trials()
        self._again = sum(ROLE in t.user_attrs for t in standing)  # measured again, so far as it is known
        self._waiting = deque(t.number for t in standing if t.state == TrialState.WAITING)
        self._left_running = deque(t.number for t in standing if t.state == TrialState.RUNNING)
        self._enqueue_plan()

    def _regain(self, on_disk: Mapping[int, Point]) -> int:
        """Take in what a journal that was cut, emptied or moved away lacks -> how many trials."""
        ours = {n: p for n, p in on_disk.items() if all(d.holds(v) for d in self._space.dimensions
                if (v := dict(p.params).get(d.field)) is not None)}  # fmt: skip
        first, last = len(self._history), max(ours, default=-1)
        for number in range(first, last + 1):
            point = ours.get(number) or self._between(number, ours)
            self._journal.begin(self._encoded(point), attributes(point))
            self._history.take(self._journal.trial(number))
        return max(0, last + 1 - first)

    def _between(self, number: int, on_disk: Mapping[int, Point]) -> Point:
        """What a trial of which nothing is known was asked, or may be asked in its place."""
        known = {self._history.point(t) for t in self._journal.trials()} | set(on_disk.values())
        if (planned := next((p for p in self._plan() if p not in known), None)) is not None:
            return planned
        repeats = self._sweep.config.repeats
        repeat = len(self._history.searched) % repeats
        for ahead in range(1, repeats - repeat):
            later = on_disk.get(number + ahead)
            if later is not None and later.params and later.repeat == repeat + ahead:
                return Point(later.params, None, repeat)  # another window of the same candidate
        found = self._next()
        return on_disk[min(n for n in on_disk if n > number)] if found is None else found[0]

    def _enqueue_plan(self) -> None:
        """Put in whatever of controls and grid is not yet there; a plan cut short by a kill is completed."""
        self._enqueue_new(self._plan())

    def _plan(self) -> list[Point]:
        """Controls and grid, in the order in which they are asked."""
        planned = list(self._sweep.control_points())
        if self._sweep.config.sampler == "exhaustive" and self._sweep.screen is None:
            # In a race controls come first: what they come to answers the points of the grid that they are.
            grid = list(self._sweep.grid())
            planned = [*planned, *grid] if self._sweep.config.races else [*grid, *planned]
        return planned

    def _enqueue_new(self, points: Sequence[Point]) -> bool:
        """Those of which no trial stands there yet; False where all do."""
        known = {self._history.point(t) for t in self._journal.trials()} if points else set()
        new = [point for point in points if point not in known]
        for point in new:
            self._waiting.append(len(self._history))
            self._journal.enqueue(self._encoded(point), attributes(point))
            self._history.take(self._journal.trial(self._waiting[-1]))
        return bool(new)

    def _encoded(self, point: Point) -> dict[str, Value]:
        return self._space.encode(dict(point.params)) if point.params else {}

    def ask(self) -> Asked | None:
        """The next trial to run, or None when budget and controls are all asked for."""
        if self._open:
            number = self._open.popleft()
            return Asked(number, self._history.point(self._journal.trial(number)))
        if self._left_running:
            number = self._left_running.popleft()
            return self._asked(number, self._journal.reopen(number))
        if self._waiting:
            number = self._waiting.popleft()
            return self._asked(number, self._journal.take(number))
        if (found := self._next()) is None:
            return None
        point, note = found
        return self._asked(len(self._history), self._journal.begin(self._encoded(point), attributes(point, note)))

    def _asked(self, number: int, handle: optuna.Trial) -> Asked:
        self._handles[number], trial = handle, self._journal.trial(number)
        self._history.take(trial)
        return Asked(number, self._history.point(trial), str(trial.user_attrs.get(INSTEAD, "")))

    def add(self, points: Sequence[Point]) -> bool:
        """Enqueue what is to be measured again beside the budget; False where all of it stands there already."""
        before = len(self._history)
        found = self._enqueue_new(points)
        self._again += len(self._history) - before
        return found

    def _next(self) -> tuple[Point, str] | None:
        """One more searched trial, and what has to be said of it; None where the budget allows none."""
        whole = self._sweep.config.sampler == "exhaustive"
        if whole and self._sweep.screen is None:
            return None
        searched = self._history.searched
        repeat = len(searched) % self._sweep.config.repeats
        if repeat and len(searched) < self._limit:
            return Point(tuple(searched[-repeat][1].items()), None, repeat), ""
        if len(searched) >= (self._sweep.config.trials or 0):
            return None  # nothing more may be asked, whatever the screen is worth
        note = self._drop_where_misled()
        if len(searched) >= self._limit:
            return None
        listed = None if self._sweep.screen is None else self._listed({key for key, _ in searched})
        if listed is None and not searched and not whole:
            listed = self._space.params_of(self._space.default)
        if listed is not None:
            return Point(tuple(listed.items()), None, 0), note
        return None if whole else self._proposed(note)

    @property
    def _limit(self) -> int:
        """Searched trials at most: what a screen lists of a grid, and all that was asked for once it is dropped."""
        return self._sweep.config.trials or 0 if self._dropped else self._sweep.budget

    def _drop_where_misled(self) -> str:
        """Drop the screen where what was measured contradicts it -> what has to be said of it."""
        screen = self._sweep.screen
        if screen is None or self._dropped:
            return ""
        self._dropped = screen.misled(self._answered(), self._sweep.config.min_gain)
        if not self._dropped:
            return ""
        drop_screen(self._folder, self._dropped)
        return f"the screen is dropped: {self._dropped}"

    def _listed(self, asked: Collection[Key]) -> dict[str, Value] | None:
        """The next candidate that the screen lists; of a grid whose screen is dropped, the next of all others."""
        if self._sweep.screen is None:
            return None
        if not self._dropped:
            return listed_next(self._search(), self._history.past(), asked, len(self._history))
        whole = self._sweep.config.sampler == "exhaustive"
        left = self._sweep.space.candidates() if whole else iter(())
        return next((params for params in left if key_of(params) not in asked), None)

    def _search(self) -> Search:
        """With the screen for as long as it is followed."""
        screen, config = None if self._dropped else self._sweep.screen, self._sweep.config
        if self._searching is None or self._searching.screen is not screen:
            self._searching = Search(config.sampler, self._sweep.space, self._directions, config.seed, screen)
        return self._searching

    def _answered(self) -> dict[Key, Screened]:
        """What was measured of each candidate, as a screen is held against it: what lost a race is only bounded."""
        return {
            key_of(p.params): Screened(p.params, p.values[0], max([0.0, *p.constraints.values()]))
            for p in self._history.past() if p.values is not None and RACED_OUT not in p.constraints
        }  # fmt: skip

    def _proposed(self, note: str) -> tuple[Point, str]:
        space = self._space
        found = propose(self._search(), self._history.past(), len(self._history))
        if found.instead_of is not None:
            known = space.label(space.policy_of(space.suggest(found.instead_of)))
            moved = f"{known} was proposed and is known; the nearest new candidate instead"
            note = f"{note}; {moved}" if note else moved
        return Point(tuple(found.params.items()), None, 0), note

    def tell(self, number: int, score: Score) -> None:
        """Values and constraints of a finished trial; without a value it is a FAIL. A second telling is void.

        One that lost a race is told its bound as an infeasible value; one that was never run is PRUNED.
        """
        trial = self._handles.pop(number, None)
        if trial is None:
            return
        values = values_of(score, self._sweep.config.objective)
        if values is None or not score.run:
            self._journal.tell(trial, None, TrialState.FAIL if score.run else TrialState.PRUNED)
        else:
            said = self._journal.trial(number).constraints  # by a driver that was killed before it told the values
            for name, bound in score.constraints:
                if name not in said:
                    trial.set_constraint(name, bound)
            if score.reached is not None:
                trial.set_user_attr(REACHED, astuple(score.reached))
            self._journal.tell(trial, values)
        self._history.take(self._journal.trial(number))

    def take_up(self, number: int) -> None:
        """Ask for a trial once more that was told: the folder lost what came of it. What the journal says stays."""
        self._open.append(number)

    def finished(self) -> set[int]:
        """Numbers that the journal has as told."""
        return {t.number for t in self._journal.trials() if t.state.is_finished()}

    def planned(self) -> int:
        """How many trials there will be: budget, controls, and what is measured again as far as it is known."""
        return self._limit + len(list(self._sweep.control_points())) + self._again

    def name_winner(self, label: str | None, number: int | None) -> None:
        """The sweep's choice beside Optuna's own best_trial, which knows no repeats and no ties."""
        self._journal.say("kvknee.winner", label)
        self._journal.say("kvknee.winner_trial", number)


# Optuna announces that set_constraint and journals are new; the versions that are pinned have them.
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
