"""Rows of lengths and prefix ids, one JSON object a line, as Mooncake began them and others write them.

    {"timestamp": ..., "input_length": n, "output_length": n, "hash_ids": [...]}

One id stands for a fixed number of tokens and is a node under the id in front of it; there are
ceil(input_length / tokens) of them. The formats differ in the unit of the stamp and in how many tokens an id has.
"""

import json
from collections.abc import Iterator, Mapping

import numpy as np

from trials.content import Content
from trials.formats.losses import Loss
from trials.trace import Ints, Ragged, Trace

KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
MOST_ID = 1 << 62


def decimal(value_ns: int, unit_ns: int) -> str:
    """A time in a unit as an exact JSON number: 1500 ns in us is 1.5."""
    whole, rest = divmod(value_ns, unit_ns)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit_ns)) - 1}d}".rstrip("0")


def rows_as_json(
    trace: Trace, unit_ns: int, ids: Ragged | None, extras: Mapping[int, object] | None = None
) -> Iterator[str]:
    """One line a row; `extras`: what rows carry under the key `extra`."""
    columns = zip(
        trace.arrival_ns.tolist(), trace.num_prompt_tokens.tolist(), trace.num_output_tokens.tolist(), strict=True
    )
    for row, (arrival, prompt, output) in enumerate(columns):
        listed = f', "hash_ids": {json.dumps(ids.row(row).tolist())}' if ids is not None else ""
        extra = f', "extra": {json.dumps(extras[row])}' if extras and row in extras else ""
        yield (
            f'{{"timestamp": {decimal(arrival, unit_ns)}, "input_length": {prompt}, "output_length": {output}'
            f"{listed}{extra}}}"
        )


def ids_at(trace: Trace, tokens_per_id: int) -> tuple[Ragged, list[Loss]]:
    """ceil(prompt / tokens_per_id) ids a row, and what of the trace's sharing they do not say.

    The trace's own ids where they fit; else numbered anew from the tree of content, so that forks and turns keep
    what they share. A block that nobody shares has an id of its own.
    """
    wanted = -(-trace.num_prompt_tokens // tokens_per_id)
    if _own_ids_say_all(trace, tokens_per_id):
        missing = wanted - trace.prefix_ids.lengths
        if not missing.any() and trace.meta.tail_rule == "ceil":
            return trace.prefix_ids, []
        reason = f"{int(missing.sum())} blocks without an id get one of their own, which nobody shares"
        if not missing.any():
            reason = "the tail rule becomes ceil"
        first = int(trace.prefix_ids.values.max()) + 1 if len(trace.prefix_ids.values) else 0
        leading = [trace.prefix_ids.row(row).tolist() for row in range(len(trace))]
        return _filled(leading, wanted, first), [Loss("prefix_ids", reason)]
    content, numbers, leading = Content(trace), dict[int, int](), []
    for row, prompt in enumerate(trace.num_prompt_tokens.tolist()):
        keys = content.keys(row, tokens_per_id)[: prompt // tokens_per_id]
        leading.append([numbers.setdefault(key, len(numbers)) for key in keys])
    what = f"ids of {tokens_per_id} tokens, numbered anew: what is shared beyond the last full one is not said"
    return _filled(leading, wanted, len(numbers)), [Loss("prefix_ids", what)]


def _own_ids_say_all(trace: Trace, tokens_per_id: int) -> bool:
    """Whether the trace's ids are of this size, can be written as they are, and no row shares by other means."""
    by_parent = (trace.prefix_ids.lengths == 0) & (trace.inherited_tokens > 0)
    if by_parent.any() or (len(trace.prefix_ids.values) and trace.meta.tokens_per_id != tokens_per_id):
        return False
    ids = trace.prefix_ids.values
    return not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < MOST_ID // 2)


def _filled(leading: list[list[int]], wanted: Ints, first: int) -> Ragged:
    """Every row up to its number of ids; new ones count from `first`."""
    out = []
    for ids, count in zip(leading, wanted.tolist(), strict=True):
        own = count - len(ids)
        out.append([*ids, *range(first, first + own)])
        first += own
    return Ragged.of(out)


def tokens_an_id(prompts: Ints, counts: Ints, usual: int) -> int | None:
    """How many tokens an id has, from ceil(prompt / tokens) = count in all rows: `usual` where that fits, else the
    one power of two that does; None where none or several do.
    """
    some = counts > 0
    n, k = prompts[some], counts[some]
    if not len(n):
        return None
    low = int((-(-n // k)).max())
    several = k > 1
    high = int(((n[several] - 1) // (k[several] - 1)).min()) if several.any() else None
    if low <= usual and (high is None or usual <= high):
        return usual
    powers = [1 << bit for bit in range(31) if low <= 1 << bit and (high is None or 1 << bit <= high)]
    return powers[0] if len(powers) == 1 else None


def rounded_counts(trace: Trace, ids: Ragged, usual: int, tokens_per_id: int) -> list[Loss]:
    """The loss of a reader that cannot tell from the rows how many tokens an id has."""
    if tokens_an_id(trace.num_prompt_tokens, np.asarray(ids.lengths), usual) == tokens_per_id:
        return []
    return [Loss("tokens_per_id", f"{tokens_per_id}, which the rows alone do not tell")]
