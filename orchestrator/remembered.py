"""Entries made of a sweep's folder: what is remembered while it runs, and again when a lost store is rebuilt.

An entry is a function of what stands on disk, so that a rebuilt store holds the same runs as the first one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config import Sweep
from orchestrator.entries import Content, SweepEntry, TrialEntry
from orchestrator.folder import AttemptRecord, SweepFolder, TrialCard
from search_spaces.outcome import Outcome


@dataclass(frozen=True, slots=True)
class SweepFacts:
    """What a trial's entry says that its own folder does not."""

    controls_of: Mapping[str, Sequence[str]]  # spec hash -> the controls that it is; a grid point may be one
    trace_digest: str


def facts_of(sweep: Sweep) -> SweepFacts:
    """Of a resolved sweep; hashes every control on every window."""
    found: dict[str, list[str]] = {}
    for point in sweep.control_points():
        names = found.setdefault(sweep.hash(sweep.spec(point)), [])
        names.append(point.control or "")
    return SweepFacts(found, sweep.trace_digest)


def attempt_entry(card: TrialCard, attempt: AttemptRecord, facts: SweepFacts) -> TrialEntry:
    """An attempt that ended, as it stands on disk; lost.json outweighs a result that was not credited."""
    folder, lost = attempt.folder, attempt.loss
    result = None if attempt.lost is not None else attempt.result
    controls = facts.controls_of.get(card.spec_hash, ())
    labels = [("kvknee.control", ",".join(controls))] if controls else []
    labels += [("kvknee.role", card.role)] if card.role else []
    if result is None:
        # An attempt that left no result is known by what it was asked, and by the engine of those that did.
        asked = {
            "spec": card.spec_hash,
            "trace": card.trace_hash or facts.trace_digest,
            "engine": str(lost.get("engine") or "unknown"),
        }
        labels += [(f"kvknee.{name}_hash", value) for name, value in asked.items()]
        labels += [("kvknee.status", "lost" if lost.get("infrastructure", True) else "failed")]
        labels += [("kvknee.reason", attempt.lost)] if attempt.lost else []
    if isinstance(slot := lost.get("slot"), str) and slot:
        labels.append(("kvknee.slot", slot))
    return TrialEntry(card.number, attempt.number, card.spec, result, folder, *_times_ms(folder), tuple(labels))


def _times_ms(folder: Path) -> tuple[int, int]:
    """When the driver asked and when the answer, or the loss, was written: by the files' own times."""
    begun = _written_ms(folder / "spec.json") or _written_ms(folder) or 0
    ended = max(_written_ms(folder / name) or 0 for name in ("result.json", "lost.json"))
    return begun, max(begun, ended)


def _written_ms(path: Path) -> int | None:
    try:
        return int(path.stat().st_mtime * 1000)
    except OSError:
        return None


def begun_entry(folder: SweepFolder, sweep: Sweep) -> SweepEntry:
    """The parent run as it begins: what was asked, and the files that its trials rest on."""
    config = sweep.config
    asked = {
        "space": sweep.space.name, "budget": sweep.budget, "repeats": config.repeats, "sampler": config.sampler,
        "objective": config.objective, "min_gain": config.min_gain, "engine": config.engine.name,
        "model": config.model.name, "slo": config.slo, "seed": config.seed,
        "controls": ",".join(name for name, _ in sweep.controls),
    }  # fmt: skip
    tags = (("kvknee.trace_hash", sweep.trace_digest), ("kvknee.folder", str(folder.path.resolve())))
    return SweepEntry(config.name, tuple((k, str(v)) for k, v in asked.items()), tags=tags, content=_content(sweep))


def _content(sweep: Sweep) -> tuple[Content, ...]:
    found = [Content("trace", sweep.trace_digest, Path(sweep.config.trace.path))]
    table = sweep.config.engine.table
    if sweep.table_digest is not None and table is not None:
        found.append(Content("table", sweep.table_digest, table))
    return tuple(found)


def ended_entry(folder: SweepFolder, sweep: Sweep, outcome: Outcome, recipe: Path | None) -> SweepEntry:
    """The parent run as it ends: outcome, winner, files, and the recipe that is to be registered."""
    tags = {
        "kvknee.outcome": outcome.kind, "kvknee.sentence": outcome.sentence,
        "kvknee.winner": outcome.winner or "none", "kvknee.winner_trial": str(outcome.winner_trial),
        "kvknee.tied": ", ".join(outcome.tied), "kvknee.binding": outcome.binding,
    }  # fmt: skip
    value = outcome.candidate(outcome.winner).value if outcome.winner else None
    metrics = ((f"winner/{outcome.objective}", value),) if value is not None else ()
    files = (folder.sweep_yaml, folder.knee_json, folder.summary_csv, folder.report_html)
    begun = begun_entry(folder, sweep)
    return replace(
        begun, metrics=metrics, tags=(*begun.tags, *tags.items()), status="FINISHED", recipe=recipe,
        artifacts=tuple(f for f in files if f.is_file()),
    )  # fmt: skip
