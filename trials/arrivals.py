"""Who comes when, and who is given up: feeds an engine from an offer.

At one moment all that is due is handed over in (time, row) order, then cancels are carried out in row order. A
fork goes to the engine together with its parent and starts there; a turn of a closed session comes `think_ns`
after those in front of it have ended. Patience runs from a request's arrival and never scales.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass

from trials.engine import Engine, Outcome, Step, Work
from trials.load import Offer
from trials.recorder import Recorder
from trials.trace import STARTS, Trace

NEVER = 1 << 62


@dataclass(slots=True)
class Links:
    """How requests of one offer hang together, by their place in it."""

    forks: dict[int, list[int]]  # parent -> forks, which the engine starts
    waits: dict[int, set[int]]  # turn -> those that have not ended
    turns: dict[int, list[int]]  # request -> turns that wait for it

    @classmethod
    def of(cls, trace: Trace, offer: Offer, place: dict[int, int]) -> "Links":
        """Links between rows of the offer; one that leads out of it is no link, and its row comes at its stamp."""
        links = cls(defaultdict(list), {}, defaultdict(list))
        for k, row in enumerate(offer.rows.tolist()):
            start = int(trace.starts[row])
            parent = place.get(int(trace.parent[row]))
            if start == STARTS["fork"] and parent is not None:
                links.forks[parent].append(k)
            elif start == STARTS["think"] and offer.closed_sessions:
                before = {place[r] for r in trace.after.row(row).tolist() if r in place}
                if before:
                    links.waits[k] = before
                    for other in before:
                        links.turns[other].append(k)
        return links


class Arrivals:
    """`due`: when something happens next; `due_step`: before which step. NEVER where nothing is left."""

    def __init__(self, engine: Engine, trace: Trace, recorder: Recorder) -> None:
        offer = recorder.offer
        self._engine, self._trace, self._recorder = engine, trace, recorder
        self._rows: list[int] = offer.rows.tolist()
        columns = (
            trace.num_prompt_tokens, trace.num_output_tokens, trace.priority, trace.parent, trace.inherited_tokens,
        )  # fmt: skip
        self._works = list(zip(*(column.tolist() for column in columns), strict=True))
        self._patience = trace.cancel_after_ns.tolist()
        self._give_up = trace.cancel_after_tokens.tolist()
        self._cancels = bool((trace.cancel_after_tokens >= 0).any()) and offer.lock is None
        linked = bool((trace.starts != STARTS["arrival"]).any())
        self._links = Links.of(trace, offer, recorder.place) if linked else Links({}, {}, {})
        self._closed = offer.concurrency is not None and offer.lock is None
        self._cancel_at: list[tuple[int, int]] = []  # (time, place)
        self._cancel_before: list[tuple[int, int]] = []  # (step, place)
        self._coming: list[tuple[int, int]] = []  # (time, place) of turns and of a closed load
        self._behind: list[int] = []  # of a closed load, the next one last
        self._order, self._next = self._schedule(offer), 0
        self._find_next()

    def _schedule(self, offer: Offer) -> list[tuple[int, int]]:
        """(time or step, place) of all that come by themselves, in the order in which they come."""
        hanging = {k for forks in self._links.forks.values() for k in forks}
        if offer.lock is not None:
            met, at = offer.lock.met_step.tolist(), offer.lock.arrival_ns.tolist()
            self._cancel_before = sorted((s, k) for k, s in enumerate(offer.lock.cancel_step.tolist()) if s >= 0)
            known = [k for k, step in enumerate(met) if step >= 0 and k not in hanging]
            return [(met[k], k) for k in sorted(known, key=lambda k: (met[k], at[k], k))]
        hanging |= self._links.waits.keys()
        free = [k for k in range(len(self._rows)) if k not in hanging]
        if offer.concurrency is not None:
            first, self._behind = free[: offer.concurrency], free[offer.concurrency :][::-1]
            return [(0, k) for k in first]
        due = offer.due_ns.tolist()
        return [(due[k], k) for k in free]

    def _find_next(self) -> None:
        due = self._order[self._next][0] if self._next < len(self._order) else NEVER
        for heap in (self._coming, self._cancel_at):
            if heap and heap[0][0] < due:
                due = heap[0][0]
        self.due = due
        self.due_step = self._cancel_before[0][0] if self._cancel_before else NEVER

    # ---- what is due
    def meet(self, until: int, index: int, now: int) -> None:
        """Hand over all that are due by `until`; then give up those that are to be, before step `index`."""
        while True:
            first = self._order[self._next] if self._next < len(self._order) else (NEVER, 0)
            if self._coming and self._coming[0] < first:
                first = heapq.heappop(self._coming)
                if first[0] > until:
                    heapq.heappush(self._coming, first)
                    break
            elif first[0] <= until:
                self._next += 1
            else:
                break
            self._add(first[1], index, now)
        given_up = set()
        while self._cancel_at and self._cancel_at[0][0] <= until:
            given_up.add(heapq.heappop(self._cancel_at)[1])
        while self._cancel_before and self._cancel_before[0][0] <= index:
            given_up.add(heapq.heappop(self._cancel_before)[1])
        for k in sorted(given_up):
            self._cancel(k, index, now)
        self._find_next()

    def _work(self, k: int) -> Work:
        row = self._rows[k]
        prompt, output, priority, parent, inherited = self._works[row]
        if parent not in self._recorder.place:
            parent, inherited = -1, 0
        return Work(row, prompt, output, self._recorder.arrival[k], priority, parent, inherited)

    def _add(self, k: int, index: int, now: int) -> None:
        recorder = self._recorder
        if recorder.offer.concurrency is not None:
            recorder.arrival[k] = max(now, 0)
        recorder.met_step[k] = index
        reason = self._engine.add(self._work(k))
        self._expect_patience(k)
        if reason is not None:
            self._refuse(k, reason, now)
        for fork in self._links.forks.get(k, ()):
            told = self._engine.add(self._work(fork)) if reason is None else f"its parent was refused: {reason}"
            if told is not None:
                self._refuse(fork, told, now)

    def _refuse(self, k: int, reason: str, now: int) -> None:
        self._recorder.reasons[self._rows[k]] = reason
        self._recorder.finish(k, Outcome.REJECTED, now)
        self._over(k, now)

    def _expect_patience(self, k: int) -> None:
        patience = self._patience[self._rows[k]]
        if patience >= 0 and self._recorder.offer.lock is None:
            heapq.heappush(self._cancel_at, (self._recorder.arrival[k] + patience, k))

    def _cancel(self, k: int, index: int, now: int) -> None:
        recorder, row = self._recorder, self._rows[k]
        if recorder.end[k] >= 0 or not self._engine.cancel(row):
            return
        recorder.close_run(k, row, index, now)
        recorder.cancel_step[k] = index
        recorder.finish(k, Outcome.CANCELLED, now)
        for fork in self._links.forks.get(k, ()):
            # A fork that its parent never reached does not start; one that runs goes on.
            if fork not in recorder.started and self._engine.cancel(self._rows[fork]):
                recorder.finish(fork, Outcome.CANCELLED, now)
                self._over(fork, now)
        self._over(k, now)

    # ---- what follows from a step
    def saw(self, step: Step, index: int, now: int) -> None:
        """What a step changed decides who comes next, and when some are given up."""
        recorder = self._recorder
        for row in step.started:
            k = recorder.place[row]
            parent = recorder.place.get(int(self._trace.parent[row]), k)
            whole = int(self._trace.inherited_tokens[row]) <= int(self._trace.num_prompt_tokens[self._rows[parent]])
            # Samples of one prompt were asked for with it; a branch in mid-answer is asked for when it begins.
            recorder.arrival[k] = recorder.arrival[parent] if whole else now
            recorder.started.add(k)
            self._expect_patience(k)
        if self._cancels:
            for row in step.began:
                k, after = recorder.place[row], self._give_up[row]
                if after >= 0:
                    # Delivered so far, and one more in this step and in every later one.
                    left = max(1, after - recorder.delivered[k])
                    heapq.heappush(self._cancel_before, (index + left, k))
            self._drop_stale(index)
        for row, _ in step.ended:
            self._over(recorder.place[row], now)
        self._find_next()

    def _drop_stale(self, index: int) -> None:
        """A request that was interrupted is given up later than was expected; its new date stands already."""
        recorder = self._recorder
        while self._cancel_before and self._cancel_before[0][0] <= index + 1:
            k = self._cancel_before[0][1]
            first = recorder.open_run[k]
            enough = first >= 0 and recorder.delivered[k] + index + 1 - first >= self._give_up[self._rows[k]]
            if recorder.end[k] < 0 and enough:
                break
            heapq.heappop(self._cancel_before)

    def _over(self, k: int, now: int) -> None:
        """The request has ended, one way or another."""
        if self._closed and self._behind:
            heapq.heappush(self._coming, (now, self._behind.pop()))
        for turn in self._links.turns.get(k, ()):
            waits = self._links.waits[turn]
            waits.discard(k)
            if not waits and self._recorder.offer.lock is None:
                due = now + int(self._trace.think_ns[self._rows[turn]])
                self._recorder.arrival[turn] = due
                heapq.heappush(self._coming, (due, turn))

    def drained(self) -> bool:
        """Nothing is alive: what was to be given up is over. Whether anybody is still to come."""
        self._cancel_at.clear()
        if self._recorder.offer.lock is None:
            self._cancel_before.clear()
        self._find_next()
        return self.due >= NEVER
