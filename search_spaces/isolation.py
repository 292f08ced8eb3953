"""Whether a space that isolates one field did: what engines say of themselves may differ in that field alone.

Requested is not effective: a backend may swap its kernel or layout at some block sizes, and what then looks like an
effect of the block is the kernel's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trials.result import Effective

# What follows from a block size: how many there are, how large the tables, and in which steps kernels and reuse go.
FOLLOWS = {"block_size": ("block_size", "kernel_block_size", "reuse_quantum_tokens")}


@dataclass(frozen=True, slots=True)
class Seen:
    """One trial's effective configuration, read back from its engine."""

    number: int
    effective: Effective


def leaks(seen: Sequence[Seen], field: str) -> dict[int, str]:
    """Trial -> what is different there beside the isolated field, against what most trials had. Empty: isolated."""
    rows = {one.number: _facts(one, field) for one in seen}
    names = sorted({name for row in rows.values() for name in row})
    usual = {name: _most(row.get(name, "absent") for row in rows.values()) for name in names}
    found = {}
    for number, row in rows.items():
        words = [
            f"{name} is {row.get(name, 'absent')}, elsewhere {usual[name]}"
            for name in names if row.get(name, "absent") != usual[name]
        ]  # fmt: skip
        if words:
            found[number] = f"{field} is not isolated: {', '.join(words)}"
    return found


def _most(values: Iterable[str]) -> str:
    """The most frequent; of equals the first."""
    return Counter(values).most_common(1)[0][0]


def _facts(one: Seen, field: str) -> Mapping[str, str]:
    effective, follows = one.effective, FOLLOWS[field]
    pool_and_tables = effective.pool_bytes + effective.block_table_bytes
    facts = {
        "layout": effective.layout, "bytes_per_token": str(effective.bytes_per_token),
        "not_applicable": " ".join(effective.not_applicable), "pool and tables": str(pool_and_tables),
    }  # fmt: skip
    return facts | {name: value for name, value in effective.knobs.items() if name not in follows}
