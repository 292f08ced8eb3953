"""Byte-seconds of the pool that could not serve declared work, by kind, and what each length of request held.

Free or cached bytes are waste only while something waits that may not take them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials.engine import Cause, EngineFacts
from trials.latency import Flags, Runs
from trials.occupancy import NS, Held
from trials.percentiles import integral
from trials.recording import Ints, Replay

Floats = NDArray[np.float64]
STRANDING = (Cause.WATERMARK, Cause.HEAD_OF_LINE, Cause.SLOTS)
NOT_WASTE = ("tail_slack_filled_later",)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of decoding in which a request kept its blocks. Shapes [K]."""

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
    return Stretches(runs.first[run] + token - (upto - num)[run], runs.last[tails], slack)


def _elapsed(seen: Held) -> Ints:
    """[S + 1] ns of the window that passed before each row."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(seen.lasted_ns, dtype=np.int64)])


def never_filled(replay: Replay, runs: Runs, seen: Held, block_size: int) -> float:
    """Token-seconds of tail slots that were given back empty, over the window.

    A request that ends with n tokens held leaves -n mod block_size slots of its last block empty, from the step
    that took the block; a block taken while the prompt was computed counts from the step of the first token.
    A preemption gives slack back as an end does.
    """
    parts, upto = stretches(replay, runs, block_size), _elapsed(seen)
    return integral(parts.slack, upto[parts.last + 1] - upto[parts.taken]) / NS


def stranded(replay: Replay, seen: Held) -> dict[str, float]:
    """Free and cached byte-seconds while the head of the queue was kept out for a reason other than memory."""
    steps = replay.steps
    idle_bytes = seen.accounts["free"] + seen.accounts["cached"]
    blocked = (steps["num_waiting"] > 0) & (steps["idle"] == 0)
    return {
        f"stranded_{cause.name.lower()}": seen.byte_seconds(
            idle_bytes * (blocked & (steps["refusal_cause"] == cause))
        )
        for cause in STRANDING
    }


def waste(replay: Replay, runs: Runs, facts: EngineFacts, seen: Held) -> dict[str, float]:
    """Byte-seconds over the window by kind; `total` leaves out NOT_WASTE, which is shown for comparison."""
    never = sum(
        never_filled(replay, runs, seen, group.block_size) * group.bytes_per_token * facts.ranks
        for group in facts.groups
    )
    kinds = {name: seen.byte_seconds(seen.accounts[name]) for name in ("padding", "remainder", "reserve")}
    kinds["tail_slack_never_filled"] = never
    kinds["tail_slack_filled_later"] = seen.byte_seconds(seen.accounts["tail_slack"]) - never
    kinds.update(stranded(replay, seen))
    kinds["total"] = sum(value for kind, value in kinds.items() if kind not in NOT_WASTE)
    return kinds


def _decoding_token_seconds(replay: Replay, runs: Runs, seen: Held) -> Floats:
    """[R] tokens held x seconds over the steps that gave the request a token."""
    seconds = seen.lasted_ns / 1e9
    upto = _elapsed(seen) / 1e9
    moment = np.concatenate([np.zeros(1), np.cumsum(seconds * np.arange(len(seconds)))])
    held = replay.requests.num_prompt_tokens[runs.request] + runs.before
    one = (held - runs.first) * (upto[runs.last + 1] - upto[runs.first])
    one += moment[runs.last + 1] - moment[runs.first]
    rows = len(replay.requests.row)
    return np.asarray(np.bincount(runs.request, weights=one.astype(np.float64), minlength=rows), np.float64)


def by_length(
    replay: Replay, runs: Runs, facts: EngineFacts, seen: Held, members: Flags
) -> dict[str, dict[str, float]]:
    """The `members` [R] by final length in powers of two, `257-512` for instance. Keys: docs/metrics.md."""
    requests = replay.requests
    length = requests.num_prompt_tokens + requests.num_delivered
    power = np.ceil(np.log2(np.maximum(length, 1))).astype(np.int64)
    size = sum(group.bytes_per_token for group in facts.groups) * facts.ranks
    held_bytes = _decoding_token_seconds(replay, runs, seen) * size
    table: dict[str, dict[str, float]] = {}
    for exponent in np.unique(power[members]):
        inside = members & (power == exponent)
        high = 1 << int(exponent)
        table[f"{high // 2 + 1}-{high}"] = {
            "requests": float(inside.sum()),
            "prompt_tokens": float(requests.num_prompt_tokens[inside].sum()),
            "cached_tokens": float(np.maximum(requests.cached_tokens[inside], 0).sum()),
            "output_tokens": float(requests.num_delivered[inside].sum()),
            "decoding_payload_byte_seconds": float(held_bytes[inside].sum()),
        }
    return table
