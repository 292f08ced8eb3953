"""When tokens came: TTFT, every gap between tokens, TPOT and E2EL, and who met the limits of a request.

All of it from runs of tokens, in O(steps + runs + requests); a token is never expanded. Definitions and what
others call them: docs/metrics.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials.engine import Outcome
from trials.percentiles import Population, population
from trials.recording import Ints, Replay, Requests
from trials.slo import Slo

Flags = NDArray[np.bool_]


class RecordingError(ValueError):
    """A replay's columns contradict each other: a mistake of the recorder, never of the user."""


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of each request, [R] flags in the order of `Requests`."""

    offered: Flags  # counted, and not cancelled by the trace
    served: Flags  # completed with the length that was asked for
    lost: Flags  # offered and not served: +inf in every population that it would have been in
    wrong_length: Flags  # completed, with another length


@dataclass(frozen=True, slots=True)
class Latencies:
    """Populations in ns; see docs/metrics.md."""

    ttft: Population
    itl: Population
    tpot: Population
    e2el: Population

    def of(self, metric: str) -> Population:
        found: Population = getattr(self, metric)
        return found


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs in the order of (request, step). Shapes [K]."""

    request: Ints  # index into Requests
    first: Ints  # step of the run's first token
    last: Ints  # step of its last
    before: Ints  # tokens delivered to the request by earlier runs

    @property
    def num_tokens(self) -> Ints:
        return self.last - self.first + 1


def fates(requests: Requests) -> Fates:
    """Sort requests by fate; only cancels that the trace asked for leave the population."""
    completed = requests.outcome == Outcome.COMPLETED
    offered = (requests.counted == 1) & (requests.outcome != Outcome.CANCELLED)
    right = requests.num_delivered == requests.num_output_tokens
    served = completed & right
    return Fates(offered, served, offered & ~served, completed & ~right)


def order_runs(replay: Replay) -> Runs:
    """Runs by request and step. RecordingError where a run lies outside the steps, on an idle row, or overlaps."""
    row, first, num = replay.runs
    requests = replay.requests
    if np.any(np.diff(requests.row) <= 0):
        raise RecordingError("requests are not in the order of their rows")
    place = np.searchsorted(requests.row, row)
    if np.any(place >= len(requests.row)) or np.any(requests.row[place] != row):
        raise RecordingError("a run of tokens belongs to no request")
    order = np.lexsort((num, first, place))
    place, first, num = place[order], first[order], num[order]
    last = first + num - 1
    steps = len(replay.steps["start_ns"])
    if np.any(num < 1) or np.any(first < 0) or np.any(last >= steps):
        raise RecordingError("a run of tokens is empty or lies outside the recorded steps")
    idle = np.concatenate([np.zeros(1, np.int64), np.cumsum(replay.steps["idle"], dtype=np.int64)])
    if np.any(idle[last + 1] != idle[first]):
        raise RecordingError("a run of tokens covers an idle row, in which nothing ran")
    same = place[1:] == place[:-1]
    # Several tokens in one event are several runs at that step: a join of zero steps is lawful, a step back is not.
    if np.any(same & (first[1:] < last[:-1])):
        raise RecordingError("two runs of one request overlap")
    ends = np.cumsum(num, dtype=np.int64)
    starts_request = np.concatenate([np.ones(min(len(place), 1), np.bool_), ~same])
    base = np.maximum.accumulate(np.where(starts_request, ends - num, 0)) if len(num) else ends
    return Runs(place, first, last, ends - num - base)


def check_tokens(replay: Replay, runs: Runs) -> None:
    """RecordingError unless runs deliver exactly what the requests say, at the times that they say."""
    requests, end = replay.requests, replay.end_ns
    delivered = np.bincount(runs.request, weights=runs.num_tokens, minlength=len(requests.row)).astype(np.int64)
    if np.any(delivered != requests.num_delivered):
        at = int(np.flatnonzero(delivered != requests.num_delivered)[0])
        said = int(requests.num_delivered[at])
        raise RecordingError(f"row {int(requests.row[at])}: runs hold {int(delivered[at])} tokens, said {said}")
    head = runs.before == 0
    if np.any(requests.first_token_ns[runs.request[head]] != end[runs.first[head]]):
        raise RecordingError("a request's first_token_ns is not the end of the step that gave its first token")
    last = np.full(len(requests.row), -1, np.int64)
    np.maximum.at(last, runs.request, end[runs.last])
    if np.any(last != requests.last_token_ns):
        raise RecordingError("a request's last_token_ns is not the end of the step that gave its last token")


def gaps(replay: Replay, runs: Runs, members: Flags) -> tuple[Ints, Ints]:
    """Every gap between successive tokens of the `members` [R], as (gap ns, how many times).

    Inside a run all gaps of a step are equal, so a step is one pair; where a run follows another of the same
    request (after a preemption or a pause), the gap across them is a pair of its own.
    """
    end = replay.end_ns
    inside = members[runs.request]
    first, last = runs.first[inside], runs.last[inside]
    edges = np.bincount(first + 1, minlength=len(end) + 2) - np.bincount(last + 1, minlength=len(end) + 2)
    times = np.cumsum(edges, dtype=np.int64)[: len(end)]
    request = runs.request[inside]
    joins = request[1:] == request[:-1]
    across = end[first[1:][joins]] - end[last[:-1][joins]]
    values = np.concatenate([np.diff(end, prepend=end[:1]), across])
    return values, np.concatenate([times, np.ones(len(across), np.int64)])


def latencies(replay: Replay, runs: Runs, fate: Fates) -> Latencies:
    """The four populations over what was offered. A lost request is one +inf in each that it would have been in."""
    requests = replay.requests
    served = fate.offered & fate.served
    many = requests.num_output_tokens > 1
    lost, lost_many = int(fate.lost.sum()), int((fate.lost & many).sum())
    arrival, first, last = requests.arrival_ns, requests.first_token_ns, requests.last_token_ns
    several = served & many
    tpot = (last - first)[several] / (requests.num_output_tokens[several] - 1)
    values, times = gaps(replay, runs, fate.offered & many)
    return Latencies(
        ttft=population((first - arrival)[served], infinite=lost),
        itl=population(values, times, infinite=lost_many),
        tpot=population(tpot, infinite=lost_many),
        e2el=population((last - arrival)[served], infinite=lost),
    )


def qualifies(requests: Requests, fate: Fates, slo: Slo) -> Flags:
    """Who met every limit that the SLO sets a single request, [R], counted or not.

    As vLLM's --goodput does: a limit is met at equality; a one-token answer has no gap and is judged without.
    """
    good = fate.served.copy()
    arrival, first, last = requests.arrival_ns, requests.first_token_ns, requests.last_token_ns
    if slo.ttft_ns is not None:
        good &= first - arrival <= slo.ttft_ns
    if slo.mean_gap_ns is not None:
        good &= last - first <= slo.mean_gap_ns * (requests.num_output_tokens - 1)
    if slo.e2el_ns is not None:
        good &= last - arrival <= slo.e2el_ns
    return good
