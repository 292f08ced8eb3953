"""A recipe fetched from MLflow, with all that it needs: `models:/NAME@champion`, `models:/NAME/3`, `runs:/ID`.

Whatever the server says, files come into one temporary folder under names made here, within declared sizes, and
each is held against its digest before it is used. What would have the engine load other code than this node's is
refused: a server that others write to is not to choose what runs here.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.entries import content_name
from orchestrator.recipe import Beside, Locator, Recipe, load_recipe
from orchestrator.redaction import redacted, without_password
from orchestrator.tracking_content import FOLDER
from orchestrator.tracking_registry import RECIPE_SHA
from orchestrator.tracking_runs import connected
from orchestrator.tracking_uri import VARIABLE, revealed, settled
from trials.fingerprint import file_digest, trace_hash
from trials.spec import EngineSpec
from trials.trace import load_trace
from trials.units import SpecError

_MODEL = re.compile(r"models:/(?P<name>[^/@:]+)(?:@(?P<alias>[\w.-]+)|/(?P<version>\d+))")
_RUN = re.compile(r"runs:/(?P<run>[0-9a-f]{32})(?:/recipe\.yaml)?")
_RECIPE_FOLDER = re.compile(r"recipe-(?P<sha>[0-9a-f]{12})")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LOADS_CODE = ("LD_", "DYLD_", "PYTHON", "VLLM_PLUGINS")
_TRUSTS_CODE = ("trust_remote_code", "trust-remote-code", "worker_cls", "worker_extension_cls", "scheduler_cls")
_MOST_RECIPE_BYTES, _MOST_TABLE_BYTES, _MOST_CONTENT_BYTES = 16 << 20, 1 << 30, 4 << 30


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a recipe lies on the server."""

    client: Any
    run_id: str
    folder: str
    shown: str  # what was asked, for words


@contextmanager
def fetched(asked: str, tracking: str | None, env: dict[str, str]) -> Iterator[Path]:
    """recipe.yaml in a temporary folder, its locators leading to files beside it. Raises SpecError."""
    uri = tracking or env.get(VARIABLE)
    if not uri:
        raise SpecError(f"{asked}: which MLflow? name it with --tracking URI, or export {VARIABLE}")
    client = connected(revealed(settled(uri, Path.cwd()), env))
    with tempfile.TemporaryDirectory(prefix="kvknee-recipe-") as name:
        folder = Path(name).resolve()
        try:
            _fetch(_find(client, asked), folder)
        except SpecError:
            raise
        except Exception as error:
            said = redacted(str(error), env).strip().splitlines() or [type(error).__name__]
            raise SpecError(f"{asked}: MLflow at {without_password(uri)} says: {said[0][:300]}") from None
        yield folder / "recipe.yaml"


def _find(client: Any, asked: str) -> _Place:
    if model := _MODEL.fullmatch(asked):
        return _of_model(client, asked, model)
    if run := _RUN.fullmatch(asked):
        return _of_run(client, asked, run["run"])
    raise SpecError(f"{asked}: write models:/NAME@champion, models:/NAME/VERSION, or runs:/ID of a sweep's run")


def _of_model(client: Any, asked: str, model: re.Match[str]) -> _Place:
    if model["alias"]:
        version = client.get_model_version_by_alias(model["name"], model["alias"])
    else:
        version = client.get_model_version(model["name"], model["version"])
    sha = version.tags.get(RECIPE_SHA, "")
    if not _DIGEST.fullmatch(sha) or not version.run_id:
        raise SpecError(f"{asked}: version {version.version} holds no recipe of kvknee")
    return _Place(client, version.run_id, f"recipe-{sha[:12]}", asked)


def _of_run(client: Any, asked: str, run_id: str) -> _Place:
    tags = client.get_run(run_id).data.tags
    folder, parent = tags.get("kvknee.recipe", ""), tags.get("mlflow.parentRunId")
    if _RECIPE_FOLDER.fullmatch(folder):
        return _Place(client, run_id, folder, asked)
    if parent:
        raise SpecError(f"{asked}: is a trial; the recipe is its sweep's: runs:/{parent}")
    raise SpecError(f"{asked}: has no recipe; its sweep has not ended, or found no feasible candidate")


