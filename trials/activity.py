"""What went on in the pool over the window: who ran, who was kept out and why, block events, attention, sharing."""

import numpy as np

from trials.engine import Cause, EngineFacts
from trials.latency import Flags
from trials.occupancy import Held
from trials.percentiles import spread
from trials.recording import Replay, Requests
from trials.result import Spread

EVENTS = ("allocated", "released", "evicted", "copied")


def qualified_concurrency(replay: Replay, good: Flags) -> Spread:
    """Requests between admission and last token that met the limits of a request, counted or not; time-weighted."""
    begin, finish = replay.window_ns
    up = np.clip(replay.requests.admitted_ns[good], begin, finish)
    down = np.clip(replay.requests.last_token_ns[good], begin, finish)
    times = np.concatenate([np.array([begin], np.int64), up, down])
    change = np.concatenate([np.zeros(1, np.int64), np.ones_like(up), -np.ones_like(down)])
    order = np.argsort(times, kind="stable")
    lasted = np.diff(times[order], append=finish)
    return spread(np.cumsum(change[order], dtype=np.int64), lasted)


def block_events(replay: Replay) -> dict[str, int]:
    """Blocks by event in the rows that begin inside the window, summed over groups and ranks."""
    begin, finish = replay.window_ns
    start = replay.steps["start_ns"]
    lanes = len(replay.ledger["group"]) // max(len(start), 1)
    inside = np.repeat((start >= begin) & (start < finish), lanes)
    return {name: int(replay.ledger[f"{name}_blocks"][inside].sum()) for name in EVENTS}


def failed_admissions(replay: Replay, seen: Held) -> dict[str, int]:
    """Steps inside the window in which the head of the queue was kept out, by cause."""
    steps = replay.steps
    causes = steps["refusal_cause"][(seen.lasted_ns > 0) & (steps["idle"] == 0)]
    times = np.bincount(causes, minlength=len(Cause))
    return {cause.name.lower(): int(times[cause]) for cause in Cause if cause != Cause.NONE and times[cause]}


def attention_share(replay: Replay, seen: Held) -> float | None:
    """Attention time per step time, over the window's steps that tell it apart; None where none does."""
    steps = replay.steps
    told = (seen.lasted_ns > 0) & (steps["attention_ns"] >= 0) & (steps["idle"] == 0)
    whole = int(steps["duration_ns"][told].sum())
    return int(steps["attention_ns"][told].sum()) / whole if whole else None


def block_table_depth(replay: Replay, seen: Held) -> Spread:
    """Mean blocks of a decoding sequence, over the time in which any decodes."""
    steps = replay.steps
    some = steps["num_decodes"] > 0
    return spread(steps["decode_blocks"][some] / steps["num_decodes"][some], seen.lasted_ns[some])


def hit_rate(requests: Requests) -> float:
    """Prefix tokens hit at first admission per prompt token, over counted requests that were admitted."""
    admitted = (requests.counted == 1) & (requests.admitted_ns >= 0)
    asked = int(requests.num_prompt_tokens[admitted].sum())
    return int(requests.cached_tokens[admitted].sum()) / asked if asked else 0.0


def map_calls(facts: EngineFacts, allocated: int) -> int | None:
    """Physical pages mapped for `allocated` blocks, each by a call; None where the layout maps nothing."""
    effective = dict(facts.effective)
    if effective.get("layout") != "virtual":
        return None
    pages = facts.groups[0].block_bytes // int(effective["page_bytes"])
    return allocated * pages
