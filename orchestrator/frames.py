"""A sweep's folder as tidy pandas frames, and a ledger binned over time for a plot.

One row a trial, a ledger row or a request; units in the column names. Reads what stands on disk, decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orchestrator.damaged import unreadable
from orchestrator.folder import SweepFolder, TrialRecord
from trials.ledger import ACCOUNTS
from trials.parquet_footer import bounded
from trials.result import Counts, Effective, Ledger, Metrics, Percentiles, ReplayResult, TrialResult
from trials.units import SpecError

Floats = NDArray[np.float64]
Frame = pd.DataFrame  # for rooms that hand frames on and do not look into them

BINNED_COLUMNS = ("phase", "load", "start_ns", "duration_ns", "idle", "pool_bytes", *ACCOUNTS)  # what bins need
DRAWN_COLUMNS = (*BINNED_COLUMNS, "num_decodes", "decode_blocks", "burst_blocks", "bound_blocks")
_TIMES = ("ttft_ms", "itl_ms", "tpot_ms", "e2el_ms")


@dataclass(frozen=True, slots=True)
class Binned:
    """Time-weighted means over n bins. `edges_s` [n + 1] s; `accounts` name -> [n] bytes; tokens and ms [n].

    `step_ms_*` are NaN in bins where no step began.
    """

    edges_s: Floats
    accounts: dict[str, Floats]
    pool_bytes: int
    live_tokens: Floats
    allocated_slots: Floats
    pool_slots: int
    step_ms_mean: Floats
    step_ms_max: Floats

    def mean(self, account: str) -> float:
        """Time mean of an account, bytes."""
        return float(np.average(self.accounts[account], weights=np.diff(self.edges_s)))


def trials_frame(records: Sequence[TrialRecord]) -> pd.DataFrame:
    """One row a trial: card, parameters (`param_*`), deciding metrics and ledger; no result leaves NaN."""
    return pd.DataFrame([_trial_row(record) for record in records])


def _trial_row(record: TrialRecord) -> dict[str, object]:
    row: dict[str, object] = {
        "trial": record.number, "role": record.card.role or "", "control": record.control, "repeat": record.repeat,
        "state": record.state, "reason": record.card.reason, "attempts": len(record.attempts),
        "reused_from": record.card.reused_from,
        "spec_hash": record.card.spec_hash, **{f"param_{k}": v for k, v in record.params.items()},
    }  # fmt: skip
    return row if record.result is None else row | _result_row(record.result)


def _result_row(result: TrialResult) -> dict[str, object]:
    row: dict[str, object] = {
        "evidence": result.evidence, "eligible": result.eligible, "trace_hash": result.hashes.trace,
        "engine_hash": result.hashes.engine, **_measured(result.counts, result.metrics, result.ledger),
    }  # fmt: skip
    if result.effective is not None:
        row |= {"block_size": result.effective.block_size, "num_blocks": result.effective.num_blocks,
                "layout": result.effective.layout, "pool_bytes": result.effective.pool_bytes}  # fmt: skip
    return row


def replay_row(replay: ReplayResult) -> dict[str, object]:
    """One replay as a row: what it was, whether it holds, and its numbers."""
    seen = replay.observation
    return {
        "phase": replay.phase, "load": replay.load, "clock": replay.clock, "holds": replay.holds,
        "attainment": replay.attainment, "binding": replay.binding, "void": bool(replay.void_because),
        "stopped_early": replay.stopped_early, "num_steps": seen.num_steps,
        "window_s": (seen.end_ns - seen.start_ns) / 1e9, **_measured(replay.counts, replay.metrics, replay.ledger),
    }  # fmt: skip


def _measured(counts: Counts, metrics: Metrics, ledger: Ledger) -> dict[str, object]:
    """Counts, rates, times (ms) and time means of accounts (bytes)."""
    row: dict[str, object] = {
        **counts.model_dump(),
        "output_throughput": metrics.output_throughput,
        "qualified_output_throughput": metrics.qualified_output_throughput,
        "capacity_load": metrics.capacity_load,
        "num_preemptions": metrics.num_preemptions, "prefix_hit_rate": metrics.prefix_hit_rate,
        "waste_byte_seconds": metrics.waste_byte_seconds.get("total"),
        "useful_pool_ratio": ledger.useful_pool_ratio, "slots_per_live_token": ledger.slots_per_live_token,
        "residual_bytes": ledger.residual_bytes, "unbalanced_rows": ledger.unbalanced_rows,
    }  # fmt: skip
    for name in _TIMES:
        times: Percentiles = getattr(metrics, name)
        row |= {
            f"{name.removesuffix('_ms')}_{k}{'' if k == 'n' else '_ms'}": v for k, v in times.model_dump().items()
        }
    return row | {_column(account): value for account, value in ledger.time_mean.items()}


def _column(account: str) -> str:
    """`mean_payload_bytes`, `mean_pool_bytes`."""
    return f"mean_{account.removesuffix('_bytes')}_bytes"


def read_columns(path: Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """A parquet file of a trial (ledger.parquet, requests.parquet), all columns or the named ones that it has.

    SpecError where it is absent or broken.
    """
    try:
        frame: pd.DataFrame = pq.read_table(
            bounded(path), columns=None if columns is None else list(columns)
        ).to_pandas()
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file; the trial left none") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    return frame


def ledger_frame(folder: SweepFolder) -> pd.DataFrame:
    """Every ledger row of every trial that has a result, with its trial number and role."""
    return _stacked(folder.load_trials(), "ledger.parquet")


def requests_frame(folder: SweepFolder) -> pd.DataFrame:
    """Every request of every trial that has a result, with its trial number and role."""
    return _stacked(folder.load_trials(), "requests.parquet")


def _stacked(records: Sequence[TrialRecord], name: str) -> pd.DataFrame:
    """Reused trials are left out: their rows are their source's."""
    parts = []
    for record in records:
        if record.folder is not None and record.card.reused_from is None and (record.folder / name).is_file():
            part = read_columns(record.folder / name)
            part.insert(0, "trial", record.number)
            part.insert(1, "role", record.card.role or "")
            parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"trial": pd.Series(dtype="int64")})


