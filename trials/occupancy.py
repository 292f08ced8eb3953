"""What the pool held over the window: byte accounts, live tokens against slots, and the digest of its rows."""

import hashlib
import json
from dataclasses import dataclass, fields

import numpy as np

from trials.engine import EngineFacts, PoolGeometry
from trials.group_result import GroupLedger
from trials.ledger import ACCOUNTS as PARTS
from trials.ledger import account_bytes, lane_bytes, unbalanced_rows
from trials.percentiles import integral, spread
from trials.recording import LEDGER_COLUMNS, Ints, Replay
from trials.result import Accounts, Ledger

ACCOUNTS = tuple(Accounts.model_fields)
TOKENS = ("payload_tokens", "tail_slack_tokens", "reserved_ahead_tokens")  # of live blocks
NS = 10**9  # in a second


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of a replay seen through its window. S = steps and idle spans, lanes = (group, rank) pairs."""

    lasted_ns: Ints  # [S] ns of each row that lie inside the window
    accounts: dict[str, Ints]  # [S] bytes by account, summed over the lanes
    lane: dict[str, Ints]  # [S] ledger columns of one pool: tokens of its token group, blocks of all its groups
    shared_bytes: Ints  # [S] bytes that sequences hold, a shared one once a holder, beyond the payload

    @property
    def seconds(self) -> float:
        return int(self.lasted_ns.sum()) / NS

    def byte_seconds(self, num_bytes: Ints) -> float:
        """Integral of a byte column over the window, summed in whole byte-nanoseconds."""
        return integral(num_bytes, self.lasted_ns) / NS

    def time_mean(self, column: Ints) -> float:
        """0 where the window has no rows."""
        return integral(column, self.lasted_ns) / max(int(self.lasted_ns.sum()), 1)


def held(replay: Replay, facts: EngineFacts) -> Held:
    """Clip the rows to the window (a row that straddles its edge counts in part) and turn accounts into bytes."""
    begin, finish = replay.window_ns
    start = replay.steps["start_ns"]
    lasted = np.minimum(replay.end_ns, finish) - np.maximum(start, begin)
    lanes = len(facts.groups) * facts.ranks
    rows = len(replay.ledger["payload_tokens"])
    if rows != lanes * len(start):
        raise ValueError(f"the ledger has {rows} rows for {len(start)} steps of {lanes} (group, rank) pairs")
    return Held(
        lasted_ns=np.maximum(lasted, 0),
        accounts=account_bytes(replay.ledger, facts.groups, facts.ranks, facts.shared_pool),
        lane=_lane(replay, facts),
        shared_bytes=_shared_bytes(replay, facts),
    )


def _shared_bytes(replay: Replay, facts: EngineFacts) -> Ints:
    more = replay.ledger["logical_tokens"] - replay.ledger["payload_tokens"]
    sizes = np.repeat(np.array([group.bytes_per_token for group in facts.groups], np.int64), facts.ranks)
    return np.asarray(more.reshape(-1, len(sizes)) @ sizes, np.int64)


def _lane(replay: Replay, facts: EngineFacts) -> dict[str, Ints]:
    """Tokens of the token group and blocks of the pool, both on the first rank."""
    lanes = len(facts.groups) * facts.ranks
    rows = {name: column[facts.token_group * facts.ranks :: lanes] for name, column in replay.ledger.items()}
    if facts.shared_pool:
        for name in ("cached_blocks", "free_blocks", "reserve_blocks"):
            every = replay.ledger[name].reshape(-1, len(facts.groups), facts.ranks)
            rows[name] = np.ascontiguousarray(every[:, :, 0].sum(axis=1))
    return rows


def _said(group: PoolGeometry) -> dict[str, int | str]:
    """Its fields, without those that are as in every pool of a plain model: digests of such stay what they were."""
    return {f.name: getattr(group, f.name) for f in fields(group) if getattr(group, f.name) != f.default}


def rows_digest(replay: Replay, facts: EngineFacts) -> str:
    """SHA-256 of every account column of every row, event counts and geometry included; no time enters it."""
    geometry = [_said(group) for group in facts.groups]
    head = json.dumps([LEDGER_COLUMNS, geometry, facts.ranks], sort_keys=True)
    digest = hashlib.sha256(head.encode())
    for name in LEDGER_COLUMNS:
        digest.update(np.ascontiguousarray(replay.ledger[name], "<i8").data)
    return digest.hexdigest()


def count_unbalanced(replay: Replay, facts: EngineFacts) -> int:
    """Rows, over all pools and all of the replay, whose accounts are not the pool to the byte."""
    return sum(len(unbalanced_rows(accounts)) for _, accounts in pool_accounts(replay, facts))


def pool_accounts(replay: Replay, facts: EngineFacts) -> list[tuple[str, dict[str, Ints]]]:
    """(name, byte accounts [S]) of every pool: one a (group, rank), or one a rank where its groups share it."""
    lanes = lane_bytes(replay.ledger, facts.groups, facts.ranks, facts.shared_pool)
    if not facts.shared_pool:
        return [(f"group {i // facts.ranks} rank {i % facts.ranks}", part) for i, part in enumerate(lanes)]
    return [
        (f"rank {r}", {name: np.sum([part[name] for part in lanes[r :: facts.ranks]], axis=0) for name in lanes[0]})
        for r in range(facts.ranks)
    ]


@dataclass(frozen=True, slots=True)
class Unbalanced:
    """A pool whose accounts do not add up: its largest residual, signed, and where it was."""

    pool: str
    rows: int
    first_row: int
    residual_bytes: int
    at_row: int

    def __str__(self) -> str:
        return (
            f"{self.rows} ledger rows do not add up to the pool of {self.pool}: {self.residual_bytes:+} bytes in "
            f"row {self.at_row}, first in row {self.first_row}"
        )


def unbalanced_pools(replay: Replay, facts: EngineFacts) -> list[Unbalanced]:
    """Those of `pool_accounts` that are not the pool to the byte in every row; positive: accounts hold more."""
    out = []
    for name, accounts in pool_accounts(replay, facts):
        wrong = unbalanced_rows(accounts)
        if len(wrong):
            over = np.sum([accounts[account] for account in PARTS], axis=0) - accounts["pool_bytes"]
            at = int(np.argmax(np.abs(over)))
            out.append(Unbalanced(name, len(wrong), int(wrong[0]), int(over[at]), at))
    return out


def _by_group(replay: Replay, facts: EngineFacts, seen: Held, peak_step: int) -> tuple[GroupLedger, ...]:
    """Every (group, rank) for itself; empty where there is but one."""
    lanes = lane_bytes(replay.ledger, facts.groups, facts.ranks, facts.shared_pool)
    if len(lanes) == 1:
        return ()
    out = []
    for lane, accounts in enumerate(lanes):
        group = facts.groups[lane // facts.ranks]
        held = np.sum([replay.ledger[name][lane :: len(lanes)] for name in TOKENS], axis=0)
        live = spread(held / group.slots, seen.lasted_ns)
        out.append(GroupLedger(
            group=lane // facts.ranks, rank=lane % facts.ranks, kind=group.kind, block_size=group.block_size,
            time_mean={name: seen.time_mean(accounts[name]) for name in PARTS},
            peak={name: int(accounts[name][peak_step]) for name in PARTS} if peak_step >= 0 else {},
            live_blocks={"mean": live.mean, "peak": live.peak},
        ))  # fmt: skip
    return tuple(out)


def _peak(seen: Held) -> tuple[int, Accounts]:
    """The row inside the window with the most claimed bytes (payload, slack and what is reserved ahead)."""
    inside = np.flatnonzero(seen.lasted_ns > 0)
    if len(inside) == 0:
        return -1, Accounts()
    accounts = seen.accounts
    claimed = accounts["payload"] + accounts["tail_slack"] + accounts["reserved_ahead"]
    at = int(inside[np.argmax(claimed[inside])])
    return at, Accounts(**{name: int(accounts[name][at]) for name in ACCOUNTS})


def ledger(replay: Replay, facts: EngineFacts, seen: Held) -> Ledger:
    """The ledger of the result but for its breakdown by length."""
    lane, lasted = seen.lane, seen.lasted_ns
    slots = lane["payload_tokens"] + lane["tail_slack_tokens"] + lane["reserved_ahead_tokens"]
    logical, physical = spread(lane["logical_tokens"], lasted), spread(lane["payload_tokens"], lasted)
    allocated = spread(slots, lasted)
    means = {name: seen.time_mean(seen.accounts[name]) for name in ACCOUNTS}
    peak_step, peak = _peak(seen)
    first = facts.groups[0]
    pool = facts.pool_bytes
    return Ledger(
        time_mean=means, peak=peak, peak_step=peak_step, unbalanced_rows=count_unbalanced(replay, facts),
        logical_live_tokens=logical, physical_live_tokens=physical, allocated_slots=allocated,
        pool_slots=0 if facts.shared_pool else first.num_blocks * first.block_size,
        slots_per_live_token=allocated.mean / logical.mean if logical.mean else 0.0,
        useful_pool_ratio=means["payload"] / pool if pool else 0.0,
        device=dict(replay.device), residual_bytes=replay.device.get("residual", 0),
        rank_devices=tuple(dict(device) for device in replay.rank_devices),
        rows_digest=rows_digest(replay, facts), groups=_by_group(replay, facts, seen, peak_step),
        pool_residuals={found.pool: found.residual_bytes for found in unbalanced_pools(replay, facts)},
    )  # fmt: skip
