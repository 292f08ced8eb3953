"""A sweep's folder: which file is where, and reading back what stands in it.

Layout: sweep.yaml (resolved) · study.journal · mlflow.db, artifacts/ · summary.csv · knee.json · recipe.yaml ·
report.html · trials/NNNN/trial.json (this driver's card) · trials/NNNN/attempt-K/{spec.json, result.json,
attempt.json, requests.parquet, ledger.parquet, log.txt, lost.json where no result came}.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.points import Beside, Point, Role
from search_spaces.outcome import Outcome
from trials.result import TrialResult, load_result
from trials.spec import TrialSpec
from trials.trace import write_whole
from trials.units import SpecError, folder_words

State = Literal["running", "complete", "refused", "failed", "raced"]  # raced: out of the race, and never run
Param = int | float | str | bool


class TrialCard(BaseModel):
    """trial.json: what the driver knows of a trial. `decides` is the attempt whose result counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    control: str | None = None
    params: dict[str, Param] = {}
    repeat: int = 0
    spec: TrialSpec  # locators absolute
    spec_hash: str
    build: str  # digest of the code that the trial was sent with
    state: State = "running"
    reason: str = ""
    decides: int | None = None
    reused_from: int | None = None  # the trial whose result this is; then it has no attempts of its own
    less_than: float | None = None  # state raced: what its capacity is known to stay under
    role: Role | None = None  # measured again beside the budget: why
    of: int | None = None  # then the trial whose candidate it is
    beat: float | None = None  # role neighbour: the load that it has to hold
    slot: str | None = None  # role slot: where it has to run
    trace_hash: str | None = None  # of a trace that is not the sweep's own
    notes: tuple[str, ...] = ()

    @property
    def point(self) -> Point:
        """What it was asked for."""
        beside = None if self.role is None or self.of is None else Beside(self.role, self.of, self.beat, self.slot)
        return Point(tuple(self.params.items()), self.control, self.repeat, beside)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One execution. `info` is attempt.json (host, wall times, probe_s, engine_start ...), `loss` is lost.json; {}
    where absent."""

    number: int
    folder: Path
    result: TrialResult | None
    info: dict[str, Any]
    loss: dict[str, Any] = field(default_factory=dict)

    @property
    def lost(self) -> str | None:
        """Why no result came, or why it is not credited."""
        return str(self.loss["reason"]) if "reason" in self.loss else None

    @property
    def probe_s(self) -> float | None:
        """Seconds of the speed probe that ran before the trial, where one did."""
        probe = self.info.get("probe_s")
        return float(probe) if isinstance(probe, int | float) and probe > 0 else None


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial as it stands on disk. `result` and `folder` are those of the attempt that decides."""

    card: TrialCard
    attempts: tuple[AttemptRecord, ...]
    result: TrialResult | None = None
    folder: Path | None = None  # the deciding attempt's: requests.parquet, ledger.parquet lie there
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.card.number

    @property
    def slot(self) -> str:
        """Where the attempt that decides ran, as its executor calls it; empty where that was not written down."""
        return str(self.info.get("slot") or "")

    @property
    def control(self) -> str | None:
        return self.card.control

    @property
    def params(self) -> dict[str, Param]:
        return self.card.params

    @property
    def repeat(self) -> int:
        return self.card.repeat

    @property
    def spec(self) -> TrialSpec:
        return self.card.spec

    @property
    def state(self) -> State:
        return self.card.state

    @property
    def over(self) -> bool:
        """Whether its card says what it came to, and the result that it names, if any, can be read."""
        return self.state != "running" and (self.state != "complete" or self.result is not None)


