"""A file of a sweep's folder that is gone or not whole: a verb says which, and what counts without it."""

import shutil
from pathlib import Path

import pytest
from fake_rooms import drive, make_sweep
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.conclude import conclude
from orchestrator.config import Sweep
from orchestrator.damaged import damage, require_grounds
from orchestrator.folder import SweepFolder
from orchestrator.sweep_file import sweep_yaml
from trials.units import SpecError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepFolder, Sweep]:
    folder = tmp_path_factory.mktemp("damaged")
    sweep = make_sweep(folder, "controls=[]")
    ran = drive(folder / "out", sweep)
    ran.folder.sweep_yaml.write_text(sweep_yaml(sweep))
    return ran.folder, sweep


@pytest.fixture
def copied(whole: tuple[SweepFolder, Sweep], tmp_path: Path) -> SweepFolder:
    shutil.copytree(whole[0].path, tmp_path / "out")
    return SweepFolder(tmp_path / "out")


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _other(path: Path) -> None:
    path.write_text("[1, 2]")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CARD, RESULT = "trials/0000/trial.json", "trials/0000/attempt-1/result.json"
DAMAGED, MISSING = "is damaged or may not be read", "is missing"


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        (CARD, _half, f"trial 0 is left out: {CARD} {DAMAGED}; `kvknee resume OUT` makes it anew"),
        (CARD, _folder, f"trial 0 is left out: {CARD} {DAMAGED}; `kvknee resume OUT` makes it anew"),
        (CARD, Path.unlink, f"trial 0 is left out: {CARD} {MISSING}; `kvknee resume OUT` makes it anew"),
        (RESULT, _half, f"trial 0 counts as without result: {RESULT} {DAMAGED}; restore it from a copy"),
        (RESULT, _other, f"trial 0 counts as without result: {RESULT} {DAMAGED}; restore it from a copy"),
        (RESULT, Path.unlink, f"trial 0 counts as without result: {RESULT} {MISSING}; restore it from a copy"),
    ],
)
def test_what_cannot_be_read_is_named_in_the_outcome_and_by_status(
    name: str, spoil, words: str, copied: SweepFolder, whole: tuple[SweepFolder, Sweep]
) -> None:
    """What went wrong: a trial whose card was cut short was gone from report and outcome without a word."""
    spoil(copied.path / name)
    words = words.replace("OUT", str(copied.path))
    assert words in conclude(copied, whole[1]).outcome.notes
    said = CliRunner().invoke(app, ["status", str(copied.path)])
    assert said.stdout.count(words) == 1
    copied.knee_json.unlink()
    assert CliRunner().invoke(app, ["status", str(copied.path)]).stdout.count(words) == 1


def test_an_export_says_what_it_leaves_out(copied: SweepFolder) -> None:
    _half(copied.path / RESULT)
    said = CliRunner().invoke(app, ["export", str(copied.path), "--as", "vllm", "-o", str(copied.path / "x")])
    assert "note: trial 0 counts as without result" in said.stderr


def test_a_whole_folder_and_a_trial_that_was_never_begun_are_no_damage(copied: SweepFolder) -> None:
    (copied.path / "trials" / "0099").mkdir()
    assert damage(copied, copied.load_trials()) == []


def test_one_that_took_over_a_result_names_whose_it_was(copied: SweepFolder) -> None:
    first, second = copied.load_trials()[:2]
    copied.save_card(second.card.model_copy(update={"reused_from": first.number, "decides": None}))
    _half(copied.path / RESULT)
    assert damage(copied, copied.load_trials())[1] == (
        "trial 1 counts as without result: that of trial 0 cannot be read"
    )


