"""The next candidate by what a Gaussian process expects of all that the space lists; twins of known ones left out.

Where a screen stands, what its simulator said of each candidate is one more axis of the process: how far it can be
trusted is learned from what is measured. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.past import Past
from search_spaces.dimension import Value
from search_spaces.idle import Grid, told_by
from search_spaces.neighbours import Key, key_of
from search_spaces.objective import RACED_OUT
from search_spaces.screen import Screened
from search_spaces.space import Space
from search_spaces.surrogate import Axes, Came, most_expected, standings


@dataclass(frozen=True, slots=True)
class Listing:
    """A space as a table: its candidates, the row of each, their places and axes."""

    candidates: tuple[dict[str, Value], ...]
    rows: Mapping[Key, int]
    grid: Grid
    axes: Axes


def listing_of(space: Space, said: Mapping[Key, Screened] | None = None) -> Listing:
    """`said`: what a screen's simulator said; of whom it said nothing stands with the last."""
    candidates = tuple(space.candidates())
    usual = {d.field: space.usual(d) for d in space.dimensions}
    index = [{value: n for n, value in enumerate(d.values)} for d in space.dimensions]
    places = np.array(
        [[at[{**usual, **c}[d.field]] for d, at in zip(space.dimensions, index, strict=True)] for c in candidates]
    )
    limits = next((d.values for d in space.dimensions if d.field == "max_num_seqs"), ())
    grid = Grid(places, tuple(d.field for d in space.dimensions), tuple(int(v) for v in limits))
    widest = np.array([max(1, len(d.values) - 1) for d in space.dimensions])
    few = np.array([d.categorical and len(d.values) > 2 for d in space.dimensions])
    axes = Axes(np.where(few, places, places / widest), few)
    rows = {key_of(c): n for n, c in enumerate(candidates)}
    if said:
        axes = axes.beside(_said_of(rows, said))
    return Listing(candidates, rows, grid, axes)


def _said_of(rows: Mapping[Key, int], said: Mapping[Key, Screened]) -> NDArray[np.float64]:
    """float [candidates]: their standing by what was said."""
    stood = standings([Came(s.value or 0.0, s.over) for s in said.values()], maximize=True)
    by_key = dict(zip(said, stood, strict=True))
    least = stood.min()
    return np.array([by_key.get(key, least) for key in rows])


def expected(
    listing: Listing,
    past: Sequence[Past],
    maximize: bool,
    seed: int,
    among: Iterable[Mapping[str, Value]] | None = None,
) -> dict[str, Value] | None:
    """The new candidate that is expected to gain most, of `among` or of all; a twin of a known one where nothing
    else is left. None where all are known, or nothing has answered yet."""
    stands = [(row, p) for p in past if (row := listing.rows.get(p.key or key_of(p.params))) is not None]
    answered = [(row, p) for row, p in stands if p.values is not None]
    if not answered:
        return None
    free = np.ones(len(listing.candidates), dtype=np.bool_)
    if among is not None:
        free[:] = False
        free[[listing.rows[key_of(params)] for params in among]] = True
    free[[row for row, _ in stands]] = False
    told = told_by(listing.grid, [row for row, _ in answered], [p.reached for _, p in answered])
    left = np.flatnonzero(free & ~told)
    if not len(left):
        left = np.flatnonzero(free)
    if not len(left):
        return None
    came = [Came(p.values[0], p.over, RACED_OUT in p.constraints) for _, p in answered if p.values is not None]
    rows = [row for row, _ in answered]
    at = most_expected(listing.axes, rows, standings(came, maximize), left, seed)
    return dict(listing.candidates[at])
