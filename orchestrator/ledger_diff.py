"""Where two ledgers part: the first step at which an account or an event count differs, column by column."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict


class LedgerDifference(BaseModel):
    """The first row at which a column differs; `expected` and `found` as text, `step` counts within its replay."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str
    replay: str  # phase and load
    step: int
    expected: str
    found: str
    rows: int  # rows that differ in this column

    @property
    def line(self) -> str:
        """`tail_slack differs first at step 17 of cold rate_scale=1: 3840 -> 4096 (12 rows differ)`"""
        more = f" ({self.rows} rows differ)" if self.rows > 1 else ""
        where = f"step {self.step} of {self.replay}"
        return f"{self.column} differs first at {where}: {self.expected} -> {self.found}{more}"


def compare_ledgers(expected: Any, found: Any) -> tuple[LedgerDifference, ...]:
    """Two Arrow tables (phase, load, step, columns...) replay by replay: where each column first differs.

    A replay of another length differs in `rows`; a column or replay that is not there differs in all its rows.
    """
    out: list[LedgerDifference] = []
    for phase, load in _replays(expected):
        old, new = rows_of(expected, phase, load), rows_of(found, phase, load)
        mine = [d for c in old.column_names if (d := _first(old, new, c, f"{phase} {load}")) is not None]
        if len(old) != len(new):
            steps = (str(len(old)), str(len(new)))
            mine.append(
                _difference("rows", f"{phase} {load}", min(len(old), len(new)), steps, abs(len(old) - len(new)))
            )
        out += sorted(mine, key=lambda d: d.step)
    return tuple(out)


def rows_of(table: Any, phase: str, load: str) -> Any:
    """The rows of one replay."""
    return table.filter(pc.and_(pc.equal(table["phase"], phase), pc.equal(table["load"], load)))


def _replays(table: Any) -> list[tuple[str, str]]:
    return list(dict.fromkeys(zip(table["phase"].to_pylist(), table["load"].to_pylist(), strict=True)))


def _first(old: Any, new: Any, column: str, replay: str) -> LedgerDifference | None:
    if column not in new.column_names:
        return _difference(column, replay, 0, ("present", "absent"), len(old))
    common = min(len(old), len(new))
    before, after = (t[column].to_numpy(zero_copy_only=False)[:common] for t in (old, new))
    differs = np.flatnonzero(before != after)
    if not len(differs):
        return None
    at = int(differs[0])
    return _difference(column, replay, at, (str(before[at]), str(after[at])), len(differs))


def _difference(column: str, replay: str, step: int, change: tuple[str, str], rows: int) -> LedgerDifference:
    return LedgerDifference(column=column, replay=replay, step=step, expected=change[0], found=change[1], rows=rows)
