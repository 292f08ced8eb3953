"""Step times of a real engine, measured: `python -P -m trials.calibrate SPEC OUT [BLOCK_SIZES [ROUNDS]]`.

The region that the trace visits is found by simulating it at saturation. Requests of equal length are then put
through the engine so that its steps cover that region: single prompts, and batches that decode together; what they
do while they come in and go out are the mixed steps between. Before anything counts, a stretch of the trace itself
is served, so that blocks lie scattered as they do in service: in a fresh pool they lie in order, and cost less
to walk. Every workload runs warmed, in every round on every
block size in turn (so that a machine that slows down slows all of them down), and a step's time is the median of
its rounds. A fifth of the workloads is held out of the fit, and says how far the table is off.
"""

import gc
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trials.clocks import Clocks
from trials.content import Content
from trials.engine import Engine, Refused, Work
from trials.engines import engine_module, simulator
from trials.geometry import pool_geometry
from trials.load import offer
from trials.replay import replay
from trials.spec import Load, TrialSpec
from trials.step_tables import DecodeAttention, Layers, PrefillAttention, StepTable
from trials.table_checks import model_digest
from trials.table_fit import Floats, Samples, fit
from trials.trace import Trace, load_trace, make_trace, write_whole
from trials.units import SpecError
from trials.worker import read_spec, say

_DECODE_STEPS = 8  # that a batch decodes together
_PROMPTS, _CONTEXTS = 8, 4  # lengths that are measured
_ROWS = 400  # of the trace, to find the region
_HELD_OUT = 5  # one in so many
_FILL = 0.95  # of the pool
_CHURN = 80  # requests of the trace that scatter the blocks


@dataclass(frozen=True, slots=True)
class Reach:
    """What the trace visits at saturation."""

    decodes: int
    contexts: tuple[int, int]  # mean tokens of a decoding sequence, least and most
    longest_prompt: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Equal requests that come at once; `first_row` is where they stand in the trace of all workloads."""

    requests: int
    prompt: int
    output: int
    first_row: int
    held_out: bool


def reach_of(spec: TrialSpec, trace: Trace) -> Reach:
    """By simulation: as many at once as there are slots, on the spec's own pool and policy."""
    modelled = spec.engine.model_copy(update={"name": "simulator", "step_time": "linear:1000,10,1"})
    own = spec.model_copy(update={"engine": modelled})
    cut = trace.take(np.arange(min(len(trace), _ROWS)))
    engine = simulator.open(own, Content(cut))
    if isinstance(engine, Refused):
        raise SpecError(f"calibrate: {engine.words}")
    whole = own.trace.model_copy(update={"window": None, "warmup": 0})
    seen = replay(engine, cut, offer(cut, whole, Load(concurrency=spec.policy.max_num_seqs), "cold")).steps
    decoding = seen["num_decodes"] > 0
    if not decoding.any():
        raise SpecError("calibrate: no request of the trace decodes under this spec; check pool and max_model_len")
    means = seen["decode_context"][decoding] / seen["num_decodes"][decoding]
    fits = cut.num_prompt_tokens + cut.num_output_tokens <= spec.policy.max_model_len
    return Reach(
        int(seen["num_decodes"].max()), (max(1, int(means.min())), max(1, int(means.max()))),
        int(cut.num_prompt_tokens[fits].max()),
    )  # fmt: skip


