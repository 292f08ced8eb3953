"""How many replays a search needs until it is within 2 % of the best policy, on two production traces.

    python benchmarks/search_efficiency.py [TRACES] [--scene azure|mooncake] [--seeds N] [--json FILE|-]

The space has 6,048 points (block size, token budget, slots, queue, watermark, output reservation, victim); what a
point is worth is its mean qualified output throughput over three loads of 500 requests, so one costs 3 replays. All
were simulated beforehand (search_efficiency_landscape.py): the optimum is known, and so is how few points lie near
it. TRACES, where it is there, is checked against the digest of those answers. Replays are counted until a point
within 2 % of the optimum has been measured:

    random     points without replacement: what 9 of 10 draws need, exactly
    walk       one knob at a time from the default, the best value of each kept; begun anew at random where stuck
    plain TPE  Optuna's TPE with its defaults; latency is a penalty on output throughput
    tpe, gp    what `sampler: tpe` and `sampler: gp` propose, the default first
    screened   what `screen` lists, in its order, from a simulator whose step times are off by 10 % at random, each
               seed by a table of its own; then `sampler: tpe`

Aims: at most a fifth of random's replays and a third of plain TPE's, in 9 of 10 seeds. Exit 1 where the best of our
searches misses one.
"""

import argparse
import json
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.public_traces import TRACES, absent, folder
from benchmarks.search_efficiency_space import (
    SCENES,
    WITHIN,
    Landscape,
    Scene,
    digest_of,
    load_landscape,
    places,
    read_trace,
    space_of,
)
from orchestrator.past import Past
from orchestrator.samplers import Search, listed_next, propose
from search_spaces.dimension import Value
from search_spaces.idle import Reached
from search_spaces.neighbours import Key, key_of
from search_spaces.screen import Screen, Screened, shortlist
from search_spaces.space import Space

LOADS = 3  # replays that a point costs
OF_RANDOM, OF_PLAIN = 1 / 5, 1 / 3
KEEP, CHECKS, MIN_GAIN = 0.2, 4, 0.02  # of a screen: what a sweep takes by default
_GP_MOST = 200  # candidates: what a sweep allows it
Points = Iterator[dict[str, Value]]


@dataclass
class Ground:
    """One scene's space and answers; who searches asks `worth` and nothing else."""

    scene: Scene
    space: Space
    found: Landscape
    rows: dict[Key, int]

    def row(self, params: dict[str, Value]) -> int:
        return self.rows[key_of(params)]

    def worth(self, params: dict[str, Value]) -> float:
        return float(self.found.values[self.row(params)])

    def came_of(self, params: dict[str, Value]) -> Past:
        return Past(params, (self.worth(params),), reached=reached_at(self, params))

    def penalised(self, params: dict[str, Value]) -> float:
        """Output throughput less its share for every limit that its p99 misses, by how far, over the loads."""
        row = self.row(params)
        ttft_ms, tpot_ms = self.scene.limits_ms
        over = np.maximum(0, self.found.ttft_p99_ms[row] / ttft_ms - 1)
        over += np.maximum(0, self.found.tpot_p99_ms[row] / tpot_ms - 1)
        return float((self.found.output[row] * (1 - over)).mean())


def ground(scene: Scene) -> Ground:
    space = space_of(scene)
    return Ground(scene, space, load_landscape(scene), places(space))


def reached_at(where: Ground, params: dict[str, Value]) -> Reached:
    """What its replays would have said of limits that nobody came to, read off the answers: where these are equal
    to the last bit at all loads whatever the victim's rule, or the slots, that had nothing to decide."""

    def same(other: dict[str, Value]) -> bool:
        return all(np.array_equal(a[where.row(other)], a[where.row(params)]) for a in where.found.answers)

    values = {d.field: d.values for d in where.space.dimensions}
    slots, victims = values["max_num_seqs"], values["victim"]
    here = int(params["max_num_seqs"])
    wide = [int(v) for v in slots if same({**params, "max_num_seqs": v})]
    idle = "victim" not in params or all(same({**params, "victim": v}) for v in victims)
    binds = max(wide) < int(slots[-1]) or len(wide) == 1
    return Reached(here if binds else min(wide) - 1, 0 if idle else 1, 1)


