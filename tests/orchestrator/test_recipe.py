"""recipe.yaml: what it holds, and what it refuses."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from made_sweep import NASTY, WINNER, build, make_spec, save_outcome
from pydantic import ValidationError

from orchestrator.folder import SweepFolder
from orchestrator.recipe import LOCK_COLUMNS, Beside, Recipe, load_recipe, write_recipe
from trials.fingerprint import file_digest, spec_hash
from trials.units import SpecError
from trials.worker import run_trial


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    made = build(tmp_path_factory.mktemp("recipe") / "sweep")
    assert write_recipe(made.path) == made.recipe_yaml
    return made


@pytest.fixture
def copied(sweep: SweepFolder, tmp_path: Path) -> SweepFolder:
    """The folder with its recipe, somewhere else and free to be spoilt."""
    shutil.copytree(sweep.path, tmp_path / "sweep")
    return SweepFolder(tmp_path / "sweep")


def _edit(sweep: SweepFolder, **changes: object) -> None:
    data = yaml.safe_load(sweep.recipe_yaml.read_text())
    sweep.recipe_yaml.write_text(yaml.safe_dump(data | changes))


def test_the_recipe_is_the_winner_of_knee_json_whatever_the_values_say(sweep: SweepFolder) -> None:
    outcome = sweep.load_outcome()
    assert outcome is not None
    winner = sweep.load_trials()[outcome.winner_trial or 0]
    assert winner.result is not None
    recipe = load_recipe(sweep.recipe_yaml)
    assert recipe.spec.policy.block_size == WINNER
    assert recipe.hashes == winner.result.hashes
    assert recipe.outcome.sentence == outcome.sentence
    assert recipe.verdicts == outcome.verdicts


def test_what_is_written_reads_back_as_itself(sweep: SweepFolder) -> None:
    recipe = load_recipe(sweep.recipe_yaml)
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    assert recipe.name == f"made {NASTY}"


def test_the_resolved_spec_hashes_as_the_trial_did(sweep: SweepFolder) -> None:
    recipe = load_recipe(sweep.recipe_yaml)
    assert spec_hash(recipe.resolved_spec(sweep.path), recipe.hashes.trace) == recipe.hashes.spec


def test_every_replay_has_its_expected_ledger(sweep: SweepFolder) -> None:
    recipe = load_recipe(sweep.recipe_yaml)
    assert [r.phase for r in recipe.ledger] == ["cold", "steady"]
    for replay in recipe.ledger:
        assert len(replay.rows_digest) == 64
        peak = replay.peak.model_dump()
        assert peak.pop("pool_bytes") == sum(peak.values()) == 64 << 20


def test_the_files_beside_carry_digests_and_the_ledger_no_times(sweep: SweepFolder) -> None:
    recipe = load_recipe(sweep.recipe_yaml)
    for beside in (recipe.schedule, recipe.ledger_rows):
        assert file_digest(sweep.path / beside.file) == beside.sha256
    lock = pq.read_table(sweep.path / recipe.schedule.file)
    assert tuple(lock.column_names) == LOCK_COLUMNS
    assert len(lock) == 24 * len(recipe.ledger)
    rows = pq.read_table(sweep.path / recipe.ledger_rows.file)
    assert {"payload", "tail_slack", "pool_bytes", "evicted_blocks"} <= set(rows.column_names)
    assert not [c for c in rows.column_names if c.endswith("_ns")]


def test_workload_engine_parts_and_calibration_are_kept(sweep: SweepFolder) -> None:
    recipe = load_recipe(sweep.recipe_yaml)
    assert recipe.workload["rows"] == 24
    assert len(recipe.engine_identity["files"]["trials/scheduler.py"]) == 64
    assert recipe.calibration["load"] == 2
    assert "numpy" in recipe.environment


def test_writing_twice_gives_the_same_bytes(copied: SweepFolder) -> None:
    write_recipe(copied.path)
    before = copied.recipe_yaml.read_bytes()
    write_recipe(copied.path)
    assert copied.recipe_yaml.read_bytes() == before


def test_without_a_winner_there_is_no_recipe_and_an_old_one_goes(copied: SweepFolder) -> None:
    outcome = copied.load_outcome()
    assert outcome is not None
    save_outcome(copied, outcome.model_copy(update={"kind": "infeasible", "winner": None, "winner_trial": None}))
    assert write_recipe(copied.path) is None
    assert not list(copied.path.glob("recipe*"))


def test_before_knee_json_there_is_no_recipe(copied: SweepFolder) -> None:
    copied.knee_json.unlink()
    assert write_recipe(copied.path) is None


def test_a_trace_that_changed_since_is_refused(copied: SweepFolder) -> None:
    """A recipe that describes another workload than the one that was measured would be a lie."""
    spec = make_spec(copied.path / "other.parquet")
    shutil.copy(load_recipe(copied.recipe_yaml).trace.absolute, spec.trace.path)
    outcome = copied.load_outcome()
    assert outcome is not None
    record = copied.load_trial(outcome.winner_trial or 0)
    assert record is not None
    copied.save_card(record.card.model_copy(update={"spec": spec}))
    from made_sweep import make_trace_file

    make_trace_file(Path(spec.trace.path), seed=9)
    with pytest.raises(SpecError, match="changed since trial"):
        write_recipe(copied.path)


def test_a_moved_recipe_finds_its_trace_where_it_was(copied: SweepFolder) -> None:
    recipe = load_recipe(copied.recipe_yaml)
    assert not (copied.path / recipe.trace.relative).resolve().exists()
    assert Path(recipe.resolved_spec(copied.path).trace.path).is_file()


def test_a_trace_beside_the_recipe_comes_first(copied: SweepFolder) -> None:
    recipe = load_recipe(copied.recipe_yaml)
    near = (copied.path / recipe.trace.relative).resolve()
    shutil.copy(recipe.trace.absolute, near)
    assert recipe.resolved_spec(copied.path).trace.path == str(near)


def test_a_trace_that_is_nowhere_is_refused_with_both_places(copied: SweepFolder) -> None:
    _edit(copied, trace={"relative": "gone.parquet", "absolute": "/nowhere/gone.parquet"})
    with pytest.raises(SpecError, match=r"nor at /nowhere/gone\.parquet"):
        load_recipe(copied.recipe_yaml).resolved_spec(copied.path)


@pytest.mark.parametrize("name", ["../x.parquet", "/etc/passwd", "a/b", "..", "", ".hidden"])
def test_a_file_beside_a_recipe_has_a_plain_name(name: str) -> None:
    with pytest.raises(ValidationError, match="file"):
        Beside(file=name, sha256="0" * 64)


def test_an_unknown_key_is_refused_by_name(copied: SweepFolder) -> None:
    _edit(copied, colour="red")
    with pytest.raises(SpecError, match="colour"):
        load_recipe(copied.recipe_yaml)


def test_a_search_for_the_load_is_pinned_to_the_load_that_it_came_to(tmp_path: Path) -> None:
    ladder = {"ladder": {"over": "rate_scale", "low": 0.0123456789, "high": 0.05, "within": 0.2}}
    sweep = build(tmp_path / "sweep", measure=ladder, phases=["steady"])
    write_recipe(sweep.path)
    recipe = load_recipe(sweep.recipe_yaml)
    pinned = recipe.pinned_spec(sweep.path)
    assert pinned.measure.load is not None
    assert [r.load for r in recipe.ledger] == [pinned.measure.load.label]
    assert set(pq.read_table(sweep.path / recipe.ledger_rows.file)["load"].to_pylist()) == {recipe.ledger[0].load}


def test_a_search_on_several_windows_is_pinned_to_the_window_that_decided(tmp_path: Path) -> None:
    ladder = {"ladder": {"over": "rate_scale", "low": 0.25, "high": 4, "within": 0.5, "windows": 3}}
    slo = "ttft:p80<60ms;tpot:p80<50ms"  # eight requests a window are enough to see it
    sweep = build(tmp_path / "sweep", measure=ladder, phases=["cold"], slo=slo)
    recipe = load_recipe(write_recipe(sweep.path))
    pinned = recipe.pinned_spec(sweep.path)
    result = next(r.result for r in sweep.load_trials() if r.result.hashes == recipe.hashes)
    part = result.capacity.parts[result.capacity.decides]
    assert len(result.capacity.parts) == 3
    assert (pinned.trace.window.start, pinned.trace.window.duration) == (part.start_ns, part.end_ns - part.start_ns)
    again = run_trial(pinned, tmp_path)
    assert again.replays[0].ledger.rows_digest == recipe.ledger[0].rows_digest
