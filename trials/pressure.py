"""Who was kept out of the pool, with how many bytes free, and what could have come in: law 9's `stranded`, again.

Failed admissions are counted a step: the head of the queue is refused once a step for as long as it waits. After a
refusal nothing more is allocated in a step, so the row of the ledger shows what there was.
"""

import numpy as np

from trials.engine import Cause, EngineFacts
from trials.occupancy import NS, Held
from trials.percentiles import integral
from trials.recording import Ints, Replay
from trials.result import FailedAdmission, PressureBin

STRANDING = (Cause.WATERMARK, Cause.HEAD_OF_LINE, Cause.SLOTS)
PREFIX = "stranded_"
_TOLERANCE = 1e-9  # of byte-seconds that are summed in two ways


def bin_edges(exponent: int) -> tuple[int, int]:
    """Bytes of a bin, both ends included: 0, 1, 2, 3..4, 5..8 and so on."""
    return ((1 << exponent - 1) + 1, 1 << exponent) if exponent > 0 else (0, 0) if exponent < 0 else (1, 1)


def bin_of(num_bytes: Ints) -> Ints:
    """Exponent of the smallest power of two that is not below; -1 for 0. The same bins for every pool."""
    _, exponent = np.frexp(np.maximum(num_bytes - 1, 0).astype(np.float64))
    return np.where(num_bytes > 0, exponent.astype(np.int64), -1)


def pressure_bins(replay: Replay, seen: Held) -> tuple[PressureBin, ...]:
    """Steps of the window by free + cached bytes, and what share of them kept the head of the queue out."""
    steps = replay.steps
    inside = np.flatnonzero((seen.lasted_ns > 0) & (steps["idle"] == 0))
    idle_bytes = (seen.accounts["free"] + seen.accounts["cached"])[inside]
    place, cause, lasted = bin_of(idle_bytes), steps["refusal_cause"][inside], seen.lasted_ns[inside]
    out = []
    for exponent in np.unique(place):
        here = place == exponent
        failed = {c.name.lower(): int(n) for c in Cause if c != Cause.NONE and (n := np.sum(here & (cause == c)))}
        low, high = bin_edges(int(exponent))
        stranded = {
            c.name.lower(): integral(idle_bytes[at], lasted[at]) / NS
            for c in STRANDING if (at := here & (cause == c)).any()
        }  # fmt: skip
        out.append(PressureBin(
            low_bytes=low, high_bytes=high, steps=int(here.sum()), failed=failed,
            share=sum(failed.values()) / int(here.sum()), stranded_byte_seconds=stranded,
        ))  # fmt: skip
    return tuple(out)


def unexplained_waste(waste: dict[str, float], bins: tuple[PressureBin, ...]) -> list[str]:
    """Stranded byte-seconds that no failed admission explains, as sentences; empty where the two sums agree.

    Free or cached blocks are no waste by themselves, however scattered: only while something is kept out.
    """
    out = []
    causes = {c.name.lower() for c in STRANDING} | {k.removeprefix(PREFIX) for k in waste if k.startswith(PREFIX)}
    for cause in sorted(causes):
        said = waste.get(PREFIX + cause, 0.0)
        seen = sum(b.stranded_byte_seconds.get(cause, 0.0) for b in bins)
        if abs(said - seen) > _TOLERANCE * max(said, seen):
            out.append(f"waste {PREFIX}{cause}: {said:.6g} byte-seconds, failed admissions explain {seen:.6g}")
    return out


def first_failed(replay: Replay, seen: Held) -> FailedAdmission | None:
    """The first step of the window that kept somebody out for another reason than the step's own budget."""
    steps, lane = replay.steps, seen.lane
    own = np.isin(steps["refusal_cause"], [Cause.NONE, Cause.BUDGET, Cause.PREEMPTED])
    found = np.flatnonzero((seen.lasted_ns > 0) & (steps["idle"] == 0) & ~own)
    if not len(found):
        return None
    at = int(found[0])
    return FailedAdmission(
        row=int(steps["refusal_row"][at]), step=at, cause=Cause(int(steps["refusal_cause"][at])).name.lower(),
        wanted_blocks=int(steps["refusal_blocks"][at]), free_blocks=int(lane["free_blocks"][at]),
        cached_blocks=int(lane["cached_blocks"][at]),
    )  # fmt: skip


def admissible_tokens(replay: Replay, facts: EngineFacts) -> Ints:
    """Known tokens of the largest request that would be admitted after each row, [S]; the tightest pool says.

    Free and cached blocks, less the watermark while anything runs, at most max_model_len. Nothing of it is assumed
    to be in the cache already. Of a pool that groups share, blocks for all of them.
    """
    if facts.shared_pool:
        return _admissible_of_all(replay, facts)
    lanes = len(facts.groups) * facts.ranks
    share = float(dict(facts.effective).get("watermark", 0.0))
    running = replay.steps["num_running"] > 0
    rooms = []
    for number, group in enumerate(facts.groups):
        rows = {
            name: replay.ledger[name][number * facts.ranks :: lanes] for name in ("free_blocks", "cached_blocks")
        }
        margin = int(share * group.num_blocks) * running
        rooms.append(np.maximum(rows["free_blocks"] + rows["cached_blocks"] - margin, 0) * group.block_size)
    room: Ints = np.min(rooms, axis=0)
    return np.minimum(room, facts.max_model_len) if facts.max_model_len else room


def _admissible_of_all(replay: Replay, facts: EngineFacts) -> Ints:
    """The most tokens whose blocks in all groups together find room: they grow with the tokens, so look them up."""
    pool, lanes = facts.groups[0], (len(replay.steps["idle"]), len(facts.groups), facts.ranks)
    there = replay.ledger["free_blocks"] + replay.ledger["cached_blocks"]
    room = there.reshape(lanes)[:, :, 0].sum(axis=1)
    margin = int(float(dict(facts.effective).get("watermark", 0.0)) * pool.num_blocks)
    room = room - margin * (replay.steps["num_running"] > 0)
    longest = facts.max_model_len or pool.num_blocks * max(group.block_size for group in facts.groups)
    tokens = np.arange(1, longest + 1)
    wanted = np.zeros(longest, np.int64)
    for group in facts.groups:
        need = -(-tokens // group.block_size)
        wanted += np.minimum(need, group.blocks_for(longest)) if group.most_blocks else need
    return np.asarray(np.searchsorted(wanted, room, side="right"), np.int64)


def largest_admissible(replay: Replay, facts: EngineFacts, seen: Held) -> dict[str, int]:
    """The same at the worst and the best row of the window."""
    room = admissible_tokens(replay, facts)[seen.lasted_ns > 0]
    return {"min": int(room.min()), "max": int(room.max())} if len(room) else {}
