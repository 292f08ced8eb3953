"""Byte-seconds of the pool that could not serve declared work, by kind.

Free or cached bytes are waste only while something waits that may not take them.
"""

from dataclasses import dataclass

import numpy as np

from trials.engine import EngineFacts
from trials.latency import Runs
from trials.occupancy import NS, Held
from trials.percentiles import integral
from trials.pressure import PREFIX, STRANDING
from trials.recording import Ints, Replay

NOT_WASTE = ("tail_slack_filled_later",)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of decoding in which a request kept its blocks. Shapes [K]."""

    request: Ints  # index into Requests
    taken: Ints  # step that took the last block, or gave the first token where that came later
    last: Ints  # step of the last token
    slack: Ints  # slots of the last block that stay empty


def stretches(replay: Replay, runs: Runs, block_size: int) -> Stretches:
    """Runs, those of a request that was never preempted joined to one: a pause alone gives no block back."""
    requests, num = replay.requests, runs.num_tokens
    kept = requests.preemptions[runs.request] == 0
    fresh = (np.diff(runs.request, prepend=-1) != 0) | ~kept
    heads = np.flatnonzero(fresh)
    tails = np.append(heads[1:], len(fresh)) - 1 if len(heads) else heads
    held = requests.num_prompt_tokens[runs.request[heads]] + runs.before[heads]  # with the first token's step
    final = held + runs.before[tails] + num[tails] - runs.before[heads] - 1
    slack = -final % block_size
    opened = final + slack - block_size + 1  # tokens held once the last block was begun
    upto = np.cumsum(num, dtype=np.int64)
    token = upto[heads] - num[heads] + np.maximum(opened - held, 0)
    run = np.searchsorted(upto, token, side="right")
    taken = runs.first[run] + token - (upto - num)[run]
    return Stretches(runs.request[heads], taken, runs.last[tails], slack)


def _elapsed(seen: Held) -> Ints:
    """[S + 1] ns of the window that passed before each row."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(seen.lasted_ns, dtype=np.int64)])


def never_filled(replay: Replay, runs: Runs, seen: Held, block_size: int) -> float:
    """Token-seconds of tail slots that were given back empty, over the window.

    A request that ends with n tokens held leaves -n mod block_size slots of its last block empty, from the step
    that took the block; a block taken while the prompt was computed counts from the step of the first token.
    A preemption gives slack back as an end does.
    """
    parts = stretches(replay, runs, block_size)
    return integral(parts.slack, stood_ns(parts, seen)) / NS


def stood_ns(parts: Stretches, seen: Held) -> Ints:
    """[K] ns of the window for which each stretch's empty slots stood."""
    upto = _elapsed(seen)
    return upto[parts.last + 1] - upto[parts.taken]


def stranded(replay: Replay, seen: Held) -> dict[str, float]:
    """Free and cached byte-seconds while the head of the queue was kept out for a reason other than memory."""
    steps = replay.steps
    idle_bytes = seen.accounts["free"] + seen.accounts["cached"]
    blocked = (steps["num_waiting"] > 0) & (steps["idle"] == 0)
    return {
        f"{PREFIX}{cause.name.lower()}": seen.byte_seconds(
            idle_bytes * (blocked & (steps["refusal_cause"] == cause))
        )
        for cause in STRANDING
    }


def _bytes_by_block_size(facts: EngineFacts) -> dict[int, int]:
    """Bytes of a slot over the groups of each block size; a state has no slots that could stay empty."""
    out: dict[int, int] = {}
    for group in facts.groups:
        if not group.keeps_states:
            out[group.block_size] = out.get(group.block_size, 0) + group.bytes_per_token
    return out


def waste(replay: Replay, runs: Runs, facts: EngineFacts, seen: Held) -> dict[str, float]:
    """Byte-seconds over the window by kind; `total` leaves out NOT_WASTE, which is shown for comparison."""
    never = sum(
        never_filled(replay, runs, seen, size) * num_bytes * facts.ranks
        for size, num_bytes in _bytes_by_block_size(facts).items()
    )
    kinds = {name: seen.byte_seconds(seen.accounts[name]) for name in ("padding", "remainder", "reserve")}
    kinds["tail_slack_never_filled"] = never
    kinds["tail_slack_filled_later"] = seen.byte_seconds(seen.accounts["tail_slack"]) - never
    kinds.update(stranded(replay, seen))
    kinds["total"] = sum(value for kind, value in kinds.items() if kind not in NOT_WASTE)
    return kinds
