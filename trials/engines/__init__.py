"""Engines that a trial can drive: one file each, named in `ENGINES`.

torch, transformers and vllm are imported only below this package, and only when the engine is opened.
Each module offers

    open(spec: TrialSpec, content: Content) -> Engine | Refused
    identity(spec: TrialSpec) -> dict        # what its hash is made of, without opening it
    prepare(spec: TrialSpec) -> None         # settle the process before anything heavy is imported
    accepts(spec: TrialSpec) -> Domain       # block sizes and knobs, from its own interpreter; absent: any
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from trials.content import Content
from trials.engine import Engine, Refused
from trials.engines.domain import Domain
from trials.spec import TrialSpec
from trials.units import SpecError, nearest

ENGINES = {
    "simulator": "trials.engines.simulator",
    "torch_paged": "trials.engines.torch_engine",
    "vllm_scheduler": "trials.engines.vllm_scheduler",
    "transformers_cb": "trials.engines.transformers_cb",
    "vllm": "trials.engines.vllm",
}


class EngineModule(Protocol):
    """What the module of an engine offers."""

    open: Callable[[TrialSpec, Content], Engine | Refused]
    identity: Callable[[TrialSpec], Mapping[str, Any]]
    prepare: Callable[[TrialSpec], None]


def engine_module(name: str) -> EngineModule:
    """The module of an engine; SpecError with the known names where there is none."""
    if name not in ENGINES:
        raise SpecError(f"engine {name!r} does not exist; {nearest(name, ENGINES)}")
    return cast(EngineModule, importlib.import_module(ENGINES[name]))


def domain_of(spec: TrialSpec) -> Domain:
    """What the spec's engine accepts, in its own words. SpecError where this interpreter does not have it."""
    accepts = getattr(engine_module(spec.engine.name), "accepts", None)
    return Domain() if accepts is None else cast(Domain, accepts(spec))
