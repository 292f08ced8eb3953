"""A trial's ledger over its steps, thinned to what a tracking server can plot."""

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.entries import TrialEntry
from trials.parquet_footer import bounded

_COLUMNS = ("payload", "tail_slack", "cached", "free", "num_running", "num_waiting")


def series_of(entry: TrialEntry, points: int) -> Iterator[tuple[str, int, float]]:
    """(account, step, value) of the deciding replay, at most `points` evenly spread steps."""
    path = entry.folder / "ledger.parquet"
    if points < 1 or entry.result is None or entry.result.decides is None or not path.is_file():
        return
    decides = entry.result.replays[entry.result.decides]
    here = [n for n in (*_COLUMNS, "phase", "load", "step") if n in pq.read_schema(path).names]
    table = pq.read_table(bounded(path), columns=here)
    for name, value in (("phase", decides.phase), ("load", decides.load)):
        if name in here:
            table = table.filter(pc.equal(table[name], value))
    rows = np.unique(np.linspace(0, table.num_rows - 1, min(points, table.num_rows)).astype(np.int64))
    steps = table["step"].to_numpy() if "step" in here else np.arange(table.num_rows)
    for name in (n for n in _COLUMNS if n in here):
        values = table[name].to_numpy()
        for row in rows.tolist():
            if np.isfinite(values[row]):
                yield name, int(steps[row]), float(values[row])
