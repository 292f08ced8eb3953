"""The winner as a registered model: recipe.yaml and the files that it names, under the alias `champion`.

A version holds plain files and the description that MLflow asks of a model; nothing in it is ever unpickled.
"""

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from trials.documents import read_yaml

ALIAS = "champion"
RECIPE_SHA = "kvknee.recipe_sha256"
_NAMED_FILES = ("schedule", "ledger_rows")  # keys of a recipe that name a file beside it


def recipe_folder(recipe: Path) -> str:
    """Where the run keeps it: a folder a content, so that a version that was registered never changes."""
    return f"recipe-{_sha(recipe)[:12]}"


def keep_recipe(client: Any, run_id: str, recipe: Path) -> None:
    """The run's artifacts `recipe-SHA/...`: the recipe, the files that it names, and a model's description."""
    folder, named = recipe_folder(recipe), read_yaml(recipe)
    for path in (recipe, *(recipe.parent / Path(str(named[key]["file"])).name for key in _NAMED_FILES)):
        client.log_artifact(run_id, str(path), folder)
    client.log_text(run_id, _description(run_id, recipe), f"{folder}/MLmodel")


def _description(run_id: str, recipe: Path) -> str:
    created = datetime.fromtimestamp(recipe.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    sha = _sha(recipe)
    return yaml.safe_dump({
        "artifact_path": recipe_folder(recipe), "flavors": {"kvknee": {"recipe": recipe.name, "sha256": sha}},
        "run_id": run_id, "model_uuid": sha[:32], "utc_time_created": created,
    })  # fmt: skip


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def crown(client: Any, run_id: str, name: str, recipe: Path, tags: dict[str, str]) -> None:
    """A version of the model `name` for this recipe, made once, that the alias points to unless a newer one is."""
    sha = _sha(recipe)
    _make_model(client, name)
    mine = [v for v in _versions_of(client, name, run_id) if v.tags.get(RECIPE_SHA) == sha]
    if mine:
        version = int(mine[0].version)
    else:
        source = f"{client.get_run(run_id).info.artifact_uri}/{recipe_folder(recipe)}"
        made = client.create_model_version(name, source, run_id, tags={**tags, RECIPE_SHA: sha})
        version = int(made.version)
    now = client.get_registered_model(name).aliases.get(ALIAS)
    if now is None or int(now) < version:
        client.set_registered_model_alias(name, ALIAS, str(version))


def withdraw(client: Any, run_id: str, name: str) -> None:
    """A sweep that has no winner any more: the alias no longer points to its recipe."""
    for version in _versions_of(client, name, run_id):
        if str(client.get_registered_model(name).aliases.get(ALIAS)) == str(version.version):
            client.delete_registered_model_alias(name, ALIAS)


def _make_model(client: Any, name: str) -> None:
    if client.search_registered_models(f"name = '{name}'"):
        return
    try:
        client.create_registered_model(name, description="Recipes that kvknee chose; `kvknee reproduce` runs them.")
    except Exception:
        if not client.search_registered_models(f"name = '{name}'"):  # another sweep may just have made it
            raise


def _versions_of(client: Any, name: str, run_id: str) -> list[Any]:
    found = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    return sorted(found, key=lambda version: -int(version.version))
