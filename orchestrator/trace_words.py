"""What the trace verbs say of a trace, and the two checks that they make of files."""

import json
from pathlib import Path
from typing import Any

import typer

from orchestrator.targets import target_file
from trials.describe import Description
from trials.fingerprint import trace_hash
from trials.formats import reader, writer
from trials.trace import Trace, TraceError, load_trace
from trials.units import SpecError

_LONGEST_NOTE = 300


def export_trace(format_name: str, trace: Path, out: Path, as_json: bool) -> None:
    """Write a trace in another tool's format and say what that could not carry. SpecError, TraceError."""
    write = writer(format_name)
    target_file(out)
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


def check_target(out: Path) -> None:
    """Refuse to write over anything but a trace of ours, and what cannot be written."""
    target_file(out)
    if not out.exists():
        return
    try:
        load_trace(out)
    except (TraceError, OSError):
        raise SpecError(f"{out} exists and is no kvknee trace; choose another name for -o") from None


def tell(trace: Trace, out: Path, as_json: bool) -> None:
    """What was written: rows, span, hash; its notes on stderr."""
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


def described(d: Description) -> list[str]:
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
