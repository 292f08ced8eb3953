"""What verbs print for people: the verdict table of a sweep, the metrics and the ledger of a trial."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.conclude import Conclusion
from orchestrator.config import Sweep, SweepConfig
from orchestrator.estimate import estimate
from orchestrator.folder import SweepFolder
from orchestrator.markup import in_bytes
from search_spaces.noise import planned_words
from search_spaces.outcome import Outcome
from search_spaces.space import Space
from search_spaces.verdicts import first_named
from trials.result import Accounts, Percentiles, TrialResult
from trials.spec import PoolSpec
from trials.static_batch import Compared

if TYPE_CHECKING:
    from orchestrator.controls import ControlsReport

_PIPED_WIDTH = 150  # columns, where no terminal says how many there are
_UNMOVED = "the space does not move what it would fix"
_LISTED = 16  # candidates of a plan; of more, what each field may be
_MOST_SAID = 160  # characters of an objection in a table


def print_conclusion(found: Conclusion, folder: SweepFolder) -> None:
    """Verdict table, outcome in one sentence, tied set, notes, recipe and report."""
    outcome = found.outcome
    _print_table(
        ("option", "observed", "verdict", "reason"),
        [(f"{r.option}{' *' if r.control else ''}", r.signal, r.verdict, r.reason) for r in outcome.verdicts],
    )
    print("* control: stays in the report, and wins only as a point of the space\n")
    for line in outcome_lines(outcome):
        print(line)
    if found.unbalanced:
        print(f"LEDGER DOES NOT BALANCE in trial {', '.join(map(str, found.unbalanced))}")
    print(f"recipe: {_from_here(found.recipe) if found.recipe else 'none, nothing is feasible'}")
    print(f"report: {_from_here(found.report or folder.report_html)}")


def _from_here(path: Path) -> Path:
    """As it can be typed where one stands, when it lies below; else whole."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def outcome_lines(outcome: Outcome) -> list[str]:
    lines = [f"outcome: {outcome.sentence}"]
    if outcome.tied:
        lines.append(f"tied set: {first_named(outcome.tied)}  ({outcome.noise})")
    if outcome.binding:
        lines.append(f"binding clause: {outcome.binding}")
    lines += _again_lines(outcome)
    lines += [
        f"front: {p.label}: {p.value:.4g} qualified tok/s, {p.waste_byte_seconds_per_token:.4g} byte-s wasted each"
        for p in outcome.front
    ]
    return lines + [f"note: {note}" for note in outcome.notes]


def _again_lines(outcome: Outcome) -> list[str]:
    """What was measured again after the search: held-out windows and survival."""
    lines = []
    for c in outcome.confirmed:
        values = ", ".join("none" if v is None else f"{v:.4g}" for v in c.values)
        behind = "" if c.share_of_winner is None or "winner" in c.parts else f" ({c.share_of_winner - 1:+.1%})"
        apart = c.behind_winner
        interval = f", winner ahead by {apart.low:.4g} .. {apart.high:.4g}" if apart else ""
        why = f"; {c.why_not}" if c.why_not else ""
        lines.append(f"held out: {c.label} ({', '.join(c.parts)}): {values}{behind}{interval}{why}")
    return lines + [
        f"survival: {s.label} {'survives' if s.survived else f'does not: {s.reason}'}" for s in outcome.survival
    ]


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_WIDTH)
    table = Table(*head, show_lines=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def left_out(sweep: Sweep) -> list[str]:
    """Controls that were asked for and have nothing to stand beside."""
    kept = {name for name, _ in sweep.controls}
    return [name for name in sweep.config.controls if name not in kept]


def plan_lines(sweep: Sweep) -> list[str]:
    """A dry run: what would be run, in words."""
    config = sweep.config
    windows = [
        "the whole trace" if w is None else f"{w.start / 1e9:g} s + {w.duration / 1e9:g} s" for w in sweep.windows
    ]
    lines = [
        f"sweep {config.name}: space {sweep.space.name}, {config.sampler}, engine {config.engine.name}",
        f"trace {config.trace.path} ({sweep.trace_digest[:12]}), {_load_words(config)}",
        f"model {config.model.name or 'as given'}, {_pool_words(config.pool)}",
        f"SLO {config.slo}; objective {config.objective}",
        f"budget {sweep.budget} trials, {_several(config.repeats, 'repeat')} on {'; '.join(windows)}",
    ]
    lines.append(_candidates_words(sweep.space))
    lines.append(planned_words(config.repeats, config.min_gain))
    lines.append(_again_words(sweep))
    beside = ", ".join(name for name, _ in sweep.controls) or "none"
    lines.append(f"controls beside the budget, each on every window: {beside}")
    lines.append(estimate(sweep).words)
    lines += [f"left out: control {name}: {_UNMOVED}" for name in left_out(sweep)]
    return lines + [f"note: {note}" for note in sweep.notes]


def _load_words(config: SweepConfig) -> str:
    load, ladder = config.measure.load, config.measure.ladder
    if load is not None:
        return "at " + ", ".join(f"{name}={value:g}" for name, value in load.model_dump(exclude_none=True).items())
    assert ladder is not None
    return f"searched over {ladder.over} {ladder.low:g} .. {ladder.high:g}"


def _pool_words(pool: PoolSpec) -> str:
    if pool.blocks is not None:
        return f"a pool of {pool.blocks:,} blocks"
    whole, kind = (pool.bytes, "a pool of") if pool.bytes is not None else (pool.device_budget, "a device with")
    return f"{kind} {in_bytes(whole or 0)}"


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _candidates_words(space: Space) -> str:
    """The candidates by name, or, where these are many, the fields that are moved."""
    if space.enumerable and space.num_candidates <= _LISTED:
        specs = (space.suggest(p) for p in space.candidates())
        return f"candidates ({space.num_candidates}): {', '.join(space.label(space.policy_of(s)) for s in specs)}"
    fields = (
        f"{d.label} {{{', '.join(map(d.words, d.values))}}}" if d.values else f"{d.label} {d.low:g} .. {d.high:g}"
        for d in space.dimensions
    )
    return f"candidates ({space.num_candidates if space.enumerable else 'continuous'}): {'; '.join(fields)}"


def _again_words(sweep: Sweep) -> str:
    """What is measured again once the search is over."""
    held = [f"{w.start / 1e9:g} s + {w.duration / 1e9:g} s" for w in sweep.held_out]
    said = f"held out, never searched: {'; '.join(held)}" if held else "nothing is held out"
    survival = sweep.config.survival
    return f"{said}; survival: {survival.words if survival else 'not asked for'}"


def print_trial(result: TrialResult, where: str) -> None:
    """Metrics of the replay that decides, and its ledger, whose accounts add up to the pool."""
    print(f"{result.status}{f': {result.reason}' if result.reason else ''} ({result.evidence})")
    for why in result.ineligible_because:
        print(f"not eligible: {why}")
    for warning in result.warnings:
        print(f"warning: {warning}")
    if result.capacity is not None:
        print(f"capacity: {result.capacity.words}")
    if result.decides is not None:
        decides = result.replays[result.decides]
        print(f"replay that decides: {decides.phase}, {decides.load}, clock {decides.clock}")
        _print_table(("metric", "n", "mean", "p50", "p90", "p99", "max"), _latencies(result))
        _print_table(("metric", "value"), _rates(result))
        _print_table(("account", "time mean", "at the peak"), _accounts(result))
    for name, value in result.hashes.model_dump().items():
        print(f"{name} hash: {value}")
    print(f"files: {where}")


def print_controls(report: "ControlsReport") -> None:
    """The eight failures at two scales, what was said each way, and the bound's own lines."""
    _print_table(
        ("failure", "scale", "clean", "mutant caught by", "its words", "check off", "holds"),
        [
            (p.failure, p.scale, _said(p.clean), p.check if p.caught else "NOTHING", _said(p.mutant[:1]),
             _said(p.check_off), "yes" if p.holds else "NO")
            for p in report.provoked
        ],
    )  # fmt: skip
    for line in report.bound:
        print(line)
    held = sum(p.holds for p in report.provoked)
    print(f"{held} of {len(report.provoked)} hold: clean passes, the mutant is caught, and passes unchecked")


def _said(words: Sequence[str]) -> str:
    text = "; ".join(words) or "passes"
    return text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]}..."