def deciding_rows(frame: pd.DataFrame, result: TrialResult) -> pd.DataFrame:
    """The rows of the replay that decides; a file holds all replays, told apart by `phase` and `load`."""
    if result.decides is None:
        return frame.iloc[:0]
    decides = result.replays[result.decides]
    return frame[(frame["phase"] == decides.phase) & (frame["load"] == decides.load)]


def bin_ledger(frame: pd.DataFrame, effective: Effective, bins: int) -> Binned | None:
    """A replay's ledger rows in at most `bins` stretches of equal time; None where no time passed.

    Few rows keep their own edges. A row holds until the next one begins, the last for its duration.
    """
    start = frame["start_ns"].to_numpy(np.int64)
    if not len(start) or (end := int(start[-1]) + int(frame["duration_ns"].iloc[-1])) <= int(start[0]):
        return None
    bounds = np.append(start, end)
    own = np.unique(bounds)
    edges = (
        own.astype(float) if len(own) - 1 <= bins else np.linspace(float(bounds[0]), float(bounds[-1]), bins + 1)
    )
    accounts = {a: _bin(frame[a].to_numpy(float), bounds, edges) for a in ACCOUNTS}
    pool_bytes = int(frame["pool_bytes"].iloc[0])
    pool_slots = effective.num_blocks * effective.block_size
    # padding and remainder never change, so the rest of the pool is the slots' bytes, over all groups and ranks
    slot_bytes = pool_bytes - float(accounts["padding"][0]) - float(accounts["remainder"][0])
    per_byte = pool_slots / slot_bytes if slot_bytes > 0 else 0.0
    live = accounts["payload"] * per_byte
    allocated = live + (accounts["tail_slack"] + accounts["reserved_ahead"]) * per_byte
    mean_ms, max_ms = _step_ms(frame, edges)
    return Binned(edges / 1e9, accounts, pool_bytes, live, allocated, pool_slots, mean_ms, max_ms)


def _bin(values: Floats, bounds: NDArray[np.int64], edges: Floats) -> Floats:
    """Time mean of a piecewise constant quantity between edges: differences of its integral."""
    spans = np.diff(bounds).astype(float)
    integral = np.append(0.0, np.cumsum(values * spans))
    at_edges = np.interp(edges, bounds.astype(float), integral)
    means = np.diff(at_edges) / np.diff(edges)
    bounded: Floats = np.clip(means, values.min(), values.max())
    return bounded


def _step_ms(frame: pd.DataFrame, edges: Floats) -> tuple[Floats, Floats]:
    """Mean and longest duration of the steps that begin in each bin, ms; idle spans are no steps."""
    idle = frame["idle"].to_numpy(bool) if "idle" in frame.columns else np.zeros(len(frame), bool)
    start = frame["start_ns"].to_numpy(float)[~idle]
    length_ms = frame["duration_ns"].to_numpy(float)[~idle] / 1e6
    place = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, len(edges) - 2)
    count = np.bincount(place, minlength=len(edges) - 1)
    total = np.bincount(place, weights=length_ms, minlength=len(edges) - 1)
    longest = np.full(len(edges) - 1, np.nan)
    np.fmax.at(longest, place, length_ms)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), longest
