"""What the search for capacity costs: racing with inherited brackets against plain bisection, over 40 candidates.

    python benchmarks/capacity.py [TRACE.parquet|TRACE.csv] [--json FILE|-] [--requests N]

Candidates: block sizes 4 to 512 by token budgets 256 to 4,096, llama-3.1-8b on roofline:h100-sxm in 4 GiB, loads
from a quarter to 16 times the trace's rate on rungs 2 % apart. Cost is engine time: what a measured engine would
run for. Without a trace: 300 requests of chat, Poisson, a third of them with a shared opening.

    plain     both ends, then bisection; every replay to its end
    early     the same search for one candidate at a time, from the top, its replays ended once they are sure
    race      the default whole; a challenger has to hold one rung above the incumbent, or it is out

Targets: race at most 0.35 of plain for the same winner; early at most 0.85 of plain; no load that any of them
returns fails when it is replayed in full. Exit 1 where one is missed.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from search_spaces.race import race
from trials.bracket import rungs, search
from trials.capacity import load_of
from trials.content import Content
from trials.engine import Refused
from trials.engines import simulator
from trials.formats import reader
from trials.generate import Preset, generate
from trials.ladder import Replays
from trials.spec import Ladder, TrialSpec, Window, trial_spec
from trials.trace import Trace, load_trace

BLOCK_SIZES = (16, 4, 8, 32, 64, 128, 256, 512)  # the default first
BUDGETS = (2048, 256, 512, 1024, 4096)
LADDER = Ladder(low=0.25, high=16, within=0.02)
SLO = "ttft:p95<1s;tpot:p95<60ms"
RACE_SHARE, EARLY_SHARE = 0.35, 0.85


@dataclass
class Search:
    """One candidate's search: the rung that it came to, and what it cost."""

    best: int | None
    replays: int
    engine_s: float


@dataclass
class Candidate:
    label: str
    spec: TrialSpec
    plain: Search | None = None
    early: Search | None = None
    fails_in_full: list[str] = field(default_factory=list)


def chat(requests: int) -> Trace:
    return generate(Preset.model_validate({
        "name": "capacity", "rows": requests, "seed": 11, "arrivals": {"kind": "poisson", "rps": 8.0},
        "prompt": {"kind": "lognormal", "mean": 700, "sigma": 0.9, "min": 32, "max": 6000},
        "output": {"kind": "lognormal", "mean": 120, "sigma": 0.7, "min": 4, "max": 500},
        "prefix": {"share": 0.33, "roots": 4, "lengths": [256], "tokens_per_id": 16},
    }))  # fmt: skip


def candidates(trace: Trace, requests: int) -> list[Candidate]:
    at = trace.arrival_ns - trace.arrival_ns[0]
    duration = int(at[min(requests, len(at)) - 1]) + 1
    found = []
    for budget in BUDGETS:
        for size in BLOCK_SIZES:
            spec = trial_spec({
                "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"}, "model": "llama-3.1-8b",
                "pool": {"bytes": "4GiB"}, "trace": {"path": "t"}, "slo": SLO, "phases": ["cold"],
                "policy": {"block_size": size, "max_num_batched_tokens": budget, "max_model_len": 16384},
            })  # fmt: skip
            window = Window.model_construct(start=0, duration=duration)
            own = spec.model_copy(update={"trace": spec.trace.model_copy(update={"window": window})})
            found.append(Candidate(f"block {size}, budget {budget}", own))
    return found


class Bench:
    """All searches meet the same rungs on engines of the same content."""

    def __init__(self, trace: Trace, field_: list[Candidate]) -> None:
        self.trace, self.content, self.field, self.values = trace, Content(trace), field_, rungs(LADDER)

    def replays(self, number: int) -> Replays:
        engine = simulator.open(self.field[number].spec, self.content)
        assert not isinstance(engine, Refused)
        return Replays(engine, self.trace, self.field[number].spec, lambda text: None)

    def holds(self, replays: Replays, rung: int, early: bool) -> bool:
        load = load_of(LADDER.over, self.values[rung])
        return replays.passes(load, "cold") if early else replays.holds_in_full(load, "cold")

    def plain(self, number: int) -> Search:
        replays = self.replays(number)
        best = _bisect(lambda rung: self.holds(replays, rung, early=False), len(self.values))
        return Search(best, len(replays.done), _engine_s(replays))

    def early(self, number: int) -> Search:
        replays = self.replays(number)
        found = search(lambda rung: self.holds(replays, rung, early=True), len(self.values))
        if found.best is not None and not self.holds(replays, found.best, early=False):  # the deciding replay
            self.field[number].fails_in_full.append(f"early: {self.values[found.best]:g}")
        return Search(found.best, len(replays.done), _engine_s(replays))

    def race(self) -> tuple[int | None, Search]:
        running = [self.replays(k) for k in range(len(self.field))]
        raced = race(len(running), lambda k, rung: self.holds(running[k], rung, early=True), len(self.values))
        winner, best = raced.winner, raced.rung
        if winner is not None and best is not None and not self.holds(running[winner], best, early=False):
            self.field[winner].fails_in_full.append(f"race: {self.values[best]:g}")
        cost = sum(_engine_s(r) for r in running)
        return winner, Search(best, sum(len(r.done) for r in running), cost)


