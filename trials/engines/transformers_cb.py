"""transformers_cb: Hugging Face's continuous batching as it is, measured on this machine.

Runs under the interpreter that has transformers (`engine.python`). `engine.args` takes any field of its
ContinuousBatchingConfig, and `attn_implementation`.
"""

import os
from collections.abc import Mapping
from typing import Any

from trials.content import Content
from trials.engine import Engine, EngineDied, EngineFacts, Refused
from trials.engines.builds import Builds, StartUp
from trials.engines.domain import Domain
from trials.engines.identity import processor_name
from trials.engines.installed import installed_digests, installed_folder, model_digests
from trials.engines.kernels.threads import prepare_process
from trials.engines.outputs import Outputs
from trials.engines.shapes import TORCH_DTYPES, content_limit
from trials.fingerprint import distribution_versions, engine_hash, source_digests
from trials.geometry import pool_geometry
from trials.spec import TrialSpec
from trials.units import SpecError

FILES = (
    "arrivals.py", "clocks.py", "content.py", "engine.py", "engines/branches.py", "engines/builds.py",
    "engines/cb_config.py", "engines/cb_engine.py", "engines/cb_loop.py", "engines/cb_opening.py",
    "engines/cb_rehearsal.py", "engines/cb_watch.py", "engines/filling.py", "engines/outputs.py",
    "engines/shapes.py", "engines/torch_device.py", "engines/torch_peak.py", "engines/transformers_cb.py",
    "geometry.py", "ledger.py", "load.py", "recorder.py", "replay.py",
)  # fmt: skip
INSTALLED = (
    "cache_utils.py", "generation/configuration_utils.py", "generation/continuous_batching/**/*.py",
    "integrations/*_paged.py", "integrations/sdpa_attention.py", "masking_utils.py", "modeling_utils.py",
)  # fmt: skip
MINIMUM = 4  # page_size; transformers' own check says the same when it is opened
REMEDY = "run `make engines`, and name its interpreter in engine.python"
_SETTLED = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "KINETO_LOG_LEVEL": "99",
}  # fmt: skip


def prepare(spec: TrialSpec) -> None:
    """No network, few words, and thread counts: read when torch and transformers are imported."""
    for name, value in _SETTLED.items():
        os.environ.setdefault(name, value)
    prepare_process(spec.engine.threads)


def identity(spec: TrialSpec) -> Mapping[str, Any]:
    """The installed files that decide, versions, what was asked of the engine, and where it runs."""
    kind = "llama" if spec.model.path is None else "*"
    return {
        "files": source_digests(FILES),
        "installed": installed_digests("transformers", [*INSTALLED, f"models/{kind}/modeling_*.py"]),
        "distributions": distribution_versions(["accelerate", "numpy", "torch", "transformers"]),
        "config": {
            "engine": spec.engine.model_dump(mode="json", exclude={"python", "step_time"}),
            "model": spec.model.model_dump(mode="json", exclude={"name", "path"}),
            "model_files": model_digests(spec.model),
        },
        "device": _device(spec),
    }


def _device(spec: TrialSpec) -> dict[str, str]:
    if spec.engine.device == "cpu":
        return {"name": processor_name()}
    import torch

    if not torch.cuda.is_available():
        return {"name": "no CUDA device"}
    return {"name": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}


def accepts(spec: TrialSpec) -> Domain:
    """Any page of at least four tokens; the knobs that transformers does not have."""
    if installed_folder("transformers") is None:
        raise SpecError(f"no transformers in this interpreter; {REMEDY}")
    known = type(spec.policy).model_fields.keys()
    fixed = (
        "eviction", "free_order", "long_prefill_token_threshold", "preemption", "prefix_match", "queue",
        "reserve_output", "reserve_prompt", "sharing", "victim",
    )  # fmt: skip
    return Domain(minimum=MINIMUM, not_applicable=tuple(n for n in fixed if n in known), source="transformers")


def open(spec: TrialSpec, content: Content) -> Engine | Refused:
    """Build model, pool and serving thread, and warm them; refused, in the engine's words, where it will not."""
    asked = pool_geometry(spec)
    if isinstance(asked, str):
        return Refused(asked)
    if (why := _why_refused(spec)) is not None:
        return Refused(why)
    prepare(spec)
    starting = StartUp(builds := Builds())
    try:
        with starting.loading():
            import torch
            import transformers  # noqa: F401
    except ImportError as error:
        return Refused(f"no transformers in this interpreter ({error}); {REMEDY}")
    torch.set_num_threads(spec.engine.threads)
    from trials.engines import cb_config
    from trials.engines.cb_opening import Opening

    opening = Opening(spec)
    if spec.engine.device != "cpu":
        builds.watch_device()
    try:
        with starting.warming_up():
            opening.map_libraries()
        with starting.loading():
            thread = opening.serving_thread(cb_config.open_batching(spec, asked))
            geometry = cb_config.geometry_of(thread.manager.batch_processor, asked, spec)
        with starting.warming_up():
            device = opening.warmed(thread, geometry)
    except EngineDied as died:
        opening.give_up()
        return Refused(f"transformers will not start: {_one_line(died)}")
    except (ValueError, TypeError, RuntimeError, NotImplementedError, ImportError, MemoryError, OSError) as error:
        opening.give_up()
        return Refused(f"transformers will not start: {_one_line(error)}")
    except BaseException:
        opening.give_up()
        raise
    knobs = cb_config.knobs_of(thread.manager, thread.manager.batch_processor, spec)
    facts = EngineFacts(
        name="transformers_cb", engine_hash=engine_hash(identity(spec)), evidence="measured",
        clock=spec.engine.clock or "wall", groups=(geometry,), ranks=1, effective=tuple(sorted(knobs.items())),
        not_applicable=(*accepts(spec).not_applicable, "copied_bytes"), max_model_len=spec.policy.max_model_len,
    )  # fmt: skip
    limit = content_limit(thread.manager.model.config.to_dict())
    outputs = Outputs(content, limit, live=spec.trace.outputs == "live")
    return opening.engine(thread, facts, outputs, device, starting.told(), builds)


def _why_refused(spec: TrialSpec) -> str | None:
    model = spec.model
    if model.dtype not in TORCH_DTYPES or model.kv_dtype != model.dtype:
        return (
            f"transformers keeps KV in the model's own dtype, one of {', '.join(TORCH_DTYPES)}: "
            f"dtype {model.dtype} with kv_dtype {model.kv_dtype} is not to be had"
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(spec.engine, name) > 1:
            return f"transformers_cb is driven in one process: {name} must be 1"
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:600] or type(error).__name__
