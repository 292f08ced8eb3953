"""Who gives way and who goes next: one small function or class a strategy, by name.

Sources: last_admitted and priority, vLLM v1; fewest_outputs, SGLang's retraction; longest_prefix, SGLang's lpm;
largest and shortest_job, the scheduling literature.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from trials.plan import Run

# ---- victims: (running, in admission order; the step about to run) -> who releases everything
Victim = Callable[[dict[int, Run], int], Run]


def last_admitted(running: dict[int, Run], step: int) -> Run:
    """The most recently admitted."""
    return next(reversed(running.values()))


def fewest_outputs(running: dict[int, Run], step: int) -> Run:
    """Who loses the fewest delivered tokens; among equals, the longest prompt, then the last admitted."""
    return min(running.values(), key=lambda run: (run.sampled_at(step), -run.num_prompt_tokens, -run.admission))


def largest(running: dict[int, Run], step: int) -> Run:
    """Who holds the most blocks; among equals, the last admitted. Who has run longest is spared while others run:
    else two that grow in turn can put each other out for ever."""
    _, *others = running.values()
    return max(others or running.values(), key=lambda run: (len(run.table), run.admission))


def lowest_priority(running: dict[int, Run], step: int) -> Run:
    """The first of those with the highest (priority number, arrival), as vLLM's priority policy does. Requests of
    one priority that arrive in the same nanosecond can put each other out for ever; a replay gives that up."""
    return max(running.values(), key=lambda run: (run.priority, run.arrival_ns))


VICTIMS: dict[str, Victim] = {
    "last_admitted": last_admitted,
    "fewest_outputs": fewest_outputs,
    "largest": largest,
    "priority": lowest_priority,
}


# ---- queue orders
class Queue(Protocol):
    """Those that wait. `head` is who is admitted next; nobody behind it is looked at."""

    def push(self, run: Run) -> None: ...

    def push_back(self, run: Run) -> None:
        """A preempted request comes back: to the front, where the order knows a front."""

    def head(self) -> Run: ...

    def remove(self, run: Run) -> None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Run]: ...


class FirstCome:
    """Arrival order; the preempted go to the front."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()

    def push(self, run: Run) -> None:
        self._runs.append(run)

    def push_back(self, run: Run) -> None:
        self._runs.appendleft(run)

    def head(self) -> Run:
        return self._runs[0]

    def remove(self, run: Run) -> None:
        if self._runs[0] is run:
            self._runs.popleft()
        else:
            self._runs.remove(run)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)


@dataclass(slots=True)
class Sorted:
    """Lowest key first; the preempted are sorted in like everyone else."""

    key: Callable[[Run], tuple[int, ...]]
    _runs: list[Run] = field(default_factory=list)

    def push(self, run: Run) -> None:
        insort(self._runs, run, key=self.key)

    def push_back(self, run: Run) -> None:
        self.push(run)

    def head(self) -> Run:
        return self._runs[0]

    def remove(self, run: Run) -> None:
        self._runs.remove(run)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)


class LongestPrefix(FirstCome):
    """Whoever finds most full blocks in the cache, of the first 128 in line, as in SGLang; among equals, the first.
    The preempted go to the front of the line."""

    LOOK = 128

    def __init__(self, match: Callable[[Run], int]) -> None:
        super().__init__()
        self._match = match

    def head(self) -> Run:
        best, most = self._runs[0], -1
        for number, run in enumerate(self._runs):
            if number >= self.LOOK:
                break
            found = self._match(run)
            if found > most:
                best, most = run, found
        return best

    def remove(self, run: Run) -> None:
        self._runs.remove(run)


def _left(run: Run) -> int:
    """Declared output still to deliver."""
    return run.num_output_tokens - run.sampled


QUEUES: dict[str, Callable[[Callable[[Run], int]], Queue]] = {
    "fcfs": lambda match: FirstCome(),
    "longest_prefix": LongestPrefix,
    "priority": lambda match: Sorted(lambda run: (run.priority, run.arrival_ns, run.row)),
    "shortest_job": lambda match: Sorted(lambda run: (_left(run), run.arrival_ns, run.row)),
}
