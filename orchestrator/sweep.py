"""The sweep's loop: ask, run, write, remember, tell; until the budget and the controls are met.

Order of truth: the result file, then the tracker's spool, then Optuna's journal. A driver killed between any two
of them finds on resume what stands on disk, and tells it without running it again. What becomes of an attempt is
`running`; what needs no run is `known`; what ends the asking early is `stopping`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.beside import spec_again, wanted
from orchestrator.conclude import judged
from orchestrator.config import Sweep
from orchestrator.folder import TrialCard, TrialRecord
from orchestrator.known import Known
from orchestrator.points import OF_THE_SEARCH, Point
from orchestrator.progress import Tally
from orchestrator.racing import Out, Race
from orchestrator.remembered import facts_of
from orchestrator.rooms import Rooms as Rooms
from orchestrator.running import Running
from orchestrator.stopping import Standing, Stop, first_reason
from orchestrator.study import Asked, SweepStudy
from search_spaces.noise import pilot_spread, planned_words
from search_spaces.objective import Score
from search_spaces.verdicts import UNITS
from trials.fingerprint import trace_hash
from trials.slo import parse_slo
from trials.spec import TrialSpec
from trials.trace import load_trace
from trials.units import SpecError

_WAIT_S = 0.5


class Driver:
    """Runs one sweep in one folder. `run` may be called once. `stopped`: why it asked for no more, if it did so
    before the end."""

    def __init__(self, sweep: Sweep, rooms: Rooms, stops: Sequence[Stop] = (), ends: Sequence[Stop] = ()) -> None:
        """`stops`: rules before each ask; `ends`: rules that end what runs, to be gone on with by resume."""
        self._sweep, self._rooms, self._stops, self._ends = sweep, rooms, stops, ends
        self._slo = parse_slo(sweep.config.slo)
        records = rooms.folder.load_trials()
        self._study = SweepStudy(rooms.folder.journal, sweep, {r.number: r.card.point for r in records})
        self._running = Running(sweep, rooms, facts_of(sweep))
        self._known = Known(rooms.build)
        self._questions: dict[int, str] = {}  # of trials that are not over
        self._race = Race(sweep) if sweep.config.races else None
        self._ready: deque[TrialCard] = deque()  # asked for, and waited for what is over now
        objective = sweep.config.objective
        self._tally = Tally(unit=UNITS.get(objective, objective))
        self._pilot: dict[str, dict[int, float]] = {}  # control -> value by window
        self._said: bool | None = None  # what the plan can see: not yet, as assumed (False), as measured
        self.stopped: str | None = None
        self._take_in(records)

    def _take_in(self, records: list[TrialRecord]) -> None:
        """Remember what an earlier driver of this folder finished."""
        if self._study.regained:
            lacked = f"study.journal lacked {self._study.regained} trials that stand on disk"
            self._rooms.viewer.say(f"{lacked}: they are taken in from there")
        told = self._study.finished()
        over = {record.number for record in records if record.state != "running"}
        for number in sorted(told - over):
            self._rooms.viewer.say(
                f"trial {number}: over, but its trial.json cannot be read or is of before; taken up again"
            )
            self._study.take_up(number)
        for record in records:
            self._running.take_in(record)
            if record.number in told & over:
                self._running.remember(record)
                # Not as its card has it: what a hash covers may have been another thing then.
                self._questions[record.number] = self._sweep.question(record.spec)
                self._count(record, judged(record, self._sweep, self._slo))

    def run(self) -> None:
        """Until nothing is left to ask for. KeyboardInterrupt: what runs is ended in order, nothing is lost."""
        self._say_what_is_seen()
        try:
            while True:
                self._fill()
                self._show()
                if not self._running.cards and self.at_once:  # without a slot in service it waits for one
                    return
                if (why := first_reason(self._ends, self._standing())) is not None:
                    self.stopped = why
                    self._running.stop()
                    return
                for event in self._rooms.executor.wait(_WAIT_S):
                    ended = self._running.hear(event)
                    if ended is not None:
                        self._finish(ended)
        except BaseException:
            self._running.stop()
            raise

    @property
    def at_once(self) -> int:
        return 1 if self._sweep.measured else self._rooms.executor.slots

    def _fill(self) -> None:
        self._running.go_on(self.at_once)
        while len(self._running) < self.at_once:
            if self._ready:
                self._place(self._ready.popleft())
            elif self._may_ask() and (asked := self._study.ask()) is not None:
                self._begin(asked)
            elif self.stopped is not None or self._running.cards or not self._study.add(self._again()):
                return

    def _again(self) -> list[Point]:
        """The search is over: what is measured again before its outcome stands."""
        return wanted(self._rooms.folder.load_trials(), self._sweep, self._rooms.executor.slot_names)

    def _may_ask(self) -> bool:
        if self._known.num_waiting >= self.at_once:
            return False  # what they wait for runs; asking further ahead would be asking in ignorance
        self.stopped = first_reason(self._stops, self._standing())
        return self.stopped is None

    def _standing(self) -> Standing:
        now_s, walls_s = self._rooms.now_s(), self._running.walls_s
        mean_s = sum(walls_s) / len(walls_s) if walls_s else None
        finished = sum(self._tally.states.values())
        return Standing(now_s, finished, len(self._running), self._running.held_s(now_s), mean_s)

    def _begin(self, asked: Asked) -> None:
        if asked.note:
            self._rooms.viewer.say(f"trial {asked.number}: {asked.note}")
        try:
            spec = self._spec(asked.point)
        except SpecError as error:
            self._impossible(asked, str(error))
            return
        card = self._card(asked, spec)
        standing = self._rooms.folder.load_trial(asked.number) or self._running.remade(card)
        if standing is not None:
            card = self._as_it_stood(card, standing)
            if (record := self._running.stood(card, standing)) is not None:
                self._rooms.viewer.say(f"trial {asked.number}: its result stands on disk and is told")
                self._finish(record)
                return
        self._place(card)

    def _spec(self, point: Point) -> TrialSpec:
        if point.beside is None:
            return self._sweep.spec(point)
        source = self._rooms.folder.load_trial(point.beside.of)
        if source is None:
            raise SpecError(f"trial {point.beside.of}, which it measures again, cannot be read")
        return spec_again(point, source, self._sweep, self._rooms.folder)

    def _as_it_stood(self, card: TrialCard, standing: TrialRecord) -> TrialCard:
        """With the spec that an earlier driver ran it with, where it did: a race may know other things now."""
        begun = standing.attempts or standing.over
        if not begun or self._sweep.question(standing.spec) != self._question(card):
            return card
        stood = standing.card
        return card.model_copy(update={"spec": stood.spec, "spec_hash": stood.spec_hash, "notes": stood.notes})

    def _question(self, card: TrialCard) -> str:
        """What a trial asks; worked out once, since all that run are held against each that is placed."""
        if (known := self._questions.get(card.number)) is not None:
            return known
        raced = card.spec.measure.ladder is not None or card.trace_hash is not None
        return self._questions.setdefault(
            card.number, self._sweep.question(card.spec) if raced or not card.spec_hash else card.spec_hash
        )

    def _place(self, card: TrialCard) -> None:
        """Wait for what decides it, tell it as out of the race, reuse what is known of its spec, or run it."""
        if (before := self._before(card)) is not None:
            self._rooms.folder.save_card(card)
            self._known.wait(card, before)
            return
        if self._race is not None and card.role is None:
            asked = self._race.asked(card)
            if isinstance(asked, Out):
                self._end(card, state="raced", reason=asked.why, less_than=asked.less_than)
                return
            card = card.model_copy(update={"spec": asked, "spec_hash": self._sweep.hash(asked)})
        # On a slot of its own nothing is known of it.
        source = self._known.answer(self._question(card), card.spec) if card.slot is None else None
        if source is not None:
            self._reuse(card, source)
        elif card.slot is not None and card.slot not in self._rooms.executor.slot_names:
            self._end(card, state="failed", reason=f"slot {card.slot} is gone")
        else:
            self._running.submit(card)

    def _before(self, card: TrialCard) -> int | None:
        """The trial that runs and has to be over first: its twin, the one on its slot, or, in a race, the first
        window of its candidate."""
        asks = self._question(card)
        first = self._race.first_of(card) if self._race is not None and card.role is None else None
        for other in self._running.cards:
            twin = self._question(other) == asks if card.slot is None else other.slot == card.slot
            opens = first is not None and other.repeat == 0 and self._sweep.candidate(other.spec) == first
            if twin or opens:
                return other.number
        return None

    def _card(self, asked: Asked, spec: TrialSpec) -> TrialCard:
        point, beside = asked.point, asked.point.beside
        other = trace_hash(load_trace(Path(spec.trace.path))) if beside and beside.role == "survival" else None
        return TrialCard(
            number=asked.number, control=point.control, params=dict(point.params), repeat=point.repeat, spec=spec,
            spec_hash=self._sweep.hash(spec, other), build=self._rooms.build, trace_hash=other,
            role=beside.role if beside else None, of=beside.of if beside else None,
            beat=beside.beat if beside else None, slot=beside.slot if beside else None,
        )  # fmt: skip

    def _impossible(self, asked: Asked, why: str) -> None:
        """A combination that the spec itself refuses: an answer, told as refused."""
        base, beside = self._sweep.space.base, asked.point.beside
        if beside is not None and (source := self._rooms.folder.load_trial(beside.of)) is not None:
            base = source.spec  # the candidate that cannot be measured again
        self._end(self._card(asked, base), state="failed", reason=f"not a valid spec: {why}", spec_hash="")

    def _reuse(self, card: TrialCard, source: TrialRecord) -> None:
        self._rooms.viewer.say(f"trial {card.number}: same spec as trial {source.number}; its result is reused")
        reused = {"state": source.state, "reason": source.card.reason, "reused_from": source.number}
        self._finish(TrialRecord(card.model_copy(update=reused), (), source.result, source.folder, source.info))

    def _say_what_is_seen(self) -> None:
        """The smallest difference that the plan can see: as assumed; as measured once controls met two windows."""
        config, controls = self._sweep.config, [name for name, _ in self._sweep.controls]
        controls.sort(key=lambda name: name != "vendor_default")  # what the others are held against
        found = pilot_spread([self._pilot[name] for name in controls if name in self._pilot])
        if self._said is None or (self._said is False and found is not None):
            self._rooms.viewer.say(planned_words(config.repeats, config.min_gain, found))
            self._said = found is not None

    def _end(self, card: TrialCard, **known: Any) -> None:
        """Finish a trial that has no result of its own; `known`: what its card says of it."""
        self._finish(TrialRecord(card.model_copy(update=known), ()))

    def _finish(self, record: TrialRecord) -> None:
        """Card, then journal; then those that waited for it."""
        card = record.card
        self._rooms.folder.save_card(card)
        told = value = judged(record, self._sweep, self._slo)
        if card.role is not None:  # never Optuna's best: it is measured elsewhere than the search is
            told = replace(told, constraints=(*told.constraints, ("beside_the_search", 1.0)))
        self._study.tell(card.number, told)
        self._count(record, value)
        self._say_what_is_seen()
        self._ready.extend(self._known.released(card.number))

    def _count(self, record: TrialRecord, value: Score) -> None:
        card = record.card
        self._known.learn(record, self._question(card))
        self._questions.pop(card.number, None)
        state = "reused" if card.reused_from is not None else card.state
        if self._race is not None and card.role in OF_THE_SEARCH:
            self._race.learn(card, value)
        space, policy = self._sweep.space, self._sweep.space.policy_of(card.spec)
        if card.control and value.value is not None:
            self._pilot.setdefault(card.control, {})[card.repeat] = value.value
        may_win = value.feasible and space.contains(policy) and card.role is None
        self._tally.count(state, space.label(policy), value.value if may_win else None)

    def _show(self) -> None:
        self._tally.walls_s, self._tally.fault = self._running.walls_s, self._running.fault
        self._rooms.viewer.show(self._tally.picture(self._study.planned(), self._running.says, self.at_once))
