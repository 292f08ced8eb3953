"""Cancels, n-way samples and beams put on a trace: seeded, and marked synthetic. No public trace records them.

Samples of one prompt are rows that fork from the first one at the end of its prompt. A beam search keeps `width`
hypotheses: every so many tokens one of them forks in mid-answer and another is given up (a beam is forks and
cancels). Cancels come after tokens (a reader who has seen enough), after a time (patience), or for many at one
moment (a batch that is full and aborts its stragglers).

Every purpose has its own random stream: cancels stay where they are when another share of samples is asked for.
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from trials.laws import Law
from trials.spec import Ns, Number
from trials.trace import NONE, Ints, Trace, TraceError, validate
from trials.units import SpecError
from trials.weave import NewRows, described, in_order, woven

_STREAMS = {"forks": 5, "beams": 6, "cancels": 7, "stagger": 8}  # 0 to 4 and 9 are those of generated traces
_TICK_NS = 1_000
_LONGEST_NS = 1 << 56  # of a mean: what is drawn from it stays below 2**63
_MOST_ROWS = 50_000_000
_ADDED = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "parent", "inherited_tokens", "starts")
Share = Annotated[Number, Field(ge=0, le=1)]


class Cancels(Law):
    """`share` of the rows that have no cancel yet are given up.

    `after_tokens`: once so many output tokens were delivered, geometric with this mean, from 1. `patience`: so long
    after arrival, exponential with this mean. Both: whichever comes first. `bursts`: the rows fall into so many
    groups of neighbours; each is given up at one moment, `patience` after the last of it arrived.
    """

    share: Share
    after_tokens: Annotated[int, Field(ge=1, le=1 << 30, strict=True)] | None = None
    patience: Annotated[Ns, Field(gt=0, le=_LONGEST_NS)] | None = None
    bursts: Annotated[int, Field(ge=1, strict=True)] | None = None

    @model_validator(mode="after")
    def _when(self) -> "Cancels":
        if self.after_tokens is None and self.patience is None:
            raise ValueError("cancels need after_tokens or patience: when a row is given up")
        if self.bursts is not None and (self.patience is None or self.after_tokens is not None):
            raise ValueError("cancel bursts need patience, and no after_tokens: all of a burst go at one moment")
        return self


class Forks(Law):
    """`share` of the rows are sampled `width` times: the row itself, and width - 1 that fork from it at the end of
    its prompt. Their answers are as long as answers of the trace, drawn from all of them.
    """

    share: Share
    width: Annotated[int, Field(ge=2, le=1024, strict=True)] = 4


class Beams(Law):
    """`share` of the rows are searched with `width` hypotheses, of which one is replaced every `every` tokens."""

    share: Share
    width: Annotated[int, Field(ge=2, le=1024, strict=True)] = 4
    every: Annotated[int, Field(ge=2, strict=True)] = 16


class Overlay(Law):
    """What is put on a trace, in this order: forks, beams on rows that were not forked, cancels."""

    forks: Forks | None = None
    beams: Beams | None = None
    cancels: Cancels | None = None

    @model_validator(mode="after")
    def _something(self) -> "Overlay":
        if self.forks is None and self.beams is None and self.cancels is None:
            raise ValueError("nothing to put on the trace: give a share of cancels, forks or beams")
        return self


def overlaid(trace: Trace, overlay: Overlay, seed: int) -> Trace:
    """The trace with all of it; same trace, overlay and seed, same result. Touched columns are marked synthetic."""
    if seed < 0:
        raise SpecError(f"seed {seed}: a whole number from 0 is needed")
    taken = np.zeros(len(trace), bool)
    rows = NewRows(len(trace))
    given_up: dict[int, int] = {}
    notes = []
    if overlay.forks is not None:
        notes.append(_fork(trace, overlay.forks, _stream(seed, "forks"), rows, taken))
    if overlay.beams is not None:
        notes.append(_search(trace, overlay.beams, _stream(seed, "beams"), (rows, given_up), taken))
    touched: tuple[str, ...] = ()
    if rows.root:
        numbers = np.full(len(trace) + len(rows.root), NONE, np.int64)
        numbers[: len(trace)] = trace.cancel_after_tokens
        numbers[list(given_up)] = list(given_up.values())
        behind = np.concatenate([np.arange(len(trace)), np.array(rows.root)])
        trace = woven(trace, rows, by_time=False)
        trace = replace(trace, cancel_after_tokens=numbers[np.argsort(behind, kind="stable")])
        touched = (*_ADDED, *(("cancel_after_tokens",) if given_up else ()))
    if overlay.cancels is not None:
        trace, columns, note = _cancel(trace, overlay.cancels, _stream(seed, "cancels"))
        touched, notes = (*touched, *columns), [*notes, note]
    validate(trace)
    return described(trace, touched, *(f"overlay, seed {seed}: {note}" for note in notes))


def _stream(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, _STREAMS[purpose]])


def _chosen(share: float, among: Ints, rng: np.random.Generator) -> Ints:
    """That share of the given rows, in order."""
    return np.sort(rng.permutation(among)[: round(share * len(among))])


def _fork(trace: Trace, law: Forks, rng: np.random.Generator, rows: NewRows, taken: np.ndarray) -> str:
    chosen = _chosen(law.share, np.arange(len(trace)), rng)
    _bounded(len(trace) + len(chosen) * (law.width - 1))
    lengths = rng.choice(trace.num_output_tokens, (len(chosen), law.width - 1)).tolist()
    for row, outputs in zip(chosen.tolist(), lengths, strict=True):
        prompt, arrival = int(trace.num_prompt_tokens[row]), int(trace.arrival_ns[row])
        for output in outputs:
            rows.fork(row, row, prompt, output, arrival)
    taken[chosen] = True
    return f"{len(chosen)} prompts sampled {law.width} times, {len(chosen) * (law.width - 1)} rows more"


def _search(
    trace: Trace, law: Beams, rng: np.random.Generator, out: tuple[NewRows, dict[int, int]], taken: np.ndarray
) -> str:
    """Adds the rows of all beams, and after how many of its tokens each that is given up is."""
    rows, given_up = out
    before = len(rows.root)
    free = np.flatnonzero(~taken & (trace.cancel_after_tokens < 0))
    chosen = _chosen(law.share, free, rng)
    per_row = law.width - 1 + (trace.num_output_tokens[chosen] - 1) // law.every
    _bounded(len(trace) + before + int(per_row.sum()))
    for row in chosen.tolist():
        prompt, output = int(trace.num_prompt_tokens[row]), int(trace.num_output_tokens[row])
        arrival = int(trace.arrival_ns[row])
        live = [(row, 0)]  # (number, tokens of the answer that it began with)
        live += [(rows.fork(row, row, prompt, output, arrival), 0) for _ in range(law.width - 1)]
        for said in range(law.every, output, law.every):
            parent, victim = rng.choice(law.width, 2, replace=False).tolist()
            number, began = live[victim]
            given_up[number] = said - began
            live[victim] = (rows.fork(row, live[parent][0], prompt + said, output - said, arrival), said)
    return f"{len(chosen)} answers searched with {law.width} beams, {len(rows.root) - before} rows more"


def _bounded(rows: int) -> None:
    if rows > _MOST_ROWS:
        raise SpecError(f"the trace would have {rows} rows, over {_MOST_ROWS}; lower the share or the width")


def _cancel(trace: Trace, law: Cancels, rng: np.random.Generator) -> tuple[Trace, tuple[str, ...], str]:
    free = np.flatnonzero((trace.cancel_after_ns < 0) & (trace.cancel_after_tokens < 0))
    if law.bursts is not None:
        return _cancel_bursts(trace, law, free, rng)
    chosen = _chosen(law.share, free, rng)
    waits, tokens, columns, late = trace.cancel_after_ns.copy(), trace.cancel_after_tokens.copy(), [], 0
    if law.after_tokens is not None:
        tokens[chosen] = rng.geometric(1 / law.after_tokens, len(chosen))
        late = int((tokens[chosen] >= trace.num_output_tokens[chosen]).sum())
        columns.append("cancel_after_tokens")
    if law.patience is not None:
        drawn = np.rint(rng.exponential(law.patience / _TICK_NS, len(chosen))).astype(np.int64) * _TICK_NS
        waits[chosen] = drawn
        columns.append("cancel_after_ns")
    words = f"; {late} of them after so many tokens that the answer is over" if late else ""
    done = replace(trace, cancel_after_ns=waits, cancel_after_tokens=tokens)
    return done, tuple(columns), f"{len(chosen)} of {len(free)} rows are given up{words}"


def _cancel_bursts(
    trace: Trace, law: Cancels, free: Ints, rng: np.random.Generator
) -> tuple[Trace, tuple[str, ...], str]:
    """One group in each of `bursts` equal stretches of rows; given up together, so at rate_scale 1."""
    bursts, patience = law.bursts or 1, law.patience or 0
    size = round(law.share * len(free) / bursts)
    if size == 0:
        raise SpecError(f"{law.share:g} of {len(free)} rows are too few for {bursts} bursts; raise the share")
    waits = trace.cancel_after_ns.copy()
    for stretch in np.array_split(free, bursts):
        many = min(size, len(stretch))
        start = int(rng.integers(0, len(stretch) - many + 1))
        group = stretch[start : start + many]
        moment = int(trace.arrival_ns[group].max()) + patience
        waits[group] = moment - trace.arrival_ns[group]
    note = f"{bursts} bursts of {size} rows are given up, each at one moment"
    return replace(trace, cancel_after_ns=waits), ("cancel_after_ns",), note


def stagger_sessions(trace: Trace, width_ns: int, seed: int) -> Trace:
    """Sessions that begin at seeded uniform moments of the first `width_ns`; inside, nothing moves.

    Rows are then in order of the new stamps, which count from the first. Rows without a session move alone.
    """
    if width_ns < 1 or seed < 0:
        raise TraceError(f"stagger over {width_ns} ns with seed {seed}: a width and a seed from 0 are needed")
    alone = trace.session == NONE
    names, session = np.unique(np.where(alone, -2 - np.arange(len(trace)), trace.session), return_inverse=True)
    begins = _stream(seed, "stagger").integers(0, width_ns, len(names))
    stamps = trace.arrival_ns + begins[session]
    moved = replace(trace, arrival_ns=stamps - int(stamps.min()))
    told = tuple(note for note in trace.meta.notes if "--stagger" not in note)  # done: no advice any more
    moved = replace(moved, meta=replace(trace.meta, notes=told))
    note = f"{len(names)} sessions begin at uniform moments of {width_ns} ns, seed {seed}"
    return described(in_order(moved, np.argsort(moved.arrival_ns, kind="stable")), ("arrival_ns",), note)
