"""The sweep's loop: ask, run, write, remember, tell; until the budget and the controls are met.

Order of truth: the result file, then the tracker's spool, then Optuna's journal. A driver killed between any two
of them finds on resume what stands on disk, and tells it without running it again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.attempts import MAX_LOSSES, deciding, measure_again, off_by
from orchestrator.conclude import judged
from orchestrator.config import Sweep
from orchestrator.executors import Done, Executor, Job, Lost, Progress
from orchestrator.folder import State, SweepFolder, TrialCard, TrialRecord, read_attempt, write_text
from orchestrator.progress import Tally, Viewer
from orchestrator.remembered import attempt_entry, facts_of
from orchestrator.study import Asked, SweepStudy
from orchestrator.tracking import Tracker
from trials.fingerprint import canonical_json
from trials.result import TrialResult
from trials.slo import parse_slo
from trials.spec import TrialSpec
from trials.units import SpecError

_WAIT_S = 0.5


@dataclass(slots=True)
class Active:
    """A trial of which an attempt runs."""

    card: TrialCard
    job: Job
    losses: int = 0
    says: str = ""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the driver works with. `build` names the code that trials are sent with; `now_s` is the wall clock."""

    folder: SweepFolder
    executor: Executor
    tracker: Tracker
    viewer: Viewer
    build: str
    now_s: Callable[[], float] = time.time


