"""`kvknee trace ...`: import, generate and describe traces. Words go to stderr, results to stdout.

Exit codes: 0 done, 2 bad input.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from trials.describe import Description, describe
from trials.fingerprint import trace_hash
from trials.formats import FORMATS, reader
from trials.generate import generate, load_preset, ready_presets, spread_arrivals
from trials.trace import Trace, TraceError, load_trace, save_trace
from trials.units import SpecError, parse_ns

trace_app = typer.Typer(help="Import, generate and describe request traces.", no_args_is_help=True)

_LONGEST_NOTE = 300
Out = Annotated[Path, typer.Option("-o", "--out", help="Trace file to write (parquet), whole or not at all.")]
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
    seed: Annotated[int | None, typer.Option(help="Seed of --spread (0 if absent).")] = None,
    as_json: Json = False,
) -> None:
    """Read a public trace into kvknee's columnar form; bad rows are refused with file, line and reason.

    Example: kvknee trace import mooncake conversation.jsonl -o conversation.parquet --spread 3s --seed 1
    """
    with _bad_input_ends_with_2():
        if seed is not None and spread is None:
            raise SpecError("--seed has no effect without --spread; leave it out, or say how far to spread")
        width_ns = parse_ns(spread, "--spread") if spread is not None else None
        _check_target(out)
        trace = reader(format_name)(files)
        if width_ns is not None:
            trace = spread_arrivals(trace, width_ns, seed or 0)
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


@trace_app.command("describe")
def describe_(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace file made by `kvknee trace import` or `generate`.")
    ],
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