def _fetch(place: _Place, folder: Path) -> None:
    path = _download(place, f"{place.folder}/recipe.yaml", folder, _MOST_RECIPE_BYTES)
    _hold(place, path, file_digest(path)[:12], place.folder.removeprefix("recipe-"))
    recipe = load_recipe(path)
    _runs_what_is_here(place, recipe.spec.engine)
    for beside in (recipe.schedule, recipe.ledger_rows):
        _beside(place, beside, folder)
    moved: dict[str, Locator | None] = {"trace": _trace(place, recipe, folder)}
    if recipe.table is not None:
        moved["table"] = _table(place, recipe, folder)
    text = yaml.safe_dump(recipe.model_copy(update=moved).model_dump(mode="json"), sort_keys=False)
    path.write_text(text, encoding="utf-8")


def _runs_what_is_here(place: _Place, engine: EngineSpec) -> None:
    """SpecError where a variable or an argument makes interpreter, loader or library take code from elsewhere."""
    found = [f"engine.env.{name}" for name in engine.env if name.startswith(_LOADS_CODE) or name == "PATH"]
    found += [f"engine.args.{name}" for name in engine.args if name in _TRUSTS_CODE and engine.args[name]]
    if found:
        raise SpecError(
            f"{place.shown}: its recipe sets {', '.join(found)}, which decides what code runs here, and comes from "
            "a server; read it in MLflow's UI, and reproduce a file of your own that holds it"
        )


def _beside(place: _Place, beside: Beside, folder: Path) -> None:
    if Path(beside.file).name != beside.file or beside.file in (".", "..", "recipe.yaml"):
        raise SpecError(f"{place.shown}: the recipe names {beside.file!r} beside it, which is no plain file name")
    path = _download(place, f"{place.folder}/{beside.file}", folder, _MOST_TABLE_BYTES)
    _hold(place, path, file_digest(path), beside.sha256)


def _trace(place: _Place, recipe: Recipe, folder: Path) -> Locator:
    digest = _checked(place, recipe.hashes.trace)
    path = _download(place, f"{FOLDER}/{content_name('trace', digest)}", folder, _MOST_CONTENT_BYTES)
    _hold(place, path, trace_hash(load_trace(path)), digest)
    return Locator(relative=path.name, absolute=str(path))


def _table(place: _Place, recipe: Recipe, folder: Path) -> Locator:
    """The table's digest is in no field of its own: the run has one table, and the spec's hash covers it."""
    names = [Path(f.path).name for f in place.client.list_artifacts(place.run_id, FOLDER)]
    digests = [m[1] for name in names if (m := re.fullmatch(r"table-([0-9a-f]{64})\.json", name))]
    if len(digests) != 1:
        raise SpecError(f"{place.shown}: {len(digests)} tables of step times in the run's {FOLDER}; one is needed")
    path = _download(place, f"{FOLDER}/{content_name('table', digests[0])}", folder, _MOST_CONTENT_BYTES)
    _hold(place, path, file_digest(path), digests[0])
    return Locator(relative=path.name, absolute=str(path))


def _checked(place: _Place, digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise SpecError(f"{place.shown}: {digest[:80]!r} is no digest")
    return digest


def _hold(place: _Place, path: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise SpecError(
            f"{place.shown}: {path.name} hashes to {found[:12]}, not {wanted[:12]}: not what was stored"
        )


def _download(place: _Place, artifact: str, folder: Path, most_bytes: int) -> Path:
    """One artifact as a file directly in `folder`, under the last part of its name."""
    parent, _, name = artifact.rpartition("/")
    sizes = {Path(f.path).name: f.file_size for f in place.client.list_artifacts(place.run_id, parent)}
    if name not in sizes:
        raise SpecError(f"{place.shown}: run {place.run_id} keeps no {artifact}{_why_missing(place, name)}")
    if (sizes[name] or 0) > most_bytes:
        raise SpecError(f"{place.shown}: {artifact} has {sizes[name]} bytes, more than the limit of {most_bytes}")
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        got = Path(place.client.download_artifacts(place.run_id, artifact, aside)).resolve()
        if not got.is_relative_to(Path(aside).resolve()) or not got.is_file() or got.stat().st_size > most_bytes:
            raise SpecError(f"{place.shown}: {artifact} did not arrive as a file of at most {most_bytes} bytes")
        return got.rename(folder / name)


def _why_missing(place: _Place, name: str) -> str:
    why = place.client.get_run(place.run_id).data.tags.get(f"kvknee.missing.{name.partition('-')[0]}")
    return f" ({why})" if why else ""
