"""What the demo asserts of a finished sweep: ledgers and labels, never which block size wins.

The ledgers are added up here once more from the rows on disk, and MLflow's database is read as the file that it
is, so that none of the code that wrote them is asked whether it wrote them well.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from orchestrator.folder import AttemptRecord, SweepFolder, TrialRecord
from trials.result import Accounts

FEWEST_BLOCK_SIZES = 6
_ACCOUNTS = tuple(name for name in Accounts.model_fields if name != "pool_bytes")
_HASHES = ("kvknee.spec_hash", "kvknee.trace_hash", "kvknee.engine_hash")
_RUNS = """
    select r.run_uuid, t.key, t.value from runs r left join tags t on t.run_uuid = r.run_uuid
    where r.lifecycle_stage = 'active'
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold. `ledger`: it is about accounts that must add up."""

    name: str
    holds: bool
    words: str
    ledger: bool = False


def checks(folder: SweepFolder) -> list[Check]:
    """Everything that must hold of the demo's folder, whatever was measured."""
    records = folder.load_trials()
    attempts = [a for r in records for a in r.attempts if a.result is not None]
    return [_ledgers(attempts), _device(attempts), _labels(attempts), _measured(records), _mlflow(folder, attempts)]


def largest_residual(attempt: AttemptRecord) -> tuple[int, int]:
    """(largest |accounts - pool| in bytes, ledger rows) over every step of every replay."""
    table = pq.read_table(attempt.folder / "ledger.parquet", columns=[*_ACCOUNTS, "pool_bytes"])
    total = sum(table[name].to_numpy() for name in _ACCOUNTS)
    return int(abs(total - table["pool_bytes"].to_numpy()).max(initial=0)), table.num_rows


def _ledgers(attempts: Sequence[AttemptRecord]) -> Check:
    found = [largest_residual(a) for a in attempts]
    rows, worst = sum(n for _, n in found), max((r for r, _ in found), default=0)
    said = sum(x.ledger.unbalanced_rows for a in attempts if a.result for x in a.result.replays)
    holds = bool(rows) and worst == 0 and said == 0
    return Check(
        "ledger",
        holds,
        f"{len(attempts)} attempts, {rows:,} rows, largest pool residual {worst} bytes",
        ledger=True,
    )


def _device(attempts: Sequence[AttemptRecord]) -> Check:
    """Bytes of the process that no account explains are shown; beyond what is allowed, the trial is ineligible."""
    results = [a.result for a in attempts if a.result]
    left = max((abs(r.ledger.residual_bytes) for r in results), default=0)
    barred = [why for r in results for why in r.ineligible_because]
    words = f"at most {left / 2**20:.1f} MiB of a process in no account" + (f"; {barred[0]}" if barred else "")
    return Check("device", not barred, words, ledger=True)


def _labels(attempts: Sequence[AttemptRecord]) -> Check:
    """Every number is measured, by the CPU clock, and no other word stands beside it."""
    evidence = sorted({a.result.evidence for a in attempts if a.result})
    clocks = sorted({x.clock for a in attempts if a.result for x in a.result.replays})
    probed = all(a.probe_s for a in attempts)
    words = f"evidence {', '.join(evidence)}; clock {', '.join(clocks)}; speed probed before each: {probed}"
    return Check("labels", evidence == ["measured"] and len(clocks) == 1 and probed, words)


def _measured(records: Sequence[TrialRecord]) -> Check:
    done = [r for r in records if r.result is not None and r.result.status == "complete" and r.result.effective]
    sizes = {r.result.effective.block_size for r in done if r.control is None and r.result and r.result.effective}
    controls = {r.control for r in done if r.control}
    unfinished = sum(r.state == "running" for r in records)
    holds = len(sizes) >= FEWEST_BLOCK_SIZES and {"contiguous", "one_block"} <= controls and not unfinished
    return Check("trials", holds, f"{len(sizes)} block sizes; controls {', '.join(sorted(controls)) or 'none'}")


def _mlflow(folder: SweepFolder, attempts: Sequence[AttemptRecord]) -> Check:
    if not folder.mlflow_db.is_file():
        return Check("mlflow", False, f"{folder.mlflow_db} is not there")
    runs = _runs(folder.mlflow_db)
    parents = [run for run, tags in runs.items() if "mlflow.parentRunId" not in tags]
    children = [tags for tags in runs.values() if "mlflow.parentRunId" in tags]
    hashed = sum(all(tags.get(name) for name in _HASHES) for tags in children)
    known = {(int(tags["kvknee.trial"]), int(tags["kvknee.attempt"])) for tags in children}
    wanted = {(int(a.folder.parent.name), a.number) for a in attempts}
    holds = len(parents) == 1 and wanted <= known and len(known) == len(children) and hashed >= len(attempts)
    words = (
        f"{len(parents)} parent, {len(children)} children for {len(attempts)} attempts, {hashed} with three hashes"
    )
    return Check("mlflow", holds, words)


def _runs(database: Path) -> dict[str, dict[str, str]]:
    """Tags of every run of an MLflow database, read only."""
    found: dict[str, dict[str, str]] = {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for run, key, value in connection.execute(_RUNS):
            tags = found.setdefault(run, {})
            if key is not None:
                tags[key] = value
    return found


def check_lines(found: Sequence[Check]) -> Iterator[str]:
    for check in found:
        yield f"{'holds' if check.holds else 'BROKEN'}  {check.name}: {check.words}"
