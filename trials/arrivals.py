"""Who comes when, and who is given up: feeds an engine from an offer.

At one moment all that is due is handed over in (time, row) order, then cancels are carried out in row order. A
fork goes to the engine together with its parent and starts there; a turn of a closed session comes `think_ns`
after those in front of it have ended. Under a closed load a client sends its next request when all of the last has
ended: its forks and, in closed sessions, its turns.

Samples of one prompt are asked for with it; a branch in mid-answer is asked for when it starts. Patience runs from
there and never scales. A request that gives up after n tokens gets exactly n, the last in the step in front of its
cancel; after 0 it is given up as it comes. Whoever ends in the same step has ended. A cancelled request takes its
forks along that have not started; those that run go on.
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
        columns = trace.num_prompt_tokens, trace.num_output_tokens, trace.priority
        self._works = list(zip(*(column.tolist() for column in columns), strict=True))
        self._patience = trace.cancel_after_ns.tolist()
        self._give_up = trace.cancel_after_tokens.tolist()
        self._by_clock = offer.lock is None  # else all comes and goes before recorded steps
        self._cancels = bool((trace.cancel_after_tokens >= 0).any()) and self._by_clock
        linked = bool((trace.starts != STARTS["arrival"]).any())
        self._links = Links.of(trace, offer, recorder.place) if linked else Links({}, {}, {})
        self._inherited = self._inheritances()
        self._arrived = recorder.arrival if offer.lock is None else offer.lock.arrival_ns.tolist()
        self._closed = offer.concurrency is not None and self._by_clock
        given_up = bool((trace.cancel_after_ns >= 0).any() or (trace.cancel_after_tokens >= 0).any())
        self._alone = not (linked or given_up or self._closed)  # nothing follows from how a request fares
        self._family = self._families() if self._closed else []  # place -> the root that it hangs on
        self._alive: dict[int, int] = defaultdict(int)  # root -> members that have not ended
        for root in self._family:
            self._alive[root] += 1
        self._cancel_at: list[tuple[int, int]] = []  # (time, place)
        self._cancel_before: list[tuple[int, int]] = []  # (step, place)
        self._coming: list[tuple[int, int]] = []  # (time, place) of turns and of a closed load
        self._behind: list[int] = []  # of a closed load, the next one last
        self._order, self._next = self._schedule(offer), 0
        self._find_next()

    def _inheritances(self) -> dict[int, tuple[int, int, bool]]:
        """Fork -> (its parent's row, tokens inherited, whether it was asked for with its parent)."""
        trace, rows = self._trace, self._rows
        out = {}
        for parent, forks in self._links.forks.items():
            prompt = int(trace.num_prompt_tokens[rows[parent]])
            for k in forks:
                inherited = int(trace.inherited_tokens[rows[k]])
                out[k] = rows[parent], inherited, inherited <= prompt
        return out

    def _families(self) -> list[int]:
        """Place -> the root that it hangs on. A join hangs on the last of those that it waits for: a client that
        holds its place for it waits for nobody behind."""
        above = {fork: [parent] for parent, forks in self._links.forks.items() for fork in forks}
        above |= {turn: list(before) for turn, before in self._links.waits.items()}
        out: list[int] = []
        for k in range(len(self._rows)):
            out.append(max((out[other] for other in above[k]), default=k) if k in above else k)
        return out

    def _schedule(self, offer: Offer) -> list[tuple[int, int]]:
        """(time or step, place) of all that come by themselves, in the order in which they come."""
        hanging = self._inherited.keys()
        if offer.lock is not None:
            met, at = offer.lock.met_step.tolist(), self._arrived
            self._cancel_before = sorted((s, k) for k, s in enumerate(offer.lock.cancel_step.tolist()) if s >= 0)
            known = [k for k, step in enumerate(met) if step >= 0 and k not in hanging]
            return [(met[k], k) for k in sorted(known, key=lambda k: (met[k], at[k], k))]
        free = [k for k in range(len(self._rows)) if k not in hanging and k not in self._links.waits]
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
                if self._coming[0][0] > until:
                    break
                first = heapq.heappop(self._coming)
            elif first[0] <= until:
                self._next += 1
            else:
                break
            if self._closed:
                self._recorder.arrival[first[1]] = first[0]
            self._add(first[1], index, now)
        given_up = set()
        while self._cancel_at and self._cancel_at[0][0] <= until:
            given_up.add(heapq.heappop(self._cancel_at)[1])
        while self._cancel_before and self._cancel_before[0][0] <= index:
            k = heapq.heappop(self._cancel_before)[1]
            if not self._by_clock or self._has_enough(k, index):
                given_up.add(k)
        for k in sorted(given_up):
            self._cancel(k, index, now)
        self._find_next()

    def _work(self, k: int, arrival_ns: int) -> Work:
        row = self._rows[k]
        prompt, output, priority = self._works[row]
        if not self._inherited:
            return Work(row, prompt, output, arrival_ns, priority)
        parent, inherited, _ = self._inherited.get(k, (-1, 0, False))
        return Work(row, prompt, output, arrival_ns, priority, parent, inherited)

    def _add(self, k: int, index: int, now: int) -> None:
        """A request comes; its forks come with it, to start later."""
        recorder = self._recorder
        if not self._by_clock and (recorder.offer.concurrency is not None or k in self._links.waits):
            recorder.arrival[k] = now  # the recorded one is by another clock, and serves for the order only
        if self._alone:
            recorder.met_step[k] = index
            if (told := self._engine.add(self._work(k, self._arrived[k]))) is not None:
                recorder.reasons[self._rows[k]] = told
                recorder.finish(k, Outcome.REJECTED, now)
            return
        family: list[tuple[int, str | None]] = [(k, None)]
        while family:
            member, refused = family.pop()
            recorder.met_step[member] = index
            reason = refused or self._engine.add(self._work(member, self._arrived[k]))
            if reason is not None:
                recorder.reasons[self._rows[member]] = reason
                recorder.finish(member, Outcome.REJECTED, now)
                self._over(member, now)
                refused = refused or f"its parent was refused: {reason}"
            elif self._cancels and self._give_up[self._rows[member]] == 0:
                heapq.heappush(self._cancel_before, (index, member))
            forks = self._links.forks.get(member, ())
            for fork in forks:
                recorder.arrival[fork] = recorder.arrival[member]
            family += [(fork, refused) for fork in reversed(forks)]
        self._asked_for(k)

    def _asked_for(self, k: int) -> None:
        """The patience of a request begins, and of the samples that were asked for with it."""
        recorder = self._recorder
        asked = [k]
        while asked:
            member = asked.pop()
            patience = self._patience[self._rows[member]]
            if patience >= 0 and self._by_clock:
                heapq.heappush(self._cancel_at, (recorder.arrival[member] + patience, member))
            for fork in self._links.forks.get(member, ()):
                if self._inherited[fork][2]:
                    recorder.arrival[fork] = recorder.arrival[member]
                    asked.append(fork)

    def _cancel(self, k: int, index: int, now: int) -> None:
        recorder = self._recorder
        if recorder.end[k] >= 0 or not self._engine.cancel(self._rows[k]):
            return
        recorder.close_run(k, self._rows[k], index, now)
        recorder.cancel_step[k] = index
        family = [k]
        while family:
            member = family.pop()
            recorder.finish(member, Outcome.CANCELLED, now)
            self._over(member, now)
            family += [fork for fork in self._links.forks.get(member, ()) if self._never_starts(fork)]

    def _never_starts(self, fork: int) -> bool:
        """The fork's parent was cancelled. True where it had not started: then it is over as well."""
        recorder = self._recorder
        if fork in recorder.started or recorder.end[fork] >= 0:
            return False
        return self._engine.cancel(self._rows[fork])

    def _has_enough(self, k: int, index: int) -> bool:
        """Whether the request was delivered before step `index` what it wanted; if not, it was interrupted since
        that was expected, and another date stands already."""
        first = self._recorder.open_run[k]
        delivered: int = self._recorder.delivered[k] + (index - first if first >= 0 else 0)
        return delivered >= int(self._give_up[self._rows[k]])

    # ---- what follows from a step
    def saw(self, step: Step, index: int, now: int) -> None:
        """What a step changed decides who comes next, and when some are given up."""
        if self._alone:
            return
        recorder = self._recorder
        for row in step.started:
            k = recorder.place[row]
            recorder.started.add(k)
            if not self._inherited[k][2]:
                recorder.arrival[k] = now
                self._asked_for(k)
        if self._cancels:
            for row in step.began:
                k, after = recorder.place[row], self._give_up[row]
                if after > 0:
                    # Delivered so far, and one more in this step and in every later one.
                    heapq.heappush(self._cancel_before, (index + after - recorder.delivered[k], k))
        for row, _ in step.ended:
            self._over(recorder.place[row], now)
        self._find_next()

    def _over(self, k: int, now: int) -> None:
        """The request has ended, one way or another."""
        if self._closed:
            root = self._family[k]
            self._alive[root] -= 1
            if not self._alive[root] and self._behind:
                heapq.heappush(self._coming, (now, self._behind.pop()))
        for turn in self._links.turns.get(k, ()):
            waits = self._links.waits[turn]
            waits.discard(k)
            if not waits and self._by_clock:
                due = now + int(self._trace.think_ns[self._rows[turn]])
                self._recorder.arrival[turn] = due
                heapq.heappush(self._coming, (due, turn))

    def drained(self) -> bool:
        """Nothing is alive: what was to be given up is over. Whether anybody is still to come."""
        self._cancel_at.clear()
        if self._by_clock:
            self._cancel_before.clear()
        self._find_next()
        return self.due >= NEVER
