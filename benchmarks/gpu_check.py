"""What has to be seen on a GPU, in one run of at most eight minutes: laws of engines, attention by block size

    make gpu-check, or python benchmarks/gpu_check.py [--json FILE] [--minutes M] [--kernels NAMES] [--cpu]

First the laws of every engine (tests/contracts/engine_laws.py) over torch_paged on CUDA, with every paged kernel
that is installed; then decode attention by block size, beside the contiguous controls and the floor that the
device's own copy bandwidth sets (gpu_decode.py). The JSON also holds device, driver, versions and clocks, and what
was not run.

Needs torch, numpy, pydantic, PyYAML and pyarrow, and one CUDA device; no Ray, MLflow or command line library. Exit
0: all laws hold and every kernel computes what float32 attention does; 1: not so, or time ran out; 2: no GPU, or
bad input. The JSON goes to $OUT/gpu_check.json where OUT is set, else to runs/gpu_check.json.

`--cpu` rehearses the script on a machine without a GPU: the same path on small shapes, on the kernel that copies.
Its times say nothing of any GPU, and the JSON says `rehearsal`.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trials.engines.kernels.choice import KERNELS, missing
from trials.engines.kernels.threads import prepare_process

ROOT = Path(__file__).resolve().parents[1]
PAGED = tuple(name for name, kernel in KERNELS.items() if "cuda" in kernel.devices and name != "dense_varlen")
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,power.limit,temperature.gpu"
SHAPES = ((8, 4096), (64, 1024), (256, 1024), (64, 4096), (16, 16384))  # sequences, tokens of each
SMALL = ((4, 256), (2, 512))
COPY_BYTES = {"cuda": 1 << 30, "cpu": 16 << 20}


@dataclass
class Report:
    """The JSON, as it grows; `failed` decides the exit."""

    rehearsal: bool
    machine: dict[str, Any] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)  # name: "" or why it is not there
    laws: list[dict[str, Any]] = field(default_factory=list)
    copy_bytes_per_s: float = 0.0
    decode: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def write(self, path: Path) -> None:
        """Whole or not at all; a time that there is none of is null."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in r.items()} for r in self.decode
        ]
        beside = path.with_name(f".{path.name}.tmp")
        beside.write_text(json.dumps({**asdict(self), "decode": rows}, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)


class Clock:
    """Seconds since the start, and whether the time is up."""

    def __init__(self, minutes: float) -> None:
        self._begin, self._limit = time.monotonic(), 60 * minutes

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    @property
    def up(self) -> bool:
        return self.seconds > self._limit


def machine(device: str) -> dict[str, Any]:
    """What ran: names, versions, and clocks as they are now."""
    import numpy as np
    import torch

    from trials.engines.identity import cuda_name, processor_name

    found = {
        "device": cuda_name() if device == "cuda" else processor_name(), "torch": torch.__version__,
        "numpy": np.__version__, "python": platform.python_version(),
    }  # fmt: skip
    if device == "cuda":
        facts = torch.cuda.get_device_properties(0)
        found |= {
            "capability": f"{facts.major}.{facts.minor}",
            "memory_bytes": facts.total_memory,
            "clocks": clocks(),
        }
    return found


def clocks() -> dict[str, str]:
    """By nvidia-smi; says so where there is none."""
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"], capture_output=True, text=True,
            timeout=20, check=True,
        ).stdout.splitlines()[0]  # fmt: skip
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return {"unknown": f"nvidia-smi: {error}"}
    return dict(zip(CLOCKS.split(","), (word.strip() for word in said.split(",")), strict=False))


def check_laws(report: Report, kernels: list[str], device: str, clock: Clock) -> None:
    """Every law as a plain function; what it raises is what it found."""
    from tests.contracts.engine_laws import LAWS, Laboratory

    dtype = "bfloat16" if device == "cuda" else "float32"
    shape = {"head_dim": 128 if device == "cuda" else 32, "dtype": dtype, "kv_dtype": dtype}
    for kernel in kernels:
        lab = Laboratory("torch_paged", extra={"device": device, "args": {"kernel": kernel}}, shape=shape)
        for law in LAWS:
            name, begin = f"{kernel}: {law.__name__}", clock.seconds
            if clock.up:
                report.not_run.append(name)
                continue
            said = ""
            try:
                law(lab)
            except Exception as error:  # whatever it is belongs into the report, and the next law is tried
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                report.failed.append(f"{name}: {said}")
            spent = round(clock.seconds - begin, 2)
            report.laws.append({"kernel": kernel, "law": law.__name__, "error": said, "seconds": spent})
            print(f"  {'holds' if not said else 'BROKEN':7} {name} ({spent} s) {said}", flush=True)


