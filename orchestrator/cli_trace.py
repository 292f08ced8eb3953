"""`kvknee trace ...`: import, generate, overlay, export and describe. Words go to stderr, results to stdout.

Exit codes: 0 done, 2 bad input.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli_errors import verb
from trials.formats import FORMATS, WRITTEN
from trials.presets import ready_presets

trace_app = typer.Typer(
    help="Import, generate, overlay, export and describe request traces.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Out = Annotated[Path, typer.Option("-o", "--out", help="Trace file to write (parquet), whole or not at all.")]
TraceFile = Annotated[
    Path, typer.Argument(metavar="TRACE", help="A trace file made by `kvknee trace import` or `generate`.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]


@trace_app.command("import")
def import_(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of: {', '.join(FORMATS)}.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Source files, in order of time.")],
    out: Out,
    spread: Annotated[str | None, typer.Option(help="Spread rows of one stamp over this time, e.g. 3s.")] = None,
    stagger: Annotated[
        str | None, typer.Option(help="Begin sessions without a common clock over this time, e.g. 60s.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of --spread or --stagger (0 if absent).")] = None,
    as_json: Json = False,
) -> None:
    """Read a public trace into kvknee's columnar form; bad rows are refused with file, line and reason.

    Example: kvknee trace import mooncake conversation.jsonl -o conversation.parquet --spread 3s --seed 1
    """
    with verb(as_json):
        from orchestrator.trace_words import check_target, tell
        from trials.formats import OWN_CLOCKS, reader
        from trials.generate import spread_arrivals
        from trials.overlay import stagger_sessions
        from trials.trace import save_trace
        from trials.units import SpecError, parse_ns

        if seed is not None and spread is None and stagger is None:
            raise SpecError("--seed has no effect without --spread or --stagger; leave it out, or say how far")
        width_ns = parse_ns(spread, "--spread") if spread is not None else None
        stagger_ns = parse_ns(stagger, "--stagger") if stagger is not None else None
        read = reader(format_name)
        if stagger_ns is not None and format_name not in OWN_CLOCKS:
            raise SpecError(f"--stagger: rows of {format_name} have one clock, which it would undo; it is for "
                            f"{', '.join(OWN_CLOCKS)}")  # fmt: skip
        check_target(out)
        trace = read(files)
        if width_ns is not None:
            trace = spread_arrivals(trace, width_ns, seed or 0)
        if stagger_ns is not None:
            trace = stagger_sessions(trace, stagger_ns, seed or 0)
        save_trace(trace, out)
        tell(trace, out, as_json)


@trace_app.command("generate")
def generate_(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help=f"A YAML file, or one of: {', '.join(ready_presets())}.")
    ],
    out: Out,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the preset's seed.")] = None,
    as_json: Json = False,
) -> None:
    """Draw a trace from a preset: same preset and seed, same trace.

    Example: kvknee trace generate chat -o chat.parquet --seed 7
    """
    with verb(as_json):
        from orchestrator.trace_words import check_target, tell
        from trials.generate import generate, load_preset
        from trials.trace import save_trace

        check_target(out)
        trace = generate(load_preset(preset), seed)
        save_trace(trace, out)
        tell(trace, out, as_json)


@trace_app.command("overlay")
def overlay_(
    trace: TraceFile,
    out: Out,
    cancel_share: Annotated[float | None, typer.Option(help="Share of rows that are given up, 0 to 1.")] = None,
    cancel_after_tokens: Annotated[
        int | None, typer.Option(help="Give up after output tokens: geometric with this mean.")
    ] = None,
    patience: Annotated[
        str | None, typer.Option(help="Give up a time after arrival: exponential with this mean, e.g. 5s.")
    ] = None,
    cancel_bursts: Annotated[
        int | None,
        typer.Option(help="Give up in so many groups, each at one moment, --patience after its end."),
    ] = None,
    fork_share: Annotated[
        float | None, typer.Option(help="Share of prompts that are sampled more than once.")
    ] = None,
    fork_width: Annotated[int | None, typer.Option(help="How many samples, the row itself included (4).")] = None,
    beam_share: Annotated[float | None, typer.Option(help="Share of answers that are searched with beams.")] = None,
    beam_width: Annotated[int | None, typer.Option(help="How many beams (4).")] = None,
    beam_every: Annotated[int | None, typer.Option(help="Tokens after which one beam is replaced (16).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same trace.")] = 0,
    as_json: Json = False,
) -> None:
    """Put seeded cancels, n-way samples and beams on a trace; the columns touched are marked synthetic.

    Example: kvknee trace overlay conv.parquet -o busy.parquet --cancel-share 0.15 --patience 5s --fork-share 0.1
    """
    asked: dict[str, dict[str, Any]] = {
        "cancels": {"share": cancel_share, "after_tokens": cancel_after_tokens, "patience": patience,
                    "bursts": cancel_bursts},
        "forks": {"share": fork_share, "width": fork_width},
        "beams": {"share": beam_share, "width": beam_width, "every": beam_every},
    }  # fmt: skip
    with verb(as_json):
        from orchestrator.trace_words import check_target, tell
        from trials.documents import validated
        from trials.overlay import Overlay, overlaid
        from trials.trace import load_trace, save_trace

        given = {name: {k: v for k, v in part.items() if v is not None} for name, part in asked.items()}
        overlay = validated(Overlay, {name: part for name, part in given.items() if part}, "overlay")
        check_target(out)
        done = overlaid(load_trace(trace), overlay, seed)
        save_trace(done, out)
        tell(done, out, as_json)


@trace_app.command("export")
def export_(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of: {', '.join(WRITTEN)}.")],
    trace: TraceFile,
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write, whole or not at all, never over one.")],
    as_json: Json = False,
) -> None:
    """Write a trace for another tool, and say by name what that format cannot carry.

    Example: kvknee trace export vllm-timed conv.parquet -o conv.jsonl
    """
    with verb(as_json):
        from orchestrator.trace_words import export_trace

        export_trace(format_name, trace, out, as_json)


@trace_app.command("describe")
def describe_(
    trace: TraceFile,
    as_json: Json = False,
) -> None:
    """Rate, burstiness, lengths, sharing and its granularity, and the tail slack of each block size.

    Example: kvknee trace describe conversation.parquet
    """
    with verb(as_json):
        from orchestrator.trace_words import described
        from trials.describe import describe
        from trials.trace import load_trace

        description = describe(load_trace(trace))
        if as_json:
            typer.echo(description.model_dump_json(indent=2))
        else:
            typer.echo("\n".join(described(description)))
