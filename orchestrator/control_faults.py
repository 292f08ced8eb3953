"""Seven of the eight failures as faults, the production check that must find each, and that check switched off.

A `look` runs one trial (or a choice between trials) and returns everything that production code says against it.
`faulty`: the failure is provoked. `guarded`: its check is on. The eighth, an engine upgrade, is in control_upgrade.
"""

from collections.abc import Callable
from contextlib import ExitStack

import trials.metrics
import trials.pressure
import trials.recount
import trials.waste
import trials.worker
from orchestrator.control_scenes import (
    OBJECTIVE,
    Scale,
    Swap,
    closed,
    families,
    generated_trace,
    make_spec,
    open_engine,
    scored,
    small_trace,
    swapped,
    trial,
)
from search_spaces import objective
from search_spaces.knee import Measured, Rules, decide
from search_spaces.space import Space, SpaceSpec, build_space
from trials.engine import LedgerRow
from trials.ledger import Accounts
from trials.occupancy import Held
from trials.plan import Run
from trials.recording import Replay
from trials.result import Metrics
from trials.serving import Serving
from trials.slo import parse_slo
from trials.spec import TrialSpec
from trials.trace import Trace

Look = Callable[[Scale, bool, bool], list[str]]


def _judged(spec: TrialSpec, trace: Trace, faults: list[Swap], off: list[Swap]) -> list[str]:
    """All that speaks against the trial while `faults` are in and the checks of `off` are out."""
    with ExitStack() as stack:
        stack.enter_context(swapped(*faults, *off))
        return list(scored(spec, trace).reasons)


# ---- allocator reserve counted as useful cache
def reserve_as_cache(scale: Scale, faulty: bool, guarded: bool) -> list[str]:
    """The pool takes what the device's allocator keeps in reserve for room of its own."""
    trace = small_trace([(0, 20, 4)]) if scale == "smallest" else generated_trace()
    spec = make_spec(blocks=2 if scale == "smallest" else 300)
    engine = open_engine(spec, trace, reserve_bytes=1 << 20, counted=faulty)
    off = [] if guarded else [Swap(trials.worker, "pool_residual", lambda *_: "")]
    with swapped(*off):
        return list(scored(spec, trace, engine).reasons)


# ---- a static packed batch hiding churn pressure
def _static_events() -> Swap:
    """Block events as a packed batch has them: claims up to the most that were live, and nothing turned over."""
    row, most = Accounts.row, dict[int, int]()

    def of_a_batch(self: Accounts) -> LedgerRow:
        made = row(self)
        live = -made.free_blocks - made.cached_blocks
        before = most.setdefault(id(self), live)
        most[id(self)] = max(before, live)
        return made._replace(
            allocated_blocks=max(0, live - before), released_blocks=0, evicted_blocks=0, copied_blocks=0
        )

    return Swap(Accounts, "row", of_a_batch)


def static_batch(scale: Scale, faulty: bool, guarded: bool) -> list[str]:
    """One block, then another request in the same block: two lives that a static batch counts as one claim."""
    trace = small_trace([(0, 8, 2), (50, 8, 2)]) if scale == "smallest" else generated_trace()
    spec = make_spec(blocks=1 if scale == "smallest" else 120, max_model_len=16 if scale == "smallest" else 2048)
    off = [] if guarded else [Swap(trials.metrics, "broken_flow", lambda *_: [])]
    return _judged(spec, trace, [_static_events()] if faulty else [], off)


# ---- choices: what a wrong objective likes best, and what production says against it
def _chosen(space: Space, trace: Trace, likes: Callable[[Metrics], float] | None) -> list[str]:
    """What is said against the candidate that the objective values most; empty where it is the one chosen."""
    swaps = [] if likes is None else [Swap(objective, "OBJECTIVES", {OBJECTIVE: likes})]  # type: ignore[arg-type]
    measured = []
    with swapped(*swaps):
        for number, params in enumerate(space.candidates()):
            spec = space.suggest(params)
            judged = objective.score(trial(spec, trace), parse_slo(spec.slo), OBJECTIVE)
            measured.append(Measured(number, 0, spec.policy, judged, block_size=spec.policy.block_size))
    decision = decide(measured, space, Rules(OBJECTIVE, min_gain=0.0, num_repeats=1))
    favourite = max(measured, key=lambda m: float("-inf") if m.score.value is None else m.score.value)
    if decision.choice is not None and decision.choice.winner.policy == favourite.policy:
        return []
    return list(favourite.score.reasons) or ["another candidate was chosen"]


