"""vLLM's `timed_trace` (vllm bench serve): Mooncake-like rows in seconds, which need ids to have prompts.

An id has 16 tokens unless `--timed-trace-chunk-hash-size` says otherwise; stamps are seconds unless
`--timed-trace-sec-multiplier` does.
"""

from collections.abc import Sequence
from pathlib import Path

from trials.formats.hashed import ids_at, rounded_counts, rows_as_json
from trials.formats.losses import Exported, in_ticks, left_behind, write_text
from trials.formats.timed_rows import Dialect, read_rows
from trials.trace import Trace

DIALECT = Dialect("vllm-timed", unit_ns=10**9, usual_tokens_per_id=16)


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason."""
    return read_rows(paths, DIALECT)


def write(trace: Trace, path: Path) -> Exported:
    """Every row with ids of the trace's own size (16 where it has none)."""
    per = trace.meta.tokens_per_id or DIALECT.usual_tokens_per_id
    ids, changed = ids_at(trace, per)
    _, moved = in_ticks(trace, 1)
    write_text(path, rows_as_json(trace, DIALECT.unit_ns, ids))
    losses = (*moved, *changed, *rounded_counts(trace, ids, DIALECT.usual_tokens_per_id, per), *left_behind(trace))
    return Exported(losses, f"--timed-trace-chunk-hash-size {per}")
