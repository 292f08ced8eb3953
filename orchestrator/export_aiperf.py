"""Results as AIPerf writes them (ai-dynamo/aiperf): profile_export_aiperf.json, schema 1.1, and its CSV.

AIPerf's inter-token latency is our TPOT, its inter-chunk latency our ITL. Requests are the served ones.
"""

import csv
import io
import json
from typing import Any

import numpy as np

from orchestrator.exported import Exported, Ints
from orchestrator.frames import Floats
from trials.percentiles import percentile, population

SCHEMA = "1.1"
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_STATISTICS = ("avg", "min", "max", *(f"p{q}" for q in _PERCENTILES), "std")
RECORDS: tuple[tuple[str, str, str, str, float], ...] = (  # key, words, unit, field of Served, from its unit
    ("time_to_first_token", "Time to First Token", "ms", "ttft_s", 1e3),
    ("inter_token_latency", "Inter Token Latency", "ms", "tpot_s", 1e3),
    ("request_latency", "Request Latency", "ms", "e2el_s", 1e3),
    ("output_sequence_length", "Output Sequence Length", "tokens", "output_tokens", 1),
    ("input_sequence_length", "Input Sequence Length", "tokens", "prompt_tokens", 1),
)
_GAPS = ("inter_chunk_latency", "Inter Chunk Latency", "ms")


def _totals(e: Exported) -> list[tuple[str, str, str, float]]:
    """Key, words, unit and value of what is one number a run."""
    metrics, counts = e.replay.metrics, e.replay.counts
    return [
        ("output_token_throughput", "Output Token Throughput", "tokens/sec", metrics.output_throughput),
        ("request_throughput", "Request Throughput", "requests/sec", metrics.request_throughput),
        ("goodput", "Goodput", "requests/sec", metrics.request_goodput),
        ("request_count", "Request Count", "requests", float(len(e.served.e2el_s))),
        ("error_request_count", "Error Request Count", "requests", float(counts.offered - len(e.served.e2el_s))),
        ("good_request_count", "Good Request Count", "requests", float(counts.qualified)),
        ("benchmark_duration", "Benchmark Duration", "sec", e.window_s),
    ]


def aiperf_json(e: Exported) -> str:
    """One trial. `kvknee`: what it was; readers of AIPerf's files ignore keys that they do not know."""
    document: dict[str, Any] = {"schema_version": SCHEMA}
    for key, _, unit, field, factor in RECORDS:
        document[key] = {"unit": unit, **_described(getattr(e.served, field) * factor)}
    document[_GAPS[0]] = {"unit": _GAPS[2], **_gaps(e)}
    document |= {key: {"unit": unit, "avg": value} for key, _, unit, value in _totals(e)}
    document["kvknee"] = _identity(e)
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def aiperf_csv(e: Exported) -> str:
    """One trial: requests' statistics, what is one number a run, what it was; an empty line between them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["Metric", *_STATISTICS])
    for _, words, unit, field, factor in RECORDS:
        found = _described(getattr(e.served, field) * factor)
        writer.writerow([f"{words} ({unit})", *(_cell(found.get(name)) for name in _STATISTICS)])
    gaps = _gaps(e)
    writer.writerow([f"{_GAPS[1]} ({_GAPS[2]})", *(_cell(gaps.get(name)) for name in _STATISTICS)])
    out.write("\n")
    writer.writerow(["Metric", "Value"])
    for _, words, unit, value in _totals(e):
        writer.writerow([f"{words} ({unit})", _cell(value)])
    out.write("\n")
    writer.writerow(["kvknee", "Value"])
    writer.writerows(_identity(e).items())
    return out.getvalue()


def _identity(e: Exported) -> dict[str, str]:
    """What tells one file from another: both formats say it under `kvknee`."""
    return {**e.identity, "engine": e.engine, "model": e.model}


def _described(values: Floats | Ints) -> dict[str, float | int]:
    """The statistics of a population; nothing but its count where it is empty."""
    if not len(values):
        return {"count": 0}
    of = population(values)
    found: dict[str, float | int] = {
        "avg": float(values.mean()), "min": float(values.min()), "max": float(values.max()),
    }  # fmt: skip
    found |= {f"p{q}": float(percentile(of, q)) for q in _PERCENTILES}
    if len(values) > 1:
        found["std"] = float(np.std(values, ddof=1))
    return found | {"count": len(values), "sum": float(values.sum())}


def _gaps(e: Exported) -> dict[str, float | int]:
    """Every gap: the percentiles that a result keeps; those that are infinite are left out."""
    times = e.replay.metrics.itl_ms
    kept = {"avg": times.mean, "max": times.max, "p50": times.p50, "p90": times.p90, "p99": times.p99}
    return {name: value for name, value in kept.items() if value is not None} | {"count": times.n}


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
