"""guidellm's `mooncake` rows (vllm-project/guidellm): Mooncake-like rows whose stamps are taken as seconds.

An id has 512 tokens, always; a row with another count of ids than its length needs is rejected there.
"""

from collections.abc import Sequence
from pathlib import Path

from trials.formats.hashed import ids_at, rounded_counts, rows_as_json
from trials.formats.losses import Exported, in_ticks, left_behind, write_text
from trials.formats.timed_rows import Dialect, read_rows
from trials.trace import Trace

TOKENS_PER_ID = 512
DIALECT = Dialect("guidellm", unit_ns=10**9, usual_tokens_per_id=TOKENS_PER_ID)


def read(paths: Sequence[Path]) -> Trace:
    """Files in order -> Trace; TraceError names file, line and reason."""
    return read_rows(paths, DIALECT)


def write(trace: Trace, path: Path) -> Exported:
    """Every row with 512-token ids; sharing that is finer is lost."""
    ids, changed = ids_at(trace, TOKENS_PER_ID)
    _, moved = in_ticks(trace, 1)
    write_text(path, rows_as_json(trace, DIALECT.unit_ns, ids))
    sized = rounded_counts(trace, ids, TOKENS_PER_ID, TOKENS_PER_ID)
    return Exported((*moved, *changed, *sized, *left_behind(trace)), "--profile kind=replay")
