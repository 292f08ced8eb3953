"""`kvknee bound`: the most that block size, sharing and policy could gain on a trace, before any GPU hour is spent.

The capacity of the spec as it is, then with one mechanism of paging switched off at a time, and with all of them
off: perfect allocation. All of it simulated on the same window and the same rungs of load, so that differences are
exact in the model; a change that fails half a percent above the spec's own capacity costs one replay.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.bound_answer import WITHIN, Bound, BoundRow, limit_of, nouns_of, words_of
from orchestrator.config import SWEEP_ONLY
from orchestrator.overrides import apply_sets
from trials.bracket import Bracket, rung_near, rungs, search
from trials.capacity import load_of, needed_requests
from trials.content import Content
from trials.documents import read_yaml, validated
from trials.engine import Engine, Refused
from trials.ladder import Measured, Replays
from trials.load import counted, window_of
from trials.relaxed import BLOCK_SIZE, MECHANISMS, granule, pays_for_tables, relaxed_engine
from trials.slo import parse_slo
from trials.spec import Ladder, PoolPolicy, PoolSpec, TrialSpec, Window, resolve_paths
from trials.superpose import superposed
from trials.trace import Trace
from trials.units import SpecError

NUM_REQUESTS = 400
_FEW_REQUESTS, _MANY_TOKENS = 120, 2_000_000  # beyond so many tokens fewer requests have to do
_LADDER = Ladder(over="rate_scale", low=1 / 256, high=256, within=WITHIN)
_STRIDE = 64  # rungs, about a third: how far the first search steps from the trace's own rate
_BUDGETS = (4.0, 2.0, 0.5, 0.25)  # token budgets that are tried, as shares of the spec's
_ALONE = 1 / 32  # of the trace's rate: what does not hold here is not tried at any other load
_DEFAULTS = {"model": "llama-3.1-8b", "pool": {"bytes": "16GiB"}, "slo": "ttft:p99<2s;tpot:p99<100ms"}
_PLENTY = 64  # times the pool, where memory is not to be what limits


@dataclass(frozen=True, slots=True)
class _Found:
    bracket: Bracket
    decides: Measured | None  # the best load's replay; None where none holds
    beyond: Measured | None
    replays: int


class _Scene:
    """One trace, one window, and the searches on it."""

    def __init__(self, spec: TrialSpec, trace: Trace) -> None:
        self.spec, self.trace = spec, trace
        self.content = Content(trace)
        self.values = rungs(_LADDER)
        self.phase = "steady" if "steady" in spec.phases else "cold"
        self.replays = 0

    def search(self, engine: Engine, hint: int, stride: int, first: int | None = None) -> _Found:
        """From `hint`; where `first` is given it must hold, or nothing more is tried."""
        replays = Replays(engine, self.trace, self.spec, lambda text: None)
        try:
            if first is not None and not self._holds(replays, first):
                bracket = Bracket(None, first, None, ((first, False),))
            else:
                start = hint if first is None else first
                bracket = search(lambda rung: self._holds(replays, rung), len(self.values), start, stride)
        finally:
            self.replays += len(replays.done)
            engine.close()
        best, beyond = (self._at(replays, rung) for rung in (bracket.best, bracket.beyond))
        return _Found(bracket, best, beyond, len(replays.done))

    def _holds(self, replays: Replays, rung: int) -> bool:
        return replays.passes(load_of(_LADDER.over, self.values[rung]), self.phase)

    def _at(self, replays: Replays, rung: int | None) -> Measured | None:
        if rung is None:
            return None
        label = load_of(_LADDER.over, self.values[rung]).label
        return next((m for m in replays.done if m.result.load == label), None)


def bound(spec: TrialSpec, trace: Trace, num_requests: int = NUM_REQUESTS) -> Bound:
    """Bound what could be gained over the spec on the trace. SpecError where the spec cannot be simulated."""
    began = time.perf_counter()
    trace = superposed(trace, spec.trace.superpose)
    spec = _prepared(spec, trace, num_requests)
    scene = _Scene(spec, trace)
    plain = relaxed_engine(spec, trace, scene.content, ())
    if isinstance(plain, Refused):
        raise SpecError(f"nothing to bound: {plain.words}")
    base = scene.search(plain, rung_near(scene.values, 1.0), _STRIDE)
    rows, absent = [], []
    for name, noun, build in _variants(spec, trace, scene.content):
        if build is None:
            absent.append(name)
            continue
        rows.append(_row(scene, name, noun, build(), base))
    found = _summed(spec, scene, base, tuple(rows), tuple(absent))
    return found.model_copy(update={"seconds": time.perf_counter() - began})


def _prepared(spec: TrialSpec, trace: Trace, num_requests: int) -> TrialSpec:
    """The spec on a window of at most so many requests of the trace as it is replayed, at the window's start."""
    slo = parse_slo(spec.slo)
    if not slo.bounds_waiting:
        raise SpecError(
            f"slo {spec.slo!r} has no ttft or e2el clause, so any load holds and there is no capacity to bound: "
            "add one, for example ttft:p99<500ms"
        )
    _, start, end = window_of(trace, spec.trace)
    at = trace.arrival_ns - int(trace.arrival_ns[0])
    inside = np.flatnonzero((at >= start) & (at < end))
    tokens = np.cumsum((trace.num_prompt_tokens + trace.num_output_tokens)[inside])
    most = min(num_requests, max(_FEW_REQUESTS, int(np.searchsorted(tokens, _MANY_TOKENS))))
    if len(inside) > most:
        end = max(int(at[inside[most]]), start + 1)
    window = Window.model_construct(start=start, duration=end - start)
    return spec.model_copy(update={"trace": spec.trace.model_copy(update={"window": window})})


