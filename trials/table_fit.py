"""From steps that were timed to a table of step times: what is dense, what is attention, and what a block costs.

Two stages. A linear model of few terms, fitted to relative errors, says how times grow; where they do not grow
like that (caches, tiles, batch sizes that suit a kernel), the node of the table is the model times the median
ratio of the steps that were timed around it. So a node that nothing was timed around is still plausible, and one
that was is measured. A linear model alone is off by a fifth over a whole profile (LLMServingSim's data).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trials.engine import StepShape
from trials.step_tables import (
    BlockGrid,
    DecodeAttention,
    Head,
    Layers,
    PrefillAttention,
    StepTable,
    table_time,
)
from trials.table_facts import BlockTerm, Region, Residual

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
_NODES = 7  # of an axis, at most
_FAR = 3.0  # times the median absolute deviation: a step that far off was interrupted
_FORMAT = "kvknee step times 1"


@dataclass(frozen=True, slots=True)
class Samples:
    """Timed steps. Columns [S]; times in ns, `attention` NaN where the engine does not tell it apart."""

    shape: Floats  # [S, 8], in the order of StepShape
    duration: Floats
    attention: Floats
    block_size: Floats
    held_out: Flags

    def where(self, chosen: Flags) -> "Samples":
        return Samples(
            self.shape[chosen], self.duration[chosen], self.attention[chosen], self.block_size[chosen],
            self.held_out[chosen],
        )  # fmt: skip

    def column(self, name: str) -> Floats:
        values: Floats = self.shape[:, StepShape._fields.index(name)]
        return values

    @property
    def work(self) -> Floats:
        """Tokens that are computed."""
        return self.column("num_decodes") + self.column("chunk_tokens")


@dataclass(frozen=True, slots=True)
class Line:
    """A linear model: ns = features @ values. `errors`: standard errors."""

    values: Floats
    errors: Floats


def linear(features: Floats, ns: Floats, signed: bool = False) -> Line:
    """Least squares of relative errors; steps that stick out are left out. Unless `signed`, no term is negative."""
    kept = np.ones(len(ns), bool)
    line = _squares(features, ns, kept, signed)
    for _ in range(2):
        off = features @ line.values / ns - 1
        middle = float(np.median(off))
        spread = float(np.median(np.abs(off - middle))) * 1.4826
        kept = np.abs(off - middle) <= max(_FAR * spread, 1e-9)
        line = _squares(features, ns, kept, signed)
    return line


def _squares(features: Floats, ns: Floats, kept: Flags, signed: bool) -> Line:
    """Terms that come out negative are set to 0, the worst first, and the others fitted again."""
    scaled, ones = features[kept] / ns[kept, None], np.ones(int(kept.sum()))
    used = np.flatnonzero(np.abs(scaled).sum(axis=0) > 0)
    values, errors = np.zeros(features.shape[1]), np.zeros(features.shape[1])
    while len(used):
        unit = np.abs(scaled[:, used]).max(axis=0)
        matrix = scaled[:, used] / unit
        found, *_ = np.linalg.lstsq(matrix, ones, rcond=1e-9)
        if signed or found.min() >= 0:
            rest = ones - matrix @ found
            variance = float(rest @ rest) / max(len(ones) - len(used), 1)
            values[used] = found / unit
            errors[used] = np.sqrt(np.maximum(np.diag(np.linalg.pinv(matrix.T @ matrix)), 0.0) * variance) / unit
            break
        used = np.delete(used, int(found.argmin()))
    return Line(values, errors)


def _axis(values: Floats, least: float, most_nodes: int = _NODES) -> tuple[float, ...]:
    """Nodes from the least to the most of what was timed, evenly on a log scale; whole numbers."""
    low, high = max(float(values.min()), least), max(float(values.max()), least)
    count = min(most_nodes, max(2, int(np.log2(max(high / low, 1.0))) + 2))
    nodes = np.unique(np.rint(np.geomspace(low, high, count))) if high > low else np.array([low])
    return tuple(float(x) for x in nodes)


def _nearest(axis: Sequence[float], values: Floats) -> NDArray[np.int64]:
    """The node that each value lies next to, on a log scale."""
    logs = np.log1p(np.asarray(axis))
    found: NDArray[np.int64] = np.abs(np.log1p(values)[:, None] - logs[None, :]).argmin(axis=1)
    return found


def _ratios(ns: Floats, model: Floats, nodes: Sequence[NDArray[np.int64]], shape: tuple[int, ...]) -> Floats:
    """Median of timed / model around each node; 1 where nothing was timed."""
    out = np.ones(shape)
    flat = np.ravel_multi_index(tuple(nodes), shape)
    for node in np.unique(flat):
        here = flat == node
        out.flat[node] = float(np.median(ns[here] / np.maximum(model[here], 1e-9)))
    return out


def fit(samples: Samples, about: StepTable | None = None) -> StepTable:
    """The table of all samples that are not held out; `about` carries what is known beside the times."""
    known = samples.where(~samples.held_out)
    if np.isnan(known.attention).any():
        known = _attention_apart(known)
    dense, head = _dense(known)
    decode, term = _decode_models(known)
    grids = tuple(
        BlockGrid(block_size=int(size), decode_attention=decode(size), prefill_attention=_prefill(known, size))
        for size in np.unique(known.block_size)
    )
    largest = grids[-1]
    table = StepTable(
        format=_FORMAT, layers=dense, head=head, decode_attention=largest.decode_attention,
        prefill_attention=largest.prefill_attention, by_block=grids, block_term=term, region=_region(known),
    )  # fmt: skip
    if about is not None:
        names = ("device", "model", "notes", "engine_hash", "model_digest", "measured")
        table = table.model_copy(update={name: getattr(about, name) for name in names})
    return table.model_copy(update={"residuals": residuals(table, samples)})


def _attention_apart(known: Samples) -> Samples:
    """Attention of engines that do not tell it: what goes beyond a step's dense work."""
    work, rows = known.work, known.column("num_sampled")
    ones = np.ones(len(work))
    features = np.stack([
        ones, work, rows, known.column("decode_context"), known.column("decode_blocks"),
        known.column("chunk_pairs"), known.column("chunk_context"),
    ], axis=1)  # fmt: skip
    line = linear(features, known.duration)
    plain = features[:, :3] @ line.values[:3]
    return replace(known, attention=np.clip(known.duration - plain, 0.0, known.duration))


