"""Laws of a folder that lost a part: of journal, cards and specs, what can be made anew of the others is.

No trial that has an answer runs again, budgets are exact, and nothing of it is silent.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_rooms import Ran, by_block_size, drive, drive_and_die, make_sweep
from test_beside import SURVIVAL
from test_racing import PEAK, RACE, capacity_of
from test_sweep import CONTROLS, TPE, check_exact, journal

from orchestrator.conclude import outcome_of
from orchestrator.folder import SweepFolder, TrialCard

SWEEPS = {
    "grid": ([*CONTROLS], by_block_size),
    "tpe": ([*TPE[:2], "trials=24", TPE[3]], by_block_size),
    "race": ([*RACE[:3], "controls=[vendor_default]"], capacity_of(PEAK)),
    "beside": ([*SURVIVAL], by_block_size),
}


def _removed(path: Path) -> None:
    path.unlink()


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _third(path: Path) -> None:
    """Cut at the end of a line."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 3]))


def _most(path: Path) -> None:
    """Cut within a line."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])


def said(ran: Ran) -> list[object]:
    """All that the journal says of each trial, and all that its card says."""
    trials = [
        (t.number, t.state.name, t.values, t.constraints, t.params, t.user_attrs) for t in journal(ran.folder)
    ]
    return [trials, [r.card for r in ran.records]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Ran, object]]:
    """The sweep of a kind, driven to its end with two slots, and its configuration."""
    kept: dict[str, tuple[Ran, object]] = {}

    def of(kind: str) -> tuple[Ran, object]:
        if kind not in kept:
            folder = tmp_path_factory.mktemp(kind)
            sweep = make_sweep(folder, *SWEEPS[kind][0])
            kept[kind] = drive(folder / "out", sweep, num_slots=2, answer=SWEEPS[kind][1]), sweep
        return kept[kind]

    return of


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [*((kind, spoil) for kind in SWEEPS for spoil in (_removed, _third)), ("grid", _emptied), ("tpe", _most)],
)
def test_a_journal_that_was_lost_is_filled_from_the_trials_on_disk(kind, spoil, whole, tmp_path):
    """What went wrong: resume asked anew, with two slots for other candidates, and ran them in the same folders."""
    ran, sweep = whole(kind)
    shutil.copytree(ran.folder.path, tmp_path / "out")
    spoil(tmp_path / "out" / "study.journal")
    again = drive(tmp_path / "out", sweep, num_slots=2, answer=SWEEPS[kind][1])
    assert again.executor.ran == []
    assert said(again) == said(ran)
    assert any("study.journal lacked" in text or "is told" in text for text in again.viewer.said)


@pytest.mark.parametrize("kind", ["grid", "tpe", "race"])
@pytest.mark.parametrize("after", [23, 48])
def test_a_sweep_that_was_killed_and_lost_its_journal_goes_on_with_what_it_has(kind, after, tmp_path):
    sweep, answer = make_sweep(tmp_path, *SWEEPS[kind][0]), SWEEPS[kind][1]
    assert not drive_and_die(tmp_path / "out", sweep, after, num_slots=2, answer=answer)
    folder = SweepFolder(tmp_path / "out")
    answered = {r.number for r in folder.load_trials() if any(a.result for a in r.attempts)}
    folder.journal.unlink()
    again = drive(folder.path, sweep, num_slots=2, answer=answer)
    assert not answered & {job.number for job in again.executor.ran}
    if kind != "race":  # whose trials beside it are a part of its plan
        check_exact(again, sweep)


def test_the_journal_of_trials_of_an_older_build_is_filled_too(whole, tmp_path):
    ran, sweep = whole("grid")
    shutil.copytree(ran.folder.path, tmp_path / "out")
    (tmp_path / "out" / "study.journal").unlink()
    again = drive(tmp_path / "out", sweep, build="b2")
    assert again.executor.ran == []
    assert said(again) == said(ran)


def test_a_wider_space_takes_in_what_a_narrower_one_measured(whole, tmp_path):
    ran, _ = whole("grid")
    shutil.copytree(ran.folder.path, tmp_path / "out")
    (tmp_path / "out" / "study.journal").unlink()
    wider = make_sweep(tmp_path, *CONTROLS, "space={vary: {policy.block_size: {powers_of_two: [8, 64]}}}")
    again = drive(tmp_path / "out", wider)
    assert {job.spec.policy.block_size for job in again.executor.ran} == {64}
    check_exact(again, wider)


def test_a_number_of_which_neither_journal_nor_card_knows_is_asked_again(whole, tmp_path):
    ran, sweep = whole("tpe")
    shutil.copytree(ran.folder.path, tmp_path / "out")
    (tmp_path / "out" / "study.journal").unlink()
    candidate = next(r for r in ran.records if not r.control and r.repeat == 0)
    for number in (0, candidate.number):
        shutil.rmtree(SweepFolder(tmp_path / "out").trial(number))
    again = drive(tmp_path / "out", sweep, num_slots=2)
    assert {job.number for job in again.executor.ran} <= {0, candidate.number}
    check_exact(again, sweep)
    assert [r.card.point for r in again.records] == [r.card.point for r in ran.records]


def _bare(card: TrialCard) -> TrialCard:
    """Without its notes; and of one that was never run, without what a race knew when it would have been asked."""
    hints = {} if card.decides is not None else {"spec": None, "spec_hash": ""}
    return card.model_copy(update={"notes": (), **hints})


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("kind", "spoil"), [*((kind, _removed) for kind in SWEEPS), ("grid", _emptied), ("grid", _garbage)]
)
def test_a_card_that_was_lost_is_made_anew_and_said(kind, spoil, whole, tmp_path):
    """What went wrong: the trial was told, so that nobody asked for it, and the sweep ended one trial short."""
    ran, sweep = whole(kind)
    shutil.copytree(ran.folder.path, tmp_path / "out")
    folder = SweepFolder(tmp_path / "out")
    for number in range(len(ran.records)):
        spoil(folder.card(number))
    again = drive(folder.path, sweep, num_slots=2, answer=SWEEPS[kind][1])
    assert again.executor.ran == []
    assert [_bare(r.card) for r in again.records] == [_bare(r.card) for r in ran.records]
    assert said(again)[0] == said(ran)[0]
    assert sum("cannot be read" in text for text in again.viewer.said) == len(ran.records)
    noted = "its trial.json was lost, and made anew of what its attempts left"
    assert any(noted in note for note in outcome_of(again.records, sweep).notes)


def test_the_card_of_a_running_trial_that_a_power_cut_took_costs_no_answer(tmp_path):
    """What went wrong: such cards are not waited for, answers are: the trial ran again beside its answer."""
    sweep = make_sweep(tmp_path, "controls=[]")
    drive_and_die(tmp_path / "out", sweep, 6)
    folder = SweepFolder(tmp_path / "out")
    cut = [r for r in folder.load_trials() if r.state == "running" and any(a.result for a in r.attempts)]
    assert cut, "the driver was to die between an answer and its telling"
    for record in cut:
        _emptied(folder.card(record.number))
        _emptied(record.attempts[0].folder / "spec.json")
    again = drive(folder.path, sweep)
    check_exact(again, sweep)
    assert not {r.number for r in cut} & {job.number for job in again.executor.ran}


def test_a_failure_that_was_not_told_yet_is_not_provoked_again(tmp_path):
    def answer(job):
        return ("segfault", False) if job.number == 1 else by_block_size(job)

    sweep = make_sweep(tmp_path, "controls=[]")
    ran = drive(tmp_path / "out", sweep, answer=answer)
    before = said(ran)
    ran.folder.journal.unlink()
    again = drive(tmp_path / "out", sweep)
    assert again.executor.ran == []
    assert said(again) == before


def test_an_answer_to_another_question_is_not_credited_to_a_trial_that_was_killed(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]")
    drive_and_die(tmp_path / "out", sweep, 6)
    folder = SweepFolder(tmp_path / "out")
    (cut,) = [r for r in folder.load_trials() if r.state == "running" and any(a.result for a in r.attempts)]
    path = cut.attempts[0].folder / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"hashes": result["hashes"] | {"spec": "0" * 64}}))
    again = drive(folder.path, sweep)
    assert "the result's spec hash" in (again.records[cut.number].attempts[0].lost or "")
    assert again.records[cut.number].card.decides == 2


def test_what_a_race_knew_when_it_asked_outlasts_a_power_cut(tmp_path, monkeypatch):
    """What went wrong: it follows from nothing else, so that the answer was to another question than was asked."""
    for room in ("folder", "running"):  # the cut, beforehand: what is not waited for is lost
        monkeypatch.setattr(
            f"orchestrator.{room}.write_soon", lambda path, text: path.parent.mkdir(parents=True, exist_ok=True)
        )
    sweep, answer = make_sweep(tmp_path, *RACE), capacity_of(PEAK)
    assert not drive_and_die(tmp_path / "out", sweep, 39, answer=answer)
    folder = SweepFolder(tmp_path / "out")
    answered = {n for n in range(20) if folder.answered(n)}
    again = drive(folder.path, sweep, answer=answer)
    assert not answered & {job.number for job in again.executor.ran}
