"""What this machine, or a cluster, can run, and what is missing: findings with a remedy each. Changes nothing."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal

import psutil
from pydantic import BaseModel, ConfigDict

from orchestrator.launch import WORKER
from orchestrator.package import install, pack
from trials.engines import ENGINES
from trials.spec import trial_spec

Status = Literal["ok", "warn", "missing"]

_GIB = 1 << 30
_FLOORS = {"ray": "2.60", "optuna": "5", "mlflow": "3.17", "torch": "2.11", "numba": "0.62", "pyarrow": "18"}
_BROKEN = {"mlflow": {"3.18.0"}}  # its companions were never published
_DESCRIBE_S = 120.0


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Finding(_Model):
    """`missing` is what kvknee needs; what only some engines need is `warn`. `remedy` is empty when ok."""

    name: str
    status: Status
    says: str
    remedy: str = ""


class Report(_Model):
    """All findings, in the order they were looked for."""

    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """3 when something needed is missing, else 0."""
        return 3 if any(finding.status == "missing" for finding in self.findings) else 0

    @property
    def lines(self) -> list[str]:
        """For a terminal: one line a finding, its remedy below it."""
        width = max(len(finding.name) for finding in self.findings)
        out = []
        for finding in self.findings:
            out.append(f"{finding.status:<8}{finding.name:<{width}}  {finding.says}")
            if finding.remedy:
                out.append(f"{'':<8}{'':<{width}}  -> {finding.remedy}")
        return out


def examine(address: str | None = None) -> Report:
    """Look at everything; with an address, at that Ray cluster too. Never raises for what it finds."""
    return Report(findings=tuple(_all(address)))


def as_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """(name, status, what it says, remedy) a finding."""
    return [(f.name, f.status, f.says, f.remedy) for f in report.findings]


def _all(address: str | None) -> Iterator[Finding]:
    yield _python()
    yield _memory()
    yield from (_library(name) for name in _FLOORS)
    yield _guarded("torch threads", _torch)
    yield _guarded("numba threading", _numba)
    yield _guarded("GPUs", _gpus)
    yield _space("disk", Path.cwd(), 5, "free some space: a sweep keeps every trial's files")
    yield _space("temporary folder", Path(tempfile.gettempdir()), 2, "set TMPDIR to a roomier folder")
    if Path("/dev/shm").is_dir():
        yield _space("/dev/shm", Path("/dev/shm"), 1, "give the container more shared memory (--shm-size=2g)")
    yield from (_guarded(f"engine {name}", lambda name=name: _engine(name)) for name in ENGINES)  # type: ignore[misc]
    if address is not None:
        yield _guarded("ray cluster", lambda: _cluster(address), "missing")


def _guarded(name: str, look: Callable[[], Finding], status: Status = "warn") -> Finding:
    """What cannot even be looked at is a finding as well."""
    try:
        return look()
    except Exception as error:
        return Finding(name=name, status=status, says=f"{type(error).__name__}: {error}", remedy="see the message")


def _python() -> Finding:
    says = f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.machine()}"
    return Finding(name="python", status="ok", says=says)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    says = (
        f"{len(psutil.Process().cpu_affinity())} of {os.cpu_count()} cores usable, "
        f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB memory free"
    )
    if memory.available < 2 * _GIB:
        remedy = "Ray alone takes 0.6 GiB: end something, or run with executor process"
        return Finding(name="cores, memory", status="warn", says=says, remedy=remedy)
    return Finding(name="cores, memory", status="ok", says=says)


def _library(name: str) -> Finding:
    floor = _FLOORS[name]
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name=name, status="missing", says="not installed", remedy=f"pip install '{name}>={floor}'")
    if found in _BROKEN.get(name, set()):
        remedy = f"pip install '{name}!={found}': this release cannot be installed whole"
        return Finding(name=name, status="missing", says=found, remedy=remedy)
    if _release(found) < _release(floor):
        return Finding(name=name, status="missing", says=found, remedy=f"pip install -U '{name}>={floor}'")
    return Finding(name=name, status="ok", says=found)


def _release(version: str) -> tuple[int, ...]:
    """Major and minor: 2.13.0+cpu -> (2, 13); 5 -> (5, 0)."""
    numbers = [int(n) for n in re.findall(r"\d+", version)[:2]]
    return (*numbers, 0)[:2]


def _torch() -> Finding:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    says = f"{build}, {torch.get_num_threads()} threads; a trial uses engine.threads of them (default 1)"
    return Finding(name="torch threads", status="ok", says=says)


def _numba() -> Finding:
    layers = [name for name in ("omppool", "tbbpool", "workqueue") if _loads(f"numba.np.ufunc.{name}")]
    says = f"layers {', '.join(layers)}"
    if "omppool" in layers:
        return Finding(name="numba threading", status="ok", says=says)
    remedy = "trials with engine.threads > 1 need the omp layer: install an OpenMP runtime (libgomp)"
    return Finding(name="numba threading", status="warn", says=says, remedy=remedy)


def _loads(module: str) -> bool:
    """Whether its shared library is whole here, not only whether the file is."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def _gpus() -> Finding:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        says = f"none seen ({error}): modelled engines and torch_paged on the CPU run all the same"
        return Finding(name="GPUs", status="ok", says=says)
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        cards = [f"{pynvml.nvmlDeviceGetName(h)} {_memory_gib(pynvml, h):.0f} GiB" for h in handles]
    finally:
        pynvml.nvmlShutdown()
    return Finding(name="GPUs", status="ok", says=f"{', '.join(cards) or 'none'}; driver {driver}")


def _memory_gib(pynvml: ModuleType, handle: object) -> float:
    return float(pynvml.nvmlDeviceGetMemoryInfo(handle).total) / _GIB


def _space(name: str, folder: Path, needed_gib: float, remedy: str) -> Finding:
    free = shutil.disk_usage(folder).free
    low = free < needed_gib * _GIB
    says = f"{free / _GIB:.1f} GiB free at {folder}"
    return Finding(name=name, status="warn" if low else "ok", says=says, remedy=remedy if low else "")


def _engine(name: str) -> Finding:
    """Ask the worker itself, in the process that a trial would get."""
    title = f"engine {name}"
    if name.startswith("vllm") and importlib.util.find_spec("vllm") is None:
        remedy = "install vllm in an environment of its own, and name its interpreter in engine.python"
        return Finding(name=title, status="warn", says="vllm is not in this environment", remedy=remedy)
    spec = trial_spec(
        {
            "engine": {"name": name, "step_time": "roofline:h100-sxm" if name != "torch_paged" else None},
            "model": "llama-3.1-8b",
            "pool": {"blocks": 64},
            "trace": {"path": "none.parquet"},
            "slo": "itl:p99<50ms",
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(spec.model_dump_json())
        command = [sys.executable, *WORKER, "--describe", str(path)]
        env = os.environ | {"PYTHONPATH": str(install(pack()))}
        ended = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=_DESCRIBE_S)
    if ended.returncode == 0:
        return Finding(name=title, status="ok", says="opens in a process of its own")
    last = (ended.stderr.strip() or "no words").splitlines()[-1]
    return Finding(name=title, status="warn", says=last, remedy=f"run: {' '.join(command[:-1])} SPEC.json")


def _cluster(address: str) -> Finding:
    from orchestrator.ray_session import cluster_says

    return Finding(name="ray cluster", status="ok", says=cluster_says(address))