def _dense(known: Samples) -> tuple[Layers, Head]:
    """All but attention, by computed tokens; what rows of logits add."""
    ns, work, rows = known.duration - known.attention, known.work, known.column("num_sampled")
    ns = np.maximum(ns, 1.0)
    line = linear(np.stack([np.ones(len(work)), work, rows], axis=1), ns)
    axis = _axis(work, 1.0, 2 * _NODES)
    model = np.stack([np.ones(len(work)), work, rows], axis=1) @ line.values
    ratio = _ratios(ns, model, [_nearest(axis, work)], (len(axis),))
    tokens = np.asarray(axis)
    times = np.maximum(
        (line.values[0] + line.values[1] * tokens + line.values[2] * np.minimum(tokens, 1)) * ratio, 0
    )
    per_row = float(line.values[2])
    head = Head(rows=(1.0, 2.0), ns=(0.0, per_row))
    return Layers(tokens=axis, ns=tuple(float(t) for t in times)), head


def _decode_models(known: Samples) -> tuple[Callable[[float], DecodeAttention], BlockTerm]:
    """(grid of a block size, what a block costs): from steps that only decode."""
    only = known.where((known.column("num_chunks") == 0) & (known.column("num_decodes") > 0))
    n, context, blocks = (only.column(c) for c in ("num_decodes", "decode_context", "decode_blocks"))
    ns = np.maximum(only.attention, 1.0)
    features = np.stack([np.ones(len(n)), n, context, blocks], axis=1)
    line = linear(features, ns)
    model = features @ line.values
    axis, contexts = _axis(n, 1.0), _axis(context / n, 1.0)

    def grid(size: float) -> DecodeAttention:
        mine = only.block_size == size
        nodes = [_nearest(axis, n[mine]), _nearest(contexts, (context / n)[mine])]
        ratio = _ratios(ns[mine], model[mine], nodes, (len(axis), len(contexts)))
        count, mean = np.meshgrid(np.asarray(axis), np.asarray(contexts), indexing="ij")
        at = np.stack([np.ones_like(count), count, count * mean, count * (mean + (size - 1) / 2) / size], axis=-1)
        times = np.maximum(at @ line.values * ratio, 0.0)
        return DecodeAttention(
            num_decodes=axis, mean_context=contexts, ns=tuple(tuple(float(t) for t in row) for row in times)
        )

    term = BlockTerm()
    if len(np.unique(only.block_size)) > 1:  # of one size, blocks and tokens cannot be told apart
        free = linear(features, ns, signed=True)
        term = BlockTerm(ns_per_block=float(free.values[3]), error_ns=float(free.errors[3]))
    return grid, term


