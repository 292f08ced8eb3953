"""The report's ledger: where every byte of the pool was, for the winner beside its controls."""

from orchestrator.frames import Binned
from orchestrator.markup import Value, figures, folded, in_bytes, nothing, paragraph, table
from orchestrator.plots_ledger import ledger_svg, tokens_svg
from orchestrator.shown import NO_LEDGER, Focus, Sweep
from trials.ledger import ACCOUNTS
from trials.result import TrialResult


def ledgers(sweep: Sweep) -> str:
    """Accounts stacked over time under the pool's total; their means and peaks as a table."""
    shown = [
        (ledger_svg(b, f.title, f"ledger-{f.key}"), _ledger_caption(f, b))
        for f in sweep.focus
        if (b := f.binned) is not None
    ]
    if not shown:
        return nothing(NO_LEDGER)
    note = (
        "One deciding replay each, its first repeat, in stretches of equal time. The accounts add up to the pool."
    )
    return figures(shown) + paragraph(note, "note") + _accounts_table(sweep)


def _ledger_caption(focus: Focus, found: Binned) -> str:
    useful = found.mean("payload") / found.pool_bytes
    return f"{focus.title}: {in_bytes(found.pool_bytes)}, of which {useful:.1%} held tokens over time."


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
    """Live tokens, allocated slots and pool slots over time: three numbers that are not the same."""
    shown = [
        (tokens_svg(b, f.title, f"tokens-{f.key}"), f.title) for f in sweep.focus if (b := f.binned) is not None
    ]
    if not shown:
        return nothing(NO_LEDGER)
    head = ["candidate", "live tokens, mean", "allocated slots, mean", "pool slots", "slots per live token"]
    rows: list[list[Value]] = []
    for s in sweep.shown:
        if s.results:
            ledger = s.results[0].ledger
            rows.append([s.label, ledger.physical_live_tokens.mean, ledger.allocated_slots.mean, ledger.pool_slots,
                         ledger.slots_per_live_token])  # fmt: skip
    note = (
        "Live tokens are held in the pool, a shared one once. Allocated slots are what their blocks could hold. "
        "Pool slots are all that there are. A gauge of used blocks shows the second as if it were the first."
    )
    return figures(shown) + paragraph(note, "note") + folded("Data", table("Three numbers apart", head, rows))