@pytest.mark.parametrize("verb", ["report", "resume"])
@pytest.mark.parametrize("spoil", [_half, Path.unlink, _folder])
def test_what_an_earlier_judgement_rests_on_is_not_judged_away(
    verb: str, spoil, copied: SweepFolder, whole: tuple[SweepFolder, Sweep]
) -> None:
    """What went wrong: `report` wrote another winner over knee.json, or deleted the recipe, and ended with 0."""
    conclude(copied, whole[1])
    for path in (copied.recipe_yaml, copied.path / "recipe.lock.parquet"):
        path.write_text("kept")
    spoil(copied.path / RESULT)
    before = {p: p.read_bytes() for p in copied.path.rglob("*") if p.is_file() and p.name != ".lock"}
    said = CliRunner().invoke(app, [verb, str(copied.path)])
    assert said.exit_code == 2
    assert "knee.json rests on trials that cannot be read any more: 0. Nothing was written: restore" in said.stderr
    assert f"trial 0 counts as without result: {RESULT}" in said.stderr
    assert {p: p.read_bytes() for p in before} == before


def test_a_card_that_an_earlier_judgement_rests_on_is_made_anew_by_resume(
    copied: SweepFolder, whole: tuple[SweepFolder, Sweep]
) -> None:
    before = conclude(copied, whole[1]).outcome
    _half(copied.path / CARD)
    with pytest.raises(SpecError, match="rests on trials"):
        require_grounds(copied)
    require_grounds(copied, resumed=True)
    drive(copied.path, whole[1])
    require_grounds(copied)
    assert conclude(copied, whole[1]).outcome.candidates == before.candidates


@pytest.mark.parametrize("verb", ["resume", "status", "report"])
def test_a_sweep_yaml_that_was_cut_is_refused_wherever_it_was_cut(verb: str, copied: SweepFolder) -> None:
    """What went wrong: cut at the end of a line it read as a sweep, with defaults in place of what was lost."""
    lines = copied.sweep_yaml.read_text().splitlines(keepends=True)
    for kept in {0, 1, len(lines) // 2, len(lines) - 2, len(lines) - 1}:
        copied.sweep_yaml.write_text("".join(lines[:kept]))
        said = CliRunner().invoke(app, [verb, str(copied.path)])
        assert said.exit_code == 2
        assert kept < 2 or "sweep.yaml: cut short: its last line, `# end`, is missing; restore it" in said.stderr


def test_a_sweep_yaml_may_be_edited_and_one_of_before_has_no_last_line(copied: SweepFolder) -> None:
    text = copied.sweep_yaml.read_text()
    copied.sweep_yaml.write_text(text.replace("executor:", "# mine\nexecutor:"))
    assert CliRunner().invoke(app, ["status", str(copied.path)]).exit_code == 0
    old = text.replace(" The last line is `# end`.", "").removesuffix("# end\n")
    copied.sweep_yaml.write_text(old)
    assert CliRunner().invoke(app, ["status", str(copied.path)]).exit_code == 0


@pytest.mark.parametrize("verb", ["resume", "status", "report"])
def test_a_folder_in_the_place_of_sweep_yaml_is_called_one(verb: str, copied: SweepFolder) -> None:
    _folder(copied.sweep_yaml)
    said = CliRunner().invoke(app, [verb, str(copied.path)])
    assert said.exit_code == 2
    assert "sweep.yaml: this is a folder, and the file of the resolved sweep is needed" in said.stderr


def test_where_all_trials_are_gone_the_recipe_stays(copied: SweepFolder, whole: tuple[SweepFolder, Sweep]) -> None:
    conclude(copied, whole[1])
    copied.recipe_yaml.write_text("kept")
    copied.trials.rename(copied.path / "elsewhere")
    said = CliRunner().invoke(app, ["report", str(copied.path)])
    assert said.exit_code == 2
    assert "cannot be read any more: 0, 1, 2, 3, 4, 5. Nothing was written" in said.stderr
    assert copied.recipe_yaml.read_text() == "kept"


def test_without_knee_json_and_where_it_counted_no_such_trial_the_sweep_is_judged(
    copied: SweepFolder, whole: tuple[SweepFolder, Sweep]
) -> None:
    conclude(copied, whole[1])
    require_grounds(copied)
    _half(copied.path / RESULT)
    with pytest.raises(SpecError, match="rests on trials"):
        require_grounds(copied)
    copied.knee_json.write_text("{")
    require_grounds(copied)
    conclude(copied, whole[1])  # without it, and saying so
    require_grounds(copied)
