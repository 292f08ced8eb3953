"""`kvknee reproduce | diff | check`: does a recipe still hold, and do two builds of an engine agree?"""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli_errors import verb
from orchestrator.cli_options import Json, Out, answer

recipes_app = typer.Typer(rich_markup_mode=None)

Recipe = Annotated[str, typer.Argument(metavar="RECIPE.yaml|runs:/ID|models:/NAME@ALIAS")]
Tracking = Annotated[
    str | None, typer.Option(metavar="URI", help="Whose runs:/ or models:/; by default MLFLOW_TRACKING_URI.")
]


@recipes_app.command()
def reproduce(
    recipe: Recipe,
    out: Out = None,
    tracking: Tracking = None,
    python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The engine's interpreter here, if not where the recipe says."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The model's folder here, if not where the recipe says.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a recipe again in new processes: same hashes, same ledger step for step, latency within tolerance?

    Example: kvknee reproduce models:/conv@champion --tracking http://mlflow:5000
    """
    with verb(as_json):
        from orchestrator.reproduce import at_hand, worker_with
        from orchestrator.reproduce import reproduce as run_again

        with at_hand(recipe, tracking) as path:
            found = run_again(path, out, worker_with(python, model))
        answer(found, as_json)


@recipes_app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="ENGINE_A.yaml", help="A trial's or sweep's YAML.")],
    second: Annotated[Path, typer.Argument(metavar="ENGINE_B.yaml", help="The same with another build.")],
    trace: Annotated[Path, typer.Option("--trace", metavar="T", help="What both serve.")],
    package_a: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where trials/ lies that runs A; by default this one.")
    ] = None,
    package_b: Annotated[Path | None, typer.Option(metavar="DIR", help="Likewise for B.")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Two builds of an engine, step-locked: which account moved, at which step first, by how much? Exit 4 if any.

    Example: kvknee diff vllm-0.32.yaml vllm-0.33.yaml --trace conv.parquet
    """
    with verb(as_json):
        from orchestrator.diff import build_of
        from orchestrator.diff import diff as diff_builds

        found = diff_builds(build_of(first, trace, package_a), build_of(second, trace, package_b), out)
        answer(found, as_json)


@recipes_app.command()
def check(
    recipe: Recipe,
    trace: Annotated[Path, typer.Option("--trace", metavar="NEW", help="What is served now.")],
    tracking: Tracking = None,
    as_json: Json = False,
) -> None:
    """Has the workload's shape, or the engine, moved from under a recipe? Exit 4 if the sweep must be run again.

    Example: kvknee check runs/conv/recipe.yaml --trace today.parquet
    """
    with verb(as_json):
        from orchestrator.check import check as check_recipe
        from orchestrator.reproduce import at_hand

        with at_hand(recipe, tracking) as path:
            found = check_recipe(path, trace)
        answer(found, as_json)
