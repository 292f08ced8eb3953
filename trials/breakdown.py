"""The pool's accounts by length of request (powers of two) and by state of the block: full, tail, shared, cached.

From runs of tokens: what a request holds is known in every step that gave it a token. What sequences hold while
their prompt is computed in pieces, or while they stand still, is in the sums of the ledger but cannot be told apart
by request; it is shown as `prefill`.
"""

from dataclasses import dataclass, fields

import numpy as np

from trials.engine import EngineFacts, PoolGeometry
from trials.latency import Flags, Runs
from trials.occupancy import NS, Held
from trials.recording import Ints, Replay
from trials.segments import Floats, Integrals, Segments, integrals, segments
from trials.waste import stood_ns, stretches


@dataclass(frozen=True, slots=True)
class Shares:
    """Token-seconds, or byte-seconds, of the window by request, in steps that gave it a token. Shapes [R]."""

    full: Floats  # in blocks that are full
    tail: Floats  # written in the tail block
    tail_slack: Floats  # not written in it
    reserved_ahead: Floats
    never_filled: Floats  # part of tail_slack that was given back empty

    def plus(self, other: "Shares", times: int) -> "Shares":
        """With `other` so many times beside it."""
        return Shares(*(getattr(self, f.name) + getattr(other, f.name) * times for f in fields(Shares)))


def byte_shares(replay: Replay, runs: Runs, parts: Segments, facts: EngineFacts, seen: Held) -> Shares:
    """Byte-seconds by request over all groups and ranks. `parts` are cut by the blocks of the token group."""
    nothing = np.zeros(len(replay.requests.row))
    total = Shares(nothing, nothing, nothing, nothing, nothing)
    size = facts.groups[facts.token_group].block_size
    for group in facts.groups:
        own = parts if group.block_size == size else segments(replay, runs, group.block_size)
        total = total.plus(shares(replay, runs, own, facts, seen, group), group.bytes_per_token * facts.ranks)
    return total


def shares(
    replay: Replay, runs: Runs, parts: Segments, facts: EngineFacts, seen: Held, group: PoolGeometry
) -> Shares:
    """Token-seconds by request in one group; a shared token counts once a holder. Of states: state-seconds."""
    size, requests = group.block_size, replay.requests
    found = integrals(parts, seen)

    def by_request(values: Floats, at: Ints) -> Floats:
        return np.asarray(np.bincount(at, weights=values, minlength=len(requests.row)), np.float64)

    if group.keeps_states:
        nothing = np.zeros(len(requests.row))
        return Shares(by_request(found.seconds, parts.request), nothing, nothing, nothing, nothing)
    whole = parts.block * size * found.seconds
    gone = size * _gone(parts, seen, group) if group.window else np.zeros(len(whole))
    over = stretches(replay, runs, size)
    return Shares(
        full=by_request(whole - gone, parts.request),
        tail=by_request(found.held - whole, parts.request),
        tail_slack=by_request(whole + size * found.seconds - found.held, parts.request),
        reserved_ahead=by_request(_reserved(replay, parts, found, facts), parts.request),
        never_filled=by_request(over.slack * (stood_ns(over, seen) / NS), over.request),
    )


def _gone(parts: Segments, seen: Held, group: PoolGeometry) -> Floats:
    """Block-seconds that each segment would have held but for the window, [N].

    A step that makes n tokens held lets go of the blocks that n - 1 had passed; that number grows at most once
    while a block is the tail.
    """
    upto = np.concatenate([np.zeros(1), np.cumsum(seen.lasted_ns / NS)])

    def passed(tokens: Ints) -> Ints:
        if group.kind == "sliding_window":
            return np.maximum(0, tokens - group.window + 1) // group.block_size
        return tokens // group.window * group.window // group.block_size

    before = parts.held - 1
    first, last = passed(before), passed(before + parts.last - parts.first)
    if group.kind == "sliding_window":
        when = (first + 1) * group.block_size + group.window - 1 - before
    else:
        when = (before // group.window + 1) * group.window - before
    grown = upto[parts.last + 1] - upto[np.minimum(parts.first + np.maximum(when, 0), parts.last + 1)]
    stood = upto[parts.last + 1] - upto[parts.first]
    return np.asarray(first * stood + (last - first) * grown, np.float64)


def _reserved(replay: Replay, parts: Segments, found: Integrals, facts: EngineFacts) -> Floats:
    """Token-seconds claimed beyond the tail block, where the whole answer is reserved at admission."""
    if dict(facts.effective).get("reserve_output") != "full":
        return np.zeros(len(parts.block))
    size, requests = facts.groups[0].block_size, replay.requests
    final = requests.num_prompt_tokens + requests.num_output_tokens - 1
    beyond = -(-final[parts.request] // size) - parts.block - 1
    return beyond * size * found.seconds


def by_length(replay: Replay, held: Shares, members: Flags) -> dict[str, dict[str, float]]:
    """The `members` [R] by final length in powers of two, `257-512` for instance; `held` in bytes.

    Keys: docs/metrics.md.
    """
    requests = replay.requests
    length = requests.num_prompt_tokens + requests.num_delivered
    power = np.ceil(np.log2(np.maximum(length, 1))).astype(np.int64)
    columns = {
        "requests": np.ones(len(length)),
        "prompt_tokens": requests.num_prompt_tokens,
        "cached_tokens": np.maximum(requests.cached_tokens, 0),
        "output_tokens": requests.num_delivered,
        "preemptions": requests.preemptions,
        "decoding_payload_byte_seconds": held.full + held.tail,
        "full_byte_seconds": held.full,
        "tail_byte_seconds": held.tail,
        "tail_slack_byte_seconds": held.tail_slack,
        "tail_slack_never_filled_byte_seconds": held.never_filled,
        "reserved_ahead_byte_seconds": held.reserved_ahead,
    }
    table: dict[str, dict[str, float]] = {}
    for exponent in np.unique(power[members]):
        inside = members & (power == exponent)
        high = 1 << int(exponent)
        table[f"{high // 2 + 1}-{high}"] = {name: float(values[inside].sum()) for name, values in columns.items()}
    return table


def by_state(held: Shares, seen: Held) -> dict[str, float]:
    """Byte-seconds of the window by state of what lies in the pool; `held` in bytes. Keys: docs/metrics.md.

    full + tail + prefill are what sequences hold, a shared token once a holder; less `shared` they are the payload.
    """
    accounts, shared = seen.accounts, seen.byte_seconds(seen.shared_bytes)
    full, tail = float(held.full.sum()), float(held.tail.sum())
    return {
        "full": full,
        "tail": tail,
        "prefill": seen.byte_seconds(accounts["payload"]) + shared - full - tail,
        "shared": shared,
        "tail_slack": seen.byte_seconds(accounts["tail_slack"]),
        "reserved_ahead": seen.byte_seconds(accounts["reserved_ahead"]),
        "cached": seen.byte_seconds(accounts["cached"]),
    }
