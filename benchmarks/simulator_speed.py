"""How fast the simulator replays: output tokens and blocks per CPU second on one core, a ledger row every step.

    python benchmarks/simulator_speed.py [TRACE.csv|TRACE.parquet] [--json FILE|-] [--rounds N]

TRACE is Azure's conversation trace of 2023; by default that of benchmarks/public_traces.py, and without one the
cases that replay it are left out, which is said.

llama-3.1-8b on roofline:h100-sxm with a pool of 16 GiB and the default policy, prefix caching on (max_model_len
16384, so that no request is refused). The CPU seconds are all that lies between a loaded Trace and its Replay:
content tree, engine, every step with its row, seeded audits. Every round is printed; the best of them counts.

    conv      Azure's conversation trace of 2023, whole, at rate_scale 2 (block 16 and 1) and 1; no shared prefixes
    shared    20,000 requests, 500 tokens in and 250 out on average, half of them with one of 64 prefixes of 320
              tokens: at 30 a second, where the pool is nearly full and nobody is preempted yet; beside it at 20
              and at 35, where thousands are

Long prompts cost by the block, so blocks per second stand beside tokens per second. Exit 1 where a target is
missed, 2 where the trace cannot be read.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.public_traces import PUBLIC, TRACES, absent, folder
from trials.content import Content
from trials.engine import Refused
from trials.engines import simulator
from trials.formats import reader
from trials.generate import Preset, generate
from trials.load import offer
from trials.recording import Replay
from trials.replay import replay
from trials.spec import TrialSpec, trial_spec
from trials.trace import Trace, TraceError, load_trace

CONV = "azure conv"
CONV_TOKENS_PER_S, SHARED_TOKENS_PER_S, MOST_FOR_BLOCK_1 = 3.0e6, 4.0e6, 5.0


@dataclass(frozen=True)
class Case:
    """One trace at one load and block size."""

    name: str
    block_size: int
    rate_scale: float


@dataclass(frozen=True)
class Row:
    """What a case came to; rates by the best round. CPU seconds of this process, one thread."""

    name: str
    block_size: int
    rate_scale: float
    requests: int
    output_tokens: int
    steps: int
    blocks: int
    preemptions: int
    hit_tokens: int
    cpu_s: tuple[float, ...]

    @property
    def best_s(self) -> float:
        return min(self.cpu_s)

    def per_second(self, amount: int) -> float:
        return amount / self.best_s


def spec_of(case: Case) -> TrialSpec:
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"},
        "model": "llama-3.1-8b", "pool": {"bytes": "16GiB"},
        "policy": {"block_size": case.block_size, "max_model_len": 16_384},
        "trace": {"path": case.name}, "slo": "ttft:p99<500ms;itl:p99<50ms",
        "measure": {"load": {"rate_scale": case.rate_scale}},
    })  # fmt: skip


def shared_trace() -> Trace:
    """The generated trace; lengths as in the published probes of other simulators."""
    return generate(Preset.model_validate({
        "name": "shared", "rows": 20_000, "seed": 0, "arrivals": {"kind": "poisson", "rps": 30.0},
        "prompt": {"kind": "lognormal", "mean": 500, "sigma": 0.7, "min": 16, "max": 2048},
        "output": {"kind": "lognormal", "mean": 250, "sigma": 0.7, "min": 4, "max": 1024},
        "prefix": {"share": 0.5, "roots": 64, "lengths": [320], "tokens_per_id": 16},
    }))  # fmt: skip


def conv_trace(path: Path) -> Trace:
    return load_trace(path) if path.suffix == ".parquet" else reader("azure")([path])


def once(trace: Trace, case: Case) -> tuple[float, Replay]:
    """CPU seconds from the loaded trace to the replay. Collection off, as in a trial."""
    spec = spec_of(case)
    assert spec.measure.load is not None
    gc.collect()
    gc.disable()
    began = time.process_time()
    engine = simulator.open(spec, Content(trace))
    assert not isinstance(engine, Refused), engine.words
    recorded = replay(engine, trace, offer(trace, spec.trace, spec.measure.load, "cold"))
    took = time.process_time() - began
    gc.enable()
    return took, recorded


def run(trace: Trace, case: Case, rounds: int) -> Row:
    """Time a case; AssertionError where a request was not served or a ledger did not balance."""
    seconds = []
    for _ in range(rounds):
        took, recorded = once(trace, case)
        seconds.append(took)
    requests = recorded.requests
    assert not recorded.reasons, f"{case}: {len(recorded.reasons)} requests were refused"
    assert not recorded.broken_laws, recorded.broken_laws[0]
    assert (requests.num_delivered == requests.num_output_tokens).all(), f"{case}: tokens are missing"
    return Row(
        case.name, case.block_size, case.rate_scale, len(trace), int(requests.num_delivered.sum()),
        int((recorded.steps["idle"] == 0).sum()), int(recorded.ledger["allocated_blocks"].sum()),
        int(requests.preemptions.sum()), int(requests.cached_tokens.sum()), tuple(round(s, 4) for s in seconds),
    )  # fmt: skip


def targets(rows: dict[str, Row]) -> list[tuple[str, float, bool]]:
    """(what was asked, what was reached, met)"""
    shared = rows["shared"]
    speed = shared.per_second(shared.output_tokens)
    found = [(f"shared prefixes at 30/s, block 16: >= {SHARED_TOKENS_PER_S:.2g} output tokens per CPU s", speed,
              speed >= SHARED_TOKENS_PER_S)]  # fmt: skip
    if (conv := rows.get("conv")) is None:
        return found
    ratio, speed = rows["block 1"].best_s / conv.best_s, conv.per_second(conv.output_tokens)
    return [
        (f"conv, rate_scale 2, block 16: >= {CONV_TOKENS_PER_S:.2g} output tokens per CPU s", speed,
         speed >= CONV_TOKENS_PER_S),
        *found,
        (f"conv, rate_scale 2: block 1 takes <= {MOST_FOR_BLOCK_1:g}x the CPU s of block 16", ratio,
         ratio <= MOST_FOR_BLOCK_1),
    ]  # fmt: skip


def cases_of(conv: Trace | None, shared: Trace) -> dict[str, tuple[Trace, Case]]:
    """Those of the conversation trace, where it is at hand, then those of the generated one."""
    of_conv = {"conv": Case("conv", 16, 2.0), "conv, rate_scale 1": Case("conv", 16, 1.0),
               "block 1": Case("conv", 1, 2.0)}  # fmt: skip
    of_shared = {"shared": Case("shared", 16, 1.0), "shared, 20/s": Case("shared", 16, 20 / 30),
                 "shared, 35/s": Case("shared", 16, 35 / 30)}  # fmt: skip
    found = {name: (conv, case) for name, case in of_conv.items()} if conv is not None else {}
    return found | {name: (shared, case) for name, case in of_shared.items()}


def table(rows: Sequence[Row]) -> str:
    head = (
        f"{'trace':8}{'block':>6}{'scale':>6}{'tokens':>11}{'steps':>9}{'blocks':>12}{'preempt':>8}"
        f"{'M tok/s':>9}{'M blocks/s':>11}{'k steps/s':>10}  CPU s of each round"
    )
    lines = [
        f"{r.name:8}{r.block_size:6}{r.rate_scale:6.3g}{r.output_tokens:11,}{r.steps:9,}{r.blocks:12,}{r.preemptions:8}"
        f"{r.per_second(r.output_tokens) / 1e6:9.2f}{r.per_second(r.blocks) / 1e6:11.2f}"
        f"{r.per_second(r.steps) / 1e3:10.0f}  {' '.join(f'{s:.3f}' for s in r.cpu_s)}"
        for r in rows
    ]
    return "\n".join([head, *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help=f"Azure CSV, or an imported trace; else of {TRACES}")
    parser.add_argument("--json", help="write the result there; - for stdout alone")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    path = asked.trace or next(iter(PUBLIC[CONV].paths(folder(TRACES))), None)
    try:
        conv = conv_trace(path) if path is not None else None
    except (OSError, TraceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if conv is None:
        print(f"left out: {absent(CONV, folder(TRACES))}", file=sys.stderr)
    cases = cases_of(conv, shared_trace())
    rows = {name: run(trace, case, asked.rounds) for name, (trace, case) in cases.items()}
    reached = targets(rows)
    answer = {
        "rows": {name: asdict(row) for name, row in rows.items()},
        "targets": [{"asked": text, "reached": value, "met": met} for text, value, met in reached],
    }
    if asked.json != "-":
        print(table(list(rows.values())))
        for text, value, met in reached:
            print(f"{'met   ' if met else 'MISSED'} {text}: {value:,.3g}")
    if asked.json == "-":
        print(json.dumps(answer, indent=1))
    elif asked.json:
        Path(asked.json).write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    return 0 if all(met for _, _, met in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