def until_good(points: Points, where: Ground, most: int) -> int:
    """Distinct points measured until one is good; `most` where that many were not enough."""
    seen: set[int] = set()
    good = where.found.good
    for params in points:
        row = where.row(params)
        seen.add(row)
        if good[row] or len(seen) >= most:
            break
    return len(seen)


def default_of(where: Ground) -> dict[str, Value]:
    params = where.space.params_of(where.space.default)
    assert params is not None
    return params


def searched(sampler: str, seed: int, where: Ground, past: list[Past] | None = None) -> Points:
    """A sweep's own search, from its default on, or from what was measured before."""
    past = past if past is not None else []
    search = Search(sampler, where.space, ("maximize",), seed)
    params = default_of(where) if not past else None
    while True:
        params = params or propose(search, past, len(past)).params
        yield params
        past.append(where.came_of(params))
        params = None


def screened(seed: int, where: Ground) -> Points:
    """What the screen of this seed's table lists, as `sampler: gp` follows it; dropped as a sweep would drop it."""
    table = where.found.screens[seed % len(where.found.screens)]
    said = [Screened(dict(key), float(table[row])) for key, row in where.rows.items()]
    screen = Screen(tuple(shortlist(where.space, said, KEEP, CHECKS, seed)), {key_of(s.params): s for s in said})
    search = Search("gp", where.space, ("maximize",), seed, screen)
    past: list[Past] = []
    measured: dict[Key, Screened] = {}
    while not screen.misled(measured, MIN_GAIN):
        params = listed_next(search, past, measured, len(past))
        if params is None:
            break
        yield params
        past.append(where.came_of(params))
        measured[key_of(params)] = Screened(params, where.worth(params))
    yield from searched("gp", seed, where, past)


def walk(seed: int, where: Ground) -> Points:
    """One knob at a time, in an order of its own; anew from a random point when none gets better."""
    rng = random.Random(seed)
    here = default_of(where)
    every = list(where.space.candidates())
    while True:
        yield here
        better = True
        while better:
            better = False
            for d in rng.sample(where.space.dimensions, len(where.space.dimensions)):
                tried = [where.space.canonical({**here, d.field: v}) for v in d.values if d.field in here]
                yield from tried
                best = max([here, *tried], key=where.worth)
                better, here = better or where.worth(best) > where.worth(here), best
        here = rng.choice(every)


