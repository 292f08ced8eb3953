"""Seeded traces: arrivals, lengths, prefix trees, sessions, samples and cancels from a preset.

Every purpose has its own random stream, so that another law for one column leaves the others as they were. Same
preset and seed, same trace.
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from trials.documents import read_yaml, validated
from trials.laws import Arrivals, Bursts, Law, Lengths
from trials.overlay import Beams, Cancels, Forks, Overlay, overlaid
from trials.presets import READY, ready_presets
from trials.sessions import Sessions, in_sessions
from trials.spec import Number
from trials.trace import Ints, Ragged, Trace, TraceError, TraceMeta, make_trace
from trials.units import SpecError, nearest

_STREAMS = {
    "arrivals": 0,
    "prompt": 1,
    "output": 2,
    "prefix": 3,
    "spread": 4,
    "sessions": 9,
}  # only ever add to it; 5 to 8 are the overlay's
_MOST_ROWS = 50_000_000
_MOST_IDS = 400_000_000  # over all rows
Count = Annotated[int, Field(ge=1, strict=True)]


class PrefixTree(Law):
    """Shared openings. `share` of the rows take one of `roots` trees, root number r (from 1) with weight
    1 / r ** skew, and walk to a leaf, every child equally often.

    Either `levels`: tokens that each depth adds, every node with `branching` children; or `lengths`: no depth, root
    r is lengths[(r - 1) % len] tokens long. All are multiples of `tokens_per_id`, the tokens that one id covers.
    A prompt shorter than its prefix takes as many leading ids as it holds in full.
    """

    share: Annotated[Number, Field(ge=0, le=1)]
    roots: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 1
    levels: tuple[Count, ...] | None = None
    branching: Count = 1
    lengths: tuple[Count, ...] | None = None
    skew: Annotated[Number, Field(ge=0)] = 0.0
    tokens_per_id: Count = 16

    @model_validator(mode="after")
    def _coherent(self) -> "PrefixTree":
        if bool(self.levels) == bool(self.lengths):
            raise ValueError("a prefix tree needs exactly one of levels, lengths, with at least one entry")
        odd = [n for n in self.levels or self.lengths or () if n % self.tokens_per_id]
        if odd:
            raise ValueError(f"{odd[0]} tokens are no multiple of tokens_per_id {self.tokens_per_id}")
        if self.roots * self.branching ** len(self.levels or ()) > _MOST_IDS:
            raise ValueError(f"the tree has over {_MOST_IDS} leaves")
        return self

    @property
    def most_ids(self) -> int:
        """Ids on the longest path."""
        return (sum(self.levels) if self.levels else max(self.lengths or ())) // self.tokens_per_id


class Preset(Law):
    """What `trace generate` reads. `rows` may be left out for bursts: then each burst comes once."""

    name: str
    rows: Annotated[int, Field(ge=1, le=_MOST_ROWS, strict=True)] | None = None
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    prefix: PrefixTree | None = None
    sessions: Sessions | None = None
    forks: Forks | None = None
    beams: Beams | None = None
    cancels: Cancels | None = None

    @model_validator(mode="after")
    def _sized(self) -> "Preset":
        if self.rows is None and not isinstance(self.arrivals, Bursts):
            raise ValueError("rows is needed: how many requests")
        if self.num_rows > _MOST_ROWS:
            raise ValueError(f"{self.num_rows} rows are more than {_MOST_ROWS}")
        if self.prefix is not None and self.prefix.most_ids * self.num_rows > _MOST_IDS:
            raise ValueError(f"over {_MOST_IDS} prefix ids; use fewer rows or a larger tokens_per_id")
        return self

    @property
    def num_rows(self) -> int:
        return self.rows if self.rows is not None else sum(getattr(self.arrivals, "sizes", ()))


def load_preset(name_or_path: str) -> Preset:
    """A ready preset by name, or one from a file; SpecError otherwise."""
    path = Path(name_or_path)
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        if name_or_path not in ready_presets():
            raise SpecError(
                f"preset {name_or_path!r} is neither a file nor ready; {nearest(name_or_path, ready_presets())}"
            )
        path = READY / f"{name_or_path}.yaml"
    return validated(Preset, read_yaml(path), str(path))


def _stream(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, _STREAMS[purpose]])


def generate(preset: Preset, seed: int | None = None) -> Trace:
    """Draw a trace; `seed` replaces the preset's. Every column is marked synthetic."""
    seed = preset.seed if seed is None else seed
    rows = preset.num_rows
    prompt = preset.prompt.draw(rows, _stream(seed, "prompt"))
    opening = None
    if preset.prefix is not None:
        opening = _openings(preset.prefix, prompt, _stream(seed, "prefix"))
    meta = TraceMeta(
        tokens_per_id=preset.prefix.tokens_per_id if preset.prefix is not None else 0,
        tail_rule="floor",
        synthetic=("arrival_ns", "num_prompt_tokens", "num_output_tokens", *(("prefix_ids",) if opening else ())),
        name=preset.name,
        source=f"generated: {preset.name}, seed {seed}",
        notes=opening.notes if opening else (),
    )
    trace = make_trace(
        preset.arrivals.draw(rows, _stream(seed, "arrivals")),
        prompt,
        preset.output.draw(rows, _stream(seed, "output")),
        opening.prefix_ids if opening else None,
        meta,
    )
    if preset.sessions is not None:
        trace = in_sessions(trace, preset.sessions, preset.output, _stream(seed, "sessions"))
    if preset.forks or preset.beams or preset.cancels:
        trace = overlaid(trace, Overlay(forks=preset.forks, beams=preset.beams, cancels=preset.cancels), seed)
    return trace


