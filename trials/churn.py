"""The life of blocks, from columns and runs alone: how long they are held, lie cached, and when they come back.

handed out --held--> let go --cached--> found again | evicted
"""

import numpy as np

from trials.engine import EngineFacts, Outcome, PoolGeometry
from trials.latency import Runs
from trials.occupancy import Held
from trials.percentiles import integral, percentiles_ms, population, spread
from trials.recording import Ints, Replay
from trials.result import Churn, ChurnStretch, Spread
from trials.segments import Segments
from trials.trace import Trace

STRETCHES = 16
_EVENTS = ("allocated_blocks", "released_blocks", "evicted_blocks", "copied_blocks")


def _told(facts: EngineFacts) -> bool:
    """Whether the engine says which blocks were handed out and let go."""
    return not {"allocated_blocks", "released_blocks", "evicted_blocks"} & set(facts.unknown_columns)


def _flow(replay: Replay, facts: EngineFacts, lane: int) -> dict[str, Ints]:
    """Rows of one (group, rank) in which events are booked: steps, and the end of the replay."""
    lanes = len(facts.groups) * facts.ranks
    booked = replay.steps["idle"] == 0
    booked[-1:] = True
    rows = {name: column[lane::lanes][booked] for name, column in replay.ledger.items()}
    group = facts.groups[lane // facts.ranks]
    if facts.shared_pool:  # what the others hold is in no row of this group
        held = rows["payload_tokens"] + rows["tail_slack_tokens"] + rows["reserved_ahead_tokens"]
        rows["live"] = held // group.slots
    else:
        rows["live"] = group.num_blocks - rows["free_blocks"] - rows["cached_blocks"] - rows["reserve_blocks"]
    grown = np.diff(rows["live"], prepend=0)
    rows["revived"] = grown - rows["allocated_blocks"] + rows["released_blocks"]
    rows["row"] = np.flatnonzero(booked)
    return rows


def _flow_of_pool(replay: Replay, facts: EngineFacts) -> dict[str, Ints]:
    """The same for the first pool of the first rank, all its groups together."""
    lanes = range(0, len(facts.groups) * facts.ranks, facts.ranks) if facts.shared_pool else (0,)
    parts = [_flow(replay, facts, lane) for lane in lanes]
    return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0] if name != "row"}


