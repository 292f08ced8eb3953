"""When a replay need not go on: its load cannot hold any more, whatever comes; or it holds, whatever comes.

Both are certain, never likely. A request is surely missed once its limit has passed, answered or not, so a growing
queue is noticed as soon as enough of those who wait have waited too long. Looked at a few dozen times a window,
over whole columns.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials.engine import Outcome
from trials.holding import ATTAINMENT, attained_share
from trials.load import Offer
from trials.recorder import Recorder
from trials.recording import STEP_COLUMNS, Ints
from trials.slo import Clause, Slo
from trials.trace import STARTS, Trace

Flags = NDArray[np.bool_]
CANNOT_HOLD, HOLDS = "cannot hold any more", "holds whatever comes"
_LOOKS = 64  # a window
_START, _DURATION, _DECODES = (STEP_COLUMNS.index(n) for n in ("start_ns", "duration_ns", "num_decodes"))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Columns of the requests at one moment, [K]."""

    now: int
    arrival: Ints
    first: Ints
    last: Ints
    end: Ints
    done: Flags  # completed
    lost: Flags  # rejected or failed
    waiting: Flags  # asked for, no token yet, not over
    alive: Flags  # asked for and not over

    @classmethod
    def of(cls, recorder: Recorder, now: int) -> "_Seen":
        def column(values: list[int]) -> Ints:
            return np.asarray(values, np.int64)

        outcome, end, first = column(recorder.outcome), column(recorder.end), column(recorder.first_token)
        alive = (column(recorder.met_step) >= 0) & (end < 0)
        return cls(
            now, column(recorder.arrival), first, column(recorder.last_token), end,
            outcome == Outcome.COMPLETED, (outcome == Outcome.REJECTED) | (outcome == Outcome.FAILED),
            alive & (first < 0), alive,
        )  # fmt: skip