class _Openings(NamedTuple):
    prefix_ids: Ragged
    notes: tuple[str, ...]


def _openings(tree: PrefixTree, prompt: Ints, rng: np.random.Generator) -> _Openings:
    """Prefix ids of every row; rows without a prefix have none."""
    rows = len(prompt)
    sharing = np.zeros(rows, bool)
    sharing[rng.permutation(rows)[: round(tree.share * rows)]] = True
    weights = np.arange(1, tree.roots + 1, dtype=np.float64) ** -tree.skew
    root = rng.choice(tree.roots, rows, p=weights / weights.sum())
    paths = _paths(tree, root, rng)
    tokens = (
        np.full(rows, sum(tree.levels)) if tree.levels else np.array(tree.lengths)[root % len(tree.lengths or ())]
    )
    wanted = tokens // tree.tokens_per_id
    held = np.where(sharing, np.minimum(wanted, prompt // tree.tokens_per_id), 0)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(held, dtype=np.int64)])
    short = int((sharing & (held < wanted)).sum())
    notes = (f"{short} prompts are shorter than their prefix and share what they hold of it",) if short else ()
    return _Openings(Ragged(offsets, paths[np.arange(paths.shape[1]) < held[:, None]]), notes)


def _paths(tree: PrefixTree, root: Ints, rng: np.random.Generator) -> Ints:
    """Ids from the root to a leaf, [rows, most_ids]; an id stands in one place of one tree only."""
    columns, node, first = [], root, 0
    for depth, tokens in enumerate(tree.levels or (tree.most_ids * tree.tokens_per_id,)):
        if depth:
            node = node * tree.branching + rng.integers(0, tree.branching, len(root))
        width = tokens // tree.tokens_per_id
        columns.append(first + node[:, None] * width + np.arange(width))
        first += tree.roots * tree.branching**depth * width
    return np.concatenate(columns, axis=1)


def spread_arrivals(trace: Trace, width_ns: int, seed: int) -> Trace:
    """Rows that share a stamp, moved to seeded uniform places in the `width_ns` behind it.

    Rows of one stamp keep their order; rows are then in order of the new stamps, ties by their old place. The
    column is marked synthetic. Refused for arrivals that are so already, and for rows that follow other rows.
    """
    if width_ns < 1 or seed < 0:
        raise TraceError(f"spread over {width_ns} ns with seed {seed}: a width and a seed from 0 are needed")
    if (trace.parent >= 0).any() or len(trace.after.values):
        raise TraceError("rows that follow other rows cannot be spread; spread the source before it is linked")
    if "arrival_ns" in trace.meta.synthetic:
        raise TraceError("the arrivals were not observed: there is nothing to spread")
    places = _stream(seed, "spread").integers(0, width_ns, len(trace))
    places = places[np.lexsort((places, trace.arrival_ns))]  # arrivals rise: sorted inside each stamp
    stamps = trace.arrival_ns + places
    order = np.argsort(stamps, kind="stable")
    moved = trace.take(order)
    meta = trace.meta
    note = f"arrivals spread uniformly over the {width_ns} ns behind each stamp, seed {seed}"
    return make_trace(
        stamps[order],
        moved.num_prompt_tokens,
        moved.num_output_tokens,
        moved.prefix_ids,
        TraceMeta(
            meta.tokens_per_id, meta.tail_rule, tuple(dict.fromkeys((*meta.synthetic, "arrival_ns"))),
            meta.name, meta.source, (*meta.notes, note),
        ),
        session=moved.session, priority=moved.priority, think_ns=moved.think_ns,
        cancel_after_ns=moved.cancel_after_ns, cancel_after_tokens=moved.cancel_after_tokens,
    )  # fmt: skip
