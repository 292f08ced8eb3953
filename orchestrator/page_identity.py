"""The report's grounds: every candidate in numbers, what decided the result by hash, and how to run it again."""

import shlex
from collections.abc import Callable, Mapping, Sequence

import yaml

from orchestrator.folder import TrialRecord
from orchestrator.markup import Cell, Value, folded, listing, paragraph, table
from orchestrator.shown import Sweep
from orchestrator.shown_quantities import goal_cell, objective_of
from trials.fingerprint import environment
from trials.result import TrialResult

_MIB = 1 << 20
METRICS: list[tuple[str, Callable[[TrialResult], float | None]]] = [
    ("qualified tokens/s", lambda r: r.metrics.qualified_output_throughput),
    ("TTFT p99, ms", lambda r: r.metrics.ttft_ms.p99),
    ("ITL p99, ms", lambda r: r.metrics.itl_ms.p99),
    ("output tokens/s", lambda r: r.metrics.output_throughput),
    ("attained, %", lambda r: 100 * r.counts.qualified / r.counts.offered if r.counts.offered else None),
    ("preemptions", lambda r: r.metrics.num_preemptions),
    ("prefix hits, %", lambda r: 100 * r.metrics.prefix_hit_rate),
    ("useful share of the pool, %", lambda r: 100 * r.ledger.useful_pool_ratio),
    ("slots per live token", lambda r: r.ledger.slots_per_live_token),
    ("waste, MiB x s", lambda r: r.metrics.waste_byte_seconds.get("total", 0.0) / _MIB),
    ("residual bytes", lambda r: r.ledger.residual_bytes),
]


def candidates(sweep: Sweep) -> str:
    """Every candidate in numbers, and every trial with its state; why one is not feasible is with the verdicts."""
    head = ["candidate", "repeats", *(_heading(name, sweep) for name, _ in METRICS)]
    goal = objective_of(sweep)
    if goal.bounded:  # no metric of every trial, so it is not among METRICS
        head.insert(2, f"{goal.panel.name}, {goal.panel.unit} ({goal.panel.evidence})")
    mixed = len({s.evidence for s in sweep.shown if s.results}) > 1
    rows: list[list[Value]] = []
    for s in sweep.shown:
        results = s.results
        means: list[Value] = [_mean([read(r) for r in results]) for _, read in METRICS]
        capacity = [goal_cell(s, _mean([goal.read(r) for r in results]))] if goal.bounded else []
        rows.append([s.title, len(results), *capacity, *means, *([Cell(s.evidence, "text")] if mixed else [])])
    head += ["evidence"] if mixed else []
    marks = [s.role == "chosen" for s in sweep.shown]
    each_head = ["trial", "candidate", "as", "repeat", "state", "attempts", "reused from", "reason"]
    each = table("Every trial", each_head, [_trial_row(sweep, r) for r in sweep.records])
    note = (
        "Qualified tokens are those of requests that arrived inside the window, whenever they were delivered; "
        "output tokens are those delivered inside it."
    )
    caption = "Means over repeats" if mixed else f"Means over repeats; {sweep.evidence}"
    return table(caption, head, rows, marks) + paragraph(note, "note") + folded("Every trial", each)


def _heading(name: str, sweep: Sweep) -> str:
    """Times and rates carry their evidence."""
    timed = name.endswith((", ms", "/s"))
    return f"{name} ({sweep.short_evidence})" if timed else name


def _trial_row(sweep: Sweep, r: TrialRecord) -> list[Value]:
    reused: Value = r.card.reused_from if r.card.reused_from is not None else ""
    return [
        str(r.number),
        sweep.labels[r.number],
        r.card.role or "",
        str(r.repeat),
        r.state,
        str(len(r.attempts)),
        str(reused),
        Cell(r.card.reason, "text"),
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [v for v in values if v is not None]
    return sum(finite) / len(finite) if finite and len(finite) == len(values) else None


def identity(sweep: Sweep) -> str:
    """The three hashes of the chosen trial, or of every trial where none is chosen, and the engine's parts."""
    shown = sweep.chosen.records if sweep.chosen is not None else tuple(sweep.records)
    rows: list[list[Value]] = [
        [f"{what}, trial {', '.join(map(str, trials))}", Cell(digest, "hash")]
        for (what, digest), trials in _by_hash(shown).items()
    ]
    out = table("Hashes (sha256)", ["of", "sha256"], rows)
    parts = next(
        (r.info["engine_identity"] for r in shown if isinstance(r.info.get("engine_identity"), Mapping)), None
    )
    if parts is not None:
        listed: list[list[Value]] = [[name, value] for name, value in _leaves(parts)]
        out += folded("What the engine hash covers", table("Engine identity", ["part", "value"], listed))
    return out


def _by_hash(records: Sequence[TrialRecord]) -> dict[tuple[str, str], list[int]]:
    """(spec | trace | engine, digest) -> the trials that have it; trace and engine first, where they agree."""
    found: dict[tuple[str, str], list[int]] = {}
    for what in ("trace", "engine", "spec"):
        for r in records:
            if r.result is not None:
                found.setdefault((what, getattr(r.result.hashes, what)), []).append(r.number)
    return found


def _leaves(value: object, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in _leaves(v, f"{prefix}.{k}" if prefix else str(k))]
    return [(prefix, str(value))]


def surroundings(sweep: Sweep) -> str:
    """The environment of the trials where they recorded it, else of this report; and the resolved sweep."""
    shown = sweep.chosen.records if sweep.chosen is not None else tuple(sweep.records)
    recorded = next((r.info["environment"] for r in shown if isinstance(r.info.get("environment"), Mapping)), None)
    found = environment() if recorded is None else recorded
    caption = "Environment of the report" if recorded is None else "Environment of the trials"
    note = "Printed and compared, never a failure by itself."
    rows: list[list[Value]] = [[name, value] for name, value in _leaves(found)]
    settings = yaml.safe_dump(sweep.settings, sort_keys=False, allow_unicode=True)
    return (
        table(caption, ["name", "value"], rows) + paragraph(note, "note") + folded("The sweep", listing(settings))
    )


def again(sweep: Sweep) -> str:
    """Commands that can be pasted: reproduce the recipe, one trial alone, the whole sweep."""
    folder = shlex.quote(str(sweep.folder.path))
    lines = [f"cd {folder}"]
    parts = []
    if sweep.recipe is not None:
        lines.append(f"kvknee reproduce {shlex.quote(sweep.folder.recipe_yaml.name)}")
        expected: list[list[Value]] = [
            [m.name, m.value, "–" if m.tolerance is None else f"{m.tolerance:.1%}", Cell(m.note, "text")]
            for m in sweep.recipe.metrics
        ]
        head = ["metric", f"expected ({sweep.recipe.evidence})", "tolerance", "note"]
        parts = [
            paragraph(f"Promised: {sweep.recipe.latency}."),
            table("Expected of a reproduction", head, expected),
        ]
    trial = next((r for s in (sweep.chosen,) if s is not None for r in s.records if r.folder is not None), None)
    if trial is not None and trial.folder is not None:
        spec = trial.folder.relative_to(sweep.folder.path) / "spec.json"
        lines.append(f"kvknee trial {shlex.quote(str(spec))} -o {shlex.quote(f'trial-{trial.number}-again')}")
    lines.append(f"kvknee run {shlex.quote(sweep.folder.sweep_yaml.name)} -o ../again")
    return listing("\n".join(lines)) + "".join(parts)
