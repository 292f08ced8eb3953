"""A sweep's folder in a notebook: `orchestrator.load(DIR)` and its tidy frames.

Units stand in the column names; a table is read when it is first asked for. Decides nothing and writes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from orchestrator.folder import SweepFolder, TrialRecord
from orchestrator.frames import ledger_frame, replay_row, requests_frame, trials_frame
from orchestrator.shown import labels
from search_spaces.outcome import Outcome as SweepOutcome
from trials.engine import Outcome

_NS_PER_MS = 1e6


@dataclass(frozen=True)
class SweepFrames:
    """The tables of a sweep, and what it came to.

    `outcome`: knee.json, None while the sweep runs. `records`: cards, attempts and results, as files hold them.
    """

    folder: Path
    records: tuple[TrialRecord, ...] = field(repr=False)
    outcome: SweepOutcome | None = field(repr=False)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row a trial: `candidate` and `chosen` by knee.json, parameters (`param_*`), deciding metrics.

        `role`: why it was measured again beside the search (confirm, survival, ...), empty for the search's own.
        Times in ms, accounts in bytes (`mean_*_bytes` over time); a trial without a result has NaN.
        """
        if not self.records:
            return pd.DataFrame({"trial": pd.Series(dtype="int64")})
        frame = trials_frame(self.records)
        frame.insert(1, "candidate", list(self._labels.values()))
        frame.insert(2, "chosen", [r.number in self._chosen for r in self.records])
        return frame

    @cached_property
    def _labels(self) -> dict[int, str]:
        """By number, as `records` stand."""
        return labels(self.records, self.outcome)

    @property
    def _chosen(self) -> frozenset[int]:
        return frozenset() if self.outcome is None else frozenset(self.outcome.winner_trials)

    @cached_property
    def replays(self) -> pd.DataFrame:
        """One row a replay (trial, phase, load): whether the SLO holds, counts, metrics, time means of accounts.

        `decides`: the one by which the trial is judged.
        """
        return pd.DataFrame(list(self._replay_rows()))

    def _replay_rows(self) -> Iterator[dict[str, object]]:
        for record in self.records:
            for i, replay in enumerate(record.result.replays if record.result is not None else ()):
                decides = record.result is not None and record.result.decides == i
                whose = {"trial": record.number, "candidate": self._labels[record.number]}
                yield whose | {"role": record.card.role or "", "decides": decides} | replay_row(replay)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request of a replay: stamps in ns since it began, and `ttft_ms`, `tpot_ms`, `e2el_ms`.

        `outcome` is a word. `served`: completed with the length that was asked for; times are NaN elsewhere,
        `tpot_ms` also for one-token answers. `offered`: counted and not cancelled by the trace.
        """
        return with_times(requests_frame(SweepFolder(self.folder)))

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """One row a step or idle span: every account in bytes, blocks handed out and given back, refusals.

        A series: `start_ns` and `duration_ns` since the replay began; accounts add up to `pool_bytes` in every row.
        """
        return ledger_frame(SweepFolder(self.folder))


def load(folder: Path | str) -> SweepFrames:
    """The frames of a sweep's folder, finished or running. SpecError where it is none.

    >>> sweep = orchestrator.load("runs/conv")            # doctest: +SKIP
    >>> sweep.trials.groupby("block_size")["qualified_output_throughput"].mean()   # doctest: +SKIP
    """
    found = SweepFolder(Path(folder))
    found.require()
    return SweepFrames(found.path, tuple(found.load_trials()), found.load_outcome())


def with_times(requests: pd.DataFrame) -> pd.DataFrame:
    """The requests with their fate in words and their own times in ms, by the definitions of docs/metrics.md."""
    if "outcome" not in requests:
        return requests
    frame = requests.copy()
    completed = frame["outcome"] == int(Outcome.COMPLETED)
    served = completed & (frame["num_delivered"] == frame["num_output_tokens"])
    frame["offered"] = (frame["counted"] == 1) & (frame["outcome"] != int(Outcome.CANCELLED))
    frame["served"] = served
    ttft = (frame["first_token_ns"] - frame["arrival_ns"]) / _NS_PER_MS
    e2el = (frame["last_token_ns"] - frame["arrival_ns"]) / _NS_PER_MS
    several = served & (frame["num_output_tokens"] > 1)
    frame["ttft_ms"], frame["e2el_ms"] = ttft.where(served), e2el.where(served)
    frame["tpot_ms"] = ((e2el - ttft) / (frame["num_output_tokens"] - 1).where(several)).where(several)
    words = {int(o): o.name.lower() for o in Outcome}
    frame["outcome"] = frame["outcome"].map(words)
    return frame
