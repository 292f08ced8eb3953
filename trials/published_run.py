"""A published run of a real vLLM: what it was asked, how it was set up, and when each request was answered.

A folder in casys-kaist/LLMServingSim's layout: `requests.jsonl` (lengths, arrival in epoch seconds, stamps on the
engine's own clock), `meta.json` (the resolved settings), `timeseries.csv` (once a second), and the kernel tables
of the same GPU (kernel_tables.py).

    epoch clock    arrival_time .......... arrivals of the others
    engine clock        queued_ts of the request that found the engine idlest: the two clocks' distance
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trials.model import PRESETS, ModelSpec
from trials.spec import TrialSpec, trial_spec
from trials.trace import Trace, make_trace
from trials.units import SpecError, nearest

Floats = NDArray[np.float64]
TICKS = ("t", "prompt_throughput", "gen_throughput", "running", "waiting", "kv_cache_pct")


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds, [requests]: from arrival to the first token, between tokens, from arrival to the last."""

    ttft: Floats
    tpot: Floats  # NaN where one token was asked
    e2e: Floats
    makespan: float  # first arrival to last token

    @classmethod
    def of(cls, arrival: Floats, first: Floats, last: Floats, output: Floats) -> "Latencies":
        gaps = np.where(output > 1, (last - first) / np.maximum(output - 1, 1), np.nan)
        return cls(first - arrival, gaps, last - arrival, float(last.max() - arrival.min()))


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """`ticks`: column -> values, once a second of engine time from the first arrival."""

    folder: Path
    trace: Trace
    real: Latencies
    ticks: dict[str, Floats]
    model: ModelSpec
    captured: tuple[int, ...]  # batch sizes of captured graphs
    ahead: bool  # the next step is scheduled while one runs
    settings: dict[str, Any]  # resolved_config of meta.json

    def spec(self) -> TrialSpec:
        """The run as a trial of the simulator; its step time is taken from the tables instead."""
        cache, scheduler = self.settings["cache_config"], self.settings["scheduler_config"]
        return trial_spec({
            "engine": {"name": "simulator", "step_time": "constant:1"}, "model": self.model.model_dump(),
            "pool": {"blocks": cache["num_gpu_blocks"], "reserve_blocks": 1},  # vLLM's null block
            "policy": {
                "block_size": cache["block_size"], "prefix_caching": cache["enable_prefix_caching"],
                "max_model_len": self.settings["model_config"]["max_model_len"],
                "max_num_seqs": scheduler["max_num_seqs"],
                "max_num_batched_tokens": scheduler["max_num_batched_tokens"],
                "long_prefill_token_threshold": scheduler.get("long_prefill_token_threshold", 0),
                "reserve_prompt": scheduler.get("scheduler_reserve_full_isl", False),
                "watermark": scheduler.get("watermark", 0.0), "queue": scheduler.get("policy", "fcfs"),
            },
            "trace": {"path": "requests.jsonl"}, "slo": "ttft:p99<1h", "phases": ["cold"],
        }, str(self.folder / "meta.json"))  # fmt: skip


def read_run(folder: Path, preset: str | None = None) -> PublishedRun:
    """Read a run's folder; `preset` names the model where meta.json's name is not one of ours. SpecError."""
    meta = _json(folder / "meta.json", "meta.json")
    settings = meta.get("resolved_config")
    if not isinstance(settings, dict) or "cache_config" not in settings or "scheduler_config" not in settings:
        raise SpecError(f"{folder / 'meta.json'}: needs resolved_config with cache_config and scheduler_config")
    if (ranks := settings.get("parallel_config", {}).get("world_size", 1)) != 1:
        raise SpecError(f"{folder}: a run over {ranks} GPUs; the tables know nothing of what ranks exchange")
    trace, real = _requests(folder / "requests.jsonl")
    return PublishedRun(
        folder, trace, real, _ticks(folder / "timeseries.csv"), _model(preset or settings["model_config"]["model"]),
        _captured(settings), bool(settings["scheduler_config"].get("async_scheduling")), settings,
    )  # fmt: skip


def _json(path: Path, what: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: {what} cannot be read: {error.strerror}; a published run has one") from None
    except ValueError as error:
        raise SpecError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SpecError(f"{path}: an object is needed")
    return found


def _model(name: str) -> ModelSpec:
    """`meta-llama/Llama-3.1-8B` is our `llama-3.1-8b`."""
    known = name.rpartition("/")[2].lower()
    found = [preset for preset in PRESETS if known == preset or known.startswith(f"{preset}-")]
    if not found:
        raise SpecError(f"model {name!r} is not a preset; {nearest(known, PRESETS)}; name one with --model")
    return PRESETS[max(found, key=len)]


def _captured(settings: dict[str, Any]) -> tuple[int, ...]:
    compiled = settings.get("compilation_config", {})
    mode = compiled.get("cudagraph_mode")
    off = settings.get("model_config", {}).get("enforce_eager") or mode in (None, 0, "NONE") or mode == [0, 0]
    return () if off else tuple(sorted(compiled.get("cudagraph_capture_sizes") or ()))


def _requests(path: Path) -> tuple[Trace, Latencies]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows.sort(key=lambda row: row["arrival_time"])
        arrival, queued, first, last = (
            np.array([float(row[name]) for row in rows])
            for name in ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
        )
        prompt, output = (np.array([int(row[name]) for row in rows]) for name in ("input_toks", "output_toks"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path}: not the requests of a published run: {error!r}") from None
    if not rows:
        raise SpecError(f"{path}: no requests")
    here = arrival + (queued - arrival).min()  # on the engine's clock
    since = np.rint((arrival - arrival[0]) * 1e9).astype(np.int64)
    return make_trace(since, prompt, output), Latencies.of(here, first, last, output.astype(float))


def _ticks(path: Path) -> dict[str, Floats]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        return {name: np.array([float(row[name]) for row in rows]) for name in TICKS}
    except (OSError, ValueError, KeyError) as error:
        raise SpecError(f"{path}: needs the columns {', '.join(TICKS)}: {error!r}") from None
