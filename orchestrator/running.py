"""Trials of which an attempt runs, and what becomes of it: lost, attempted again, measured again, settled.

Order of truth: the result file, then the tracker's spool. Whatever a killed driver left on disk is taken up here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.attempts import MAX_LOSSES, deciding, measure_again, off_by
from orchestrator.config import Sweep
from orchestrator.executors import Done, Job, Lost, Progress
from orchestrator.folder import (
    AttemptRecord,
    State,
    TrialCard,
    TrialRecord,
    read_attempt,
    read_json,
    write_soon,
    write_text,
)
from orchestrator.remembered import SweepFacts, attempt_entry
from orchestrator.rooms import Rooms
from trials.fingerprint import canonical_json
from trials.result import TrialResult
from trials.spec import TrialSpec


@dataclass(slots=True)
class Active:
    """A trial of which an attempt runs."""

    card: TrialCard
    job: Job
    started_s: float
    lost_on: tuple[str, ...] = ()  # slots that lost an attempt, in order
    says: str = ""


class Running:
    """What runs. Trials come back finished: with the attempt that counts, or with the reason why none does.

    What an attempt left is read once, from the disk: nothing else counts, whatever an executor says of it.
    """

    def __init__(self, sweep: Sweep, rooms: Rooms, facts: SweepFacts) -> None:
        self._sweep, self._rooms, self._facts = sweep, rooms, facts
        self._active: dict[int, Active] = {}
        self._again: list[tuple[TrialCard, tuple[str, ...]]] = []  # to be attempted again, when a slot is free
        self._probes: dict[int, list[float]] = {}  # trial -> its probes, seconds
        self._engine_hash = "unknown"  # until a first result names it
        self.walls_s: list[float] = []  # of every attempt of this driver
        self.fault = ""  # the last one, in a line

    def __len__(self) -> int:
        """Trials under way: those that run, and those that wait for another attempt."""
        return len(self._active) + len(self._again)

    @property
    def says(self) -> dict[int, str]:
        """Trial -> what it last said of itself."""
        return {number: active.says for number, active in self._active.items()}

    @property
    def cards(self) -> list[TrialCard]:
        """Of the trials under way."""
        return [*(active.card for active in self._active.values()), *(card for card, _ in self._again)]

    def held_s(self, now_s: float) -> float:
        """Seconds that attempts of this driver have held a slot until now."""
        return sum(self.walls_s) + sum(now_s - active.started_s for active in self._active.values())

    def take_in(self, record: TrialRecord) -> None:
        """Remember the speed probes of an earlier driver's trial; write anew what a power cut took of its specs."""
        for attempt in record.attempts:
            if attempt.result is not None and not read_json(attempt.folder / "spec.json"):
                self._write_spec(attempt.folder, record.spec)
        self._probed(record.number, [a.probe_s for a in record.attempts if a.probe_s])

    def remember(self, record: TrialRecord) -> None:
        """Tell the tracker once more of a trial that is over: a power cut may have taken what was not sent. Entries
        are known by trial and attempt, so none stands twice."""
        for attempt in record.attempts:
            if attempt.result is not None or attempt.lost is not None:
                self._remember(record.card, attempt)

    def go_on(self, at_once: int) -> None:
        """Start what waits for another attempt, as far as slots are free."""
        while self._again and len(self._active) < at_once:
            self.submit(*self._again.pop(0))

    def submit(self, card: TrialCard, lost_on: tuple[str, ...] = ()) -> None:
        """Start the next attempt of this trial, elsewhere than where others were lost if it can be."""
        folder = self._rooms.folder
        attempt = max(folder.attempts(card.number), default=0) + 1
        path = folder.attempt(card.number, attempt)
        folder.save_card(card)
        self._write_spec(path, card.spec)
        where = self._sweep.config.executor
        deadlines = where.start_deadline_s, where.run_deadline_s
        job = Job(card.number, attempt, card.spec, path, *deadlines, slot=card.slot, avoid=lost_on)
        self._active[card.number] = Active(card, job, self._rooms.now_s(), lost_on)
        self._rooms.executor.submit(job)

    def stood(self, card: TrialCard, standing: TrialRecord) -> TrialRecord | None:
        """The finished trial, where an earlier driver got an answer to this very one and was killed before it could
        tell, or its journal was lost; `standing`: what it left of the trial of this number.

        What it had judged stands, whatever build it was of. Its attempts are remembered anew: entries are known by
        trial and attempt, so none stands twice.
        """
        attempts = tuple(self._closed(standing, attempt) for attempt in standing.attempts)
        if _asks(standing.card) != _asks(card):
            return None
        if standing.over:
            return standing
        if standing.card.build != card.build or deciding(attempts, ()) is None:
            return None
        return self._settled(card, attempts)

    def _closed(self, trial: TrialRecord, attempt: AttemptRecord) -> AttemptRecord:
        """An attempt of an earlier driver, as lost where it left no answer to what was asked; remembered."""
        if attempt.lost is None and not (trial.over and attempt.number == trial.card.decides):
            wrong = self._not_ours(trial.card, attempt.result)
            if wrong is not None:
                job = Job(trial.number, attempt.number, trial.spec, attempt.folder)
                reason = wrong if attempt.result is not None else "the driver ended while it ran"
                self._write_loss(Lost(job, reason, attempt.result is None, 0.0, ""))
                attempt = read_attempt(attempt.folder, attempt.number)
        self._remember(trial.card, attempt)
        return attempt

    def remade(self, card: TrialCard) -> TrialRecord | None:
        """What stands of a trial whose card was lost, and was this one; None where it left nothing.

        Cards of what runs are not waited for: a power cut takes them, and leaves answers that came.
        """
        folder = self._rooms.folder
        attempts = tuple(read_attempt(folder.attempt(card.number, k), k) for k in folder.attempts(card.number))
        if not attempts:
            return None
        specs = [spec for a in reversed(attempts) if (spec := _spec_in(a.folder)) is not None]
        spec = specs[0] if specs else card.spec
        note = f"trial {card.number}: its trial.json was lost, and made anew of what its attempts left"
        card = card.model_copy(update={
            "spec": spec, "spec_hash": self._sweep.hash(spec, card.trace_hash), "notes": (note,),
        })  # fmt: skip
        return TrialRecord(card, attempts)

    def hear(self, event: Done | Lost | Progress) -> TrialRecord | None:
        """What an executor says. The finished trial where that ends one, else None."""
        active = self._active.get(event.job.number)
        if active is None or active.job.attempt != event.job.attempt:
            return None  # an attempt that was given up
        if isinstance(event, Progress):
            active.says = f"{event.slot}: {event.text}"
            return None
        del self._active[event.job.number]
        self.walls_s.append(event.wall_s)
        return self._lost(active, event) if isinstance(event, Lost) else self._done(active, event)

    def _lost(self, active: Active, event: Lost) -> TrialRecord | None:
        self._write_loss(event)
        self._remember(active.card, read_attempt(active.job.folder, active.job.attempt))
        lost_on = (*active.lost_on, event.slot)
        if event.infrastructure and len(lost_on) < MAX_LOSSES:
            self._say(active.card, f"attempt lost ({_line(event.reason)}); trying again")
            self._again.append((active.card, lost_on))
            return None
        state: State = "refused" if event.refused else "failed"
        kind = "the engine had not enough memory" if event.refused else "the engine failed"
        if event.infrastructure:
            kind = f"lost {len(lost_on)} times by the infrastructure"
        self._say(active.card, f"{kind}: {_line(event.reason)}")
        return TrialRecord(active.card.model_copy(update={"state": state, "reason": f"{kind}: {event.reason}"}), ())

    def _say(self, card: TrialCard, text: str) -> None:
        self.fault = f"trial {card.number}: {text}"
        self._rooms.viewer.say(self.fault)

    def _write_spec(self, attempt: Path, spec: TrialSpec) -> None:
        """Not waited for: the card has it too."""
        write_soon(attempt / "spec.json", canonical_json(spec.model_dump(mode="json")) + "\n")

    def _write_loss(self, lost: Lost) -> None:
        record = {
            "reason": lost.reason, "infrastructure": lost.infrastructure, "slot": lost.slot, "wall_s": lost.wall_s,
            "engine": self._engine_hash,
        }  # fmt: skip
        write_text(lost.job.folder / "lost.json", canonical_json(record) + "\n")

    def _done(self, active: Active, event: Done) -> TrialRecord | None:
        card = active.card
        attempt = read_attempt(event.job.folder, event.job.attempt)
        wrong = self._not_ours(card, attempt.result)
        if wrong:
            return self._lost(active, Lost(event.job, wrong, attempt.result is None, event.wall_s, event.slot))
        self._remember(card, attempt)
        others, before = self._others(card), len(self._probes.get(card.number, ()))
        if attempt.probe_s:
            self._probed(card.number, [attempt.probe_s])
        complete = event.result.status == "complete" and self._sweep.measured
        if complete and measure_again(attempt.probe_s, others, before):
            off = off_by(attempt.probe_s or 0.0, others)
            self._say(card, f"the machine's speed was off by {off:+.0%}; measured again")
            self._again.append((card, active.lost_on))
            return None
        return self._settled(card, [*self._earlier(event.job), attempt])

    def _earlier(self, job: Job) -> list[AttemptRecord]:
        folder = self._rooms.folder
        others = (k for k in folder.attempts(job.number) if k != job.attempt)
        return [read_attempt(folder.attempt(job.number, k), k) for k in others]

    def _probed(self, number: int, probes_s: list[float]) -> None:
        if probes_s:
            self._probes.setdefault(number, []).extend(probes_s)

    def _others(self, card: TrialCard) -> list[float]:
        return [p for number, probes in self._probes.items() if number != card.number for p in probes]

    def _not_ours(self, card: TrialCard, result: TrialResult | None) -> str | None:
        """Only what stands on disk counts, and a result of another spec or trace is never credited."""
        if result is None:
            return "the answer's result.json is not there, or not whole"
        for name, asked, got in (
            ("spec", card.spec_hash, result.hashes.spec),
            ("trace", card.trace_hash or self._sweep.trace_digest, result.hashes.trace),
        ):
            if result.status == "complete" and asked != got:
                return f"the result's {name} hash is {got[:12]}, asked was {asked[:12]}"
        return None

    def _settled(self, card: TrialCard, attempts: Sequence[AttemptRecord]) -> TrialRecord:
        """With the attempt that counts; at least one must have answered."""
        others = self._others(card)
        chosen = deciding(attempts, others)
        assert chosen is not None
        assert chosen.result is not None
        notes = list(card.notes)
        if self._sweep.measured and chosen.probe_s and measure_again(chosen.probe_s, others, 0):
            notes.append(
                f"trial {card.number}: measured at a speed {off_by(chosen.probe_s, others):+.0%} off the median"
            )
        state: State = chosen.result.status
        card = card.model_copy(update={
            "state": state, "reason": chosen.result.reason, "decides": chosen.number, "notes": tuple(notes),
        })  # fmt: skip
        return TrialRecord(card, tuple(attempts), chosen.result, chosen.folder, chosen.info)

    def _remember(self, card: TrialCard, attempt: AttemptRecord) -> None:
        """One entry an attempt, of what it left on disk. Told before the journal is, so that none is forgotten."""
        entry = attempt_entry(card, attempt, self._facts)
        if entry.result is not None:
            self._engine_hash = entry.result.hashes.engine
        self._rooms.tracker.record(entry)

    def stop(self) -> None:
        """End what runs; its trials stay RUNNING in the journal, and resume goes on with them."""
        for active in self._active.values():
            self._rooms.executor.cancel(active.job)
        self._rooms.executor.close()
        for active in self._active.values():
            job = active.job
            if read_attempt(job.folder, job.attempt).result is None:
                held_s = self._rooms.now_s() - active.started_s
                self._write_loss(Lost(job, "the sweep was stopped", True, held_s, ""))
                self._remember(active.card, read_attempt(job.folder, job.attempt))


def _asks(card: TrialCard) -> tuple[object, ...]:
    return card.spec_hash, card.control, card.role, card.of, card.beat, card.slot


def _spec_in(attempt: Path) -> TrialSpec | None:
    """What the attempt was asked; None where that cannot be read."""
    try:
        return TrialSpec.model_validate(read_json(attempt / "spec.json"))
    except ValueError:
        return None


def _line(reason: str) -> str:
    return (reason.strip().splitlines() or [""])[0][:200]
