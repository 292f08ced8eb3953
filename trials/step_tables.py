"""Step times measured on an engine, as a JSON table, and the step-time function that interpolates in it.

    {"format": "kvknee step times 1",
     "device": "...", "model": "...", "notes": "...",          where it was measured; not read
     "step_ns": 130000,                                        every step
     "layers": {"tokens": [1, 32, ...], "ns": [...]},          all that grows with computed tokens, attention aside
     "head": {"rows": [1, ...], "ns": [...]},                  logits, by sampled rows; may be left out
     "decode_attention": {"num_decodes": [1, ...], "mean_context": [16, ...], "ns": [[...], ...]},
     "prefill_attention": {"chunk_tokens": [1, ...], "mean_before": [0, ...], "ns": [[...], ...]},
     "by_block": [{"block_size": 16, "decode_attention": {...}, "prefill_attention": {...}}, ...]}

`by_block` may be left out; with it, attention is interpolated in 1 / block_size, as a price per block would go.
`kvknee calibrate` also writes what it measured: engine_hash, model_digest, measured (date), block_term, region and
residuals. Times are for the whole model, all layers together; `ns` of the two attentions has a list for each entry
of the first axis; prefill is one chunk. Between points, values are interpolated linearly in both axes; below the
first they are the first; beyond the last, the last slope goes on, never downwards. Source of the shape: profiles of
dense work by tokens and of attention on two separate grids, which reproduce a real engine within some percent,
unfitted.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trials.engine import StepShape, StepTime
from trials.table_facts import BlockTerm, Region, Residual
from trials.units import SpecError, folder_words

Axis = Annotated[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], Field(min_length=1)]
Line = Callable[[float], float]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _ascending(axis: Sequence[float], name: str) -> None:
    if any(b <= a for a, b in pairwise(axis)):
        raise ValueError(f"{name} must ascend")


def _matches(axis: Sequence[float], values: Sequence[object], name: str) -> None:
    if len(axis) != len(values):
        raise ValueError(f"{name}: {len(axis)} points and {len(values)} times")


class Layers(_Model):
    """Everything of a layer but attention, against the tokens of a step."""

    tokens: Axis
    ns: Axis

    @model_validator(mode="after")
    def _coherent(self) -> "Layers":
        _ascending(self.tokens, "tokens")
        _matches(self.tokens, self.ns, "tokens")
        return self


class Head(_Model):
    """Output head and sampler, against the rows that need logits."""

    rows: Axis
    ns: Axis

    @model_validator(mode="after")
    def _coherent(self) -> "Head":
        _ascending(self.rows, "rows")
        _matches(self.rows, self.ns, "rows")
        return self


class _Grid(_Model):
    ns: Annotated[tuple[Axis, ...], Field(min_length=1)]

    @property
    def axes(self) -> tuple[Axis, Axis]:
        raise NotImplementedError

    @model_validator(mode="after")
    def _coherent(self) -> "_Grid":
        first, second = self.axes
        _ascending(first, "the first axis")
        _ascending(second, "the second axis")
        _matches(first, self.ns, "the first axis")
        for line in self.ns:
            _matches(second, line, "the second axis")
        return self


class DecodeAttention(_Grid):
    """Decode attention of a layer, against sequences and their KV."""

    num_decodes: Axis
    mean_context: Axis

    @property
    def axes(self) -> tuple[Axis, Axis]:
        return self.num_decodes, self.mean_context


class PrefillAttention(_Grid):
    """Prefill attention of a layer, against chunk and context."""

    chunk_tokens: Axis
    mean_before: Axis

    @property
    def axes(self) -> tuple[Axis, Axis]:
        return self.chunk_tokens, self.mean_before


GridT = TypeVar("GridT", DecodeAttention, PrefillAttention)


class BlockGrid(_Model):
    """Attention as it was timed at one block size. All block sizes of a table have the same axes."""

    block_size: Annotated[int, Field(ge=1)]
    decode_attention: DecodeAttention
    prefill_attention: PrefillAttention


class StepTable(_Model):
    """The file; see the module."""

    format: Literal["kvknee step times 1"]
    device: str = ""
    model: str = ""
    notes: str = ""
    step_ns: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    layers: Layers
    head: Head | None = None
    decode_attention: DecodeAttention
    prefill_attention: PrefillAttention
    by_block: tuple[BlockGrid, ...] = ()
    engine_hash: str = ""  # of the engine that was timed
    model_digest: str = ""
    measured: str = ""  # date
    block_term: BlockTerm = BlockTerm()
    region: Region | None = None
    residuals: tuple[Residual, ...] = ()

    @model_validator(mode="after")
    def _alike(self) -> "StepTable":
        _ascending([grid.block_size for grid in self.by_block], "block sizes")
        for grid in self.by_block:
            for name in ("decode_attention", "prefill_attention"):
                if getattr(grid, name).axes != getattr(self, name).axes:
                    raise ValueError(f"by_block {grid.block_size}: {name} has other axes than the table's own")
        return self


def load_table(path: Path) -> StepTable:
    """Read a table; SpecError where it is absent or not one."""
    try:
        return StepTable.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"step_time table: {path}: no such file; make one with `kvknee calibrate`") from None
    except IsADirectoryError:
        raise SpecError(f"step_time table: {folder_words(path, 'a table (JSON)', '.json')}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"step_time table: {path}: cannot be read as text: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise SpecError(f"step_time table: {path}: {where}: {first['msg']}") from None


def _between(x: float, low: float, high: float, at_low: float, at_high: float) -> float:
    """Linear between two points; flat below them, and beyond them the slope if it rises."""
    if x <= low:
        return at_low
    slope = (at_high - at_low) / (high - low)
    if x > high:
        return at_high + max(slope, 0.0) * (x - high)
    return at_low + slope * (x - low)


def _segment(axis: Sequence[float], x: float) -> int:
    """Number of the segment that x lies in, the outer ones reaching on."""
    return min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)


def _line(axis: Sequence[float], values: Sequence[float]) -> Line:
    if len(axis) == 1:
        only = values[0]
        return lambda x: only

    def at(x: float) -> float:
        k = _segment(axis, x)
        return _between(x, axis[k], axis[k + 1], values[k], values[k + 1])

    return at


def _surface(grid: DecodeAttention | PrefillAttention) -> Callable[[float, float], float]:
    """Along the second axis first, then along the first between the two lines that lie around."""
    first, second = grid.axes
    lines = [_line(second, values) for values in grid.ns]
    if len(first) == 1:
        return lambda x, y: lines[0](y)

    def at(x: float, y: float) -> float:
        k = _segment(first, x)
        return _between(x, first[k], first[k + 1], lines[k](y), lines[k + 1](y))

    return at


def _at_block(
    table: StepTable, block_size: int | None, block_term: bool
) -> tuple[DecodeAttention, PrefillAttention]:
    """The grids at a block size: linear in 1 / block_size between those measured, and the nearest one beyond."""
    grids = table.by_block
    if not grids or block_size is None:
        return table.decode_attention, table.prefill_attention
    if not block_term or block_size >= grids[-1].block_size:
        return grids[-1].decode_attention, grids[-1].prefill_attention
    if block_size <= grids[0].block_size:
        return grids[0].decode_attention, grids[0].prefill_attention
    k = bisect_right([grid.block_size for grid in grids], block_size) - 1
    low, high = grids[k], grids[k + 1]
    share = (1 / block_size - 1 / high.block_size) / (1 / low.block_size - 1 / high.block_size)
    return (
        _mixed(low.decode_attention, high.decode_attention, share),
        _mixed(low.prefill_attention, high.prefill_attention, share),
    )


def _mixed(low: GridT, high: GridT, share: float) -> GridT:
    ns = tuple(
        tuple(share * a + (1 - share) * b for a, b in zip(x, y, strict=True))
        for x, y in zip(low.ns, high.ns, strict=True)
    )
    return high.model_copy(update={"ns": ns})


def table_time(
    table: StepTable, max_num_batched_tokens: int, block_size: int | None = None, block_term: bool = True
) -> StepTime:
    """The step-time function of a table; steps of up to `max_num_batched_tokens` tokens are looked up."""
    layers = _line(table.layers.tokens, table.layers.ns)
    head = _line(table.head.rows, table.head.ns) if table.head else lambda rows: 0.0
    at_decode, at_prefill = _at_block(table, block_size, block_term)
    decode, prefill = _surface(at_decode), _surface(at_prefill)
    upto, base = max_num_batched_tokens, table.step_ns
    dense = [0.0] + [base + layers(n) for n in range(1, upto + 1)]
    logits = [0.0] + [head(n) for n in range(1, upto + 1)]

    def step(shape: StepShape) -> tuple[int, int]:
        decodes, context, _, chunks, tokens, before, _, sampled = shape
        attention = 0.0
        if decodes:
            attention += decode(decodes, context / decodes)
        if chunks:
            attention += chunks * prefill(tokens / chunks, before / chunks)
        work = decodes + tokens
        whole = dense[work] if work <= upto else base + layers(work)
        whole += logits[sampled] if sampled <= upto else head(sampled)
        return round(whole + attention), round(attention)

    return step
