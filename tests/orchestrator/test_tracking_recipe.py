"""A champion is reproduced from the store alone, and nothing that a store says is trusted."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_sweep import build

from orchestrator import tracking_recipe
from orchestrator.entries import Content, SweepEntry, TrialEntry
from orchestrator.recipe import load_recipe, write_recipe
from orchestrator.reproduce import at_hand, reproduce
from orchestrator.tracking import MlflowTracker
from orchestrator.tracking_registry import RECIPE_SHA
from orchestrator.tracking_runs import connected
from trials.fingerprint import trace_hash
from trials.trace import load_trace
from trials.units import SpecError


@dataclass
class Stored:
    """A made-up sweep in a store; its own folder and trace are gone."""

    uri: str
    client: Any
    parent: str
    child: str
    recipe: bytes


@pytest.fixture(scope="module")
def stored(mlflow_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    place = tmp_path_factory.mktemp("gone")
    sweep = build(place / "sweep")
    recipe = write_recipe(sweep.path)
    assert recipe is not None
    trace = place / "made.parquet"
    tracker = MlflowTracker(sweep.path, uri=mlflow_uri)
    content = (Content("trace", trace_hash(load_trace(trace)), trace),)
    record = sweep.load_trials()[0]
    tracker.record(SweepEntry("made", content=content))
    tracker.record(TrialEntry(0, 1, record.spec, record.result, sweep.attempt(0, 1), 1, 2))
    tracker.record(SweepEntry("made", content=content, recipe=recipe, status="FINISHED"))
    assert tracker.close(120) == 0, tracker.trouble
    text = recipe.read_bytes()
    shutil.rmtree(place)
    client = connected(mlflow_uri)
    number = client.get_experiment_by_name("kvknee").experiment_id
    version = client.get_model_version_by_alias("made", "champion")
    (child,) = client.search_runs([number], f"tags.`mlflow.parentRunId` = '{version.run_id}'")
    return Stored(mlflow_uri, client, version.run_id, child.info.run_id, text)


def test_a_champion_is_reproduced_from_the_store_alone(stored: Stored) -> None:
    with at_hand("models:/made@champion", stored.uri) as path:
        folder = path.parent
        found = reproduce(path, None)
        assert {p.name for p in folder.iterdir()} >= {"recipe.yaml", "recipe.lock.parquet", "recipe.ledger.parquet"}
    assert found.exit_code == 0, found.lines
    assert not folder.exists()


@pytest.mark.parametrize("asked", ["runs:/{run}", "models:/made/1"])
def test_other_names_lead_to_the_same_recipe(stored: Stored, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", stored.uri)
    with at_hand(asked.format(run=stored.parent), None) as path:
        recipe = load_recipe(path)
        assert recipe.hashes == load_recipe_of(stored.recipe).hashes
        assert recipe.trace.find(path.parent).parent == path.parent, "nothing is looked for outside"


def load_recipe_of(text: bytes) -> Any:
    from orchestrator.recipe import Recipe

    return Recipe.model_validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("models:/made", "write models:/NAME@champion"),
        ("runs:/../../etc", "write models:/NAME@champion"),
        ("models:/made@other", "other"),
        ("models:/nobody@champion", "nobody"),
        ("runs:/" + "0" * 32, "0" * 32),
        ("runs:/{child}", "is a trial; the recipe is its sweep's: runs:/{parent}"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(stored: Stored, asked: str, words: str) -> None:
    names = {"child": stored.child, "parent": stored.parent}
    with pytest.raises(SpecError, match=words.format(**names)), at_hand(asked.format(**names), stored.uri):
        pass


def test_without_a_store_the_way_to_name_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(SpecError, match="--tracking"), at_hand("models:/made@champion", None):
        pass


class Evil:
    """A store that hands out a recipe, and files, of its own making."""

    def __init__(self, stored: Stored, changes: dict[str, Any], files: dict[str, bytes]) -> None:
        data = yaml.safe_load(stored.recipe) | changes
        self.recipe = yaml.safe_dump(data).encode()
        self.sha = hashlib.sha256(self.recipe).hexdigest()
        self._true, self._files, self._parent = stored.client, files, stored.parent

    def get_model_version_by_alias(self, name: str, alias: str) -> Any:
        return Version(self._parent, {RECIPE_SHA: self.sha})

    def list_artifacts(self, run_id: str, path: str) -> Any:
        if path.startswith("recipe-"):
            names = ["recipe.yaml", "recipe.lock.parquet", "recipe.ledger.parquet", *self._files]
            return [Info(f"{path}/{name}", 10) for name in names]
        return self._true.list_artifacts(run_id, path)

    def download_artifacts(self, run_id: str, path: str, into: str) -> str:
        name = path.rpartition("/")[2]
        folder = next(f.path for f in self._true.list_artifacts(run_id) if f.path.startswith("recipe-"))
        if name in self._files or name == "recipe.yaml":
            target = Path(into) / name
            target.write_bytes(self._files.get(name, self.recipe))
            return str(target)
        true = f"{folder}/{name}" if path.startswith("recipe-") else path
        return str(self._true.download_artifacts(run_id, true, into))

    def get_run(self, run_id: str) -> Any:
        return self._true.get_run(run_id)


@dataclass
class Version:
    run_id: str
    tags: dict[str, str]
    version: int = 1


@dataclass
class Info:
    path: str
    file_size: int


def ask_evil(stored: Stored, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], **files: bytes) -> None:
    evil = Evil(stored, changes, {name.replace("__", "."): content for name, content in files.items()})
    monkeypatch.setattr(tracking_recipe, "connected", lambda uri: evil)
    with at_hand("models:/made@champion", stored.uri):
        pass


@pytest.mark.parametrize("name", ["../outside.parquet", "/etc/passwd", "..", "a/b.parquet", "recipe.yaml", ".x"])
def test_names_beside_a_recipe_cannot_leave_its_folder(
    stored: Stored, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match=r"schedule\.file|plain file name"):
        ask_evil(stored, monkeypatch, {"schedule": {"file": name, "sha256": "0" * 64}})


def test_locators_of_a_fetched_recipe_are_not_followed(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = {"relative": "../../../etc/passwd", "absolute": "/etc/passwd"}
    ask_evil(
        stored, monkeypatch, {"trace": elsewhere}
    )  # the trace comes by its hash, whatever is said of its place


@pytest.mark.parametrize("name", ["recipe__lock__parquet", "recipe__ledger__parquet"])
def test_files_that_do_not_have_their_digest_are_refused(
    stored: Stored, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match="not what was stored"):
        ask_evil(stored, monkeypatch, {}, **{name: b"other"})


def test_a_recipe_that_does_not_have_its_digest_is_refused(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="not what was stored"):
        ask_evil(stored, monkeypatch, {}, recipe__yaml=b"recipe: 1")


@pytest.mark.parametrize(
    "engine",
    [
        {"env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"env": {"PYTHONPATH": "/tmp"}},
        {"env": {"PATH": "/tmp"}},
        {"args": {"trust_remote_code": True}},
        {"args": {"worker_cls": "x.Y"}},
    ],
    ids=str,
)
def test_a_recipe_from_a_server_does_not_choose_the_code_that_runs(
    stored: Stored, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = yaml.safe_load(stored.recipe)["spec"]
    with pytest.raises(SpecError, match="decides what code runs here"):
        ask_evil(stored, monkeypatch, {"spec": {**spec, "engine": {**spec["engine"], **engine}}})


def test_a_trace_that_no_digest_names_is_refused(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = {"spec": "s", "trace": "../../x", "engine": "e"}
    with pytest.raises(SpecError, match="is no digest"):
        ask_evil(stored, monkeypatch, {"hashes": hashes})


def test_more_bytes_than_declared_are_refused(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_recipe, "_MOST_CONTENT_BYTES", 100)
    with pytest.raises(SpecError, match="more than the limit of 100"):
        ask_evil(stored, monkeypatch, {})


def test_a_link_is_no_file_that_arrived(stored: Stored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    evil = Evil(stored, {}, {})

    def download(run_id: str, path: str, into: str) -> str:
        (Path(into) / "recipe.yaml").symlink_to(tmp_path / "secret")
        return str(Path(into) / "recipe.yaml")

    monkeypatch.setattr(evil, "download_artifacts", download)
    monkeypatch.setattr(tracking_recipe, "connected", lambda uri: evil)
    with (
        pytest.raises(SpecError, match="did not arrive as a file"),
        at_hand("models:/made@champion", stored.uri),
    ):
        pass