def broken_flow(replay: Replay, facts: EngineFacts) -> list[str]:
    """Where block events do not explain how many blocks are live, as sentences; from a cold start to the drain.

    live = before + handed out + found again - let go; only a prefix cache can find blocks again; at the end nothing
    is live; and the requests that ended took their blocks. The events of a static batch of the same requests break
    it: there, blocks are claimed once and never turn over.
    """
    if not _told(facts) or not len(replay.steps["idle"]):
        return []
    caching = dict(facts.effective).get("prefix_caching", "True") == "True"
    out = []
    for lane in range(len(facts.groups) * facts.ranks):
        rows, group = _flow(replay, facts, lane), facts.groups[lane // facts.ranks]
        said = _jumps(rows, caching)
        if rows["live"][-1]:
            said.append(f"{int(rows['live'][-1])} blocks are still held after the drain")
        taken, least = int(rows["allocated_blocks"].sum()), _least_taken(replay, group)
        if taken < least:
            said.append(f"{taken} blocks were handed out, requests that ended took {least} at least")
        several = len(facts.groups) * facts.ranks > 1
        where = f" of group {lane // facts.ranks} rank {lane % facts.ranks}" if several else ""
        out += [f"block flow{where}: {words}" for words in said]
    return out


def _jumps(rows: dict[str, Ints], caching: bool) -> list[str]:
    wrong = np.flatnonzero(rows["revived"] < 0 if caching else rows["revived"] != 0)
    if not len(wrong):
        return []
    at = int(wrong[0])
    before, after = int(rows["live"][at - 1]) if at else 0, int(rows["live"][at])
    taken, gone = int(rows["allocated_blocks"][at]), int(rows["released_blocks"][at])
    return [
        f"{before} live blocks became {after} in row {int(rows['row'][at])}, but {taken} were "
        f"handed out and {gone} let go ({len(wrong)} such rows)"
    ]


def _least_taken(replay: Replay, group: PoolGeometry) -> int:
    """Blocks that served requests cannot have got but new: their final ones, less what they began with.

    One that was preempted may have found blocks of others when it came back, and is left out. A state is moved on
    in a block of its own, however long the sequence is.
    """
    requests, block_size = replay.requests, group.block_size
    sure = (requests.outcome == Outcome.COMPLETED) & (requests.preemptions == 0)
    if group.keeps_states:
        return int(sure.sum())
    final = -(-(requests.num_prompt_tokens + requests.num_delivered - 1) // block_size)
    return int((final + np.minimum(-requests.cached_tokens, 0) // block_size)[sure].sum())


def occupancy(facts: EngineFacts, seen: Held) -> Spread:
    """Live blocks per block that can be handed out, time-weighted (vLLM's kv_cache_usage_perc)."""
    group = facts.groups[0]
    usable = group.num_blocks - group.reserve_blocks
    live = usable - seen.lane["free_blocks"] - seen.lane["cached_blocks"]
    return spread(live / usable, seen.lasted_ns) if usable else Spread()


def churn(replay: Replay, runs: Runs, parts: Segments, facts: EngineFacts, seen: Held) -> Churn:
    """All of it but the reuse gap, which needs the trace."""
    found = Churn(
        held_ms=percentiles_ms(population(held_ns(replay, runs, parts))), stretches=_stretches(replay, seen, facts)
    )
    if not _told(facts) or not len(replay.steps["idle"]):
        return found
    rows = _flow_of_pool(replay, facts)
    lasted, lane = replay.steps["duration_ns"], seen.lane
    group = facts.groups[0]
    live = group.num_blocks - lane["free_blocks"] - lane["cached_blocks"] - lane["reserve_blocks"]
    lives, revived = int(rows["released_blocks"].sum()), int(np.maximum(rows["revived"], 0).sum())
    rests = revived + int(rows["evicted_blocks"].sum()) + int(rows["cached_blocks"][-1])
    return found.model_copy(update={
        "lives": lives, "revived_blocks": revived,
        "block_lifetime_ms": integral(live, lasted) / lives / 1e6 if lives else None,
        "cached_ms": integral(lane["cached_blocks"], lasted) / rests / 1e6 if rests else None,
    })  # fmt: skip


def held_ns(replay: Replay, runs: Runs, parts: Segments) -> Ints:
    """ns from a block entering a request's table to the request letting go, one entry a block, [N].

    Blocks of the prompt (and of what is recomputed) count from admission; after a preemption from the first token
    that followed it, because the columns do not tell when it was admitted again.
    """
    requests, start, end = replay.requests, replay.steps["start_ns"], replay.end_ns
    if not len(parts.run):
        return np.zeros(0, np.int64)
    kept = requests.preemptions[runs.request] == 0
    fresh = (np.diff(runs.request, prepend=-1) != 0) | ~kept  # runs that begin with an empty table
    stay = np.cumsum(fresh) - 1
    tails = np.append(np.flatnonzero(fresh)[1:], len(fresh)) - 1
    let_go = end[runs.last[tails]]
    opening = np.diff(parts.run, prepend=-1) != 0  # first segment of its run
    whole = opening & fresh[parts.run]  # its table was filled before: block + 1 blocks at once
    again = opening & ~fresh[parts.run] & (np.diff(parts.block, prepend=-1) == 0)  # the tail of the run in front
    taken = start[parts.first]
    first = np.diff(parts.request, prepend=-1) != 0
    taken = np.where(
        whole & first & (requests.admitted_ns[parts.request] >= 0), requests.admitted_ns[parts.request], taken
    )
    count = np.where(whole, parts.block + 1, np.where(again, 0, 1))
    return np.repeat(let_go[stay[parts.run]] - taken, count)


def _stretches(replay: Replay, seen: Held, facts: EngineFacts) -> tuple[ChurnStretch, ...]:
    """Equal parts of the window; a step belongs to the part in which it begins."""
    begin, finish = replay.window_ns
    steps, start = replay.steps, replay.steps["start_ns"]
    width = (finish - begin) / STRETCHES
    inside = (start >= begin) & (start < finish)
    part = np.minimum(((start - begin) / width).astype(np.int64), STRETCHES - 1)
    lanes = len(facts.groups) * facts.ranks
    out = []
    for number in range(STRETCHES):
        here = inside & (part == number)
        ran = here & (steps["idle"] == 0)
        events = {name: int(replay.ledger[name][np.repeat(here, lanes)].sum()) for name in _EVENTS}
        lasted = np.where(here, steps["duration_ns"], 0)
        decoding = np.where(steps["num_decodes"] > 0, lasted, 0)
        depth = steps["decode_blocks"] / np.maximum(steps["num_decodes"], 1)
        group = facts.groups[0]
        usable = max(group.num_blocks - group.reserve_blocks, 1)
        live = 1 - (seen.lane["free_blocks"] + seen.lane["cached_blocks"]) / usable
        out.append(ChurnStretch(
            start_ns=round(begin + number * width), steps=int(ran.sum()),
            step_ms=percentiles_ms(population(steps["duration_ns"][ran])), **events,
            occupancy=spread(live, lasted).mean, table_depth=spread(depth, decoding).mean,
        ))  # fmt: skip
    return tuple(out)


def reuse_gap_ns(replay: Replay, trace: Trace | None) -> Ints:
    """ns from the last holder of a content ending to the admission that found it again, one entry a request.

    The content is the deepest prefix id that the request hit. Hits on content that somebody holds have no gap.
    """
    none = np.zeros(0, np.int64)
    requests = replay.requests
    if trace is None or not trace.meta.tokens_per_id:
        return none
    ids = trace.prefix_ids.take(requests.row)
    deepest = (requests.cached_tokens - 1) // trace.meta.tokens_per_id
    hits = np.flatnonzero((requests.cached_tokens > 0) & (requests.admitted_ns >= 0) & (deepest < ids.lengths))
    if not len(hits):
        return none
    wanted = ids.values[ids.offsets[hits] + deepest[hits]]
    holder = np.repeat(np.arange(len(requests.row)), ids.lengths)
    known = (requests.admitted_ns[holder] >= 0) & (requests.end_ns[holder] >= 0) & np.isin(ids.values, wanted)
    holder, content = holder[known], ids.values[known]
    at = requests.admitted_ns[hits]
    over, last = _upto(content, requests.end_ns[holder], wanted, at)
    begun, _ = _upto(content, requests.admitted_ns[holder], wanted, at - 1)
    idle = (over > 0) & (begun <= over)  # all that held it before have let go
    return (at - last)[idle]


def _upto(content: Ints, times: Ints, asked: Ints, moment: Ints) -> tuple[Ints, Ints]:
    """Of the `times` [N] by content: how many of content `asked` lie at or before `moment`, and the last, [K]."""
    names, when = np.concatenate([content, asked]), np.concatenate([times, moment])
    query = np.arange(len(names)) >= len(content)
    order = np.lexsort((query, when, names))
    event = ~query[order]
    count = np.cumsum(event, dtype=np.int64)
    head = np.diff(names[order], prepend=names[order][:1] - 1) != 0
    many = count - np.maximum.accumulate(np.where(head, count - event, 0))
    newest = np.maximum.accumulate(np.where(event, np.arange(len(order)), 0))
    found, last = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    found[order], last[order] = many, when[order][newest]
    return found[len(content) :], last[len(content) :]
