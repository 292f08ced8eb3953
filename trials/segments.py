"""A request's stay in the pool, cut where it enters a new block: what lay in its tail block, and for how long.

Made from runs of tokens alone, O(blocks), so that watching it costs the replay nothing. Only steps that gave the
request a token are covered; the columns do not tell who held what while a prompt was computed in pieces.

    run      |.......held = 5.. 8|9.......12|13..15|        block_size 4
    segment  |        block 1    | block 2  |  3   |
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials.latency import Runs
from trials.occupancy import Held
from trials.recording import Ints, Replay

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Segments:
    """Steps first .. last in which block number `block` is a request's tail. Shapes [N], by (request, step)."""

    request: Ints  # index into Requests
    run: Ints  # index into Runs
    block: Ints
    first: Ints
    last: Ints
    held: Ints  # tokens held in step `first`; one more in each later one


def segments(replay: Replay, runs: Runs, block_size: int) -> Segments:
    """Every run cut at block boundaries."""
    held = replay.requests.num_prompt_tokens[runs.request] + runs.before
    num = runs.num_tokens
    low = (held - 1) // block_size
    count = (held + num - 2) // block_size - low + 1
    run = np.repeat(np.arange(len(num)), count)
    place = np.arange(len(run), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)
    block = low[run] + place
    begin = np.maximum(0, block * block_size + 1 - held[run])
    end = np.minimum(num[run] - 1, (block + 1) * block_size - held[run])
    return Segments(
        runs.request[run], run, block, runs.first[run] + begin, runs.first[run] + end, held[run] + begin
    )


@dataclass(frozen=True, slots=True)
class Integrals:
    """Over the part of each segment inside the window: seconds, and token-seconds held. Shapes [N]."""

    seconds: Floats
    held: Floats


def integrals(parts: Segments, seen: Held) -> Integrals:
    """Sums over the steps of each segment, from prefix sums over all steps."""
    lasted = seen.lasted_ns / 1e9
    upto = np.concatenate([np.zeros(1), np.cumsum(lasted)])
    moment = np.concatenate([np.zeros(1), np.cumsum(lasted * np.arange(len(lasted)))])
    seconds = upto[parts.last + 1] - upto[parts.first]
    held = (parts.held - parts.first) * seconds + moment[parts.last + 1] - moment[parts.first]
    return Integrals(seconds, held)


def largest_slack(parts: Segments, seen: Held, block_size: int) -> tuple[int, int, int]:
    """(empty slots, index of the request, step) of the emptiest tail block in the window; the first such.

    Nobody: (0, -1, -1).
    """
    inside = np.flatnonzero(seen.lasted_ns > 0)
    if not len(inside):
        return 0, -1, -1
    first = np.maximum(parts.first, inside[0])
    kept = np.flatnonzero((first <= parts.last) & (first <= inside[-1]))
    if not len(kept):
        return 0, -1, -1
    slack = ((parts.block + 1) * block_size - parts.held - (first - parts.first))[kept]
    emptiest = kept[slack == slack.max()]
    at = emptiest[np.argmin(first[emptiest])]
    return int(slack.max()), int(parts.request[at]), int(first[at])
