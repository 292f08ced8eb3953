"""The body of `kvknee trial`: one spec, one clean process, one answer."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import load_trial
from orchestrator.executors import Done, Executor, Job, Lost, Progress
from orchestrator.opening import new_folder
from orchestrator.tables import print_trial
from trials.result import TrialResult
from trials.units import SpecError

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a lone trial came to. `result` None: `lost` says why."""

    folder: Path
    result: TrialResult | None
    lost: str = ""

    @property
    def exit_code(self) -> int:
        if self.result is None or self.result.status == "failed":
            return 1
        if self.result.status == "refused":
            return 3
        return 5 if any(r.ledger.unbalanced_rows for r in self.result.replays) else 0

    def document(self) -> dict[str, Any]:
        """For --json: the result as written, its folder, and why there is none."""
        result = None if self.result is None else json.loads((self.folder / "result.json").read_text("utf-8"))
        document = {"folder": str(self.folder), "result": result, "exit_code": self.exit_code}
        return document | ({"lost": self.lost} if self.lost else {})

    def show(self) -> None:
        if self.result is None:
            print(f"the trial left no result: {self.lost}\nlog: {self.folder / 'log.txt'}", file=sys.stderr)
            return
        print_trial(self.result, str(self.folder))


def run_one(path: Path, out: Path | None, sets: tuple[str, ...], goodput: str | None) -> Answer:
    """Read, check, run, wait. SpecError and TraceError where the input cannot be used."""
    from orchestrator.process_slots import ProcessExecutor

    spec = load_trial(path, sets, goodput)
    folder = (out or new_folder("trial")).resolve()
    if (folder / "sweep.yaml").exists():
        raise SpecError(f"{folder}: holds a sweep; name another folder with -o")
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder}: a file stands there; name a folder with -o")
    executor = ProcessExecutor(1)
    try:
        executor.submit(Job(0, 1, spec, folder, run_deadline_s=_DAY_S))
        return _wait(executor, folder)
    finally:
        executor.close()


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
