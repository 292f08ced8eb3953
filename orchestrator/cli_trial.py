"""The body of `kvknee trial`: one spec, one clean process, one answer."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from orchestrator.executors import Done, Executor, Job, Lost, Progress
from orchestrator.folder import write_text
from orchestrator.launch import WORKER
from orchestrator.ledger_diff import rows_of
from orchestrator.opening import new_folder
from orchestrator.resolve import load_trial
from orchestrator.tables import print_static, print_trial
from orchestrator.targets import target_folder
from trials.recording import Ints
from trials.result import ReplayResult, TrialResult
from trials.static_batch import LEDGER_COLUMNS, REQUEST_COLUMNS, Compared, compare_static, lifecycle
from trials.units import SpecError, parse_ns

_DAY_S = 86_400.0
# the launcher puts SPEC and OUT last, the worker wants its options behind them
_LOOKING = (
    "import sys; from trials.worker import main; sys.exit(main([*sys.argv[2:], '--ownership-at', sys.argv[1]]))"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a lone trial came to. `result` None: `lost` says why."""

    folder: Path
    result: TrialResult | None
    lost: str = ""
    compare_static: bool = False

    @property
    def exit_code(self) -> int:
        if self.result is None or self.result.status == "failed":
            return 1
        if self.result.status == "refused":
            return 3
        return 5 if any(r.ledger.unbalanced_rows or r.ledger.broken_laws for r in self.result.replays) else 0

    @property
    def static(self) -> tuple[Compared, ...]:
        """The replay that decides beside a packed batch of its final lengths; empty where nothing was served."""
        result = self.result
        if not self.compare_static or result is None or result.decides is None or result.effective is None:
            return ()
        shown = result.replays[result.decides]
        life = lifecycle(
            _columns(self.folder / "requests.parquet", REQUEST_COLUMNS, shown),
            _columns(self.folder / "ledger.parquet", LEDGER_COLUMNS, shown),
        )
        return compare_static(life, result.effective, shown)

    def document(self) -> dict[str, Any]:
        """For --json: the result as written, its folder, and why there is none."""
        result = None if self.result is None else json.loads((self.folder / "result.json").read_text("utf-8"))
        document = {"folder": str(self.folder), "result": result, "exit_code": self.exit_code}
        if self.compare_static:
            document["static"] = [row.model_dump(mode="json") for row in self.static]
        return document | ({"lost": self.lost} if self.lost else {})

    def show(self) -> None:
        if self.result is None:
            print(f"the trial left no result: {self.lost}\nlog: {self.folder / 'log.txt'}", file=sys.stderr)
            return
        print_trial(self.result, str(self.folder))
        if self.compare_static:
            print_static(self.static)


def _columns(path: Path, names: tuple[str, ...], shown: ReplayResult) -> dict[str, Ints]:
    rows = rows_of(pq.read_table(path, columns=["phase", "load", *names]), shown.phase, shown.load)
    return {name: np.asarray(rows[name].to_numpy(), np.int64) for name in names}


@dataclass(frozen=True, slots=True)
class Extras:
    """What a lone trial may be asked beside its spec; neither moves a result."""

    ownership_at: str | None = None  # engine time of a look at who holds which block, as `20s`
    compare_static: bool = False


def run_one(
    path: Path, out: Path | None, sets: tuple[str, ...], goodput: str | None, extras: Extras | None = None
) -> Answer:
    """Read, check, run, wait. SpecError and TraceError where the input cannot be used."""
    from orchestrator.process_slots import ProcessExecutor

    folder = target_folder(out or new_folder("trial"))
    spec = load_trial(path, sets, goodput)
    if (folder / "sweep.yaml").exists():
        raise SpecError(f"{folder}: holds a sweep; name another folder with -o")
    # As asked, by the one who reads the answer: a folder that cannot be written is said before anything starts.
    write_text(folder / "spec.json", spec.model_dump_json() + "\n")
    extras = extras or Extras()
    executor = ProcessExecutor(1, worker=_worker(extras))
    try:
        executor.submit(Job(0, 1, spec, folder, run_deadline_s=_DAY_S))
        return replace(_wait(executor, folder), compare_static=extras.compare_static)
    finally:
        executor.close()


def _worker(extras: Extras) -> tuple[str, ...]:
    if extras.ownership_at is None:
        return WORKER
    at_ns = parse_ns(extras.ownership_at, "--ownership-at")
    if at_ns < 0:
        raise SpecError(f"--ownership-at {extras.ownership_at}: engine time begins at 0s")
    return ("-P", "-c", _LOOKING, str(at_ns))


def _wait(executor: Executor, folder: Path) -> Answer:
    while True:
        for event in executor.wait(0.5):
            match event:
                case Progress():
                    print(event.text, file=sys.stderr, flush=True)
                case Done():
                    return Answer(folder, event.result)
                case Lost():
                    return Answer(folder, None, event.reason)