class StopRule:
    """A `replay.StopRule` for one offer: why it need not go on, or None."""

    def __init__(self, trace: Trace, offer: Offer, slo: Slo, may_pass: bool = True) -> None:
        rows = offer.rows
        self._slo = slo
        self._counted: Flags = offer.counted > 0
        self._outputs = trace.num_output_tokens[rows]
        cancels = (trace.cancel_after_ns[rows] >= 0) | (trace.cancel_after_tokens[rows] >= 0)
        linked = trace.starts[rows] != STARTS["arrival"]
        # A fork goes with its parent, so where any request may be given up none of the linked is sure to stay.
        self._may_leave: Flags = cancels | (linked & bool(cancels.any()))
        self._plain = not self._may_leave.any()
        self._may_settle = bool(may_pass and self._plain and not linked.any() and not offer.until_ended)
        begin, finish = offer.window_ns
        self._window_end = finish
        self._gap = max((finish - begin) // _LOOKS, 1)
        self._next = begin

    def __call__(self, recorder: Recorder, now: int) -> str | None:
        if now < self._next:
            return None
        self._next = now + self._gap
        seen = _Seen.of(recorder, now)
        if (missed := self._cannot_hold(seen, recorder)) is not None:
            return f"{CANNOT_HOLD}: {missed}"
        if self._may_settle and now >= self._window_end and self._holds(seen, recorder):
            return HOLDS
        return None

    # ---- what is certain of a request
    def _late(self, seen: _Seen, limit_ns: int) -> Flags:
        """First token later than the limit, come or not."""
        came = (seen.first >= 0) & (seen.first - seen.arrival > limit_ns)
        return came | (seen.waiting & (seen.now - seen.arrival > limit_ns))

    def _slow(self, seen: _Seen, limit_ns: int) -> Flags:
        """Mean gap above the limit, even if the last token came now."""
        until = np.where(seen.done, seen.last, seen.now)
        answering = seen.done | (seen.alive & (seen.first >= 0))
        return answering & (until - seen.first > limit_ns * (self._outputs - 1))

    def _long(self, seen: _Seen, limit_ns: int) -> Flags:
        until = np.where(seen.done, seen.last, seen.now)
        return (seen.done | seen.alive) & (until - seen.arrival > limit_ns)

    def _missed(self, seen: _Seen) -> Flags:
        """Requests that cannot qualify any more."""
        slo, missed = self._slo, seen.lost.copy()
        if slo.ttft_ns is not None:
            missed |= self._late(seen, slo.ttft_ns)
        if slo.mean_gap_ns is not None:
            missed |= self._slow(seen, slo.mean_gap_ns) & (self._outputs > 1)
        if slo.e2el_ns is not None:
            missed |= self._long(seen, slo.e2el_ns)
        return missed & self._counted & (seen.done | seen.lost | ~self._may_leave)

    def _beyond(self, seen: _Seen, clause: Clause) -> tuple[Flags, Flags]:
        """(surely beyond the clause's limit, members of its population), [K]."""
        stays = self._counted & (seen.done | seen.lost | ~self._may_leave)
        members = self._counted if clause.metric in ("ttft", "e2el") else self._counted & (self._outputs > 1)
        over = {"ttft": self._late, "e2el": self._long, "tpot": self._slow}[clause.metric](seen, clause.limit_ns)
        return (over | seen.lost) & members & stays, members

    # ---- what is certain of the replay
    def _cannot_hold(self, seen: _Seen, recorder: Recorder) -> str | None:
        """The bound that is missed whatever comes."""
        for clause in self._slo.clauses:
            if clause.metric == "itl":
                bad, whole = self._least_bad_gaps(seen, recorder, clause.limit_ns), self._gaps()
            else:
                over, members = self._beyond(seen, clause)
                bad, whole = int(over.sum()), int(members.sum())
            if whole and bad >= whole - math.floor((whole - 1) * clause.percentile / 100):
                return clause.text
        counted = int(self._counted.sum())
        share = attained_share(counted - int(self._missed(seen).sum()), counted)
        return ATTAINMENT if share < self._slo.attainment else None

    def _holds(self, seen: _Seen, recorder: Recorder) -> bool:
        """The window is over, and would hold even if none of the requests under way met a limit."""
        open_now = self._counted & (seen.end < 0)
        counted = int(self._counted.sum())
        missed = int((self._missed(seen) | open_now).sum())
        if attained_share(counted - missed, counted) < self._slo.attainment:
            return False
        for clause in self._slo.clauses:
            if clause.metric == "itl":
                bad, whole = self._most_bad_gaps(open_now, recorder, clause.limit_ns), self._gaps()
            else:
                over, members = self._beyond(seen, clause)
                bad, whole = int((over | (open_now & members)).sum()), int(members.sum())
            if whole and bad > whole - 1 - math.ceil((whole - 1) * clause.percentile / 100):
                return False
        return True

    # ---- gaps between tokens
    def _gaps(self) -> int:
        return int((self._outputs[self._counted] - 1).sum())

    def _least_bad_gaps(self, seen: _Seen, recorder: Recorder, limit_ns: int) -> int:
        """Gaps of counted requests that were too long. A decode's gap is never shorter than its step."""
        others = ~self._counted
        if not self._plain or (others & (seen.end < 0)).any():
            return 0
        after = int(seen.end[others].max(initial=-1))  # from here on, whoever decodes is counted
        steps = np.frombuffer(recorder.steps, np.int64).reshape(-1, len(STEP_COLUMNS))
        long = (steps[:, _DURATION] > limit_ns) & (steps[:, _START] >= after)
        return int(steps[long, _DECODES].sum())

    def _most_bad_gaps(self, open_now: Flags, recorder: Recorder, limit_ns: int) -> int:
        """No fewer than there are: long steps for all who decoded, every join of two runs, all gaps to come."""
        steps = np.frombuffer(recorder.steps, np.int64).reshape(-1, len(STEP_COLUMNS))
        long = int(steps[steps[:, _DURATION] > limit_ns, _DECODES].sum())
        began = int((np.asarray(recorder.first_token) >= 0).sum())
        joins = len(recorder.runs) // 3 + int((np.asarray(recorder.open_run) >= 0).sum()) - began
        return long + joins + int((self._outputs[open_now] - 1).sum())
