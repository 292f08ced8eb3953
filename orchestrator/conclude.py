"""From what stands in a sweep's folder to its outcome: summary.csv, knee.json, recipe and report.

Reads result files alone, so it can be run again at any time and comes to the same.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.bounded import bound_words
from orchestrator.config import Sweep
from orchestrator.damaged import damage
from orchestrator.folder import SweepFolder, TrialRecord, write_text
from orchestrator.isolated import isolated
from orchestrator.points import OF_THE_SEARCH
from orchestrator.screened import compared
from search_spaces.candidates import Measured
from search_spaces.knee import Decision, Rules, decide
from search_spaces.objective import Score, brief, raced_out, score
from search_spaces.outcome import Outcome
from search_spaces.proofs import Again
from search_spaces.verdicts import describe
from trials.result import TrialResult
from trials.slo import Slo, parse_slo

SUMMARY_COLUMNS = (
    "number", "control", "label", "block_size", "repeat", "status", "eligible", "feasible", "value",
    "ttft_p99_ms", "itl_p99_ms", "tpot_p99_ms", "e2el_p99_ms", "offered", "completed", "qualified",
    "output_throughput", "waste_byte_seconds", "useful_pool_ratio", "num_preemptions", "evidence",
    "spec_hash", "trace_hash", "engine_hash", "attempts", "reused_from", "role", "reason",
)  # fmt: skip


_AT_ONE_LOAD = "qualified_output_throughput"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a finished sweep leaves: the outcome and the files that carry it."""

    outcome: Outcome
    unbalanced: tuple[int, ...]  # trials with a ledger that does not add up
    recipe: Path | None = None
    report: Path | None = None

    @property
    def exit_code(self) -> int:
        """5 where a ledger does not balance, 3 where nothing is feasible, else 0."""
        return 5 if self.unbalanced else 3 if self.outcome.kind == "infeasible" else 0


def judged(record: TrialRecord, sweep: Sweep, slo: Slo) -> Score:
    """A finished trial as the optimiser is told of it. Survival is at one load, whatever the sweep searches for."""
    if record.state == "raced":
        return raced_out(record.card.less_than, record.card.reason, run=False)
    if record.result is None and record.state == "refused":  # it ended before it could say so in a result
        return Score(0.0, (("refused", 1.0),), (), (f"refused: {brief(record.card.reason)}",))
    objective = _AT_ONE_LOAD if record.card.role == "survival" else sweep.config.objective
    return score(record.result, slo, objective, record.card.reason)


def decision_of(records: Sequence[TrialRecord], sweep: Sweep) -> Decision:
    """Pure: what these finished trials come to, before it is put into words."""
    return _decided(records, sweep)[0]


def _decided(records: Sequence[TrialRecord], sweep: Sweep) -> tuple[Decision, list[str]]:
    """And what moved in a space that isolates one field, beside that field."""
    slo = parse_slo(sweep.config.slo)
    done = [r for r in records if r.state != "running"]
    again = [_again(r, judged(r, sweep, slo), sweep) for r in done if r.card.role in ("confirm", "survival")]
    searched = [r for r in done if r.card.role in OF_THE_SEARCH]
    measured, leaks = isolated(searched_in(searched, sweep), searched, sweep)
    return decide(measured, sweep.space, rules_of(sweep), again), leaks


def searched_in(records: Sequence[TrialRecord], sweep: Sweep) -> list[Measured]:
    """What the search itself measured, judged."""
    slo = parse_slo(sweep.config.slo)
    done = [r for r in records if r.state != "running" and r.card.role in OF_THE_SEARCH]
    return [_measured(r, judged(r, sweep, slo), sweep) for r in done]


def rules_of(sweep: Sweep) -> Rules:
    return Rules(sweep.config.objective, sweep.config.min_gain, sweep.config.repeats, sweep.config.seed)


def outcome_of(records: Sequence[TrialRecord], sweep: Sweep) -> Outcome:
    """Pure: what these finished trials come to."""
    done = [r for r in records if r.state != "running"]
    decision, leaks = _decided(records, sweep)
    notes = [*sweep.notes, *leaks, *_build_notes(done), *(n for r in done for n in r.card.notes)]
    left = sum(r.state == "running" for r in records)
    if left:
        notes.append(f"{left} trials are not finished")
    return describe(decision, sweep.space, rules_of(sweep), tuple(dict.fromkeys(notes)))


