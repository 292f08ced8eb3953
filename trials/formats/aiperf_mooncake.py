"""AIPerf's `mooncake_trace` (ai-dynamo/aiperf): Mooncake-like rows in milliseconds; ids and priority where wanted.

An id has 512 tokens unless `--isl-block-size` says otherwise. Rows of one `session_id` pile up their history
there, so turns are written as rows of their own that carry their whole prompt.
"""

from collections.abc import Sequence
from pathlib import Path

from trials.formats.hashed import ids_at, rounded_counts, rows_as_json
from trials.formats.losses import Exported, in_ticks, left_behind, without_ids, write_text
from trials.formats.timed_rows import Dialect, read_rows
from trials.trace import Trace

DIALECT = Dialect(
    "aiperf-mooncake", unit_ns=10**6, usual_tokens_per_id=512,
    refused=("session_id", "text_input", "messages", "payload", "delay"),
)  # fmt: skip


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason. Rows of sessions are not read."""
    return read_rows(paths, DIALECT)


def write(trace: Trace, path: Path) -> Exported:
    """Rows with ids of the trace's own size; without, where the trace knows no sharing."""
    _, moved = in_ticks(trace, 1)
    extras = {row: {"priority": p} for row, p in enumerate(trace.priority.tolist()) if p}
    rest = [*moved, *left_behind(trace, {"priority"})]
    if not trace.meta.tokens_per_id and not trace.inherited_tokens.any():
        write_text(path, rows_as_json(trace, DIALECT.unit_ns, None, extras))
        return Exported((*without_ids(trace), *rest))
    per = trace.meta.tokens_per_id or DIALECT.usual_tokens_per_id
    ids, changed = ids_at(trace, per)
    write_text(path, rows_as_json(trace, DIALECT.unit_ns, ids, extras))
    losses = (*changed, *rounded_counts(trace, ids, DIALECT.usual_tokens_per_id, per), *rest)
    return Exported(losses, "" if per == DIALECT.usual_tokens_per_id else f"--isl-block-size {per}")
