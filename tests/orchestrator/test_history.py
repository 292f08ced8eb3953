"""Laws of what a study remembers of its trials: kept trial by trial, it is what all of them together say."""

import pytest
from fake_rooms import make_sweep
from optuna.storages import JournalStorage

from orchestrator.history import History
from orchestrator.study import SweepStudy
from search_spaces.idle import Reached
from search_spaces.objective import Score

WIDE = "{policy.block_size: {powers_of_two: [1, 256]}, policy.watermark: {range: [0, 0.2]}}"
SEARCH = (
    "sampler=tpe",
    "trials=24",
    "repeats=2",
    "controls=[vendor_default, contiguous]",
    f"space={{vary: {WIDE}}}",
)


def score(number: int) -> Score:
    """Every fifth gave no answer; bounds differ between the windows of a candidate."""
    value = None if number % 5 == 4 else float(number * 7 % 11)
    return Score(value, (("ttft", number % 3 - 1.0),), (), reached=Reached(number, number % 2, 0))


def test_what_is_kept_trial_by_trial_is_what_all_trials_together_say(tmp_path):
    sweep = make_sweep(tmp_path, *SEARCH)
    study = SweepStudy(tmp_path / "j", sweep)
    running = []
    while True:
        kept, anew = study._history, History(sweep.space, study._history._controls)
        for trial in study._journal.trials():
            anew.take(trial)
        assert kept.past() == anew.past()
        assert kept.searched == anew.searched
        assert len(kept) == len(anew)
        if (asked := study.ask()) is not None:
            running.append(asked.number)
        if asked is None or len(running) == 3:
            if not running:
                break
            number = running.pop(0)
            study.tell(number, score(number))
    assert len(kept.searched) == 24
    assert len(kept.past()) == 12
    assert max(p.reached.most_running for p in kept.past() if p.reached) > 20


def test_asking_and_telling_look_at_no_trial_but_their_own(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Else the two-thousandth costs more than the hundredth."""
    study = SweepStudy(tmp_path / "j", make_sweep(tmp_path, *SEARCH))
    looked = []
    monkeypatch.setattr(JournalStorage, "get_all_trials", lambda *_, **__: looked.append(1) or [])
    for _ in range(20):
        asked = study.ask()
        study.tell(asked.number, score(asked.number))
    assert not looked


def test_a_trial_that_a_sampler_proposed_begins_in_one_line(tmp_path):
    """So that a killed driver leaves all of it or nothing."""
    journal = tmp_path / "j"
    study = SweepStudy(journal, make_sweep(tmp_path, *SEARCH[:3], "controls=[]", SEARCH[4]))
    before = len(journal.read_text().splitlines())
    asked = study.ask()
    assert asked.point.params
    assert len(journal.read_text().splitlines()) == before + 1
    assert SweepStudy(journal, study._sweep).ask() == asked
