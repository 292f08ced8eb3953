"""The report's pressure: who was kept out at how many free bytes, what blocks went through, and how forks part."""

from collections.abc import Callable

import numpy as np

from orchestrator.markup import Value, figures, folded, in_bytes, nothing, paragraph, table
from orchestrator.plots import Floats
from orchestrator.plots_bars import Bars, Part, bars_svg
from orchestrator.plots_churn import churn_svg, divergence_svg
from orchestrator.shown import NO_LEDGER, Focus, Sweep
from trials.result import PressureBin, TrialResult

_DRAWN = 3  # candidates in focus that are drawn; the tables have all
_MOST_BINS = 8
_CAUSES = (
    ("memory", "memory", "vermilion", ""), ("head_of_line", "head of line", "blue", "xx"),
    ("watermark", "watermark", "green", ".."), ("slots", "slots", "purple", "--"),
    ("budget", "token budget", "grey", ""), ("preempted", "a preemption", "orange", "//"),
)  # fmt: skip
_LIVES: list[tuple[str, Callable[[TrialResult], Value]]] = [
    ("preemptions", lambda r: r.metrics.num_preemptions),
    ("recomputed tokens", lambda r: r.metrics.num_recomputed_tokens),
    ("blocks handed out", lambda r: r.metrics.alloc_events),
    ("given back", lambda r: r.metrics.free_events),
    ("evicted", lambda r: r.metrics.evict_events),
    ("copied", lambda r: r.metrics.copy_events),
    ("found again", lambda r: r.metrics.churn.revived_blocks),
    ("life of a block, ms", lambda r: r.metrics.churn.block_lifetime_ms),
    ("rest in the cache, ms", lambda r: r.metrics.churn.cached_ms),
    ("prefix hits, %", lambda r: 100 * r.metrics.prefix_hit_rate),
]


def pressure(sweep: Sweep) -> str:
    """Failed admissions by free bytes, and their causes."""
    if not sweep.focus:
        return nothing(NO_LEDGER)
    drawn = [
        (bars_svg(_bins(f), f"pressure-{f.key}"), f"{f.title}: steps that kept the head of the queue out.")
        for f in sweep.focus[:_DRAWN]
    ]
    note = (
        "A step counts once for as long as the head of the queue waits; bins are free + cached bytes, powers of "
        "two, the same for every candidate. A spent token budget or a preemption in the step strand nothing."
    )
    head = ["candidate", *(words for _, words, *_ in _CAUSES), "largest prompt admissible: least", "most"]
    rows: list[list[Value]] = []
    for s in sweep.shown:
        if s.results:
            m = s.results[0].metrics
            kept_out = (m.failed_admissions.get(key, 0) for key, *_ in _CAUSES)
            rows.append([s.label, *kept_out, *(m.largest_admissible_tokens.get(end) for end in ("min", "max"))])
    causes = table("Failed admissions by cause, steps; admissible prompts in tokens", head, rows)
    return figures(drawn) + paragraph(note, "note") + folded("Data", causes, *map(_bin_table, sweep.focus))


def _bins(focus: Focus) -> Bars:
    found = focus.result.metrics.failed_admissions_by_free_bytes
    kept = _few([b for b in found if sum(b.failed.values())])
    parts = tuple(
        Part(words, colour, tuple(b.failed.get(key, 0) for b in kept), hatch)
        for key, words, colour, hatch in _CAUSES
    )
    return Bars(focus.title, "steps", tuple(map(_range, kept)), parts, "nobody was kept out in the window", True)


def _few(bins: list[PressureBin]) -> list[PressureBin]:
    """So many bins as can be read: those with the fewest bytes come together; none at all stays apart."""
    none, some = [b for b in bins if b.high_bytes == 0], [b for b in bins if b.high_bytes]
    while len(some) > _MOST_BINS:
        low, high, *rest = some
        failed = {
            cause: low.failed.get(cause, 0) + high.failed.get(cause, 0) for cause in {*low.failed, *high.failed}
        }
        both = high.model_copy(
            update={"low_bytes": low.low_bytes, "steps": low.steps + high.steps, "failed": failed}
        )
        some = [both, *rest]
    return none + some


def _range(b: PressureBin) -> str:
    """Bins are powers of two, so their upper end names them."""
    return "none free" if b.high_bytes == 0 else f"up to {in_bytes(b.high_bytes)}"


def _bin_table(focus: Focus) -> str:
    head = [
        "free + cached",
        "steps",
        *(words for _, words, *_ in _CAUSES),
        "share of steps, %",
        "stranded, byte-seconds",
    ]
    rows: list[list[Value]] = [
        [_range(b), b.steps, *(b.failed.get(key, 0) for key, *_ in _CAUSES), 100 * b.share,
         sum(b.stranded_byte_seconds.values())]
        for b in focus.result.metrics.failed_admissions_by_free_bytes
    ]  # fmt: skip
    return table(f"Failed admissions by free bytes: {focus.title}", head, rows)


def churn(sweep: Sweep) -> str:
    """The life of blocks beside step time, preemptions, and what forks took when they parted."""
    if not sweep.focus:
        return nothing(NO_LEDGER)
    drawn = [
        (
            churn_svg(f.result.metrics.churn.stretches, f.title, f"churn-{f.key}"),
            f"{f.title}: the window in sixteenths.",
        )
        for f in sweep.focus[:_DRAWN]
        if f.result.metrics.churn.stretches
    ]
    head = ["candidate", *(name for name, _ in _LIVES)]
    rows: list[list[Value]] = [
        [s.label, *(read(s.results[0]) for _, read in _LIVES)] for s in sweep.shown if s.results
    ]
    note = "Events over the window, lives over the whole replay; first repeat."
    lives = table("Blocks and their lives", head, rows)
    return figures(drawn) + paragraph(note, "note") + folded("Data", lives) + _divergence(sweep)


def _divergence(sweep: Sweep) -> str:
    """Forked requests share blocks until they write; then each takes its own, in a burst."""
    parted = [f for f in sweep.focus if _max(f, "bound_blocks") or _max(f, "burst_blocks")]
    if not parted:
        return nothing("Divergence: no request of this trace forks, so nothing shared is ever written.")
    drawn = [
        (divergence_svg(*_bursts(f), f.title, f"burst-{f.key}"), f"{f.title}: bursts against their bound.")
        for f in parted[:_DRAWN]
    ]
    head = ["candidate", "largest burst, blocks", "bound, blocks", "short of free + cached, blocks", "copied bytes"]
    rows: list[list[Value]] = []
    for s in sweep.shown:
        if s.results:
            m = s.results[0].metrics
            rows.append([s.label, m.divergence_burst_blocks, m.divergence_bound_blocks, m.divergence_short_blocks,
                         m.copied_bytes])  # fmt: skip
    return figures(drawn) + folded("Data", table("Divergence", head, rows))


def _max(focus: Focus, column: str) -> int:
    values = focus.rows[column].to_numpy(np.int64)
    return int(values.max()) if len(values) else 0


def _bursts(focus: Focus, stretches: int = 120) -> tuple[Floats, Floats, Floats]:
    """Edges in s, and the highest burst and bound of each stretch."""
    start = focus.rows["start_ns"].to_numpy(np.int64) / 1e9
    edges = np.linspace(start[0], max(start[-1], start[0] + 1e-9), stretches + 1)
    place = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, stretches - 1)
    found = []
    for column in ("burst_blocks", "bound_blocks"):
        most = np.zeros(stretches)
        np.maximum.at(most, place, focus.rows[column].to_numpy(float))
        found.append(most)
    return edges, found[0], found[1]
