"""What an export is made of: finished trials with their result and the times of the requests that they served.

Populations are those of the replay that decides: requests that count and were served. Lost ones are in `result` and
in nobody's histogram: other tools do not count them either.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.damaged import damage
from orchestrator.folder import AttemptRecord, SweepFolder, read_attempt
from orchestrator.frames import Floats, deciding_rows, read_columns
from orchestrator.frames_load import with_times
from orchestrator.shown import labels
from trials.result import ReplayResult, TrialResult
from trials.units import SpecError

Ints = NDArray[np.int64]
_NS, _MS = 1e9, 1e3  # of a second
_COLUMNS = (
    "phase", "load", "arrival_ns", "admitted_ns", "first_token_ns", "last_token_ns", "outcome", "counted",
    "num_prompt_tokens", "num_output_tokens", "num_delivered", "cached_tokens", "preemptions",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Served:
    """Times in s and tokens of the served requests, [n] each; `tpot_s` only of those with more than one token."""

    ttft_s: Floats
    tpot_s: Floats
    e2el_s: Floats
    queue_s: Floats
    prefill_s: Floats
    decode_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    preemptions: Ints


@dataclass(frozen=True, slots=True)
class Exported:
    """One trial that is exported. `ended_s`: when it ended, Unix time; 0 where its attempt does not say.

    `role`: why it was measured again beside the search, empty for the search's own.
    """

    number: int
    candidate: str
    role: str
    result: TrialResult
    replay: ReplayResult
    served: Served
    ended_s: float

    @property
    def model(self) -> str:
        return str(self.result.requested.get("model", {}).get("name") or "model")

    @property
    def engine(self) -> str:
        return str(self.result.requested.get("engine", {}).get("name") or "engine")

    @property
    def window_s(self) -> float:
        seen = self.replay.observation
        return (seen.end_ns - seen.start_ns) / _NS

    @property
    def identity(self) -> dict[str, str]:
        """What tells its numbers from another's, measured from modelled first of all."""
        effective, hashes = self.result.effective, self.result.hashes
        return {
            "trial": str(self.number), "candidate": self.candidate, "role": self.role,
            "evidence": self.result.evidence, "clock": self.replay.clock, "load": self.replay.load,
            "block_size": str(effective.block_size) if effective is not None else "",
            "spec_hash": hashes.spec, "trace_hash": hashes.trace, "engine_hash": hashes.engine,
        }  # fmt: skip


def gather(folder: Path, numbers: Sequence[int] = ()) -> list[Exported]:
    """Trials of a sweep's folder, or the one of a trial's, that have a result; only those named, if any are.

    SpecError where there is none, or a named one has none.
    """
    found = _of_trial(folder) if (folder / "result.json").is_file() else _of_sweep(folder)
    missing = sorted(set(numbers) - {e.number for e in found})
    if missing:
        have = ", ".join(str(e.number) for e in found) or "none"
        raise SpecError(f"{folder}: trial {missing[0]} has no result to export; those that have: {have}")
    chosen = [e for e in found if not numbers or e.number in numbers]
    if not chosen:
        raise SpecError(f"{folder}: no trial has ended with a result yet; wait, or see kvknee status")
    return chosen


def _of_trial(folder: Path) -> list[Exported]:
    attempt = read_attempt(folder, 1)
    made = _exported(0, (folder.resolve().name, ""), attempt)
    return [made] if made is not None else []


def _of_sweep(folder: Path) -> list[Exported]:
    sweep = SweepFolder(folder)
    if not sweep.sweep_yaml.is_file():
        raise SpecError(
            f"{folder}: neither sweep.yaml nor result.json here; name the folder of a sweep or of a trial"
        )
    records, found = sweep.load_trials(), []
    for said in damage(sweep, records):
        print(f"note: {said}", file=sys.stderr)
    named = labels(records, sweep.load_outcome())
    for record in records:
        attempt = next((a for a in record.attempts if a.number == record.card.decides), None)
        whose = named[record.number], record.card.role or ""
        made = _exported(record.number, whose, attempt) if attempt is not None else None
        found += [made] if made is not None else []
    return found


def _exported(number: int, whose: tuple[str, str], attempt: AttemptRecord) -> Exported | None:
    """None where nothing decides: refused, failed, or lost; reused ones have no attempt and are their source's.

    `whose`: candidate and role.
    """
    result = attempt.result
    if result is None or result.decides is None:
        return None
    ended = float(attempt.info.get("started_s") or 0.0) + float(attempt.info.get("wall_s") or 0.0)
    replay = result.replays[result.decides]
    served = _served(attempt.folder / "requests.parquet", result)
    return Exported(number, *whose, result, replay, served, ended)


def _served(path: Path, result: TrialResult) -> Served:
    rows = with_times(deciding_rows(read_columns(path, _COLUMNS), result))
    rows = rows[rows["offered"] & rows["served"]]

    def seconds(later: str, earlier: str) -> Floats:
        return ((rows[later] - rows[earlier]) / _NS).to_numpy(np.float64)

    def of(name: str) -> Floats:
        return rows[name].dropna().to_numpy(np.float64) / _MS

    def whole(name: str) -> Ints:
        return rows[name].to_numpy(np.int64)

    return Served(
        ttft_s=of("ttft_ms"), tpot_s=of("tpot_ms"), e2el_s=of("e2el_ms"),
        queue_s=seconds("admitted_ns", "arrival_ns"),
        prefill_s=seconds("first_token_ns", "admitted_ns"), decode_s=seconds("last_token_ns", "first_token_ns"),
        prompt_tokens=whole("num_prompt_tokens"), output_tokens=whole("num_output_tokens"),
        cached_tokens=whole("cached_tokens"), preemptions=whole("preemptions"),
    )  # fmt: skip
