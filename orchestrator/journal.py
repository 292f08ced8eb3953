"""The study's file: opened, or made anew where the space has become wider than what Optuna lets one study hold.

Optuna wants one set of choices for a category all through a study, and knows no parameter that joined later. So the
trials of a narrower space are written over, under their own numbers and as candidates of the wider one, into a new
file that takes the old one's place at once.
"""

import json
import os
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from search_spaces.space import Space
from trials.units import SpecError


class _Journal(JournalFileBackend):  # type: ignore[misc]
    """Waits for the disk when a trial is told, and not at each of the seven other lines of a trial.

    A killed driver loses none of them. A power cut may lose lines after the last trial that was told: what they
    asked for is then asked anew, under the same numbers, and its answers are found in the trials' folders.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if any(log.get("state") in _OVER for log in logs):
            super().append_logs(logs)
            return
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._lock.acquire()
        try:
            with open(self._file_path, "ab") as file:
                file.write(lines.encode())
        finally:
            self._lock.release()


_OVER = {int(state) for state in TrialState if state.is_finished()}
FIXED = "fixed_params"  # where Optuna keeps what an enqueued trial is to have


def open_study(journal: Path, name: str, space: Space, directions: tuple[str, ...]) -> Any:
    """The study in this file, of this space. Only the one driver of a folder opens it. SpecError: it is damaged."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _cut_torn(journal)
    study = _opened(journal, name, directions)
    old = study.get_trials(deepcopy=False)
    if not any(_narrower(trial, space) for trial in old):
        return study
    beside = journal.with_name(f"{journal.name}.wider")
    beside.unlink(missing_ok=True)
    renewed = _opened(beside, name, directions)
    renewed.add_trials([_moved(trial, space) for trial in old])
    for key, value in study.user_attrs.items():
        renewed.set_user_attr(key, value)
    os.replace(beside, journal)
    return _opened(journal, name, directions)


def _cut_torn(journal: Path) -> None:
    """Take away what a driver that was killed, or a full disk, left of a last line: the next would stand behind it.

    What the line said is asked anew, and the answer found in the trial's folder.
    """
    if not journal.is_file():
        return
    good = 0
    with journal.open("rb+") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n") and _is_entry(line):
                good += len(line)
                continue
            if file.read(1):
                raise _damaged(journal, f"line {number}")
            file.truncate(good)


def _is_entry(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _damaged(journal: Path, where: str) -> SpecError:
    return SpecError(
        f"{journal}: {where} is damaged; move the file away, and `kvknee resume {journal.parent}` makes it anew "
        "from the results on disk"
    )


def _opened(journal: Path, name: str, directions: tuple[str, ...]) -> Any:
    try:
        storage = JournalStorage(_Journal(str(journal)))
    except (LookupError, TypeError, ValueError, AssertionError):  # lines that are whole, and do not fit together
        raise _damaged(journal, "what it says") from None
    return optuna.create_study(storage=storage, study_name=name, directions=list(directions), load_if_exists=True)


def held_by(trial: FrozenTrial) -> dict[str, Any]:
    """Optuna's parameters of a trial: those that it has, or is to have. Empty for a control."""
    return {**trial.system_attrs.get(FIXED, {}), **trial.params}


def _narrower(trial: FrozenTrial, space: Space) -> bool:
    held, wanted = held_by(trial), space.distributions()
    if not held:
        return False
    return held.keys() != wanted.keys() or any(
        isinstance(d, CategoricalDistribution) and trial.distributions.get(name, d) != d
        for name, d in wanted.items()
    )


def _moved(trial: FrozenTrial, space: Space) -> FrozenTrial:
    held = held_by(trial)
    if not held:
        return trial
    wanted = space.encode(space.decode(held))
    started = trial.state != TrialState.WAITING
    attrs = {key: value for key, value in trial.system_attrs.items() if key != FIXED}
    return FrozenTrial(
        number=trial.number, state=trial.state, value=None, values=trial.values,
        datetime_start=trial.datetime_start, datetime_complete=trial.datetime_complete,
        params=wanted if started else {}, distributions=space.distributions() if started else {},
        user_attrs=trial.user_attrs, system_attrs={**attrs, FIXED: wanted},
        intermediate_values=trial.intermediate_values, trial_id=-1,
    )  # fmt: skip