def _bisect(holds: Callable[[int], bool], count: int) -> int | None:
    if not holds(0):
        return None
    if holds(count - 1):
        return count - 1
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _engine_s(replays: Replays) -> float:
    return sum(m.result.observation.drain_end_ns for m in replays.done) / 1e9


def read(path: Path | None, requests: int) -> Trace:
    if path is None:
        return chat(requests)
    return load_trace(path) if path.suffix == ".parquet" else reader("azure")([path])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--json", help="file for the JSON, or - for stdout (then the table goes to stderr)")
    parser.add_argument("--requests", type=int, default=300)
    given = parser.parse_args()
    trace = read(given.trace, given.requests)
    bench = Bench(trace, candidates(trace, given.requests))
    for number, candidate in enumerate(bench.field):
        candidate.plain, candidate.early = bench.plain(number), bench.early(number)
    winner, raced = bench.race()
    plain = [c.plain for c in bench.field if c.plain is not None]
    early = [c.early for c in bench.field if c.early is not None]
    top = max(range(len(plain)), key=lambda k: -1 if plain[k].best is None else plain[k].best or 0)
    cost = sum(s.engine_s for s in plain)
    shares = [e.engine_s / p.engine_s for e, p in zip(early, plain, strict=True)]
    failing = [f"{c.label}: {x}" for c in bench.field for x in c.fails_in_full]
    document = {
        "candidates": len(plain), "rungs": len(bench.values), "requests": given.requests, "slo": SLO,
        "plain": {"engine_s": cost, "replays": sum(s.replays for s in plain), "winner": bench.field[top].label,
                  "capacity": _value(bench, plain[top].best)},
        "race": {"engine_s": raced.engine_s, "replays": raced.replays, "share": raced.engine_s / cost,
                 "winner": None if winner is None else bench.field[winner].label,
                 "capacity": _value(bench, raced.best)},
        "early": {"share": sum(s.engine_s for s in early) / cost, "worst_share": max(shares),
                  "replays": sum(s.replays for s in early),
                  "other_capacity": sum(e.best != p.best for e, p in zip(early, plain, strict=True))},
        "fail_in_full": failing,
        "by_candidate": [
            {"label": c.label, "plain": asdict(c.plain), "early": asdict(c.early)}
            for c in bench.field if c.plain is not None and c.early is not None
        ],
    }  # fmt: skip
    met = {
        f"race <= {RACE_SHARE}": raced.engine_s / cost <= RACE_SHARE,
        "same winner": winner is not None and plain[winner].best == plain[top].best,
        f"early <= {EARLY_SHARE}": sum(s.engine_s for s in early) / cost <= EARLY_SHARE,
        "no returned load fails in full": not failing,
    }
    _table(document, met, sys.stderr if given.json == "-" else sys.stdout)
    text = json.dumps({**document, "met": met}, indent=1) + "\n"
    if given.json == "-":
        sys.stdout.write(text)
    elif given.json:
        Path(given.json).write_text(text, encoding="utf-8")
    return 0 if all(met.values()) else 1


def _value(bench: Bench, rung: int | None) -> float | None:
    return None if rung is None else bench.values[rung]


def _table(document: dict, met: dict[str, bool], where) -> None:
    print(f"{document['candidates']} candidates, {document['rungs']} rungs, {document['requests']} requests, "
          f"{document['slo']}", file=where)  # fmt: skip
    print(f"{'':<8}{'engine s':>10}{'replays':>9}{'share':>8}  winner", file=where)
    plain, raced, early = document["plain"], document["race"], document["early"]
    print(f"{'plain':<8}{plain['engine_s']:>10.0f}{plain['replays']:>9}{1:>8.2f}  "
          f"{plain['winner']} at {plain['capacity']:g} x", file=where)  # fmt: skip
    print(f"{'race':<8}{raced['engine_s']:>10.0f}{raced['replays']:>9}{raced['share']:>8.2f}  "
          f"{raced['winner']} at {raced['capacity'] or 0:g} x", file=where)  # fmt: skip
    print(f"{'early':<8}{early['share'] * plain['engine_s']:>10.0f}{early['replays']:>9}{early['share']:>8.2f}  "
          f"worst {early['worst_share']:.2f}; {early['other_capacity']} on another rung", file=where)  # fmt: skip
    for name, value in met.items():
        print(f"{'met' if value else 'MISSED':<8}{name}", file=where)
    for line in document["fail_in_full"]:
        print(f"fails in full: {line}", file=where)


if __name__ == "__main__":
    sys.exit(main())
