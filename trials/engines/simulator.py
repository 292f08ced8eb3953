"""simulator: our scheduler and pool on a virtual clock; a step-time model says how long a step takes."""

from collections.abc import Mapping
from typing import Any

from trials.content import Content
from trials.engine import DeviceBytes, Engine, EngineFacts, Refused, StepTime
from trials.engines.identity import own_identity
from trials.engines.own import PagedEngine, effective_knobs
from trials.fingerprint import engine_hash
from trials.geometry import block_table_bytes, pool_geometry, workspace_bytes_of
from trials.plan import Plan
from trials.roofline import step_time
from trials.spec import TrialSpec
from trials.table_checks import require_stands_for


class Modelled:
    """Executes nothing: durations come from a pure function of the step's shape."""

    def __init__(self, time_of: StepTime, device: DeviceBytes) -> None:
        self._time_of = time_of
        self._device = device

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        return self._time_of(plan.shape)

    def forget(self, row: int) -> None:
        """Nothing is kept of a row."""

    def reset(self) -> None:
        """Nothing is kept."""

    def device(self) -> DeviceBytes:
        return self._device


def prepare(spec: TrialSpec) -> None:
    """Nothing heavy is imported."""


def identity(spec: TrialSpec) -> Mapping[str, Any]:
    return own_identity(spec, ["engines/simulator.py", "roofline.py", "step_tables.py"], [])


def open(spec: TrialSpec, content: Content) -> Engine | Refused:
    """Always opens, unless the pool holds no block."""
    geometry = pool_geometry(spec)
    if isinstance(geometry, str):
        return Refused(geometry)
    assert spec.engine.step_time is not None
    require_stands_for(spec.engine)
    time_of = step_time(
        spec.engine.step_time,
        spec.model,
        geometry.block_size,
        max_num_batched_tokens=spec.policy.max_num_batched_tokens,
    )
    facts = EngineFacts(
        name="simulator", engine_hash=engine_hash(identity(spec)), evidence="modelled", clock="virtual",
        groups=(geometry,), ranks=1, effective=effective_knobs(spec.policy, geometry),
        not_applicable=("outputs",), max_model_len=spec.policy.max_model_len,
    )  # fmt: skip
    device = DeviceBytes(
        pool=geometry.pool_bytes,
        block_tables=block_table_bytes(spec),
        weights=spec.model.weights_bytes,
        workspace=workspace_bytes_of(spec) if spec.pool.device_budget is not None else 0,
    )
    return PagedEngine(facts, spec.policy, content, Modelled(time_of, device))