def time_decodes(report: Report, kernels: list[str], device: str, clock: Clock) -> None:
    """Decode attention of every shape; a table each."""
    import torch

    from benchmarks.gpu_decode import Decodes, Heads, Shape, copy_bandwidth, measure

    where = torch.device(device)
    small = Heads(8, 2, 32, torch.float32, spread_bytes=1 << 20)
    heads = Heads() if device == "cuda" else small
    report.copy_bytes_per_s = copy_bandwidth(where, COPY_BYTES[device])
    print(f"  copy bandwidth {report.copy_bytes_per_s / 1e9:.0f} GB/s, reads and writes")
    for sequences, context in SHAPES if device == "cuda" else SMALL:
        if clock.up:
            report.not_run.append(f"decode attention, {sequences} sequences of {context} tokens")
            continue
        made = {name: built(name, heads, device) for name in kernels}
        decodes = Decodes(where, Shape(sequences, context), heads)
        rows, wrong = measure(
            decodes,
            made,
            12 if device == "cuda" else 3,
            report.copy_bytes_per_s,
            2e-2 if device == "cuda" else 1e-4,
        )
        report.failed += wrong
        report.decode += [asdict(row) for row in rows]
        floor = heads.kv_bytes(decodes.shape) / report.copy_bytes_per_s * 1e3
        print(f"  {sequences} sequences of {context} tokens; ms a layer; floor {floor:.3f} ms")
        for row in rows:
            spread = f"{row.median_ms:>9.3f} ({row.low_ms:.3f} .. {row.high_ms:.3f})"
            print(f"    {row.kernel:<24} {row.block_size:>6} {spread} {row.x_floor:>6.2f} x floor, "
                  f"plan {row.plan_ms:.3f}", flush=True)  # fmt: skip


def built(name: str, heads: Any, device: str) -> Any:
    """A kernel outside an engine, for these heads."""
    from trials.engine import PoolGeometry
    from trials.engines.kernels.config import TorchConfig
    from trials.engines.kernels.on_device import BUILDERS
    from trials.model import ModelSpec

    dtype = str(heads.dtype).removeprefix("torch.")
    model = ModelSpec(
        num_layers=1, num_kv_heads=heads.kv, num_query_heads=heads.query, head_dim=heads.dim, hidden_size=64,
        intermediate_size=64, vocab_size=64, dtype=dtype, kv_dtype=dtype,
    )  # fmt: skip
    geometry = PoolGeometry(16, 1, 0, model.kv_bytes_per_token, 0, 16 * model.kv_bytes_per_token, 16, 16)
    return BUILDERS[name](model, TorchConfig(model, geometry, device=device, kernel=name))


def usable(kernels: dict[str, str], device: str) -> tuple[list[str], list[str]]:
    """(kernels that are there and can be built here, what was found out about the others)."""
    import torch

    from benchmarks.gpu_decode import Heads
    from trials.engines.kernels.batch import CannotRun

    found, words = [], []
    heads = Heads() if device == "cuda" else Heads(8, 2, 32, torch.float32)
    for name, why in kernels.items():
        if not why:
            try:
                built(name, heads, device)
            except (CannotRun, ImportError, RuntimeError, OSError) as error:
                why = kernels[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        if why:
            words.append(f"{name}: {why}")
        else:
            found.append(name)
    return found, words


def asked_for() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="default: $OUT/gpu_check.json, or runs/gpu_check.json")
    parser.add_argument("--minutes", type=float, default=7.0, help="after so many nothing more is begun")
    parser.add_argument("--kernels", help=f"comma-separated, of {', '.join(PAGED)}; default: all that are there")
    parser.add_argument("--cpu", action="store_true", help="rehearse without a GPU; no measurement")
    asked = parser.parse_args()
    if asked.json is None:
        asked.json = Path(os.environ["OUT"] if os.environ.get("OUT") else ROOT / "runs") / "gpu_check.json"
    names = asked.kernels.split(",") if asked.kernels else list(PAGED)
    if unknown := [name for name in names if name not in PAGED]:
        parser.error(f"kernel {unknown[0]!r} does not exist; known: {', '.join(PAGED)}")
    asked.kernels = names
    return asked


def main() -> int:
    asked, device = asked_for(), "cuda"
    try:
        prepare_process(1)
        import torch
    except ImportError as error:
        print(f"gpu-check: {error}; it needs torch, numpy, pydantic, PyYAML and pyarrow", file=sys.stderr)
        return 2
    if asked.cpu:
        device, asked.kernels = "cpu", ["gather"]
        print("REHEARSAL on the CPU: the path is tried, nothing is measured")
    elif not torch.cuda.is_available():
        print("gpu-check: torch sees no CUDA device here, so nothing was checked. Run it on a machine with a GPU "
              "and a CUDA build of torch, or rehearse with --cpu.", file=sys.stderr)  # fmt: skip
        return 2
    clock, report = Clock(asked.minutes), Report(rehearsal=asked.cpu, machine=machine(device))
    print("\n".join(f"{name}: {value}" for name, value in report.machine.items()))
    report.kernels = {name: missing(name) or "" for name in asked.kernels}
    kernels, absent = usable(report.kernels, device)
    print("\n".join(f"not there: {words}" for words in absent))
    print(f"laws of every engine, torch_paged on {device}, kernels {', '.join(kernels)}")
    for stage in (check_laws, time_decodes):
        stage(report, kernels, device, clock)
        report.seconds = round(clock.seconds, 1)
        report.write(asked.json)
    if device == "cuda":
        report.machine["clocks_after"] = clocks()
        report.write(asked.json)
    print(f"{asked.json}: {len(report.laws)} laws, {len(report.decode)} timings, {report.seconds} s")
    for words in report.failed:
        print(f"FAILED {words}")
    for words in report.not_run:
        print(f"NOT RUN, time is up: {words}")
    return 1 if report.failed or report.not_run else 0


if __name__ == "__main__":
    sys.exit(main())