def _space(base: TrialSpec, field: str, values: tuple[int, ...]) -> Space:
    return build_space(SpaceSpec.model_validate({"vary": {f"policy.{field}": {"one_of": list(values)}}}), base)


def smallest_block(scale: Scale, faulty: bool, guarded: bool) -> list[str]:
    """Blocks of one token waste no slot, and the kernel that walks one entry a token makes every stream late."""
    trace = small_trace([(0, 60, 20)]) if scale == "smallest" else generated_trace(rows=150)
    limit = "4ms" if scale == "smallest" else "100ms"
    slo = f"ttft:p99<1h;qualify:ttft<1h{f';itl:p99<{limit}' if guarded else ''}"
    base = closed(make_spec(slo, blocks=2000, step_time="linear:1000,1,0,100000"), concurrency=16)
    likes = (lambda m: -m.waste_byte_seconds["total"]) if faulty else None
    return _chosen(_space(base, "block_size", (1, 16)), trace, likes)


def high_occupancy(scale: Scale, faulty: bool, guarded: bool) -> list[str]:
    """More sequences at once fill the pool better, and every one of them gets its tokens later."""
    trace = small_trace([(0, 40, 30)] * 6) if scale == "smallest" else generated_trace(rows=150, sigma=0.2)
    limit = "3ms" if scale == "smallest" else "5ms"
    slo = f"ttft:p99<1h;qualify:ttft<1h{f';qualify:itl<{limit}' if guarded else ''}"
    base = closed(make_spec(slo, blocks=400, step_time="linear:1000,1,8000"), concurrency=6)
    likes = (lambda m: m.occupancy.mean) if faulty else None
    return _chosen(_space(base, "max_num_seqs", (2, 6)), trace, likes)


# ---- every non-contiguous block called wasted
def _scattered(replay: Replay, seen: Held) -> dict[str, float]:
    """Whatever lies free or cached in the pool is called waste, whether or not anybody waits for it."""
    return {"stranded_scattered": seen.byte_seconds(seen.accounts["free"] + seen.accounts["cached"])}


def scattered_as_waste(scale: Scale, faulty: bool, guarded: bool) -> list[str]:
    trace = small_trace([(0, 20, 4)]) if scale == "smallest" else generated_trace()
    faults = [Swap(trials.waste, "stranded", _scattered)] if faulty else []
    off = [] if guarded else [Swap(trials.pressure, "unexplained_waste", lambda *_: [])]
    return _judged(make_spec(blocks=4 if scale == "smallest" else 300), trace, faults, off)


# ---- a boundary length allocating an extra empty block
def _one_more() -> Swap:
    compute = Serving.compute

    def floor_plus_one(self: Serving, run: Run, count: int) -> None:
        """n // block_size + 1 blocks instead of ceil(n / block_size)."""
        compute(self, run, count)
        if run.computed % self.block_size == 0 and len(run.table) * self.block_size == run.computed:
            run.table += self.pool.take(min(1, self.pool.available))

    return Swap(Serving, "compute", floor_plus_one)


def extra_block(scale: Scale, faulty: bool, guarded: bool) -> list[str]:
    trace = small_trace([(0, 16, 4)]) if scale == "smallest" else generated_trace()
    off = [] if guarded else [Swap(trials.recount, "_check_tables", lambda *_: None)]
    return _judged(make_spec(blocks=4 if scale == "smallest" else 400), trace, [_one_more()] if faulty else [], off)


# ---- sharing that looks free until many children diverge together
def divergence(scale: Scale, faulty: bool, guarded: bool) -> list[str]:
    """A pool cut to what families hold while they share: when children part, each wants a block at once."""
    if scale == "smallest":
        trace, tight, ample = families(small_trace([(0, 20, 6)]), children=4), 4, 8
    else:
        trace, tight, ample = families(generated_trace(rows=40, rps=20), children=6), 110, 2000
    spec = make_spec(blocks=tight if faulty else ample, sharing="cow", prefix_caching=False)
    off = [] if guarded else [Swap(trials.metrics, "with_divergence", lambda held, short: held)]
    return _judged(spec, trace, [], off)
