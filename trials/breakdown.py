"""The pool's accounts by length of request (powers of two) and by state of the block: full, tail, shared, cached.

From runs of tokens: what a request holds is known in every step that gave it a token. What sequences hold while
their prompt is computed in pieces, or while they stand still, is in the sums of the ledger but cannot be told apart
by request; it is shown as `prefill`.
"""

from dataclasses import dataclass

import numpy as np

from trials.engine import EngineFacts
from trials.latency import Flags, Runs
from trials.occupancy import NS, Held
from trials.recording import Ints, Replay
from trials.segments import Floats, Integrals, Segments, integrals
from trials.waste import stood_ns, stretches


@dataclass(frozen=True, slots=True)
class Shares:
    """Token-seconds of the window by request, in steps that gave it a token. Shapes [R]."""

    full: Floats  # in blocks that are full
    tail: Floats  # written in the tail block
    tail_slack: Floats  # not written in it
    reserved_ahead: Floats
    never_filled: Floats  # part of tail_slack that was given back empty


def shares(replay: Replay, runs: Runs, parts: Segments, facts: EngineFacts, seen: Held) -> Shares:
    """By request; a shared token counts once a holder."""
    size, requests = facts.groups[0].block_size, replay.requests
    found = integrals(parts, seen)

    def by_request(values: Floats, at: Ints) -> Floats:
        return np.asarray(np.bincount(at, weights=values, minlength=len(requests.row)), np.float64)

    whole = parts.block * size * found.seconds
    over = stretches(replay, runs, size)
    return Shares(
        full=by_request(whole, parts.request),
        tail=by_request(found.held - whole, parts.request),
        tail_slack=by_request(whole + size * found.seconds - found.held, parts.request),
        reserved_ahead=by_request(_reserved(replay, parts, found, facts), parts.request),
        never_filled=by_request(over.slack * (stood_ns(over, seen) / NS), over.request),
    )


def _reserved(replay: Replay, parts: Segments, found: Integrals, facts: EngineFacts) -> Floats:
    """Token-seconds claimed beyond the tail block, where the whole answer is reserved at admission."""
    if dict(facts.effective).get("reserve_output") != "full":
        return np.zeros(len(parts.block))
    size, requests = facts.groups[0].block_size, replay.requests
    final = requests.num_prompt_tokens + requests.num_output_tokens - 1
    beyond = -(-final[parts.request] // size) - parts.block - 1
    return beyond * size * found.seconds


def by_length(replay: Replay, held: Shares, facts: EngineFacts, members: Flags) -> dict[str, dict[str, float]]:
    """The `members` [R] by final length in powers of two, `257-512` for instance. Keys: docs/metrics.md."""
    requests = replay.requests
    length = requests.num_prompt_tokens + requests.num_delivered
    power = np.ceil(np.log2(np.maximum(length, 1))).astype(np.int64)
    size = sum(group.bytes_per_token for group in facts.groups) * facts.ranks
    columns = {
        "requests": np.ones(len(length)),
        "prompt_tokens": requests.num_prompt_tokens,
        "cached_tokens": np.maximum(requests.cached_tokens, 0),
        "output_tokens": requests.num_delivered,
        "preemptions": requests.preemptions,
        "decoding_payload_byte_seconds": (held.full + held.tail) * size,
        "full_byte_seconds": held.full * size,
        "tail_byte_seconds": held.tail * size,
        "tail_slack_byte_seconds": held.tail_slack * size,
        "tail_slack_never_filled_byte_seconds": held.never_filled * size,
        "reserved_ahead_byte_seconds": held.reserved_ahead * size,
    }
    table: dict[str, dict[str, float]] = {}
    for exponent in np.unique(power[members]):
        inside = members & (power == exponent)
        high = 1 << int(exponent)
        table[f"{high // 2 + 1}-{high}"] = {name: float(values[inside].sum()) for name, values in columns.items()}
    return table


def by_state(held: Shares, facts: EngineFacts, seen: Held) -> dict[str, float]:
    """Byte-seconds of the window by state of what lies in the pool. Keys: docs/metrics.md.

    full + tail + prefill are what sequences hold, a shared token once a holder; less `shared` they are the payload.
    """
    lane, group = seen.lane, facts.groups[0]
    size = group.bytes_per_token
    logical = seen.byte_seconds(lane["logical_tokens"] * size)
    full, tail = float(held.full.sum()) * size, float(held.tail.sum()) * size
    return {
        "full": full,
        "tail": tail,
        "prefill": logical - full - tail,
        "shared": seen.byte_seconds((lane["logical_tokens"] - lane["payload_tokens"]) * size),
        "tail_slack": seen.byte_seconds(lane["tail_slack_tokens"] * size),
        "reserved_ahead": seen.byte_seconds(lane["reserved_ahead_tokens"] * size),
        "cached": seen.byte_seconds(lane["cached_blocks"] * group.block_size * size),
    }