def workloads(spec: TrialSpec, reach: Reach, seed: int) -> list[Workload]:
    """Prompts of one, then batches that decode, in the region and within the spec's pool. Held out are none of the
    largest, so that what is fitted reaches as far."""
    budget, longest = spec.policy.max_num_batched_tokens, spec.policy.max_model_len
    room, size = _room(spec), spec.policy.block_size
    shapes = [(1, prompt, 1) for prompt in _lengths(1, min(reach.longest_prompt, longest - 1), _PROMPTS)]
    for count in _counts(reach.decodes):
        for context in _lengths(*reach.contexts, _CONTEXTS):
            prompt = max(1, context - _DECODE_STEPS // 2)
            arriving = -(-count * prompt // max(1, budget - count))  # steps in which the last of them come in
            output = _DECODE_STEPS + arriving
            prompt = min(prompt, longest - output, room * size // count - output - size)
            if prompt >= 1 and (count, prompt, output) not in shapes:
                shapes.append((count, prompt, output))
    inner = [k for k, (n, prompt, _) in enumerate(shapes) if n < reach.decodes and prompt < reach.longest_prompt]
    held = set(random.Random(seed).sample(inner, min(len(inner), len(shapes) // _HELD_OUT)))
    out, row = [], 0
    for number, (count, prompt, output) in enumerate(shapes):
        out.append(Workload(count, prompt, output, row, number in held))
        row += count
    return out


def held_by(spec: TrialSpec, planned: Sequence[Workload]) -> list[Workload]:
    """Those that the spec's pool holds without anybody giving way."""
    room, size = _room(spec), spec.policy.block_size
    return [w for w in planned if w.requests * -(-(w.prompt + w.output) // size) <= room]


def _room(spec: TrialSpec) -> int:
    """Blocks that are filled at most."""
    geometry = pool_geometry(spec)
    if isinstance(geometry, str):
        raise SpecError(f"calibrate at block size {spec.policy.block_size}: {geometry}")
    return int(_FILL * (geometry.num_blocks - geometry.reserve_blocks))


def _lengths(low: int, high: int, most: int) -> list[int]:
    return sorted({int(x) for x in np.rint(np.geomspace(low, max(high, low), most))})


def _counts(most: int) -> list[int]:
    """Powers of two, and the most itself."""
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most]


def trace_of(planned: Sequence[Workload], churn: Trace) -> Trace:
    """One row a request of the workloads, then those of the churn; nothing is shared."""
    prompts = [np.full(w.requests, w.prompt, np.int64) for w in planned]
    outputs = [np.full(w.requests, w.output, np.int64) for w in planned]
    every = np.concatenate([*prompts, churn.num_prompt_tokens]), np.concatenate([*outputs, churn.num_output_tokens])
    return make_trace(np.zeros(len(every[0]), np.int64), *every)


def scatter(engine: Engine, trace: Trace, first_row: int) -> None:
    """Serve the rows from `first_row` on, all at once, so that they end in another order than they came."""
    engine.start(cold=True)
    for row in range(first_row, len(trace)):
        engine.add(Work(row, int(trace.num_prompt_tokens[row]), int(trace.num_output_tokens[row])))
    while engine.step() is not None:
        pass


def timed(engine: Engine, planned: Sequence[Workload]) -> tuple[Floats, Floats, Floats]:
    """Steps of all workloads: shapes [S, 8], ns [S], attention ns [S] (NaN: not told apart).

    A step is timed from outside, scheduler included, as a replay times it.
    """
    clock = Clocks(engine.facts.clock)
    shapes: list[tuple[int, ...]] = []
    spent: list[float] = []
    attention: list[float] = []
    for workload in planned:
        engine.start(cold=False)
        for row in range(workload.first_row, workload.first_row + workload.requests):
            refused = engine.add(Work(row, workload.prompt, workload.output))
            if refused is not None:
                raise SpecError(f"calibrate: the engine refuses {workload}: {refused}")
        while True:
            begin = 0 if clock.virtual else clock.now()
            step = engine.step()
            if step is None:
                break
            if step.shape.num_decodes + step.shape.chunk_tokens:
                shapes.append(tuple(step.shape))
                spent.append(float(step.duration_ns if clock.virtual else clock.now() - begin))
                attention.append(float("nan") if step.attention_ns is None else float(step.attention_ns))
    return np.asarray(shapes, float), np.asarray(spent), np.asarray(attention)


@dataclass(frozen=True, slots=True)
class Planned:
    """Workloads, and the rows behind theirs that scatter the blocks."""

    workloads: list[Workload]
    trace: Trace
    content: Content
    first_churn_row: int


def planned_for(spec: TrialSpec, trace: Trace) -> Planned:
    """All that is measured of the spec in the region of the trace."""
    planned = workloads(spec, reach_of(spec, trace), spec.seed)
    fits = np.flatnonzero(trace.num_prompt_tokens + trace.num_output_tokens <= spec.policy.max_model_len)
    every = trace_of(planned, trace.take(fits[:_CHURN]))
    return Planned(planned, every, Content(every), sum(w.requests for w in planned))


@dataclass(slots=True)
class _Rounds:
    """What was timed at one block size: the same steps in every round."""

    shapes: Floats
    spent: list[Floats]
    attention: list[Floats]
    held_out: "np.ndarray[Any, np.dtype[np.bool_]]"


def measure(spec: TrialSpec, plan: Planned, block_sizes: Sequence[int], rounds: int) -> Samples:
    """Time every workload at every block size in every round. SpecError where the engine refuses, or its steps
    differ from round to round."""
    found: dict[int, _Rounds] = {}
    for number in range(rounds):
        for size in block_sizes:
            say(f"round {number + 1} of {rounds}, block size {size}")
            _one_round(with_block_size(spec, size), plan, found)
    parts = []
    for size, r in found.items():
        sizes = np.full(len(r.shapes), float(size))
        parts.append(
            Samples(r.shapes, np.median(r.spent, axis=0), np.median(r.attention, axis=0), sizes, r.held_out)
        )
    return Samples(*(np.concatenate([getattr(p, name) for p in parts]) for name in Samples.__slots__))


def _one_round(spec: TrialSpec, plan: Planned, found: dict[int, _Rounds]) -> None:
    size = spec.policy.block_size
    planned = held_by(spec, plan.workloads)
    if not any(w.requests > 1 for w in planned):
        raise SpecError(f"calibrate at block size {size}: the pool does not hold two requests; enlarge pool")
    engine = engine_module(spec.engine.name).open(spec, plan.content)
    if isinstance(engine, Refused):
        raise SpecError(f"calibrate at block size {size}: {engine.words}")
    try:
        scatter(engine, plan.trace, plan.first_churn_row)
        gc.collect()
        gc.disable()
        shapes, spent, attention = timed(engine, planned)
    finally:
        gc.enable()
        engine.close()
    if size not in found:
        steps = _steps_held_out(shapes, planned)
        found[size] = _Rounds(shapes, [], [], steps)
    if not np.array_equal(shapes, found[size].shapes):
        raise SpecError(f"calibrate at block size {size}: the engine took other steps for the same requests")
    found[size].spent.append(spent)
    found[size].attention.append(attention)


def _steps_held_out(shapes: Floats, planned: Sequence[Workload]) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Steps of the workloads that are held out: a workload's tokens tell where its steps end."""
    work = np.cumsum(shapes[:, 0] + shapes[:, 4])
    ends = np.cumsum([w.requests * (w.prompt + w.output - 1) for w in planned])
    return np.array([w.held_out for w in planned])[np.searchsorted(ends, work)]


def calibrate(
    spec: TrialSpec, trace: Trace, block_sizes: Sequence[int], rounds: int = 3, date: str = ""
) -> StepTable:
    """Measure the spec's engine in the region of the trace and fit a table of its step times."""
    module = engine_module(spec.engine.name)
    module.prepare(spec)
    roomiest = with_block_size(spec, min(block_sizes))
    plan = planned_for(roomiest, trace)
    samples = measure(spec, plan, block_sizes, rounds)
    return fit(samples, _about(spec, module.identity(spec), date))


def with_block_size(spec: TrialSpec, size: int) -> TrialSpec:
    return spec.model_copy(update={"policy": spec.policy.model_copy(update={"block_size": size})})


def _about(spec: TrialSpec, identity: Mapping[str, Any], date: str) -> StepTable:
    """A table without times that carries what is known of the engine."""
    from trials.fingerprint import engine_hash

    empty = Layers(tokens=(1.0,), ns=(0.0,))
    return StepTable(
        format="kvknee step times 1", device=str(identity.get("device", {}).get("name", "")), model=spec.model.name,
        notes=f"engine {spec.engine.name}, clock {spec.engine.clock or 'wall'}, {spec.engine.threads} threads",
        engine_hash=engine_hash(identity), model_digest=model_digest(spec.model), measured=date, layers=empty,
        decode_attention=DecodeAttention(num_decodes=(1.0,), mean_context=(1.0,), ns=((0.0,),)),
        prefill_attention=PrefillAttention(chunk_tokens=(1.0,), mean_before=(0.0,), ns=((0.0,),)),
    )  # fmt: skip


def save_table(table: StepTable, path: Path) -> None:
    """Write the table whole or not at all."""
    text = table.model_dump_json(indent=1) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def main(arguments: list[str]) -> int:
    """The process's face; see the module's docstring. Exit 2 where spec, trace or engine cannot be used."""
    if not 2 <= len(arguments) <= 4:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        spec = read_spec(Path(arguments[0]))
        default = spec.policy.block_size
        sizes = [int(x) for x in arguments[2].split(",")] if len(arguments) > 2 else [default]
        rounds = int(arguments[3]) if len(arguments) > 3 else 3
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        save_table(
            calibrate(spec, load_trace(Path(spec.trace.path)), sorted(set(sizes)), rounds, date), Path(arguments[1])
        )
    except ValueError as error:  # SpecError and TraceError are of this kind
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