Build = Callable[[], Engine | Refused]


def _variants(spec: TrialSpec, trace: Trace, content: Content) -> Iterator[tuple[str, str, Build | None]]:
    """(name, noun, engine without it; None where it is not there to switch off)."""

    def without(*names: str, of: TrialSpec = spec) -> Build:
        return lambda: relaxed_engine(of, trace, content, names)

    policy = spec.policy
    nouns = nouns_of(spec)
    there = {
        "tail_slack": True, "block_term": True, "preemption": True,
        "reuse_quantum": policy.prefix_caching and policy.layout == "paged" and trace.meta.tokens_per_id > 0,
        "block_tables": pays_for_tables(spec), "watermark": policy.watermark > 0,
    }  # fmt: skip
    for name in MECHANISMS:
        yield name, nouns[name], without(name) if there[name] else None
    yield "block_size", "any block size", without(*BLOCK_SIZE)
    yield "all", "perfect allocation", without(*MECHANISMS)
    for share in _BUDGETS:
        budget = max(1, int(policy.max_num_batched_tokens * share))
        moved = _with_policy(spec, max_num_batched_tokens=budget)
        yield f"token_budget x{share:g}", f"a budget of {budget:,} tokens", without(of=moved)
    yield "slots", "twice max_num_seqs", without(of=_with_policy(spec, max_num_seqs=2 * policy.max_num_seqs))
    yield "pool", "memory without end", without(of=_roomy(spec))


def _with_policy(spec: TrialSpec, **fields: int) -> TrialSpec:
    policy: PoolPolicy = spec.policy.model_copy(update=fields)
    return spec.model_copy(update={"policy": policy})


def _roomy(spec: TrialSpec) -> TrialSpec:
    pool = spec.pool
    most = (
        pool.bytes
        or pool.device_budget
        or (pool.blocks or 1) * spec.policy.block_size * spec.model.kv_bytes_per_token
    )
    roomy = PoolSpec(bytes=most * _PLENTY, reserve_blocks=pool.reserve_blocks)
    return spec.model_copy(update={"pool": roomy})


def _row(scene: _Scene, name: str, noun: str, engine: Engine | Refused, base: _Found) -> BoundRow:
    if isinstance(engine, Refused):
        return BoundRow(mechanism=name, noun=noun, capacity=None, gain=None, replays=0)
    best = base.bracket.best
    if best is not None and best + 1 >= len(scene.values):
        return BoundRow(mechanism=name, noun=noun, capacity=scene.values[best], gain=0.0, replays=0)
    if best is None:  # without contention, or not at all
        found = scene.search(engine, 0, _STRIDE, rung_near(scene.values, _ALONE))
    else:
        found = scene.search(engine, 0, 1, best + 1)
    reached = found.bracket.best
    if best is not None and (reached is None or reached <= best):
        return BoundRow(mechanism=name, noun=noun, capacity=scene.values[best], gain=0.0, replays=found.replays)
    capacity = None if reached is None else scene.values[reached]
    gain = None if capacity is None or best is None else capacity / scene.values[best] - 1
    return BoundRow(mechanism=name, noun=noun, capacity=capacity, gain=gain, replays=found.replays)


def _summed(
    spec: TrialSpec, scene: _Scene, base: _Found, rows: tuple[BoundRow, ...], absent: tuple[str, ...]
) -> Bound:  # fmt: skip
    best = base.bracket.best
    by_name = {row.mechanism: row for row in rows}
    block = [by_name[name] for name in (*BLOCK_SIZE, "block_size") if name in by_name]
    gains = [r.gain for r in block if r.gain is not None]
    block_gain = max(gains) if gains else None
    limited_by = limit_of(rows, best is not None)
    beyond = base.beyond.result if base.beyond is not None else None
    stopped = (beyond.stopped_early or "") if beyond else ""
    binding = stopped.partition(": ")[2] or (beyond.binding if beyond else "nothing")
    needs = needed_requests(base.decides, parse_slo(spec.slo), 1.0) if base.decides is not None else 0
    requests, window_s = counted(scene.trace, spec.trace)
    draft = Bound(
        words="", within=WITHIN, needs_requests=needs, requests=requests, window_s=window_s, slo=spec.slo,
        default=None if best is None else scene.values[best], binding=binding,
        ideal=by_name["all"].capacity, block_size_gain=block_gain, limited_by=limited_by, rows=rows,
        not_applicable=absent, token_granularity=granule(scene.trace), replays=scene.replays, seconds=0.0,
    )  # fmt: skip
    return draft.model_copy(update={"words": words_of(draft, block, nouns_of(spec))})


def bound_spec(engine: str, trace: Path, sets: Sequence[str]) -> TrialSpec:
    """What to bound: the spec of a trial's or a sweep's YAML on this trace, or defaults around a step time."""
    path = Path(engine)
    if path.suffix in (".yaml", ".yml") or path.is_dir():
        data = {key: value for key, value in read_yaml(path).items() if key not in SWEEP_ONLY}
        folder = path.resolve().parent
    else:
        data, folder = {**_DEFAULTS, "engine": {"name": "simulator", "step_time": engine}}, Path.cwd()
    data = apply_sets(data, sets, TrialSpec)
    asked = data.get("trace")
    data["trace"] = {**(asked if isinstance(asked, dict) else {}), "path": str(trace.resolve())}
    spec = resolve_paths(validated(TrialSpec, data, str(path)), folder)
    if spec.engine.step_time is None:
        raise SpecError(
            f"engine {spec.engine.name} is measured, and bounds are simulated: name a step time, for example --set "
            "engine.step_time=roofline:h100-sxm, or table:TABLE.json made by `kvknee calibrate`"
        )
    return spec
