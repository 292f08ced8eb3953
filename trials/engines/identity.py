"""What an engine of ours is: the files that decide what it does, its distributions, config and device."""

import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trials.fingerprint import distribution_versions, source_digests
from trials.spec import TrialSpec

CORE = (
    "admission.py", "arrivals.py", "block_pool.py", "clocks.py", "content.py", "decode_ring.py", "engine.py",
    "engines/own.py", "forks.py", "geometry.py", "idle_queue.py", "ledger.py", "load.py", "plan.py", "policies.py",
    "prefix_index.py", "recorder.py", "replay.py", "scheduler.py", "serving.py",
)  # fmt: skip


def own_identity(
    spec: TrialSpec, files: Iterable[str], distributions: Iterable[str], device: str | None = None
) -> dict[str, Any]:
    """Nested mapping that the engine hash covers. The candidate's policy is the spec's matter, not the engine's."""
    model = spec.model.model_dump(mode="json", exclude={"name", "path"})
    engine = spec.engine.model_dump(mode="json", exclude={"python", "step_time"})
    return {
        "files": source_digests([*CORE, *files]),
        "distributions": distribution_versions(distributions),
        "config": {"engine": engine, "model": model},
        "device": {"name": device} if device else {},
    }


def cuda_name() -> str:
    """GPU, its driver and torch's CUDA, as one line; says so where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    version = Path("/proc/driver/nvidia/version")
    driver = "unknown"
    if version.exists():
        numbers = [word for word in version.read_text(errors="replace").split() if word.replace(".", "").isdigit()]
        driver = next((word for word in numbers if "." in word), driver)
    return f"{torch.cuda.get_device_name()}, driver {driver}, CUDA {torch.version.cuda}"


def cuda_there() -> bool:
    """Whether torch sees a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())


def processor_name() -> str:
    """The CPU's own name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