def _prefill(known: Samples, size: float) -> PrefillAttention:
    """From steps that only compute chunks of one request; of every block size, where this one has too few."""
    only = known.where((known.column("num_decodes") == 0) & (known.column("num_chunks") > 0))
    chunks = only.column("num_chunks")
    tokens, before = only.column("chunk_tokens") / chunks, only.column("chunk_context") / chunks
    ns = np.maximum(only.attention / chunks, 1.0)

    def features(t: Floats, b: Floats) -> Floats:
        return np.stack([np.ones_like(t), t, t * b, t * t, b], axis=-1)

    line = linear(features(tokens, before), ns)
    model = features(tokens, before) @ line.values
    axis, befores = _axis(tokens, 1.0), tuple(dict.fromkeys([0.0, *_axis(before, 1.0)]))
    mine = only.block_size == size
    nodes = [_nearest(axis, tokens[mine]), _nearest(befores, before[mine])]
    ratio = _ratios(ns[mine], model[mine], nodes, (len(axis), len(befores)))
    t, b = np.meshgrid(np.asarray(axis), np.asarray(befores), indexing="ij")
    times = np.maximum(features(t, b) @ line.values * ratio, 0.0)
    return PrefillAttention(
        chunk_tokens=axis, mean_before=befores, ns=tuple(tuple(float(x) for x in row) for row in times)
    )


def _region(known: Samples) -> Region:
    n, chunks = known.column("num_decodes"), known.column("num_chunks")
    decoding, chunking = n > 0, chunks > 0
    sizes = np.unique(known.block_size)
    return Region(
        num_decodes=float(n.max()),
        mean_context=float((known.column("decode_context")[decoding] / n[decoding]).max()),
        tokens=float(known.work.max()),
        mean_before=float((known.column("chunk_context")[chunking] / chunks[chunking]).max()),
        block_sizes=tuple(int(b) for b in sizes),
    )  # fmt: skip


def residuals(table: StepTable, samples: Samples) -> tuple[Residual, ...]:
    """Share by which the table is off the timed steps: fitted and held out, all and by kind of step."""
    predicted = np.empty(len(samples.duration))
    for size in np.unique(samples.block_size):
        time_of = table_time(table, 1, int(size))
        mine = np.flatnonzero(samples.block_size == size)
        predicted[mine] = [time_of(StepShape(*map(int, samples.shape[k])))[0] for k in mine]
    off = predicted / samples.duration - 1
    decodes, chunks = samples.column("num_decodes") > 0, samples.column("num_chunks") > 0
    kinds = {
        "all": decodes | chunks,
        "decode": decodes & ~chunks,
        "prefill": chunks & ~decodes,
        "mixed": decodes & chunks,
    }
    out = []
    for name, kind in kinds.items():
        for held in (False, True):
            here = off[kind & (samples.held_out == held)]
            if len(here):
                total = samples.duration[kind & (samples.held_out == held)]
                sum_off = float((here * total).sum() / total.sum())
                out.append(Residual(
                    steps=len(here), kind=name, held_out=held, median=float(np.median(here)),
                    p90_abs=float(np.quantile(np.abs(here), 0.9)), of_total=sum_off,
                ))  # fmt: skip
    return tuple(out)
