"""`kvknee ...`: one Typer app. Heavy rooms are imported by the verb that needs them.

Exit codes: 0 done · 1 our fault · 2 bad input · 3 no feasible candidate, or refused · 4 did not reproduce ·
5 a ledger does not balance · 130 interrupted, resumable.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol

import typer

from orchestrator.cli_errors import verb
from orchestrator.cli_trace import trace_app

app = typer.Typer(
    help="Find the KV-cache block size and pool policy that turn the most cache bytes into useful, timely tokens.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich alone would double the time of --help
)
app.add_typer(trace_app, name="trace")

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a key; read as YAML.")]
Goodput = Annotated[
    str | None, typer.Option(help="Replaces the SLO: per-request limits in ms, as 'ttft:500 tpot:50'.")
]
Out = Annotated[Path | None, typer.Option("-o", "--output-dir", help="Folder to write; a new one by default.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster to use; none starts a local one.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's folder.")]


class _Found(Protocol):
    """What a verb found out: lines for people, a model for scripts, and how the process ends."""

    @property
    def lines(self) -> Sequence[str]: ...

    @property
    def exit_code(self) -> int: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


def _answer(found: _Found, as_json: bool) -> NoReturn:
    """Say what was found, one way or the other, and exit with its code."""
    if as_json:
        _say_json(found.model_dump(mode="json"))
    else:
        for line in found.lines:
            typer.echo(line)
    raise typer.Exit(found.exit_code)


def _say_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=1, sort_keys=True, allow_nan=False))


@app.command()
def doctor(address: Address = None, as_json: Json = False) -> None:
    """What this machine or cluster can run, and what is missing.

    Example: kvknee doctor
    """
    with verb(as_json):
        from orchestrator.doctor import examine

        report = examine(address)
        if as_json:
            _say_json(report.model_dump(mode="json"))
        else:
            for line in report.lines:
                typer.echo(line)
        raise typer.Exit(report.exit_code)


@app.command()
def trial(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml")],
    out: Out = None,
    goodput: Goodput = None,
    sets: Sets = None,
    ownership_at: Annotated[
        str | None,
        typer.Option(metavar="T", help="Engine time, as 20s: who holds which block, in ownership.parquet."),
    ] = None,
    compare_static: Annotated[
        bool, typer.Option("--compare-static", help="Beside it, a packed batch of the same final lengths.")
    ] = False,
    as_json: Json = False,
) -> None:
    """One trial, in one clean process: its metrics, and a ledger whose accounts add up to the pool.

    Example: kvknee trial trial.yaml --set policy.block_size=32 -o runs/block-32
    """
    with verb(as_json):
        from orchestrator.cli_trial import Extras, run_one

        extras = Extras(ownership_at, compare_static)
        done = run_one(spec, out, tuple(sets or ()), goodput, extras)
        if as_json:
            _say_json(done.document())
        else:
            done.show()
        raise typer.Exit(done.exit_code)


@app.command()
def bound(
    trace: Annotated[Path, typer.Argument(metavar="TRACE")],
    engine: Annotated[
        str, typer.Option("--engine", metavar="SPEC.yaml", help="A trial's or sweep's YAML, or roofline:GPU.")
    ],
    requests: Annotated[int, typer.Option(min=1, help="At most so many requests of the window.")] = 400,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """The most that block size, sharing and policy could gain here, and what limits instead. Seconds, no GPU.

    Example: kvknee bound conv.parquet --engine trial.yaml
    """
    with verb(as_json):
        from orchestrator.bound import bound as bound_on
        from orchestrator.bound import bound_spec
        from trials.trace import load_trace

        found = bound_on(bound_spec(engine, trace, tuple(sets or ())), load_trace(trace), requests)
        if as_json:
            _say_json(found.model_dump(mode="json"))
        else:
            for line in found.lines:
                typer.echo(line)


@app.command()
def run(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP.yaml")],
    sets: Sets = None,
    address: Address = None,
    trials: Annotated[int | None, typer.Option("-n", "--trials", help="Budget; controls stand beside it.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(help="Trials at once.")] = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option(help="Resolve and check everything, run nothing.")] = False,
    goodput: Goodput = None,
    as_json: Json = False,
) -> None:
    """Run a sweep: trials, knee, recipe, report. Ctrl-C leaves a folder that `resume` continues.

    Example: kvknee run block_size.yaml --set measure.load.rate_scale=2 -o runs/conv
    """
    with verb(as_json):
        from orchestrator.cli_sweep import Overrides, dry, run_sweep
        from orchestrator.opening import new_folder
        from orchestrator.resolve import load_sweep

        overrides = Overrides(address, trials, max_concurrent)
        resolved = load_sweep(sweep, [*(sets or ()), *overrides.sets()], goodput)
        if dry_run:
            dry(resolved, as_json, _say_json)
            return
        raise typer.Exit(run_sweep(out or new_folder(resolved.config.name), resolved, as_json, _say_json))


@app.command()
def resume(folder: Folder, as_json: Json = False) -> None:
    """Continue a sweep that was interrupted, to exactly its budget.

    Example: kvknee resume runs/conv
    """
    with verb(as_json):
        from orchestrator.cli_sweep import run_sweep, stored

        raise typer.Exit(run_sweep(folder, stored(folder), as_json, _say_json))


@app.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """How far a sweep is: trials by state, best so far. Reads only.

    Example: kvknee status runs/conv
    """
    with verb(as_json):
        from orchestrator.cli_sweep import status_of, stored

        found = status_of(folder, stored(folder))
        if as_json:
            _say_json(found.document)
        else:
            for line in found.lines:
                typer.echo(line)


@app.command()
def report(
    folder: Folder,
    rebuild_tracking: Annotated[
        bool, typer.Option("--rebuild-tracking", help="Make the MLflow store anew from the result files.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Judge a sweep's folder anew and write summary.csv, knee.json, recipe.yaml and report.html.

    Example: kvknee report runs/conv
    """
    with verb(as_json):
        from orchestrator.cli_sweep import report_on, stored

        raise typer.Exit(report_on(folder, stored(folder), as_json, _say_json, rebuild_tracking))


