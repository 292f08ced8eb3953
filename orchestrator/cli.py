"""`kvknee ...`: one Typer app. Heavy rooms are imported by the verb that needs them.

Exit codes: 0 done · 1 our fault · 2 bad input · 3 no feasible candidate, or refused · 4 did not reproduce ·
5 a ledger does not balance · 130 interrupted, resumable.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli_errors import run_app, verb
from orchestrator.cli_options import Address, Goodput, Json, Out, Sets, say_json
from orchestrator.cli_recipes import recipes_app
from orchestrator.cli_runs import runs_app
from orchestrator.cli_streams import with_streams
from orchestrator.cli_trace import trace_app

app = typer.Typer(
    help="Find the KV-cache block size and pool policy that turn the most cache bytes into useful, timely tokens.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich alone would double the time of --help
)


@app.command()
def doctor(address: Address = None, as_json: Json = False) -> None:
    """What this machine or cluster can run, and what is missing.

    Example: kvknee doctor
    """
    with verb(as_json):
        from orchestrator.doctor import examine

        report = examine(address)
        if as_json:
            say_json(report.model_dump(mode="json"))
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
            say_json(done.document())
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
            say_json(found.model_dump(mode="json"))
        else:
            for line in found.lines:
                typer.echo(line)


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
            say_json({"table": str(out), **table.model_dump(mode="json")})
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
            say_json(report.model_dump(mode="json"))
        else:
            print_controls(report)
        raise typer.Exit(report.exit_code)


app.add_typer(runs_app)
app.add_typer(recipes_app)
app.add_typer(trace_app, name="trace")


def main() -> None:
    """The console script."""
    with_streams()
    run_app(app, sys.argv[1:])


if __name__ == "__main__":
    main()
