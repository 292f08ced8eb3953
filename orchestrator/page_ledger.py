"""The report's ledger: where every byte of the pool was, for the winner beside its controls."""

from dataclasses import dataclass

from orchestrator import plots_ledger
from orchestrator.frames import BINNED_COLUMNS, Binned, bin_ledger, deciding_rows, read_columns
from orchestrator.markup import Value, figures, folded, in_bytes, paragraph, table
from orchestrator.shown import Shown, Sweep, ledger_of
from trials.ledger import ACCOUNTS
from trials.result import TrialResult

_MOST = 8  # ledgers drawn; the tables have all


@dataclass(frozen=True, slots=True)
class _Drawn:
    shown: Shown
    key: str
    binned: Binned

    @property
    def title(self) -> str:
        return self.shown.title


def ledgers(sweep: Sweep) -> str:
    """Accounts stacked over time under the pool's total; their means and peaks as a table."""
    drawn = _drawn(sweep)
    shown = [(plots_ledger.ledger_svg(d.binned, d.title, f"ledger-{d.key}"), _ledger_caption(d)) for d in drawn]
    note = (
        "One deciding replay each, its first repeat, in stretches of equal time. The accounts add up to the pool."
    )
    return figures(shown) + paragraph(note, "note") + _accounts_table(sweep)


def _ledger_caption(drawn: _Drawn) -> str:
    useful = drawn.binned.mean("payload") / drawn.binned.pool_bytes
    return f"{drawn.title}: {in_bytes(drawn.binned.pool_bytes)}, of which {useful:.1%} held tokens over time."


def _accounts_table(sweep: Sweep) -> str:
    head = ["candidate", "pool", *(a.replace("_", " ") for a in ACCOUNTS), "residual of the device"]
    means: list[list[Value]] = []
    peaks: list[list[Value]] = []
    for s in sweep.shown:
        result = s.results[0] if s.results else None
        if result is not None:
            means.append([s.label, result.ledger.peak.pool_bytes, *_means(result), result.ledger.residual_bytes])
            peaks.append([s.label, result.ledger.peak.pool_bytes, *_peaks(result), result.ledger.residual_bytes])
    return folded("Data", table("Time means, bytes", head, means), table("At the peak, bytes", head, peaks))


def _means(result: TrialResult) -> list[Value]:
    return [result.ledger.time_mean.get(a) for a in ACCOUNTS]


def _peaks(result: TrialResult) -> list[Value]:
    return [getattr(result.ledger.peak, a) for a in ACCOUNTS]


def tokens(sweep: Sweep) -> str:
    """Live tokens, allocated slots and pool slots over time, and how long steps took beside it."""
    drawn = _drawn(sweep)
    if not drawn:
        return ""
    shown = [(plots_ledger.tokens_svg(d.binned, d.title, f"tokens-{d.key}"), d.title) for d in drawn]
    evidence = sweep.short_evidence
    steps = [
        (
            plots_ledger.occupancy_svg(d.binned, d.title, evidence, f"steps-{d.key}"),
            f"Step time ({evidence}) beside occupancy",
        )
        for d in drawn[:2]
    ]
    head = ["candidate", "live tokens, mean", "allocated slots, mean", "pool slots", "slots per live token"]
    rows: list[list[Value]] = []
    for s in sweep.shown:
        if s.results:
            ledger = s.results[0].ledger
            rows.append([s.label, ledger.physical_live_tokens.mean, ledger.allocated_slots.mean, ledger.pool_slots,
                         ledger.slots_per_live_token])  # fmt: skip
    return figures([*shown, *steps]) + folded("Data", table("Three numbers apart", head, rows))


def _drawn(sweep: Sweep) -> list[_Drawn]:
    """The winner (or the nearest miss) first, then controls; before knee.json, whatever has a ledger."""
    miss = sweep.outcome.nearest_miss.label if sweep.outcome and sweep.outcome.nearest_miss else None
    order = {"chosen": 0, "tied": 1, "control": 1, "candidate": 2}
    wanted = [
        s for s in sweep.shown if s.role == "chosen" or s.controls or sweep.outcome is None or s.label == miss
    ]
    out = []
    for i, s in enumerate(sorted(wanted, key=lambda s: (s.label != miss, order[s.role]))[:_MOST]):
        binned = _binned(s)
        if binned is not None:
            out.append(_Drawn(s, str(i), binned))
    return out


def _binned(shown: Shown) -> Binned | None:
    record = shown.decisive
    if record is None or record.result is None or record.result.effective is None:
        return None
    rows = deciding_rows(read_columns(ledger_of(record), BINNED_COLUMNS), record.result)
    return bin_ledger(rows, record.result.effective)
