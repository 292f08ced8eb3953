"""`kvknee trace ...`: import, generate, overlay, export and describe. Words go to stderr, results to stdout.

Exit codes: 0 done, 2 bad input.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from trials.describe import Description, describe
from trials.documents import validated
from trials.fingerprint import trace_hash
from trials.formats import FORMATS, OWN_CLOCKS, WRITTEN, reader, writer
from trials.generate import generate, load_preset, ready_presets, spread_arrivals
from trials.overlay import Overlay, overlaid, stagger_sessions
from trials.trace import Trace, TraceError, load_trace, save_trace
from trials.units import SpecError, parse_ns

trace_app = typer.Typer(help="Import, generate, overlay, export and describe request traces.", no_args_is_help=True)

_LONGEST_NOTE = 300
Out = Annotated[Path, typer.Option("-o", "--out", help="Trace file to write (parquet), whole or not at all.")]
TraceFile = Annotated[
    Path, typer.Argument(metavar="TRACE", help="A trace file made by `kvknee trace import` or `generate`.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]


@contextmanager
def _bad_input_ends_with_2() -> Iterator[None]:
    try:
        yield
    except (TraceError, SpecError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except OSError as error:
        typer.echo(f"error: {error.filename or 'file'}: {error.strerror or error}", err=True)
        raise typer.Exit(2) from None


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
    with _bad_input_ends_with_2():
        if seed is not None and spread is None and stagger is None:
            raise SpecError("--seed has no effect without --spread or --stagger; leave it out, or say how far")
        width_ns = parse_ns(spread, "--spread") if spread is not None else None
        stagger_ns = parse_ns(stagger, "--stagger") if stagger is not None else None
        read = reader(format_name)
        if stagger_ns is not None and format_name not in OWN_CLOCKS:
            raise SpecError(f"--stagger: rows of {format_name} have one clock, which it would undo; it is for "
                            f"{', '.join(OWN_CLOCKS)}")  # fmt: skip
        _check_target(out)
        trace = read(files)
        if width_ns is not None:
            trace = spread_arrivals(trace, width_ns, seed or 0)
        if stagger_ns is not None:
            trace = stagger_sessions(trace, stagger_ns, seed or 0)
        save_trace(trace, out)
    _tell(trace, out, as_json)


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
    with _bad_input_ends_with_2():
        _check_target(out)
        trace = generate(load_preset(preset), seed)
        save_trace(trace, out)
    _tell(trace, out, as_json)


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
    with _bad_input_ends_with_2():
        given = {name: {k: v for k, v in part.items() if v is not None} for name, part in asked.items()}
        overlay = validated(Overlay, {name: part for name, part in given.items() if part}, "overlay")
        _check_target(out)
        done = overlaid(load_trace(trace), overlay, seed)
        save_trace(done, out)
    _tell(done, out, as_json)


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
    with _bad_input_ends_with_2():
        write = writer(format_name)
        if out.exists():
            raise SpecError(f"{out} exists; choose another name for -o")
        source = load_trace(trace)
        exported = write(source, out)
        kept = _comes_back(format_name, out, source)
    for loss in exported.losses:
        typer.echo(f"lost: {loss.column}: {loss.reason}", err=True)
    if as_json:
        told = {
            "file": str(out), "format": format_name, "rows": len(source), "trace_hash": trace_hash(source),
            "hash_kept": kept, "losses": [loss._asdict() for loss in exported.losses], "hint": exported.hint,
        }  # fmt: skip
        typer.echo(json.dumps(told, indent=2))
        return
    typer.echo(f"{out}: {len(source):,} rows")
    typer.echo(f"importing it gives {'the same' if kept else 'another'} trace hash")
    if exported.hint:
        typer.echo(f"read it with: {exported.hint}")


def _comes_back(format_name: str, path: Path, trace: Trace) -> bool:
    """Whether importing the file gives the same trace."""
    try:
        return trace_hash(reader(format_name)([path])) == trace_hash(trace)
    except TraceError:
        return False


@trace_app.command("describe")
def describe_(
    trace: TraceFile,
    as_json: Json = False,
) -> None:
    """Rate, burstiness, lengths, sharing and its granularity, and the tail slack of each block size.

    Example: kvknee trace describe conversation.parquet
    """
    with _bad_input_ends_with_2():
        description = describe(load_trace(trace))
    if as_json:
        typer.echo(description.model_dump_json(indent=2))
    else:
        typer.echo("\n".join(_lines(description)))


def _check_target(out: Path) -> None:
    """Refuse to write over anything but a trace of ours."""
    if not out.exists():
        return
    try:
        load_trace(out)
    except (TraceError, OSError):
        raise SpecError(f"{out} exists and is no kvknee trace; choose another name for -o") from None


def _tell(trace: Trace, out: Path, as_json: bool) -> None:
    told: dict[str, Any] = {
        "trace": str(out),
        "name": trace.meta.name,
        "source": trace.meta.source,
        "rows": len(trace),
        "span_s": int(trace.arrival_ns[-1] - trace.arrival_ns[0]) / 1e9,
        "trace_hash": trace_hash(trace),
        "synthetic": list(trace.meta.synthetic),
        "notes": list(trace.meta.notes),
    }
    for note in trace.meta.notes:
        typer.echo(f"note: {_short(note)}", err=True)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    typer.echo(f"{out}: {told['rows']:,} rows over {told['span_s']:,.1f} s")
    if told["synthetic"]:
        typer.echo(f"synthetic: {', '.join(told['synthetic'])}")
    typer.echo(f"trace hash {told['trace_hash']}")


def _short(note: str) -> str:
    return note if len(note) <= _LONGEST_NOTE else f"{note[:_LONGEST_NOTE]}... (whole in the trace, see --json)"


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)


def _lines(d: Description) -> list[str]:
    """The description for a terminal."""
    a, s = d.arrivals, d.sharing
    lines = [
        f"{d.name or 'trace'}: {d.rows:,} rows over {a.span_s:,.1f} s, hash {d.trace_hash}",
        f"rate        {_number(a.rate_rps, '.3f')} requests/s; gap CV {_number(a.gap_cv, '.2f')}; "
        f"longest silence {a.longest_gap_s:,.1f} s",
        f"minutes     busiest {a.busiest_minute:,} rows, mean {_number(a.mean_minute, '.0f')}; "
        f"{a.distinct_stamps:,} distinct stamps",
        f"tokens      {'min':>8}{'p1':>8}{'p10':>8}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>8}{'mean':>10}",
    ]
    for name, n in (("prompt", d.prompt), ("output", d.output)):
        cells = "".join(f"{value:>8}" for value in (n.min, n.p1, n.p10, n.p50, n.p90, n.p99, n.max))
        lines.append(f"{name:<12}{cells}{n.mean:>10.1f}")
    if s.tokens_per_id:
        lines += [
            f"sharing     ideal prefix hit ratio {s.ideal_hit_ratio:.1%} of prompt tokens at "
            f"{s.tokens_per_id}-token granularity (a lower bound for smaller blocks)",
            f"            rows with prefix ids {s.share_of_rows_with_ids:.1%}, rows that hit "
            f"{s.share_of_rows_that_hit:.1%}",
        ]
    else:
        lines.append("sharing     unknown: the trace has no prefix ids")
    lines.append("tail slack  " + "".join(f"{k.block_size:>8}" for k in d.static_tail_slack) + "   tokens a block")
    lines.append(
        "            " + "".join(f"{k.percent:>8.3f}" for k in d.static_tail_slack) + "   % at final length"
    )
    if d.synthetic:
        lines.append(f"synthetic   {', '.join(d.synthetic)}")
    lines += [f"note        {_short(note)}" for note in d.notes]
    return [*lines, f"source      {d.source}"]
