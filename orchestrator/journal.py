"""The study's file: opened, or made anew where the space has become wider than what Optuna lets one study hold.

Optuna wants one set of choices for a category all through a study, and knows no parameter that joined later. So the
trials of a narrower space are written over, under their own numbers and as candidates of the wider one, into a new
file that takes the old one's place at once.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from search_spaces.space import Space
from trials.units import SpecError


class _Alone:
    """No lock: the one driver that writes this file holds its whole folder for as long as it runs."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Nothing is held."""


class _File(JournalFileBackend):  # type: ignore[misc]
    """Waits for the disk when a trial is told, and not at each of the other lines of a trial.

    A killed driver loses none of them. A power cut may lose lines after the last trial that was told: what they
    asked for is then asked anew, under the same numbers, and its answers are found in the trials' folders.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Alone())
        self._unread = True

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Nothing is looked for where nothing was written since: nobody else writes here."""
        if self._unread:
            yield from super().read_logs(log_number_from)
            self._unread = False

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._unread = True
        if any(log.get("state") in _OVER for log in logs):
            super().append_logs(logs)
            return
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with open(self._file_path, "ab") as file:
            file.write(lines.encode())


class Journal:
    """A study as its one driver asks and tells it. Trials go by their numbers."""

    def __init__(self, study: optuna.Study, distributions: Mapping[str, BaseDistribution]) -> None:
        self._study, self._distributions = study, dict(distributions)
        self._storage = study._storage

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Those in one of these states, or all, by number."""
        trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False, states=states or None)
        return trials

    def trial(self, number: int) -> FrozenTrial:
        """As it stands now."""
        trial: FrozenTrial = self._storage.get_trial(self._id(number))
        return trial

    def enqueue(self, encoded: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        """Put in a trial that waits; `encoded`: Optuna's parameters, none for what stands beside the space."""
        self._study.enqueue_trial(dict(encoded), user_attrs=dict(attrs))

    def begin(self, encoded: Mapping[str, Any], attrs: Mapping[str, Any]) -> optuna.Trial:
        """Put in a trial that runs, whole, in one line: a killed driver leaves all of it or nothing."""
        whole = create_trial(
            state=TrialState.RUNNING,
            params=dict(encoded),
            distributions={name: self._distributions[name] for name in encoded},
            user_attrs=dict(attrs),
        )
        return optuna.Trial(self._study, self._storage.create_new_trial(self._study._study_id, whole))

    def take(self, number: int) -> optuna.Trial:
        """Begin one that waits."""
        self._storage.set_trial_state_values(self._id(number), TrialState.RUNNING)
        return self.reopen(number)

    def reopen(self, number: int) -> optuna.Trial:
        """One that runs: its parameters, those not yet written included."""
        trial = optuna.Trial(self._study, self._id(number))
        for name in held_by(self.trial(number)):
            _suggest(trial, name, self._distributions[name])
        return trial

    def tell(self, trial: optuna.Trial, values: tuple[float, ...] | None, state: TrialState | None = None) -> None:
        """It is over, with values or in this state. A second telling is void."""
        self._study.tell(trial, values, state=state, skip_if_finished=True)

    def say(self, key: str, value: Any) -> None:
        """An attribute of the whole study."""
        self._study.set_user_attr(key, value)

    def _id(self, number: int) -> int:
        found: int = self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
        return found


def _suggest(trial: optuna.Trial, name: str, d: BaseDistribution) -> None:
    match d:
        case IntDistribution():
            trial.suggest_int(name, d.low, d.high, step=d.step)
        case FloatDistribution():
            trial.suggest_float(name, d.low, d.high, step=d.step)
        case CategoricalDistribution():
            trial.suggest_categorical(name, d.choices)
        case _:
            raise TypeError(f"{name}: {type(d).__name__} is not one of this search's distributions")


_OVER = {int(state) for state in TrialState if state.is_finished()}
FIXED = "fixed_params"  # where Optuna keeps what an enqueued trial is to have


def open_study(journal: Path, name: str, space: Space, directions: tuple[str, ...]) -> Journal:
    """The study in this file, of this space. Only the one driver of a folder opens it. SpecError: it is damaged."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _cut_torn(journal)
    return Journal(_of_space(journal, name, space, directions), space.distributions())


def _of_space(journal: Path, name: str, space: Space, directions: tuple[str, ...]) -> optuna.Study:
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


def _opened(journal: Path, name: str, directions: tuple[str, ...]) -> optuna.Study:
    try:
        storage = JournalStorage(_File(journal))
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
