"""Where the eight failures are provoked: traces, engines, and a trial that is judged as a sweep judges it.

Nothing here judges. Whatever is said against a trial comes from the code that says it of any trial.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from search_spaces.objective import Score, score
from trials.content import Content
from trials.engine import DeviceBytes, Engine, EngineFacts
from trials.engines import simulator
from trials.engines.own import PagedEngine, effective_knobs
from trials.fingerprint import engine_hash
from trials.generate import Preset, generate
from trials.geometry import pool_geometry
from trials.ladder import run
from trials.result import Hashes, TrialResult
from trials.roofline import step_time
from trials.slo import parse_slo
from trials.spec import Load, Measure, TrialSpec, trial_spec
from trials.trace import STARTS, Ragged, Trace, TraceMeta, make_trace
from trials.worker import judge

Scale = Literal["smallest", "trace"]
SCALES: tuple[Scale, ...] = ("smallest", "trace")
EASY = "ttft:p99<1h"  # bounds nothing here: what speaks against a trial is something else
OBJECTIVE = "qualified_output_throughput"
MODEL = {
    "num_layers": 2, "num_kv_heads": 1, "num_query_heads": 1, "head_dim": 16, "hidden_size": 16,
    "intermediate_size": 32, "vocab_size": 100,
}  # fmt: skip


def make_spec(slo: str = EASY, blocks: int = 64, step_time: str = "constant:1000", **policy: Any) -> TrialSpec:
    """A simulated trial of a tiny model in a pool of `blocks` x 16 tokens; the trace is handed over beside it."""
    return trial_spec({
        "engine": {"name": "simulator", "step_time": step_time}, "model": MODEL, "pool": {"bytes": blocks * 2048},
        "policy": {"max_model_len": 2048, **policy}, "trace": {"path": "generated"}, "slo": slo, "phases": ["cold"],
    })  # fmt: skip


def closed(spec: TrialSpec, concurrency: int) -> TrialSpec:
    """The same under a closed load: a slower engine serves fewer tokens a second."""
    return spec.model_copy(update={"measure": Measure(load=Load(concurrency=concurrency))})


def small_trace(requests: list[tuple[int, int, int]], ids: list[list[int]] | None = None) -> Trace:
    """Requests as (arrival ms, prompt, output); `ids` of 16 tokens each."""
    at, prompt, output = (np.array(column, np.int64) for column in zip(*requests, strict=True))
    meta = TraceMeta(tokens_per_id=16 if ids else 0, tail_rule="floor")
    return make_trace(at * 1_000_000, prompt, output, Ragged.of(ids) if ids else None, meta)


def generated_trace(rows: int = 400, rps: float = 60.0, sigma: float = 0.8) -> Trace:
    """Poisson arrivals, lengths skewed by `sigma`, half of the prompts with a shared opening."""
    return generate(Preset.model_validate({
        "name": "controls", "rows": rows, "seed": 7, "arrivals": {"kind": "poisson", "rps": rps},
        "prompt": {"kind": "lognormal", "mean": 120, "sigma": sigma, "min": 1, "max": 900},
        "output": {"kind": "lognormal", "mean": 40, "sigma": sigma, "min": 1, "max": 300},
        "prefix": {"share": 0.5, "roots": 6, "levels": [48, 32], "branching": 3, "tokens_per_id": 16},
    }))  # fmt: skip


def families(roots: Trace, children: int) -> Trace:
    """Every row of `roots`, without its prefix ids, followed by `children` forks that inherit its whole prompt."""
    n, each = len(roots), children + 1
    place = np.repeat(np.arange(n), each)
    is_child = np.arange(n * each) % each > 0
    prompt = roots.num_prompt_tokens[place]
    return make_trace(
        roots.arrival_ns[place], prompt, roots.num_output_tokens[place],
        parent=np.where(is_child, place * each, -1), inherited_tokens=np.where(is_child, prompt, 0),
        starts=np.where(is_child, STARTS["fork"], STARTS["arrival"]),
    )  # fmt: skip


def open_engine(spec: TrialSpec, trace: Trace, reserve_bytes: int = 0, counted: bool = False) -> Engine:
    """The simulator on a device whose allocator keeps `reserve_bytes` beside the pool.

    `counted`: the fault of a pool that takes the allocator's reserve for its own room.
    """
    geometry = pool_geometry(spec)
    assert not isinstance(geometry, str), geometry
    device = DeviceBytes(
        pool=geometry.pool_bytes, weights=spec.model.weights_bytes, allocator_reserve=reserve_bytes
    )
    device = replace(device, observed=device.pool + device.weights + reserve_bytes)
    if counted:
        more = reserve_bytes // geometry.block_bytes
        geometry = replace(
            geometry, num_blocks=geometry.num_blocks + more, pool_bytes=geometry.pool_bytes + reserve_bytes
        )
    assert spec.engine.step_time is not None
    time_of = step_time(spec.engine.step_time, spec.model, geometry.block_size)
    facts = EngineFacts(
        name="simulator", engine_hash=engine_hash(simulator.identity(spec)), evidence="modelled", clock="virtual",
        groups=(geometry,), ranks=1, effective=effective_knobs(spec.policy, geometry),
        max_model_len=spec.policy.max_model_len,
    )  # fmt: skip
    return PagedEngine(facts, spec.policy, Content(trace), simulator.Modelled(time_of, device))


def trial(spec: TrialSpec, trace: Trace, engine: Engine | None = None) -> TrialResult:
    """One trial, run and judged by the same code as in a worker, in this process."""
    engine = engine or open_engine(spec, trace)
    outcome = run(engine, trace, spec, lambda text: None)
    hashes = Hashes(spec="control", trace="control", engine=engine.facts.engine_hash)
    blank = TrialResult(status="failed", evidence="modelled", hashes=hashes, requested={})
    return judge(outcome, engine.facts, spec, blank)


def scored(spec: TrialSpec, trace: Trace, engine: Engine | None = None) -> Score:
    """The same as a sweep's optimiser sees it."""
    return score(trial(spec, trace, engine), parse_slo(spec.slo), OBJECTIVE)


@dataclass(frozen=True, slots=True)
class Swap:
    """An attribute of a module or class that is another while a fault is provoked, or a check is off."""

    owner: Any
    name: str
    replacement: Callable[..., Any]


@contextmanager
def swapped(*swaps: Swap) -> Iterator[None]:
    """Each attribute replaced, and put back whatever happens."""
    kept = [(s, getattr(s.owner, s.name)) for s in swaps]
    try:
        for s in swaps:
            setattr(s.owner, s.name, s.replacement)
        yield
    finally:
        for s, original in reversed(kept):
            setattr(s.owner, s.name, original)
