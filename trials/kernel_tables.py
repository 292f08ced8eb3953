"""Step times from a GPU's published kernel tables: what every kernel of a layer takes, against what it computes.

Layout of the tables (casys-kaist/LLMServingSim's profiles), times in us:

    dense.csv          layer,tokens,time_us           every operation of a layer but attention, and what runs once
    per_sequence.csv   layer,sequences,time_us        what runs on sampled rows
    attention.csv      prefill_chunk,kv_prefill,n_decode,kv_decode,time_us    one layer: a chunk beside decodes

Nothing is fitted. Between points times are linear, except along the chunk, where the time PER TOKEN is: a token of
a chunk reads what stands before it, so attention of a chunk grows as a c + b c^2. Decodes of unlike lengths are
read as layers of a cake: the first tokens of all n, then the further tokens of those that have them, so that few
long ones cost what few long ones were measured to cost. Several chunks of a step stand for one chunk of as many
tokens and as many (query, key) pairs. Where the engine replays captured graphs, a batch is padded to the next size.
"""

import csv
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trials.plan import Plan
from trials.units import SpecError

Floats = NDArray[np.float64]
ONCE = ("embedding", "final_layernorm")  # run once a step; all other rows of dense.csv once a layer
TWICE = ("layernorm",)  # in front of attention, and in front of the MLP


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    if not rows or any(name not in rows[0] for name in columns):
        raise SpecError(f"{path}: needs rows with the columns {', '.join(columns)}")
    return rows


def _place(axis: Sequence[float], x: float) -> tuple[int, float]:
    """Segment and share of it; below the first point 0, beyond the last the last segment reaches on."""
    k = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    return k, max((x - axis[k]) / (axis[k + 1] - axis[k]), 0.0)


@dataclass(frozen=True, slots=True)
class Grid:
    """Values over 1 to 4 ascending axes, interpolated linearly in each."""

    axes: tuple[tuple[float, ...], ...]
    values: Floats

    def at(self, *point: float) -> float:
        places = [_place(axis, x) for axis, x in zip(self.axes, point, strict=True)]
        total = 0.0
        for corner in itertools.product((0, 1), repeat=len(places)):
            weight = 1.0
            for bit, (_, share) in zip(corner, places, strict=True):
                weight *= share if bit else 1 - share
            if weight:
                total += weight * float(self.values[tuple(k + b for (k, _), b in zip(places, corner, strict=True))])
        return total


def _lines(path: Path, axis: str) -> dict[str, dict[int, float]]:
    """{operation: {size: us}}; every operation at the same sizes."""
    found: dict[str, dict[int, float]] = {}
    for row in _rows(path, ("layer", axis, "time_us")):
        found.setdefault(row["layer"], {})[int(row[axis])] = float(row["time_us"])
    sizes = {tuple(sorted(line)) for line in found.values()}
    if len(sizes) != 1 or len(next(iter(sizes))) < 2:
        raise SpecError(f"{path}: every layer needs the same two or more {axis}")
    return found


def _sum(lines: dict[str, dict[int, float]], times: dict[str, int]) -> Grid:
    sizes = sorted(next(iter(lines.values())))
    total = [sum(times[name] * line[n] for name, line in lines.items()) for n in sizes]
    return Grid((tuple(map(float, sizes)),), np.asarray(total))


