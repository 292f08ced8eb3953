"""How requests of one source hang together: sessions, turns, forks and joins, named by the number of the row.

A row that is left out passes its own links on: what followed it follows what it followed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trials.trace import NONE, STARTS, Ints, Ragged, Trace, TraceError, validate, with_links


@dataclass(frozen=True, slots=True)
class Link:
    """Of one row; rows are named by their number among all rows read, failures included, from 0.

    `after`: the row comes `think_ns` after all of these have ended; none: at its stamp. `parent`: the row whose
    context (prompt, then answer) its first `inherited_tokens` tokens repeat, or -1.
    """

    session: int = NONE
    parent: int = NONE
    inherited_tokens: int = 0
    after: tuple[int, ...] = ()
    think_ns: int = 0
    priority: int = 0
    cancel_after_ns: int = NONE


_NO_LINK = Link()


def with_sessions(trace: Trace, links: Sequence[Link | None], numbers: Sequence[int]) -> Trace:
    """The trace with its links. `links` by row number; `numbers` [R]: the number of each row of the trace."""
    place = np.full(len(links) + 1, NONE, np.int64)  # the last entry is where NONE leads: to NONE
    place[np.asarray(numbers, np.int64)] = np.arange(len(numbers))
    kept = [_passed_on(links, number, place) for number in numbers]
    after = [sorted({int(place[number]) for number in link.after}) for link in kept]
    parent = place[np.array([link.parent for link in kept], np.int64)]
    inherited = np.array([link.inherited_tokens for link in kept], np.int64)
    linked = with_links(
        replace(
            trace,
            session=np.array([link.session for link in kept], np.int64),
            parent=parent,
            inherited_tokens=_within(inherited, parent, trace),
            think_ns=np.array([link.think_ns if link.after else 0 for link in kept], np.int64),
            priority=np.array([link.priority for link in kept], np.int64),
            cancel_after_ns=np.array([link.cancel_after_ns for link in kept], np.int64),
        ),
        Ragged.of(after),
    )
    starts = np.where(linked.after.lengths > 0, STARTS["think"], STARTS["arrival"]).astype(np.int64)
    done = replace(linked, starts=starts)
    validate(done)
    return done


def _within(inherited: Ints, parent: Ints, trace: Trace) -> Ints:
    """No more than the row's prompt, nor than its parent's whole context; nothing from nobody."""
    context = trace.num_prompt_tokens + trace.num_output_tokens
    most = np.minimum(trace.num_prompt_tokens, context[parent])
    return np.where(parent < 0, 0, np.minimum(inherited, most))


def _passed_on(links: Sequence[Link | None], number: int, place: Ints) -> Link:
    """The link of a row, led around the rows that are left out."""
    link = links[number] or _NO_LINK
    parent, inherited = link.parent, link.inherited_tokens
    while parent >= 0 and place[parent] < 0:
        above = links[parent] or _NO_LINK
        if above.parent >= parent:
            raise TraceError(f"row {parent} follows row {above.parent}, which does not stand before it")
        parent, inherited = above.parent, min(inherited, above.inherited_tokens)
    after: list[int] = []
    waiting, seen = list(link.after), set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if place[one] >= 0:
            after.append(one)
        else:
            waiting += (links[one] or _NO_LINK).after
    return replace(link, parent=parent, inherited_tokens=inherited if parent >= 0 else 0, after=tuple(after))
