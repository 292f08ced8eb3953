"""Results under OpenTelemetry's GenAI names (semantic conventions, `gen_ai.*`), as OTLP/JSON for a collector.

Histograms over served requests, with the buckets that the conventions advise; one resource a trial.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.export_prometheus import counted
from orchestrator.exported import Exported, Ints
from orchestrator.frames import Floats

_FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_EACH_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_WHOLE_S = tuple(0.01 * 2**i for i in range(14))
_TOKENS = tuple(float(4**i) for i in range(14))
HISTOGRAMS: tuple[tuple[str, str, str, tuple[float, ...], Mapping[str, str]], ...] = (
    ("gen_ai.server.time_to_first_token", "s", "ttft_s", _FIRST_S, {}),
    ("gen_ai.server.time_per_output_token", "s", "tpot_s", _EACH_S, {}),
    ("gen_ai.server.request.duration", "s", "e2el_s", _WHOLE_S, {}),
    ("gen_ai.client.token.usage", "{token}", "prompt_tokens", _TOKENS, {"gen_ai.token.type": "input"}),
    ("gen_ai.client.token.usage", "{token}", "output_tokens", _TOKENS, {"gen_ai.token.type": "output"}),
)
_CUMULATIVE = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE
_NS = 1e9


def otel(exported: Sequence[Exported]) -> str:
    """An ExportMetricsServiceRequest; its 64-bit integers are strings. The window is set to end with the trial."""
    return json.dumps({"resourceMetrics": [_resource(e) for e in exported]}, indent=1) + "\n"


def _resource(e: Exported) -> dict[str, Any]:
    whose = {"service.name": "kvknee", **{f"kvknee.{key}": value for key, value in e.identity.items()}}
    names = dict.fromkeys(name for name, *_ in HISTOGRAMS)
    metrics = [_metric(name, e) for name in names]
    return {
        "resource": {"attributes": _attributes(whose)},
        "scopeMetrics": [{"scope": {"name": "kvknee"}, "metrics": metrics}],
    }


def _metric(name: str, e: Exported) -> dict[str, Any]:
    of = [h for h in HISTOGRAMS if h[0] == name]
    points = [_point(e, getattr(e.served, field), bounds, more) for _, _, field, bounds, more in of]
    return {"name": name, "unit": of[0][1],
            "histogram": {"aggregationTemporality": _CUMULATIVE, "dataPoints": points}}  # fmt: skip


def _point(e: Exported, values: Floats | Ints, bounds: Sequence[float], more: Mapping[str, str]) -> dict[str, Any]:
    whose = {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": e.engine,
             "gen_ai.request.model": e.model, **more}  # fmt: skip
    buckets = np.diff(counted(values, bounds), prepend=0)
    end = round(e.ended_s * _NS)
    ends = {"min": float(values.min()), "max": float(values.max())} if len(values) else {}
    return {
        "attributes": _attributes(whose), "startTimeUnixNano": str(max(end - round(e.window_s * _NS), 0)),
        "timeUnixNano": str(end), "count": str(len(values)), "sum": float(values.sum()),
        "bucketCounts": [str(n) for n in buckets], "explicitBounds": list(bounds), **ends,
    }  # fmt: skip


def _attributes(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]