@dataclass(frozen=True, slots=True)
class KernelTables:
    """Times in us; attention is of one layer. `beside`: what a chunk adds to n decodes, per token of the chunk."""

    num_layers: int
    dense: Grid  # (tokens), all layers
    head: Grid  # (rows)
    decode: Grid  # (sequences, KV tokens of each)
    prefill: Grid  # (chunk, KV before it), per token of the chunk
    beside: Grid  # (chunk, KV before it, sequences, KV tokens of each), per token of the chunk
    captured: tuple[int, ...]  # batch sizes that graphs were captured for; empty: none

    @classmethod
    def read(cls, folder: Path, num_layers: int, captured: Sequence[int] = ()) -> "KernelTables":
        """From the three files of a folder. SpecError where one is absent or not such a table."""
        lines = _lines(folder / "dense.csv", "tokens")
        often = {name: 1 if name in ONCE else num_layers * (2 if name in TWICE else 1) for name in lines}
        heads = _lines(folder / "per_sequence.csv", "sequences")
        attention = _attention(folder / "attention.csv")
        dense, head = _sum(lines, often), _sum(heads, dict.fromkeys(heads, 1))
        return cls(num_layers, dense, head, *attention, tuple(sorted(captured)))

    def dense_us(self, tokens: int) -> float:
        """Of a batch of so many tokens, padded as the graph that runs it."""
        place = bisect_left(self.captured, tokens)
        return self.dense.at(self.captured[place] if place < len(self.captured) else tokens)

    def decode_us(self, lengths: Sequence[int]) -> float:
        """One layer's decode attention over sequences of these KV lengths, ascending."""
        n = len(lengths)
        floor = self.decode.axes[1][0]  # below it the launch is all there is
        reached = max(float(lengths[0]), floor)
        total = self.decode.at(n, reached)
        for done, length in enumerate(lengths[1:], 1):
            if length > reached:
                total += self.decode.at(n - done, length) - self.decode.at(n - done, reached)
                reached = float(length)
        return total

    def chunk_us(self, chunks: Sequence[tuple[int, int]], decodes: int, mean_context: float) -> float:
        """What chunks (start, tokens) add to one layer's decode attention."""
        tokens = sum(count for _, count in chunks)
        pairs = sum(count * start + count * (count + 1) // 2 for start, count in chunks)
        alike, before = float(tokens), pairs / tokens - (tokens + 1) / 2
        if before < 0:  # many short ones: fewer pairs than one of as many tokens has by itself
            alike, before = (sqrt(8 * pairs + 1) - 1) / 2, 0.0
        size = max(alike, self.prefill.axes[0][0])
        if not decodes:
            return alike * self.prefill.at(size, before)
        first, shortest = self.beside.axes[2][0], self.beside.axes[3][0]
        return alike * self.beside.at(size, before, max(decodes, first), max(mean_context, shortest))

    def step_ns(self, plan: Plan) -> tuple[int, int]:
        """(step ns, attention ns). The head runs for every sequence of the step, whether it samples or not."""
        shape, attention = plan.shape, 0.0
        if shape.num_decodes:
            attention += self.decode_us(sorted(run.computed_at(plan.step) + 1 for run in plan.decoding.values()))
        if chunks := [(chunk.start, chunk.num_tokens) for chunk in plan.chunks]:
            mean = shape.decode_context / max(shape.num_decodes, 1)
            attention += self.chunk_us(chunks, shape.num_decodes, mean)
        attention *= self.num_layers
        rest = self.dense_us(shape.num_decodes + shape.chunk_tokens)
        rest += self.head.at(shape.num_decodes + len(chunks)) if shape.num_decodes or chunks else 0.0
        return round((rest + attention) * 1e3), round(attention * 1e3)


def _attention(path: Path) -> tuple[Grid, Grid, Grid]:
    """Decodes alone, chunks alone, and what a chunk adds beside decodes; per token of the chunk the last two.

    Points that were not measured (long batches that did not fit) are taken as chunk alone beside decodes alone.
    """
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    times = {tuple(int(r[n]) for n in names): float(r["time_us"]) for r in _rows(path, (*names, "time_us"))}
    chunks, before, counts, context = (sorted({key[i] for key in times}) for i in range(4))
    chunks, counts, context = ([x for x in axis if x] for axis in (chunks, counts, context))
    decode, prefill = np.empty((len(counts), len(context))), np.empty((len(chunks), len(before)))
    beside = np.empty((*prefill.shape, *decode.shape))
    try:
        for n, k in np.ndindex(decode.shape):
            decode[n, k] = times[0, 0, counts[n], context[k]]
        for c, b in np.ndindex(prefill.shape):
            prefill[c, b] = times[chunks[c], before[b], 0, 0]
    except KeyError as error:
        raise SpecError(f"{path}: no row for {dict(zip(names, error.args[0], strict=True))}") from None
    for c, b, n, k in np.ndindex(beside.shape):
        both = times.get((chunks[c], before[b], counts[n], context[k]))
        beside[c, b, n, k] = (prefill[c, b] if both is None else both - decode[n, k]) / chunks[c]
    axes = tuple(tuple(map(float, axis)) for axis in (chunks, before, counts, context))
    per_token = prefill / np.asarray(chunks, float)[:, None]
    return Grid(axes[2:], decode), Grid(axes[:2], per_token), Grid(axes, beside)