def print_static(rows: Sequence[Compared]) -> None:
    """A packed batch of the same final lengths beside the lifecycle."""
    if not rows:
        print("no request was served: there are no final lengths to pack into a static batch")
        return
    print("a packed batch of the same final lengths, beside what the lifecycle showed (the replay that decides)")
    _print_table(
        ("quantity", "static batch", "lifecycle", "unit"),
        [(r.name, _quantity(r.static, r.unit), _quantity(r.lifecycle, r.unit), r.unit) for r in rows],
    )


def _quantity(value: float, unit: str) -> str:
    return f"{value:.3%}" if unit == "share" else f"{value:,.1f}" if value % 1 else f"{value:,.0f}"


def _latencies(result: TrialResult) -> list[tuple[str, ...]]:
    rows = []
    for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2el_ms"):
        p: Percentiles = getattr(result.metrics, name)
        rows.append((name, str(p.n), *(_number(getattr(p, k)) for k in ("mean", "p50", "p90", "p99", "max"))))
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _rates(result: TrialResult) -> list[tuple[str, str]]:
    m = result.metrics
    rows = [
        ("qualified_output_throughput", f"{m.qualified_output_throughput:,.1f} tok/s"),
        ("output_throughput", f"{m.output_throughput:,.1f} tok/s"),
        ("request_goodput", f"{m.request_goodput:,.2f} req/s"),
        ("prefix_hit_rate", f"{m.prefix_hit_rate:.1%}"),
        ("preemptions", str(m.num_preemptions)),
    ]
    counts = result.counts.model_dump()
    rows.append(("requests", ", ".join(f"{n} {name}" for name, n in counts.items() if n)))
    decides = result.replays[result.decides or 0]
    rows.append(("attainment", f"{decides.attainment:.1%}, SLO {'holds' if decides.holds else 'does not hold'}"))
    rows.append(("binding clause", decides.binding or "-"))
    return rows


def _accounts(result: TrialResult) -> list[tuple[str, str, str]]:
    """Every account of the pool, its sum, and the pool: the last two lines are equal where the ledger is exact."""
    names = [n for n in Accounts.model_fields if n != "pool_bytes"]
    peak, mean = result.ledger.peak, result.ledger.time_mean
    rows = [(n, _bytes(mean.get(n, 0.0)), _bytes(getattr(peak, n))) for n in names]
    total_mean, total_peak = sum(mean.get(n, 0.0) for n in names), sum(getattr(peak, n) for n in names)
    rows.append(("sum", _bytes(total_mean), _bytes(total_peak)))
    rows.append(("pool", _bytes(mean.get("pool_bytes", peak.pool_bytes)), _bytes(peak.pool_bytes)))
    return rows


def _bytes(value: float) -> str:
    return f"{value:,.0f}"
