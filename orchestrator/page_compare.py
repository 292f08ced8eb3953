"""The report's comparison: any two trials side by side, and what the page's script is given to draw them."""

import math
from typing import Any

import numpy as np

from orchestrator.folder import TrialRecord
from orchestrator.frames import BINNED_COLUMNS, Binned, Floats, bin_ledger, deciding_rows, read_columns
from orchestrator.markup import nothing, option, paragraph
from orchestrator.page_identity import METRICS
from orchestrator.plots_live import Item, both_live, ledger_live
from orchestrator.shown import Sweep, ledger_of
from trials.ledger import ACCOUNTS
from trials.result import TrialResult
from trials.units import byte_unit

_BINS, _FEW_BINS, _MANY_TRIALS = 120, 48, 60  # points over time of a trial; fewer where there are many trials
_TOKENS = (("live", "live tokens", "blue"), ("allocated", "allocated slots", "vermilion"))
_STEPS = (("mean", "mean step", "blue"), ("longest", "longest step", "vermilion"))
_FIGURES = (
    ("ledger-a", "A: where every byte was."), ("ledger-b", "B: where every byte was."),
    ("tokens-ab", "Live tokens and allocated slots, % of the pool's slots."),
    ("steps-ab", "Step time, mean and longest."),
)  # fmt: skip


def compare(sweep: Sweep) -> str:
    """Two selects, four plots and a table that the page's script fills; a word on where else to look without it."""
    trials = _comparable(sweep)
    if len(trials) < 2:
        return nothing("Fewer than two trials have left a ledger: there is nothing to compare yet.")
    first, second = _begin(sweep, trials)
    selects = "".join(
        f'<label>{side} <select id="compare-{side.lower()}">'
        + "".join(option(str(r.number), _label(sweep, r), r.number == picked.number) for r in trials)
        + "</select></label>"
        for side, picked in (("A", first), ("B", second))
    )
    plots = "".join(
        f'<figure data-live="{key}"><figcaption>{words}</figcaption></figure>' for key, words in _FIGURES
    )
    without = (
        "Comparing needs a script, which is switched off or not understood here. "
        "The same numbers stand under Every candidate, and the series in each trial's ledger.parquet."
    )
    return (
        f'<div class="compare" hidden><p class="pick">{selects}</p><div class="plots two">{plots}</div>'
        '<div class="scroll" role="region" tabindex="0" aria-label="The two trials in numbers">'
        '<table id="compare-table"><caption>The two trials in numbers</caption><thead><tr>'
        '<th scope="col">quantity</th><th scope="col" class="n">A</th><th scope="col" class="n">B</th>'
        '<th scope="col" class="n">B - A</th><th scope="col" class="n">B / A - 1</th>'
        '</tr></thead><tbody aria-live="polite"></tbody></table></div></div>'
        f"{paragraph(without, 'without-script')}"
    )


def _comparable(sweep: Sweep) -> list[TrialRecord]:
    """Trials that ran themselves, with a result and a ledger, by number."""
    return [
        r for r in sweep.records
        if r.result is not None and r.result.effective is not None and r.result.decides is not None
        and r.folder is not None and r.card.reused_from is None and ledger_of(r).is_file()
    ]  # fmt: skip


def _begin(sweep: Sweep, trials: list[TrialRecord]) -> tuple[TrialRecord, TrialRecord]:
    """What is compared before anybody chooses: the first two in focus, else the first two."""
    numbers = {r.number for r in trials}
    wanted = [f.record for f in sweep.focus if f.record.number in numbers]
    rest = [r for r in trials if r not in wanted]
    first, second, *_ = [*wanted, *rest]
    return first, second


def _label(sweep: Sweep, record: TrialRecord) -> str:
    titles = (s.title for s in sweep.shown if any(r.number == record.number for r in s.records))
    label = next(titles, sweep.labels[record.number])
    again = f"{record.card.role} of trial {record.card.of}" if record.card.role is not None else ""
    words = [w for w in (label, again, f"repeat {record.repeat}") if w]
    return f"trial {record.number}: {', '.join(words)}"


def compare_figures(sweep: Sweep) -> dict[str, Item]:
    """The empty plots of the comparison, by key."""
    pool = max((r.result.ledger.peak.pool_bytes for r in _comparable(sweep) if r.result is not None), default=0)
    return {
        "ledger-a": ledger_live("A", pool), "ledger-b": ledger_live("B", pool),
        "tokens-ab": both_live(_TOKENS, "%"), "steps-ab": both_live(_STEPS, "ms"),
    }  # fmt: skip


def compare_trials(sweep: Sweep) -> dict[str, Any]:
    """What the script draws: quantities' names, and a trial's numbers and series, all of them short."""
    trials = _comparable(sweep)
    pool = max((r.result.ledger.peak.pool_bytes for r in trials if r.result is not None), default=0)
    bins = _BINS if len(trials) <= _MANY_TRIALS else _FEW_BINS
    names = [name for name, _ in METRICS] + [f"{a.replace('_', ' ')}, mean MiB" for a in ACCOUNTS]
    found = {str(r.number): _numbers(r.result) | _series(r, r.result, bins) for r in trials if r.result is not None}
    return {"quantities": names, "accounts": list(ACCOUNTS), "scale": byte_unit(pool)[1], "trials": found}


def _numbers(result: TrialResult) -> dict[str, Any]:
    values = [read(result) for _, read in METRICS] + [
        result.ledger.time_mean.get(a, 0.0) / (1 << 20) for a in ACCOUNTS
    ]
    return {"pool": result.ledger.peak.pool_bytes, "numbers": [_short(v) for v in values]}


def _short(value: float | None, digits: int = 6) -> float | None:
    """Six digits are more than a table shows, but of whole numbers, which it shows all; None where not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(value) if float(value).is_integer() else float(f"{value:.{digits}g}")


def _series(record: TrialRecord, result: TrialResult, bins: int) -> dict[str, Any]:
    """Accounts in ten-thousandths of the pool, tokens in those of the slots, steps in ms."""
    assert result.effective is not None
    rows = deciding_rows(read_columns(ledger_of(record), BINNED_COLUMNS), result)
    binned = bin_ledger(rows, result.effective, bins)
    if binned is None:
        return {"edges": [], "series": {}}
    slots = max(binned.pool_slots, 1)
    series = {a: _parts(binned.accounts[a], binned.pool_bytes) for a in ACCOUNTS if binned.accounts[a].any()}
    return {"edges": [round(float(e), 3) for e in binned.edges_s], "series": series,
            "live": _parts(binned.live_tokens, slots), "allocated": _parts(binned.allocated_slots, slots),
            **_step_series(binned)}  # fmt: skip


def _parts(values: Floats, whole: int) -> list[int]:
    return [int(v) for v in np.rint(10_000 * values / max(whole, 1))]


def _step_series(binned: Binned) -> dict[str, list[float | None]]:
    return {
        "mean": [_short(float(v), 4) for v in binned.step_ms_mean],
        "longest": [_short(float(v), 4) for v in binned.step_ms_max],
    }
