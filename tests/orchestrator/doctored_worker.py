"""A worker whose engine lies: a real trial, whose result is then made what its block size says. SPEC OUT."""

import json
import sys
from pathlib import Path

from trials.worker import main

SIZE_OF = {"infeasible": 1, "failed": 2, "nan": 4, "no tokens": 8, "unbalanced": 16, "feasible": 32,
           "refused its hard requests": 64, "refused": 128}  # fmt: skip


def doctor(result: dict, size: int) -> dict:
    """Everybody claims 100 tokens a second; block 32 has 60, and nothing against it."""
    decides = result["replays"][result["decides"]]
    for metrics in (result["metrics"], decides["metrics"]):
        metrics["qualified_output_throughput"] = 60.0 if size == SIZE_OF["feasible"] else 100.0
    if size == SIZE_OF["infeasible"]:
        decides["metrics"]["slo_values_ms"]["ttft:p99<500ms"] = 505.0
        decides["holds"] = False
    if size == SIZE_OF["nan"]:
        decides["metrics"]["qualified_output_throughput"] = float("nan")
        result["metrics"]["qualified_output_throughput"] = float("nan")
    if size == SIZE_OF["no tokens"]:
        decides["metrics"]["qualified_output_tokens"] = result["metrics"]["qualified_output_tokens"] = 0
    if size == SIZE_OF["unbalanced"]:
        decides["ledger"]["unbalanced_rows"] = result["ledger"]["unbalanced_rows"] = 3
    if size == SIZE_OF["refused its hard requests"]:
        counts = decides["counts"]
        counts["rejected"], counts["completed"] = 2, counts["completed"] - 2
        decides["attainment"] = counts["completed"] / counts["offered"]
        decides["holds"] = False
    if size == SIZE_OF["refused"]:
        result |= {"status": "refused", "reason": "no room", "replays": [], "decides": None}
    return result


if __name__ == "__main__":
    spec = json.loads(Path(sys.argv[1]).read_text())
    code = main(sys.argv[1:3])
    size = spec["policy"]["block_size"]
    if size == SIZE_OF["failed"]:
        print("the engine fell over", file=sys.stderr)
        sys.exit(3)
    out = Path(sys.argv[2]) / "result.json"
    out.write_text(json.dumps(doctor(json.loads(out.read_text()), size)))  # NaN too, as a careless engine would
    sys.exit(code)
