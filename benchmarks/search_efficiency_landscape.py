"""What every point of the space is worth: the exhaustive simulation behind `search_efficiency.py`.

    python benchmarks/search_efficiency_landscape.py azure|mooncake [TRACES] [--check N]

Writes search_efficiency_SCENE.npz beside itself: minutes to an hour on one core. Points that cannot differ share a
replay: where nobody was preempted the victim's rule decided nothing, and where never as many ran as a smaller
max_num_seqs allows, that one decided nothing either. `--check N` simulates the optimum and N drawn points again and
compares; exit 1 where one differs.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.public_traces import TRACES, absent, folder
from benchmarks.search_efficiency_space import (
    SCENES,
    Landscape,
    Scene,
    Stage,
    digest_of,
    load_landscape,
    places,
    read_trace,
    save_landscape,
)
from search_spaces.dimension import Value
from search_spaces.neighbours import key_of
from trials.ladder import Measured

NUMBERS = 4  # qualified and output throughput, p99 of TTFT and of TPOT
_FIELDS = ("block_size", "max_num_batched_tokens", "queue", "watermark")  # a difference in these always counts


@dataclass(frozen=True)
class Told:
    """What one replay said, and whether two of its knobs had anything to decide."""

    numbers: tuple[float, ...]
    preempted: bool
    most_running: int


def told(measured: Measured) -> Told:
    m = measured.result.metrics
    numbers = (m.qualified_output_throughput, m.output_throughput, m.ttft_ms.p99, m.tpot_ms.p99)
    preempted = bool(measured.replay.requests.preemptions.sum())
    clean = tuple(float("nan") if x is None else float(x) for x in numbers)
    return Told(clean, preempted, int(measured.replay.steps["num_running"].max()))


def simulate(stage: Stage, replay: Callable[[dict[str, Value]], Measured], say: Callable[[str], None]) -> NDArray:
    """[candidates, NUMBERS] by replays of those candidates that can differ."""
    found = np.full((stage.space.num_candidates, NUMBERS), np.nan)
    at, began, ran = places(stage.space), time.monotonic(), 0
    groups = list(_groups(stage))
    for number, group in enumerate(groups):
        known: dict[tuple[Value, Value], list[tuple[int, Value, Told]]] = {}
        for params in group:
            one = _same(params, known.get(_rules(params, "victim"), []), known)
            if one is None:
                one, ran = told(replay(params)), ran + 1
            rules = _rules(params, "victim")
            known.setdefault(rules, []).append((int(params["max_num_seqs"]), params.get("victim", ""), one))
            found[at[key_of(params)]] = one.numbers
        if number % 20 == 0:
            say(f"{number + 1} of {len(groups)} groups, {ran} replays, {time.monotonic() - began:.0f} s")
    return found


def _rules(params: dict[str, Value], name: str) -> tuple[Value, Value]:
    return params["reserve_output"], params.get(name, "")


def _groups(stage: Stage) -> Iterator[list[dict[str, Value]]]:
    """Candidates that differ in slots and in who is preempted only, most slots first."""
    by_rest: dict[tuple[Value, ...], list[dict[str, Value]]] = {}
    for params in stage.space.candidates():
        by_rest.setdefault(tuple(params[name] for name in _FIELDS), []).append(params)
    for group in by_rest.values():
        yield sorted(group, key=lambda p: -int(p["max_num_seqs"]))


def _same(
    params: dict[str, Value], larger: list[tuple[int, Value, Told]],
    known: dict[tuple[Value, Value], list[tuple[int, Value, Told]]],
) -> Told | None:  # fmt: skip
    """A replay that this candidate's would repeat, event for event."""
    slots = int(params["max_num_seqs"])
    if larger and larger[-1][2].most_running < slots:
        return larger[-1][2]
    if params["reserve_output"] == "none":
        for (reserve, _), ones in known.items():
            if reserve == "none" and ones[-1][0] == slots and not ones[-1][2].preempted:
                return ones[-1][2]
    return None


def landscape(scene: Scene, folder: Path, say: Callable[[str], None]) -> Landscape:
    """Everything, anew."""
    trace = read_trace(scene, folder)
    stage = Stage(scene, trace)
    loads = [_at_load(stage, load, say) for load in scene.loads]
    numbers = np.stack(loads, axis=2)  # [candidates, NUMBERS, loads]
    screens = [_screen(stage, table, say) for table in range(scene.screens)]
    columns = [numbers[:, n, :] for n in range(NUMBERS)]
    return Landscape(*columns, np.stack(screens), digest_of(scene, trace))


def _at_load(stage: Stage, load: float, say: Callable[[str], None]) -> NDArray:
    say(f"{stage.scene.name}: load {load:g}")
    return simulate(stage, lambda params: stage.replay(params, load, stage.scene.requests), say)


def _screen(stage: Stage, table: int, say: Callable[[str], None]) -> NDArray:
    say(f"{stage.scene.name}: screen by wrong table {table}")
    middle, requests = stage.scene.loads[1], stage.scene.screen_requests
    return simulate(stage, lambda params: stage.replay(params, middle, requests, table), say)[:, 0]


def check(scene: Scene, folder: Path, count: int) -> list[str]:
    """Points whose replay today says another thing than the file does."""
    trace, stored = read_trace(scene, folder), load_landscape(scene)
    if stored.digest != digest_of(scene, trace):
        return [f"{scene.name}: the stored answers are of another trace, space or scene"]
    stage, wrong = Stage(scene, trace), []
    every = list(stage.space.candidates())
    drawn = [int(stored.values.argmax()), *random.Random(1).sample(range(len(every)), count)]
    for row in drawn:
        now = [told(stage.replay(every[row], load, scene.requests)).numbers[0] for load in scene.loads]
        if not np.allclose(now, stored.qualified[row], rtol=1e-6):
            wrong.append(f"{scene.name} {every[row]}: {stored.qualified[row]} then, {now} now")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("traces", nargs="?", type=Path)
    parser.add_argument("--check", type=int, metavar="N")
    given = parser.parse_args()
    scene, traces = SCENES[given.scene], folder(TRACES, given.traces)
    if traces is None or not (traces / scene.file).is_file():
        print(absent(scene.public, traces), file=sys.stderr)
        return 2
    if given.check is not None:
        wrong = check(scene, traces, given.check)
        print("\n".join(wrong) or f"{scene.name}: {given.check + 1} points say what they said")
        return 1 if wrong else 0
    save_landscape(scene, landscape(scene, traces, lambda text: print(text, flush=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
