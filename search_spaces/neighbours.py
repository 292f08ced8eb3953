"""The nearest candidate that was not asked for yet: where a sampler proposes what is known already.

A duplicate costs no engine time, but it costs a trial of the budget and tells nothing.
"""

import random
from collections.abc import Collection, Iterator, Mapping

from search_spaces.space import Space, Value

Key = tuple[tuple[str, Value], ...]
_MOST_LOOKED_AT = 512  # candidates; beyond that the duplicate is told from what is known


def key_of(params: Mapping[str, Value]) -> Key:
    """A candidate as something that can be looked up."""
    return tuple(sorted(params.items()))


def unasked_near(
    space: Space, params: Mapping[str, Value], asked: Collection[Key], seed: int
) -> dict[str, Value] | None:
    """The candidate itself where it is new; else one at the fewest steps from it that is; None: too far.

    A step moves one field to a value next to its own, or to any other of a category. Of equally near ones the seed
    chooses. A continuous field is drawn anew.
    """
    here = dict(params)
    if key_of(here) not in asked:
        return here
    rng = random.Random(seed)
    ring, seen = [here], {key_of(here)}
    while ring and len(seen) < _MOST_LOOKED_AT:
        following: list[dict[str, Value]] = []
        for candidate in ring:
            for near in _steps(space, candidate, rng):
                if key_of(near) not in seen:
                    seen.add(key_of(near))
                    following.append(near)
        rng.shuffle(following)
        found = next((c for c in following if key_of(c) not in asked), None)
        if found is not None:
            return found
        ring = following
    return None


def _steps(space: Space, params: Mapping[str, Value], rng: random.Random) -> Iterator[dict[str, Value]]:
    for d in space.dimensions:
        if d.field not in params:
            continue
        if not d.values:
            yield space.canonical({**params, d.field: rng.uniform(d.low, d.high)})
            continue
        at = d.values.index(params[d.field])
        ways = range(len(d.values)) if d.categorical else (at - 1, at + 1)
        for place in ways:
            if place != at and 0 <= place < len(d.values):
                yield space.canonical({**params, d.field: d.values[place]})
