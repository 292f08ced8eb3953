"""Where two ledgers part: the first step at which an account or an event count differs, column by column."""

from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict


class LedgerDifference(BaseModel):
    """The first row at which a column differs; `expected` and `found` as text, `step` counts within its replay."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str
    replay: int
    step: int
    expected: str
    found: str
    rows: int  # rows that differ in this column

    @property
    def line(self) -> str:
        """`tail_slack differs first at step 17 of replay 0: 3840 -> 4096 (12 rows differ)`"""
        more = f" ({self.rows} rows differ)" if self.rows > 1 else ""
        where = f"step {self.step} of replay {self.replay}"
        return f"{self.column} differs first at {where}: {self.expected} -> {self.found}{more}"


def compare_ledgers(expected: Any, found: Any) -> tuple[LedgerDifference, ...]:
    """Two Arrow tables column by column: for each expected column the first row that differs, earliest first.

    A missing row counts as a difference of the column `rows`; a missing column as one of all its rows.
    """
    replays = (
        expected["replay"].to_numpy() if "replay" in expected.column_names else np.zeros(len(expected), np.int64)
    )
    starts = {int(r): int(np.flatnonzero(replays == r)[0]) for r in np.unique(replays)}
    common = min(len(expected), len(found))
    out = []
    for column in expected.column_names:
        old = expected[column].to_numpy()
        if column not in found.column_names:
            out.append((0, column, "present", "absent", len(old)))
            continue
        new = found[column].to_numpy()
        differs = np.flatnonzero(old[:common] != new[:common])
        if len(differs):
            at = int(differs[0])
            out.append((at, column, str(old[at]), str(new[at]), len(differs)))
    if len(expected) != len(found):
        out.append((common, "rows", str(len(expected)), str(len(found)), abs(len(expected) - len(found))))
    return tuple(
        LedgerDifference(
            column=column,
            replay=_at(replays, at),
            step=at - starts.get(_at(replays, at), 0),
            expected=old_text,
            found=new_text,
            rows=count,
        )
        for at, column, old_text, new_text, count in sorted(out, key=lambda item: item[0])
    )


def _at(replays: Any, index: int) -> int:
    return int(replays[min(index, len(replays) - 1)]) if len(replays) else 0