class Driver:
    """Runs one sweep in one folder. `run` may be called once."""

    def __init__(self, sweep: Sweep, rooms: Rooms) -> None:
        self._sweep, self._rooms = sweep, rooms
        self._slo = parse_slo(sweep.config.slo)
        self._study = SweepStudy(rooms.folder.journal, sweep)
        self._active: dict[int, Active] = {}
        self._twins: dict[str, list[TrialCard]] = {}  # spec hash -> trials that wait for one that runs
        self._known: dict[str, TrialRecord] = {}  # spec hash -> finished trial of this build
        self._probes: dict[int, list[float]] = {}  # trial -> its probes, seconds
        self._engine_hash = "unknown"  # until a first result names it
        self._tally = Tally()
        self._exhausted = False
        self._facts = facts_of(sweep)
        self._take_in(rooms.folder.load_trials())

    def _take_in(self, records: list[TrialRecord]) -> None:
        """Remember what an earlier driver of this folder finished."""
        told = self._study.finished()
        for record in records:
            self._probes[record.number] = [a.probe_s for a in record.attempts if a.probe_s]
            if record.number in told:
                self._count(record)

    def run(self) -> None:
        """Until nothing is left to ask for. KeyboardInterrupt: what runs is ended in order, nothing is lost."""
        try:
            while True:
                self._fill()
                self._show()
                if not self._active:
                    return
                for event in self._rooms.executor.wait(_WAIT_S):
                    self._handle(event)
        except BaseException:
            self._stop()
            raise

    @property
    def at_once(self) -> int:
        return 1 if self._sweep.measured else self._rooms.executor.slots

    def _fill(self) -> None:
        while len(self._active) < self.at_once and not self._exhausted:
            asked = self._study.ask()
            if asked is None:
                self._exhausted = True
                return
            self._begin(asked)

    def _begin(self, asked: Asked) -> None:
        try:
            spec = self._sweep.spec(asked.point)
        except SpecError as error:
            self._impossible(asked, str(error))
            return
        card = self._card(asked, spec)
        if self._stands(card):
            self._rooms.viewer.say(f"trial {asked.number}: its result stands on disk and is told")
            self._settle(card)
        else:
            self._place(card)

    def _stands(self, card: TrialCard) -> bool:
        """Whether an earlier driver got an answer to this very trial and was killed before it could tell.

        Its attempts are remembered anew: entries are known by trial and attempt, so none stands twice.
        """
        standing = self._rooms.folder.load_trial(card.number)
        if standing is None:
            return False
        same = (standing.card.spec_hash, standing.card.build) == (card.spec_hash, card.build)
        for attempt in standing.attempts:
            job = Job(card.number, attempt.number, standing.spec, attempt.folder)
            if attempt.result is None and attempt.lost is None:
                self._write_loss(job, "the driver ended while it ran", True, "")
            self._remember(standing.card, job)
        return same and deciding(standing.attempts, ()) is not None

    def _place(self, card: TrialCard) -> None:
        """Reuse what is known of this spec, wait for its twin that runs, or run it."""
        if card.spec_hash in self._known:
            self._reuse(card)
        elif any(a.card.spec_hash == card.spec_hash for a in self._active.values()):
            self._rooms.folder.save_card(card)
            self._twins.setdefault(card.spec_hash, []).append(card)
        else:
            self._submit(card, losses=0)

    def _card(self, asked: Asked, spec: TrialSpec) -> TrialCard:
        return TrialCard(
            number=asked.number, control=asked.point.control, params=dict(asked.point.params),
            repeat=asked.point.repeat, spec=spec, spec_hash=self._sweep.hash(spec), build=self._rooms.build,
        )  # fmt: skip

    def _impossible(self, asked: Asked, why: str) -> None:
        """A combination that the spec itself refuses: an answer, told as refused."""
        base = self._sweep.space.base
        card = self._card(asked, base).model_copy(update={"state": "failed", "reason": f"not a valid spec: {why}"})
        self._finish(card.model_copy(update={"spec_hash": ""}))

    def _submit(self, card: TrialCard, losses: int) -> None:
        folder = self._rooms.folder
        attempt = max(folder.attempts(card.number), default=0) + 1
        path = folder.attempt(card.number, attempt)
        folder.save_card(card)
        write_text(path / "spec.json", canonical_json(card.spec.model_dump(mode="json")) + "\n")
        where = self._sweep.config.executor
        job = Job(card.number, attempt, card.spec, path, where.start_deadline_s, where.run_deadline_s)
        self._active[card.number] = Active(card, job, losses)
        self._rooms.executor.submit(job)

    def _handle(self, event: Done | Lost | Progress) -> None:
        active = self._active.get(event.job.number)
        if active is None or active.job.attempt != event.job.attempt:
            return  # an attempt that was given up
        if isinstance(event, Progress):
            active.says = event.text
            return
        del self._active[event.job.number]
        self._tally.walls_s.append(event.wall_s)
        if isinstance(event, Lost):
            self._lost(active, event)
        else:
            self._done(active, event)

    def _lost(self, active: Active, event: Lost) -> None:
        self._write_loss(active.job, event.reason, event.infrastructure, event.slot)
        self._remember(active.card, active.job)
        losses = active.losses + 1
        if event.infrastructure and losses < MAX_LOSSES:
            self._rooms.viewer.say(
                f"trial {active.card.number}: attempt lost ({_line(event.reason)}); trying again"
            )
            self._submit(active.card, losses)
            return
        kind = f"lost {losses} times by the infrastructure" if event.infrastructure else "the engine failed"
        self._rooms.viewer.say(f"trial {active.card.number}: {kind}: {_line(event.reason)}")
        failed = active.card.model_copy(update={"state": "failed", "reason": f"{kind}: {event.reason}"})
        self._finish(failed)

    def _write_loss(self, job: Job, reason: str, infrastructure: bool, slot: str) -> None:
        record = {"reason": reason, "infrastructure": infrastructure, "slot": slot, "engine": self._engine_hash}
        write_text(job.folder / "lost.json", canonical_json(record) + "\n")

    def _done(self, active: Active, event: Done) -> None:
        card = active.card
        attempt = read_attempt(event.job.folder, event.job.attempt)
        wrong = self._not_ours(card, attempt.result)
        if wrong:
            self._lost(active, Lost(event.job, wrong, attempt.result is None, event.wall_s, event.slot))
            return
        self._remember(active.card, active.job)
        others = [p for number, probes in self._probes.items() if number != card.number for p in probes]
        before = len(self._probes.setdefault(card.number, []))
        if attempt.probe_s:
            self._probes[card.number].append(attempt.probe_s)
        complete = event.result.status == "complete" and self._sweep.measured
        if complete and measure_again(attempt.probe_s, others, before):
            off = off_by(attempt.probe_s or 0.0, others)
            self._rooms.viewer.say(
                f"trial {card.number}: the machine's speed was off by {off:+.0%}; measured again"
            )
            self._submit(card, active.losses)
            return
        self._settle(card)

    def _not_ours(self, card: TrialCard, result: TrialResult | None) -> str | None:
        """Only what stands on disk counts, and a result of another spec or trace is never credited."""
        if result is None:
            return "the answer's result.json is not there, or not whole"
        for name, asked, got in (
            ("spec", card.spec_hash, result.hashes.spec),
            ("trace", self._sweep.trace_digest, result.hashes.trace),
        ):
            if result.status == "complete" and asked != got:
                return f"the result's {name} hash is {got[:12]}, asked was {asked[:12]}"
        return None

    def _settle(self, card: TrialCard) -> None:
        """Choose the attempt that counts, and finish."""
        others = [p for number, probes in self._probes.items() if number != card.number for p in probes]
        attempts = [
            read_attempt(self._rooms.folder.attempt(card.number, k), k)
            for k in self._rooms.folder.attempts(card.number)
        ]
        chosen = deciding(attempts, others)
        assert chosen is not None
        assert chosen.result is not None
        notes = list(card.notes)
        if self._sweep.measured and chosen.probe_s and measure_again(chosen.probe_s, others, 0):
            notes.append(
                f"trial {card.number}: measured at a speed {off_by(chosen.probe_s, others):+.0%} off the median"
            )
        state: State = chosen.result.status
        self._finish(
            card.model_copy(update={
                "state": state, "reason": chosen.result.reason, "decides": chosen.number, "notes": tuple(notes),
            })
        )  # fmt: skip

    def _reuse(self, card: TrialCard) -> None:
        source = self._known[card.spec_hash]
        self._rooms.viewer.say(f"trial {card.number}: same spec as trial {source.number}; its result is reused")
        self._finish(
            card.model_copy(update={
                "state": source.state, "reason": source.card.reason, "reused_from": source.number,
            })
        )  # fmt: skip

    def _finish(self, card: TrialCard) -> None:
        """Card, then journal; then those that waited for this very spec."""
        self._rooms.folder.save_card(card)
        record = self._rooms.folder.load_trial(card.number)
        assert record is not None
        if card.reused_from is not None:
            source = self._known[card.spec_hash]
            record = TrialRecord(card, (), source.result, source.folder, source.info)
        self._study.tell(card.number, judged(record, self._sweep, self._slo))
        self._count(record)
        for twin in self._twins.pop(card.spec_hash, []):
            self._place(twin)

    def _count(self, record: TrialRecord) -> None:
        card = record.card
        if record.result is not None and card.build == self._rooms.build and card.reused_from is None:
            self._known.setdefault(card.spec_hash, record)
        state = "reused" if card.reused_from is not None else card.state
        value = judged(record, self._sweep, self._slo)
        may_win = value.feasible and self._sweep.space.contains(card.spec.policy)
        self._tally.count(state, self._sweep.space.label(card.spec.policy), value.value if may_win else None)

    def _remember(self, card: TrialCard, job: Job) -> None:
        """One entry an attempt. Told before the journal is, so that a killed driver forgets none."""
        entry = attempt_entry(card, job.folder, job.attempt, self._facts)
        if entry.result is not None:
            self._engine_hash = entry.result.hashes.engine
        self._rooms.tracker.record(entry)

    def _stop(self) -> None:
        """End what runs; its trials stay RUNNING in the journal, and resume goes on with them."""
        for active in self._active.values():
            self._rooms.executor.cancel(active.job)
        self._rooms.executor.close()
        for active in self._active.values():
            if read_attempt(active.job.folder, active.job.attempt).result is None:
                self._write_loss(active.job, "the sweep was stopped", True, "")
                self._remember(active.card, active.job)

    def _show(self) -> None:
        says = {number: active.says for number, active in self._active.items()}
        self._rooms.viewer.show(self._tally.picture(self._study.planned(), says, self.at_once))


def _line(reason: str) -> str:
    return (reason.strip().splitlines() or [""])[0][:200]