def plain(seed: int, where: Ground) -> Points:
    """Optuna as it comes: exponents, categories, a penalty, and a knob only where it matters."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    while True:
        trial = study.ask()
        params: dict[str, Value] = {}
        for d in where.space.dimensions:
            if not where.space.matters(d, params):
                continue
            if d.exponents:
                low, high = int(d.values[0]).bit_length() - 1, int(d.values[-1]).bit_length() - 1
                params[d.field] = 1 << trial.suggest_int(d.field, low, high)
            else:
                params[d.field] = trial.suggest_categorical(d.field, d.values)
        yield params
        study.tell(trial, where.penalised(params))


def random_needs(where: Ground, share: float = 0.9) -> int:
    """Points after which so many of random draws without replacement have met a good one: hypergeometric, exact."""
    good, left, missed = int(where.found.good.sum()), len(where.rows), 1.0
    for drawn in range(left):
        missed *= max(0, left - drawn - good) / (left - drawn)
        if 1 - missed >= share:
            return drawn + 1
    return left


SEARCHES: dict[str, Callable[[int, Ground], Points]] = {
    "walk": walk,
    "plain TPE": plain,
    "tpe": lambda seed, where: searched("tpe", seed, where),
    "gp": lambda seed, where: searched("gp", seed, where),
    "screened": screened,
}
OURS = ("tpe", "gp", "screened")


def run(scene: Scene, seeds: int) -> dict:
    """Everything of one scene, as a document."""
    where = ground(scene)
    values, good = where.found.values, where.found.good
    most = len(where.rows)
    by_search: dict[str, dict] = {"random": {"points_9_of_10": random_needs(where)}}
    for name, search in SEARCHES.items():
        limit = _GP_MOST if name == "gp" else most
        points = sorted(until_good(search(seed, where), where, limit) for seed in range(seeds))
        by_search[name] = {"points": points, "points_9_of_10": points[math.ceil(0.9 * seeds) - 1],
                           "median": points[(seeds - 1) // 2]}  # fmt: skip
    for one in by_search.values():
        one["replays_9_of_10"] = LOADS * one["points_9_of_10"]
    every = list(where.space.candidates())
    return {
        "scene": scene.name, "slo": scene.slo, "loads": scene.loads, "points": most,
        "share_within": float(good.mean()), "optimum": float(values.max()),
        "optimum_at": every[int(values.argmax())], "default": float(where.worth(default_of(where)) / values.max()),
        "searches": by_search, "digest": where.found.digest,
    }  # fmt: skip


def met(document: dict) -> dict[str, bool]:
    """The aims, by the best of our searches."""
    searches = document["searches"]
    best = min(searches[name]["points_9_of_10"] for name in OURS)
    needs = {name: searches[name]["points_9_of_10"] for name in ("random", "plain TPE")}
    return {
        "a fifth of random": best <= OF_RANDOM * needs["random"],
        "a third of plain TPE": best <= OF_PLAIN * needs["plain TPE"],
        "at most 1 % within 2 %": document["share_within"] <= 0.01,
    }


def _table(document: dict, where) -> None:
    print(f"{document['scene']}: {document['points']:,} points, {document['share_within']:.2%} within "
          f"{WITHIN:.0%} of {document['optimum']:,.0f} tok/s; the default has {document['default']:.0%} of it; "
          f"{document['slo']} at loads {', '.join(f'{x:g}' for x in document['loads'])}", file=where)  # fmt: skip
    print(f"{'':<11}{'replays':>9}{'median':>8}{'of random':>11}{'of plain':>10}", file=where)
    searches = document["searches"]
    base, tpe = searches["random"]["replays_9_of_10"], searches["plain TPE"]["replays_9_of_10"]
    for name, one in searches.items():
        median = f"{LOADS * one['median']}" if "median" in one else ""
        replays = one["replays_9_of_10"]
        print(f"{name:<11}{replays:>9}{median:>8}{replays / base:>11.2f}{replays / tpe:>10.2f}", file=where)
    for aim, held in document["met"].items():
        print(f"{'met' if held else 'MISSED':<8}{aim}", file=where)


def main() -> int:
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="?", type=Path)
    parser.add_argument("--scene", choices=SCENES, action="append")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", help="file for the JSON, or - for stdout (then the tables go to stderr)")
    given = parser.parse_args()
    out, traces = sys.stderr if given.json == "-" else sys.stdout, folder(TRACES, given.traces)
    documents = []
    for name in given.scene or SCENES:
        scene = SCENES[name]
        document = run(scene, given.seeds)
        document["met"] = met(document)
        _table(document, out)
        if traces is None or not (traces / scene.file).is_file():
            print(f"the answers' digest is not checked: {absent(scene.public, traces)}", file=out)
        elif document["digest"] != digest_of(scene, read_trace(scene, traces)):
            print(f"{name}: the answers are of another trace, space or scene", file=out)
            document["met"]["answers are of this trace"] = False
        documents.append(document)
    text = json.dumps(documents, indent=1) + "\n"
    if given.json == "-":
        sys.stdout.write(text)
    elif given.json:
        Path(given.json).write_text(text, encoding="utf-8")
    return 0 if all(all(d["met"].values()) for d in documents) else 1


if __name__ == "__main__":
    sys.exit(main())
