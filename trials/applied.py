"""Knobs that an engine says it has applied, held against what it did in a replay.

An engine's word is not enough: a knob that is recorded and never reaches the scheduler credits a candidate with
what another one earned. Only what a knob forbids can be seen here; that it changed anything cannot.
"""

from collections.abc import Callable

import numpy as np

from trials.engine import EngineFacts
from trials.recording import Ints, Replay

Knobs = dict[str, str]


def unapplied(replay: Replay, facts: EngineFacts) -> list[str]:
    """What the replay did that a knob of `facts.effective` forbids, as sentences. O(steps + requests)."""
    knobs = {name: value for name, value in facts.effective if name not in facts.not_applicable}
    found = []
    for name, broken in _FORBIDS.items():
        if name in knobs and (said := broken(replay, facts, knobs)):
            found.append(f"knob {name} is recorded as {knobs[name]} and was not applied: {said}")
    return found


def _most(values: Ints, limit: int, what: str) -> str:
    """Where more than the limit was seen first, and the most."""
    over = np.flatnonzero(values > limit)
    return f"{int(values.max())} {what}, over it first in step {int(over[0])}" if len(over) else ""


def _slots(replay: Replay, facts: EngineFacts, knobs: Knobs) -> str:
    return _most(replay.steps["num_running"], int(knobs["max_num_seqs"]), "ran at once")


def _budget(replay: Replay, facts: EngineFacts, knobs: Knobs) -> str:
    tokens = replay.steps["num_decodes"] + replay.steps["chunk_tokens"]
    return _most(tokens, int(knobs["max_num_batched_tokens"]), "tokens in a step")


def _length(replay: Replay, facts: EngineFacts, knobs: Knobs) -> str:
    requests = replay.requests
    reached = np.where(requests.num_delivered > 0, requests.num_prompt_tokens + requests.num_delivered, 0)
    longest = int(reached.max(initial=0))
    return f"a context of {longest} tokens was served" if longest > int(knobs["max_model_len"]) else ""


def _caching(replay: Replay, facts: EngineFacts, knobs: Knobs) -> str:
    if knobs["prefix_caching"] != "False":
        return ""
    forks = knobs.get("sharing") == "cow"  # what a fork begins with is its parent's, not the cache's
    hits = 0 if forks else int(replay.requests.cached_tokens.sum())
    kept = int(replay.ledger["cached_blocks"].max(initial=0))
    return f"{hits} prompt tokens were hit, {kept} blocks stood cached" if hits or kept else ""


def _watermark(replay: Replay, facts: EngineFacts, knobs: Knobs) -> str:
    """Who comes in while others run must leave the watermark's blocks available (pool of one group and rank)."""
    if len(facts.groups) * facts.ranks > 1 or knobs.get("sharing") == "cow":
        return ""
    keep = int(float(knobs["watermark"]) * facts.groups[0].num_blocks)
    starts, busy = replay.steps["start_ns"], replay.steps["idle"] == 0
    steps = np.flatnonzero(busy)
    came = replay.requests.admitted_ns[replay.requests.admitted_ns >= 0]
    place = np.searchsorted(starts[steps], came)
    if not keep or not len(steps) or np.any(place >= len(steps)):
        return ""
    at, count = np.unique(steps[place], return_counts=True)
    ran_before = replay.steps["num_running"][at] > count
    left = replay.ledger["cached_blocks"][at] + replay.ledger["free_blocks"][at]
    low = np.flatnonzero(ran_before & (left < keep))
    if not len(low):
        return ""
    return f"an admission in step {int(at[low[0]])} left {int(left[low[0]])} blocks of the {keep} it keeps"


_FORBIDS: dict[str, Callable[[Replay, EngineFacts, Knobs], str]] = {
    "max_num_seqs": _slots,
    "max_num_batched_tokens": _budget,
    "max_model_len": _length,
    "prefix_caching": _caching,
    "watermark": _watermark,
}
