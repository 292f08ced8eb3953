"""What sharing saves and what it may cost: bytes held once for several, copies, and the burst when children part.

A fork that shares its parent's blocks takes none until it writes. `bound` is what the next step could take if every
live child wrote in it: copies of shared tails, and blocks that open. It must be there, or the saving is a loan.
"""

import numpy as np

from trials.engine import EngineFacts
from trials.occupancy import Held
from trials.recording import Ints, Replay
from trials.trace import Trace


def shared_bytes_saved(facts: EngineFacts, seen: Held) -> int:
    """Time mean of the bytes that live sequences hold, a shared token once a holder, less what they occupy.

    Net of copies: what was copied is occupied twice, and so no longer saved.
    """
    return round(seen.time_mean(seen.shared_bytes))


def copied_bytes(facts: EngineFacts, copied: int) -> int | None:
    """Bytes of `copied` blocks; None where the engine cannot copy on write or cannot say."""
    if "copied_blocks" in facts.unknown_columns or "copied_bytes" in facts.not_applicable:
        return None
    return copied * facts.groups[0].slots * facts.groups[0].bytes_per_token


def duplicated_tail_bytes(replay: Replay, facts: EngineFacts, trace: Trace | None) -> int | None:
    """Bytes of inherited tokens that counted forks computed again, at most one block each: what copy-on-write would
    have shared, whole-block prefix matching cannot. None where the trace is not at hand."""
    if trace is None:
        return None
    requests = replay.requests
    admitted = (requests.counted == 1) & (requests.admitted_ns >= 0)
    missed = trace.inherited_tokens[requests.row] - requests.cached_tokens
    total = 0
    for group in facts.groups:
        if not group.keeps_states:  # a state is of one sequence
            again = int(np.clip(missed[admitted], 0, group.block_size).sum())
            total += again * group.bytes_per_token * facts.ranks
    return total


def divergence(replay: Replay, facts: EngineFacts, seen: Held) -> tuple[int, int, int]:
    """(largest burst, largest bound, most that a bound exceeded the free and cached blocks of its row), in blocks.

    Over the window. Zeros where nothing forks. A row stands before what finished in its step is given back.
    """
    inside = seen.lasted_ns > 0
    if not inside.any():
        return 0, 0, 0
    bound, burst = replay.steps["bound_blocks"][inside], replay.steps["burst_blocks"][inside]
    short = _short(bound, (seen.lane["free_blocks"] + seen.lane["cached_blocks"])[inside])
    copying = dict(facts.effective).get("sharing") == "cow"
    return int(burst.max()), int(bound.max()), short if copying else 0


def broken_bound(replay: Replay) -> list[str]:
    """Where a step's burst went beyond the bound that stood before it, as sentences."""
    ran = np.flatnonzero(replay.steps["idle"] == 0)
    burst, bound = replay.steps["burst_blocks"][ran], replay.steps["bound_blocks"][ran]
    wrong = np.flatnonzero(burst[1:] > bound[:-1])
    if not len(wrong):
        return []
    at = int(wrong[0])
    return [
        f"divergence: row {int(ran[at + 1])} took {int(burst[at + 1])} blocks for children that parted, the bound "
        f"before it was {int(bound[at])} ({len(wrong)} such rows)"
    ]


def _short(bound: Ints, available: Ints) -> int:
    return max(0, int((bound - available).max()))
