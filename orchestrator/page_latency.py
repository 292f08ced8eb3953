"""The report's latency beside occupancy: gaps between tokens against how full the pool was, and how deep tables."""

from collections.abc import Sequence

from orchestrator.frames_gaps import GapClass, gaps_by_depth, gaps_by_occupancy
from orchestrator.markup import Value, figures, folded, nothing, paragraph, table
from orchestrator.plots_ledger import occupancy_svg
from orchestrator.plots_points import Curve, curves_svg
from orchestrator.shown import NO_LEDGER, Focus, Sweep

_DRAWN = 3  # candidates side by side
_COLOURS = ("vermilion", "blue", "green")
_OVER_TIME = 2
_ENOUGH = 200  # gaps in a class

_Gaps = list[tuple[Focus, list[GapClass]]]


def latency(sweep: Sweep) -> str:
    """Gap between tokens by occupancy and by block-table depth; step time over time beside both."""
    if not sweep.focus:
        return nothing(NO_LEDGER)
    evidence = sweep.short_evidence
    seen = [
        (f, f.result.replays[f.result.decides].observation) for f in sweep.focus if f.result.decides is not None
    ]
    full: _Gaps = [(f, gaps_by_occupancy(f.rows, window)) for f, window in seen]
    deep: _Gaps = [(f, gaps_by_depth(f.rows, window)) for f, window in seen]
    drawn = [
        (curves_svg(_curves(full[:_DRAWN]), f"Gap by occupancy ({evidence})", "slots allocated, %",
                    "gap-occupancy"),
         "Gap between two tokens of a request against how full the pool was: median, and p99 dashed."),
        (curves_svg(_curves(deep[:_DRAWN]), f"Gap by table depth ({evidence})", "blocks of a decoding request",
                    "gap-depth"), "The same gap against the length of block tables: median, and p99 dashed."),
        *((occupancy_svg(b, f.title, evidence, f"steps-{f.key}"), f"Step time ({evidence}) beside occupancy.")
          for f in sweep.focus[:_OVER_TIME] if (b := f.binned) is not None),
    ]  # fmt: skip
    note = (
        "A step's duration is a gap for each request that it gave a token; pauses after preemptions are longer and "
        "are in the ITL percentiles alone. Classes of the window's steps; n is the number of gaps, "
        f"and classes under {_ENOUGH} are not drawn."
    )
    data = [_table(f"Gap by occupancy, ms ({evidence})", "slots allocated, %", full),
            _table(f"Gap by table depth, ms ({evidence})", "blocks", deep)]  # fmt: skip
    return figures(drawn) + paragraph(note, "note") + folded("Data", *data)


def _curves(found: _Gaps) -> list[Curve]:
    """Classes with too few gaps for a percentile stay in the table."""
    drawn = [(f, [c for c in classes if c.n >= _ENOUGH]) for f, classes in found]
    return [
        Curve(f.shown.label, _COLOURS[i % len(_COLOURS)], tuple((c.low + c.high) / 2 for c in classes),
              tuple(c.p50_ms for c in classes), tuple(c.p99_ms for c in classes))
        for i, (f, classes) in enumerate(drawn)
    ]  # fmt: skip


def _table(caption: str, of: str, found: Sequence[tuple[Focus, list[GapClass]]]) -> str:
    rows: list[list[Value]] = [
        [f.shown.label, f"{c.low:.4g} to {c.high:.4g}", c.n, c.p50_ms, c.p99_ms]
        for f, classes in found
        for c in classes
    ]
    return table(caption, ["candidate", of, "n", "p50", "p99"], rows)