class SweepFolder:
    """Names of the files in a sweep's folder. Makes nothing by itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep_yaml = path / "sweep.yaml"
        self.journal = path / "study.journal"
        self.mlflow_db = path / "mlflow.db"
        self.artifacts = path / "artifacts"
        self.summary_csv = path / "summary.csv"
        self.knee_json = path / "knee.json"
        self.recipe_yaml = path / "recipe.yaml"
        self.report_html = path / "report.html"
        self.trials = path / "trials"

    def trial(self, number: int) -> Path:
        return self.trials / f"{number:04d}"

    def card(self, number: int) -> Path:
        return self.trial(number) / "trial.json"

    def attempt(self, number: int, attempt: int) -> Path:
        return self.trial(number) / f"attempt-{attempt}"

    def attempts(self, number: int) -> list[int]:
        """Attempts that have a folder, ascending; they count from 1."""
        found = (p.name.removeprefix("attempt-") for p in self.trial(number).glob("attempt-*") if p.is_dir())
        return sorted(int(name) for name in found if name.isdigit())

    def answered(self, number: int) -> bool:
        """Whether an attempt left an answer, whatever the trial's card says."""
        return any(read_attempt(self.attempt(number, k), k).result is not None for k in self.attempts(number))

    def require(self) -> None:
        if self.sweep_yaml.is_dir():
            raise SpecError(folder_words(self.sweep_yaml, "the file of the resolved sweep"))
        if not self.sweep_yaml.is_file():
            raise SpecError(f"{self.path}: no sweep.yaml here; this is not the folder of a sweep")

    def load_outcome(self) -> Outcome | None:
        """knee.json, or None before the sweep came to one. SpecError where it is not whole."""
        if not self.knee_json.is_file():
            return None
        try:
            return Outcome.model_validate_json(self.knee_json.read_text(encoding="utf-8"))
        except ValueError:
            raise SpecError(f"{self.knee_json}: damaged; `kvknee report {self.path}` writes it anew") from None

    def load_trials(self) -> list[TrialRecord]:
        """Every trial that has a card, by number; a reused one carries the result that it took over."""
        numbers = sorted(int(p.name) for p in self.trials.glob("[0-9]*") if p.name.isdigit())
        records: dict[int, TrialRecord] = {}
        for number in numbers:
            record = self._read(number)
            if record is not None:
                records[number] = record
        return [self._with_reused(record, records) for record in records.values()]

    def load_trial(self, number: int) -> TrialRecord | None:
        """One trial, a reused one with the result that it took over; None where its card cannot be read."""
        record = self._read(number)
        if record is None or record.card.reused_from is None:
            return record
        source = self._read(record.card.reused_from)
        return self._with_reused(record, {} if source is None else {source.number: source})

    def _read(self, number: int) -> TrialRecord | None:
        try:
            card = TrialCard.model_validate_json(self.card(number).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there, not whole, or not even text
            return None
        attempts = tuple(read_attempt(self.attempt(number, k), k) for k in self.attempts(number))
        chosen = next((a for a in attempts if a.number == card.decides), None)
        if chosen is None:
            return TrialRecord(card, attempts)
        return TrialRecord(card, attempts, chosen.result, chosen.folder, chosen.info)

    def save_card(self, card: TrialCard) -> None:
        """The disk is waited for when the trial is over: the card of one that runs is written with each attempt,
        and what it was asked follows from the journal. Not so what a race knew when it asked."""
        ladder = card.spec.measure.ladder
        follows = ladder is None or ladder == ladder.unraced
        write = write_soon if card.state == "running" and follows else write_text
        write(self.card(card.number), card.model_dump_json(indent=1) + "\n")

    def _with_reused(self, record: TrialRecord, records: dict[int, TrialRecord]) -> TrialRecord:
        source = records.get(record.card.reused_from) if record.card.reused_from is not None else None
        if source is None:
            return record
        return TrialRecord(record.card, (), source.result, source.folder, source.info)


def read_attempt(folder: Path, number: int) -> AttemptRecord:
    """What an attempt left; a result that is not whole counts as none."""
    try:
        result: TrialResult | None = load_result(folder / "result.json")
    except (OSError, ValueError):
        result = None
    info, loss = read_json(folder / "attempt.json"), read_json(folder / "lost.json")
    return AttemptRecord(number, folder, result, info, loss)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or {} where the file is absent or broken."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write_text(path: Path, text: str) -> None:
    """Whole or not at all, and on the disk itself."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_soon(path: Path, text: str) -> None:
    """Whole or not at all, also where the driver is killed; a power cut may leave it empty, or its forerunner."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), durable=False)