def _again(record: TrialRecord, judged: Score, sweep: Sweep) -> Again:
    policy = sweep.space.policy_of(record.spec)
    survival, slot = record.card.role == "survival", record.slot if sweep.timed else ""
    return Again(record.number, record.repeat, policy, judged, survival, slot)


def _measured(record: TrialRecord, judged: Score, sweep: Sweep) -> Measured:
    effective = record.result.effective if record.result else None
    return Measured(
        number=record.number,
        repeat=record.repeat,
        policy=sweep.space.policy_of(record.spec),
        score=judged,
        control=record.control,
        block_size=effective.block_size if effective else 0,
        evidence=record.result.evidence if record.result else "",
        slot=record.slot if sweep.timed else "",
    )


def _build_notes(records: Sequence[TrialRecord]) -> list[str]:
    builds = {r.card.build for r in records if r.card.reused_from is None}
    if len(builds) < 2:
        return []
    return [f"trials of {len(builds)} builds of the engine stand in this folder: compare with care, or start anew"]


def unbalanced(records: Sequence[TrialRecord]) -> tuple[int, ...]:
    return tuple(r.number for r in records if r.result and any(x.ledger.unbalanced_rows for x in r.result.replays))


def conclude(folder: SweepFolder, sweep: Sweep) -> Conclusion:
    """Write summary.csv and knee.json, then recipe.yaml and report.html from them."""
    records = folder.load_trials()
    outcome = outcome_of(records, sweep)
    screen = compared(folder, sweep, searched_in(records, sweep)) if sweep.config.screen is not None else ""
    for said in (*damage(folder, records), bound_words(folder), screen):
        if said:
            outcome = outcome.model_copy(update={"notes": (*outcome.notes, said)})
    write_text(folder.summary_csv, summary(records, sweep))
    write_text(folder.knee_json, outcome.model_dump_json(indent=1) + "\n")
    return Conclusion(outcome, unbalanced(records))


def publish(folder: SweepFolder, sweep: Sweep) -> Conclusion:
    """`conclude`, and the recipe and the report that are made of it."""
    from orchestrator.page import write_report
    from orchestrator.recipe import write_recipe

    found = conclude(folder, sweep)
    recipe = write_recipe(folder.path)
    return Conclusion(found.outcome, found.unbalanced, recipe, write_report(folder.path))


def summary(records: Sequence[TrialRecord], sweep: Sweep) -> str:
    """One line a trial, SUMMARY_COLUMNS; empty where there is nothing to say."""
    out = io.StringIO()
    writer = csv.DictWriter(out, SUMMARY_COLUMNS, lineterminator="\n")
    writer.writeheader()
    slo = parse_slo(sweep.config.slo)
    for record in records:
        writer.writerow(_row(record, judged(record, sweep, slo), sweep))
    return out.getvalue()


def _row(record: TrialRecord, judged: Score, sweep: Sweep) -> dict[str, object]:
    row: dict[str, object] = {
        "number": record.number,
        "control": record.control or "",
        "label": record.control or sweep.space.label(sweep.space.policy_of(record.spec)),
        "block_size": record.spec.policy.block_size,
        "repeat": record.repeat,
        "status": record.state,
        "feasible": judged.feasible,
        "value": "" if judged.value is None else judged.value,
        "spec_hash": record.card.spec_hash,
        "attempts": len(record.attempts),
        "reused_from": "" if record.card.reused_from is None else record.card.reused_from,
        "role": record.card.role or "",
        "reason": " ".join("; ".join(judged.reasons).split()),
    }
    return row | (_measures(record.result) if record.result else {})


def _measures(result: TrialResult) -> dict[str, object]:
    m, counts = result.metrics, result.counts
    row: dict[str, object] = {
        f"{name}_p99_ms": getattr(m, f"{name}_ms").p99 for name in ("ttft", "itl", "tpot", "e2el")
    }
    row |= {name: getattr(counts, name) for name in ("offered", "completed", "qualified")}
    if result.effective:
        row["block_size"] = result.effective.block_size
    return row | {
        "eligible": result.eligible,
        "output_throughput": m.output_throughput,
        "waste_byte_seconds": m.waste_byte_seconds.get("total"),
        "useful_pool_ratio": result.ledger.useful_pool_ratio,
        "num_preemptions": m.num_preemptions,
        "evidence": result.evidence,
        "trace_hash": result.hashes.trace,
        "engine_hash": result.hashes.engine,
    }
