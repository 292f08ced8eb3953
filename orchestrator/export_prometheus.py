"""Results under the names of vLLM's /metrics (v1, as of its 2026 releases), in Prometheus' text format.

Histograms have vLLM's own buckets, so that its dashboards read them; what is no metric of vLLM's is `kvknee:...`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from orchestrator.exported import Exported, Ints
from orchestrator.frames import Floats

TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
GAP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
TOKENS = tuple(float(m * 10**e) for e in range(7) for m in (1, 2, 5))
PREEMPTIONS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
HISTOGRAMS: tuple[tuple[str, str, str, tuple[float, ...]], ...] = (  # name, help, field of Served, buckets
    ("vllm:time_to_first_token_seconds", "From the scheduled arrival to the first token.", "ttft_s", TTFT_S),
    ("vllm:request_time_per_output_token_seconds", "Mean gap of a request.", "tpot_s", GAP_S),
    ("vllm:e2e_request_latency_seconds", "From the scheduled arrival to the last token.", "e2el_s", REQUEST_S),
    ("vllm:request_queue_time_seconds", "From the scheduled arrival to the first admission.", "queue_s", REQUEST_S),
    ("vllm:request_prefill_time_seconds", "From the first admission to the first token.", "prefill_s", REQUEST_S),
    ("vllm:request_decode_time_seconds", "From the first to the last token.", "decode_s", REQUEST_S),
    ("vllm:request_prompt_tokens", "Prompt tokens of a request.", "prompt_tokens", TOKENS),
    ("vllm:request_generation_tokens", "Output tokens of a request.", "output_tokens", TOKENS),
    ("vllm:request_num_preemptions", "Preemptions of a request.", "preemptions", PREEMPTIONS),
)
_GAPS = "vllm:inter_token_latency_seconds"
_LETTERS = 12  # of a hash in a label
_Read = Callable[[Exported], list[tuple[dict[str, str], float]]]


def counted(values: Floats | Ints, bounds: Sequence[float]) -> list[int]:
    """How many values are at or below each bound, and all of them at the end: [n + 1], never falling."""
    ordered = np.sort(values)
    return [int(n) for n in np.searchsorted(ordered, np.array(bounds), side="right")] + [len(ordered)]


def _one(read: Callable[[Exported], float]) -> _Read:
    return lambda e: [({}, read(e))]


def _by(label: str, read: Callable[[Exported], Mapping[str, float]]) -> _Read:
    return lambda e: [({label: key}, value) for key, value in sorted(read(e).items())]


def _gap_percentiles(e: Exported) -> Mapping[str, float]:
    """In s; those that are not finite are left out."""
    times = e.replay.metrics.itl_ms
    found = {"0.5": times.p50, "0.9": times.p90, "0.99": times.p99}
    return {q: value / 1e3 for q, value in found.items() if value is not None}


_VALUES: tuple[tuple[str, str, str, _Read], ...] = (  # name, kind, help, labels and values
    ("vllm:prompt_tokens_total", "counter", "Prompt tokens of served requests.",
     _one(lambda e: float(e.served.prompt_tokens.sum()))),
    ("vllm:generation_tokens_total", "counter", "Output tokens of served requests.",
     _one(lambda e: float(e.served.output_tokens.sum()))),
    ("vllm:num_preemptions_total", "counter", "Preemptions of counted requests.",
     _one(lambda e: e.replay.metrics.num_preemptions)),
    ("vllm:prefix_cache_queries_total", "counter", "Prompt tokens of served requests.",
     _one(lambda e: float(e.served.prompt_tokens.sum()))),
    ("vllm:prefix_cache_hits_total", "counter", "Of those, found in the pool at the first admission.",
     _one(lambda e: float(e.served.cached_tokens.sum()))),
    ("vllm:request_success_total", "counter", "Served requests; their lengths are the trace's.",
     lambda e: [({"finished_reason": "length"}, float(len(e.served.e2el_s)))]),
    ("vllm:kv_cache_usage_perc", "gauge", "Live blocks per block, mean over the window; 1 is full.",
     _one(lambda e: e.replay.metrics.occupancy.mean)),
    ("vllm:num_requests_running", "gauge", "Running requests, mean over the window.",
     _one(lambda e: e.replay.metrics.admitted_concurrency.mean)),
    ("kvknee:qualified_output_throughput", "gauge", "Tokens/s of requests inside their own limits.",
     _one(lambda e: e.replay.metrics.qualified_output_throughput)),
    ("kvknee:request_goodput", "gauge", "Requests/s inside their own limits.",
     _one(lambda e: e.replay.metrics.request_goodput)),
    ("kvknee:inter_token_latency_seconds", "gauge", "Percentiles of every gap between tokens.",
     _by("quantile", _gap_percentiles)),
    ("kvknee:pool_account_bytes", "gauge", "Time mean of each account of the pool.",
     _by("account", lambda e: e.replay.ledger.time_mean)),
    ("kvknee:waste_byte_seconds", "gauge", "What could not serve declared work over the window, by kind.",
     _by("kind", lambda e: e.replay.metrics.waste_byte_seconds)),
)  # fmt: skip


def prometheus(exported: Sequence[Exported]) -> str:
    """One exposition of all trials, told apart by labels."""
    lines: list[str] = []
    for name, kind, words, read in _VALUES:
        lines += _head(name, kind, words)
        lines += [f"{name}{_labels(e, more)} {_number(value)}" for e in exported for more, value in read(e)]
    for name, words, field, bounds in HISTOGRAMS:
        lines += _head(name, "histogram", words)
        lines += [line for e in exported for line in _histogram(name, e, getattr(e.served, field), bounds)]
    lines += _head(_GAPS, "histogram", "Every gap between tokens; one bucket, since gaps are summed and not kept.")
    lines += [line for e in exported for line in _summed(e)]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]


def _histogram(name: str, e: Exported, values: Floats | Ints, bounds: Sequence[float]) -> Iterator[str]:
    for bound, upto in zip((*bounds, math.inf), counted(values, bounds), strict=True):
        yield f"{name}_bucket{_labels(e, {'le': _number(bound)})} {upto}"
    yield f"{name}_sum{_labels(e)} {_number(float(values.sum()))}"
    yield f"{name}_count{_labels(e)} {len(values)}"


def _summed(e: Exported) -> Iterator[str]:
    """Gaps of offered requests; none where one is infinite: a request was lost."""
    times = e.replay.metrics.itl_ms
    if times.mean is not None:
        yield f"{_GAPS}_bucket{_labels(e, {'le': '+Inf'})} {times.n}"
        yield f"{_GAPS}_sum{_labels(e)} {_number(times.mean * times.n / 1e3)}"
        yield f"{_GAPS}_count{_labels(e)} {times.n}"


def _labels(e: Exported, more: Mapping[str, str] = MappingProxyType({})) -> str:
    """vLLM's own labels first; then what tells a trial from another, hashes by their first letters."""
    own = {name: value[:_LETTERS] if name.endswith("_hash") else value for name, value in e.identity.items()}
    labels = {"model_name": e.model, "engine": "0", **own, **more}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))
