"""`kvknee run | resume | status | report`: a sweep, from its YAML to its answer."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli_errors import verb
from orchestrator.cli_options import (
    Address,
    Folder,
    Goodput,
    GpuHours,
    Json,
    Out,
    Quiet,
    Sets,
    Until,
    hushed,
    say_json,
)

runs_app = typer.Typer(rich_markup_mode=None)


@runs_app.command()
def run(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP.yaml")],
    sets: Sets = None,
    address: Address = None,
    trials: Annotated[int | None, typer.Option("-n", "--trials", help="Budget; controls stand beside it.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(help="Trials at once.")] = None,
    gpu_hours: GpuHours = None,
    until: Until = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option(help="Resolve and check everything, run nothing.")] = False,
    goodput: Goodput = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a sweep: trials, knee, recipe, report. Ctrl-C leaves a folder that `resume` continues.

    Example: kvknee run block_size.yaml --set measure.load.rate_scale=2 -o runs/conv
    """
    with verb(as_json):
        from orchestrator.cli_sweep import Overrides, dry, run_sweep
        from orchestrator.limits import read_limits
        from orchestrator.opening import new_folder
        from orchestrator.resolve import load_sweep
        from orchestrator.targets import target_folder

        limits = read_limits(gpu_hours, until)
        overrides = Overrides(address, trials, max_concurrent)
        if out is not None:
            target_folder(out)  # before the sweep is looked up, which takes longer
        resolved = load_sweep(sweep, [*(sets or ()), *overrides.sets()], goodput)
        if dry_run:
            dry(resolved, as_json, say_json)
            return
        with hushed(quiet):
            code = run_sweep(out or new_folder(resolved.config.name), resolved, as_json, say_json, limits)
        raise typer.Exit(code)


@runs_app.command()
def resume(
    folder: Folder, gpu_hours: GpuHours = None, until: Until = None, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Continue a sweep that was interrupted, to exactly its budget.

    Example: kvknee resume runs/conv
    """
    with verb(as_json):
        from orchestrator.cli_sweep import run_sweep, stored
        from orchestrator.limits import read_limits

        limits = read_limits(gpu_hours, until)
        with hushed(quiet):
            code = run_sweep(folder, stored(folder), as_json, say_json, limits)
        raise typer.Exit(code)


@runs_app.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """How far a sweep is: trials by state, best so far. Reads only.

    Example: kvknee status runs/conv
    """
    with verb(as_json):
        from orchestrator.cli_sweep import status_of, stored

        found = status_of(folder, stored(folder))
        if as_json:
            say_json(found.document)
        else:
            for line in found.lines:
                typer.echo(line)


@runs_app.command()
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

        raise typer.Exit(report_on(folder, stored(folder), as_json, say_json, rebuild_tracking))


@runs_app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's folder, or a trial's.")],
    how: Annotated[str, typer.Option("--as", metavar="FORMAT", help="vllm, otel, aiperf-json or aiperf-csv.")],
    out: Annotated[
        Path, typer.Option("-o", "--output", help="The file to write; of aiperf's, one a trial, the folder.")
    ],
    trials: Annotated[
        list[int] | None, typer.Option("--trial", metavar="N", help="Only this one; again: more.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Results in the words of other tools: vLLM's metrics, OpenTelemetry's GenAI ones, AIPerf's files.

    Example: kvknee export runs/conv --as vllm -o conv.prom
    """
    with verb(as_json):
        from orchestrator.export import export as write

        written = write(folder, how, out, tuple(trials or ()))
        if as_json:
            say_json({"format": how, "files": [str(path) for path in written]})
        else:
            typer.echo(f"{how}: {len(written)} file{'s' if len(written) > 1 else ''}, {written[0]}")


@runs_app.command()
def ui(
    folder: Folder,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of 127.0.0.1; by default from 5000 on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve the sweep's MLflow on loopback until Ctrl-C; a sweep that runs goes on beside it.

    Example: kvknee ui runs/conv
    """
    with verb(as_json):
        from orchestrator.ui import serve, shown

        what = shown(folder, port)

        def say(url: str) -> None:
            if as_json:
                say_json({"url": url, "study": what.study})
                return
            typer.echo(f"MLflow: {url}{' (Ctrl-C ends it)' if what.store else ''}")
            if what.study:
                typer.echo(f"the study: {what.study}")

        raise typer.Exit(serve(what, folder, say))
