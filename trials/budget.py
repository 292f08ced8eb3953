"""A device's bytes as the only budget of a trial: the pool is what weights, tables and workspace leave of them.

An engine whose time is modelled has a modelled workspace (geometry). A measured one is opened twice: once with half
of what there would be at most, to see what it has beside its pool when it has warmed up, and then with the pool
that this leaves. Interpreter, libraries and driver are outside the budget: they are there without an engine too.
"""

from collections.abc import Callable

from trials.engine import Engine, Refused
from trials.geometry import pool_budget
from trials.spec import MODELLED, PoolSpec, TrialSpec

Open = Callable[[TrialSpec], Engine | Refused]


def open_within(spec: TrialSpec, open_engine: Open) -> Engine | Refused:
    """The engine, with a pool in bytes where its spec gives a device's budget; refused where none is left."""
    budget = spec.pool.device_budget
    if budget is None or spec.engine.name in MODELLED:
        return open_engine(spec)
    most = pool_budget(spec, workspace_bytes=0) or 0
    if most <= 0:
        return Refused(_nothing_left(budget, spec.model.weights_bytes, budget - spec.model.weights_bytes - most, 0))
    beside = _beside_the_pool(_with_pool(spec, most // 2), open_engine)
    if isinstance(beside, Refused):
        return beside
    weights, tables, workspace = beside
    left = budget - weights - tables - workspace
    if left <= 0:
        return Refused(_nothing_left(budget, weights, tables, workspace))
    return open_engine(_with_pool(spec, left))


def _with_pool(spec: TrialSpec, num_bytes: int) -> TrialSpec:
    pool = PoolSpec(bytes=num_bytes, reserve_blocks=spec.pool.reserve_blocks)
    return spec.model_copy(update={"pool": pool})


def _beside_the_pool(spec: TrialSpec, open_engine: Open) -> tuple[int, int, int] | Refused:
    engine = open_engine(spec)
    if isinstance(engine, Refused):
        return engine
    try:
        device = engine.audit().device
    finally:
        engine.close()
    return device.weights, device.block_tables, device.workspace


def _nothing_left(budget: int, weights: int, tables: int, workspace: int) -> str:
    return (
        f"pool.device_budget {budget} bytes leaves nothing for a pool: weights {weights}, block tables {tables}, "
        f"workspace {workspace}; give it more, or fewer sequences and smaller chunks"
    )
