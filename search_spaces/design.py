"""The first candidates of a search, before anything is known: spread evenly over every field, not just at random.

A Latin hypercube (McKay, Beckman and Conover 1979): of n candidates each field has its values equally often, or,
where there are more values than n, one from each n-th of them; which goes with which is the seed's.
"""

import random

from search_spaces.space import Space, Value


def spread(space: Space, count: int, seed: int) -> list[dict[str, Value]]:
    """`count` candidates, the same for the same seed; some may be equal where fields do not matter."""
    rng = random.Random(seed)
    columns: dict[str, list[Value]] = {}
    for d in space.dimensions:
        if not d.values:
            width = (d.high - d.low) / count
            column: list[Value] = [d.low + (i + rng.random()) * width for i in range(count)]
        elif len(d.values) <= count:
            order = rng.sample(d.values, len(d.values))
            column = [order[i % len(order)] for i in range(count)]
        else:
            column = [d.values[int((i + rng.random()) * len(d.values) / count)] for i in range(count)]
        rng.shuffle(column)
        columns[d.field] = column
    return [space.canonical({name: column[i] for name, column in columns.items()}) for i in range(count)]