@app.command()
def reproduce(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE.yaml|runs:/ID|models:/NAME@ALIAS")],
    out: Out = None,
    tracking: Annotated[
        str | None, typer.Option(metavar="URI", help="Whose runs:/ or models:/; by default MLFLOW_TRACKING_URI.")
    ] = None,
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
        _answer(found, as_json)


@app.command()
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
        _answer(found, as_json)


@app.command()
def check(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml")],
    trace: Annotated[Path, typer.Option("--trace", metavar="NEW", help="What is served now.")],
    as_json: Json = False,
) -> None:
    """Has the workload's shape, or the engine, moved from under a recipe? Exit 4 if the sweep must be run again.

    Example: kvknee check runs/conv/recipe.yaml --trace today.parquet
    """
    with verb(as_json):
        from orchestrator.check import check as check_recipe

        found = check_recipe(recipe, trace)
        _answer(found, as_json)


@app.command()
def calibrate(
    engine: Annotated[Path, typer.Argument(metavar="ENGINE.yaml", help="A trial with a measured engine.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="TABLE.json")],
    block_sizes: Annotated[
        str, typer.Option(help="Comma-separated; by default a quarter of the trial's, itself, and four times it.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is measured; medians count.")] = 3,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Measure the step times of a real engine, in the region that the trace visits, for the simulator.

    Example: kvknee calibrate engine.yaml -o table.json --block-sizes 4,16,64
    """
    with verb(as_json):
        from orchestrator.calibrate import calibrate as calibrate_engine
        from orchestrator.calibrate import table_lines
        from trials.units import parse_count

        sizes = [parse_count(text, "--block-sizes") for text in block_sizes.split(",") if text.strip()]
        table = calibrate_engine(engine, out, sizes, rounds, tuple(sets or ()))
        if as_json:
            _say_json({"table": str(out), **table.model_dump(mode="json")})
        else:
            for line in table_lines(table):
                typer.echo(line)


@app.command()
def controls(as_json: Json = False) -> None:
    """Provoke the eight failures; each must be caught by its check, and by that check alone.

    Example: kvknee controls
    """
    with verb(as_json):
        from orchestrator.controls import run_controls
        from orchestrator.tables import print_controls

        report = run_controls()
        if as_json:
            _say_json(report.model_dump(mode="json"))
        else:
            print_controls(report)
        raise typer.Exit(report.exit_code)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
