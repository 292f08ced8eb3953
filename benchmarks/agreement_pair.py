"""Two engines, one load: side by side and compared after every step, or one against the kept run of another."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.agreement_changes import FLAW
from benchmarks.agreement_loads import Case
from benchmarks.agreement_views import Observer, OurView, Seen, TheirView
from trials.engine import Engine, Work

STUCK_STEPS = 20_000  # without a request that ends, after which a run is left


@dataclass(slots=True)
class Moment:
    """What happens between two steps."""

    adds: list[int] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)


class Driver:
    """Says what happens between steps, by the clock that the steps moved. One abort a call."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.now = 0
        self._next = 0
        self._rng = random.Random(f"aborts/{case.seed}")
        self._alive: dict[int, None] = {}
        self._aborts: dict[int, list[int]] = {}  # step -> rows
        self._step = self._last_end = 0

    @property
    def over(self) -> bool:
        """All has ended, or nothing ends any more: by vLLM's rules two can take turns forever."""
        return self.stuck or (self._next == len(self.case.due_ns) and not self._alive)

    @property
    def stuck(self) -> bool:
        return self._step - self._last_end > STUCK_STEPS

    def moment(self) -> Moment:
        """Everything that is due now; an idle engine is taken to the next arrival."""
        due = self.case.due_ns
        if not self._alive and self._next < len(due):
            self.now = max(self.now, due[self._next])
        out = Moment()
        while self._next < len(due) and due[self._next] <= self.now:
            out.adds.append(self._next)
            self._alive[self._next] = None
            if self._rng.random() < self.case.abort_share:
                self._aborts.setdefault(self._step + self._patience(self._next), []).append(self._next)
            self._next += 1
        out.cancels = self._aborts.pop(self._step, [])
        for row in out.cancels:
            self._alive.pop(row, None)
        self._step += 1
        return out

    def _patience(self, row: int) -> int:
        """Steps until a request is aborted: still queued, in its prefill, while it decodes, or long over."""
        output = int(self.case.trace.num_output_tokens[row])
        return self._rng.choice((0, 1, self._rng.randint(2, 20), self._rng.randint(1, output), 2 * output))

    def stepped(self, seen: Seen) -> None:
        self.now += seen.duration_ns
        for row in seen.ended:
            self._last_end = self._step
            self._alive.pop(row, None)


def work(case: Case, row: int) -> Work:
    trace = case.trace
    fork = case.forks and trace.parent[row] >= 0
    return Work(
        row, int(trace.num_prompt_tokens[row]), int(trace.num_output_tokens[row]), case.due_ns[row],
        case.priorities[row], parent=int(trace.parent[row]) if fork else -1,
        inherited_tokens=int(trace.inherited_tokens[row]) if fork else 0,
    )  # fmt: skip


def apply(engine: Engine, case: Case, moment: Moment) -> list[object]:
    """Carry a moment out; what the engine answered."""
    said: list[object] = [engine.add(work(case, row)) for row in moment.adds]
    said += [engine.cancel(row) for row in moment.cancels]
    return said


@dataclass(slots=True)
class Tally:
    """What was compared in one run, and the first difference."""

    steps: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    aborts: int = 0
    finished: int = 0
    stuck: int = 0  # 1: left, since nothing ended any more
    differing: int = 0
    first: str = ""

    def count(self, seen: Seen) -> None:
        self.steps += 1
        self.preemptions += len(seen.preempted)
        self.hit_tokens += sum(hit for _, hit in seen.admitted)
        self.evictions += seen.ledger.evicted_blocks
        self.finished += len(seen.ended)


def lockstep(case: Case) -> Tally:
    """Both engines through the load, compared after every step; stops at the first step that differs.

    Under the priority policy ours is given vLLM's flaw (agreement_changes.py): all else must agree.
    """
    with ExitStack() as changes:
        if case.policy.victim == "priority":
            for change in FLAW:
                changes.enter_context(change.applied())
        return _lockstep(case)


def _lockstep(case: Case) -> Tally:
    theirs, ours = Observer(TheirView(case)), Observer(OurView(case))
    driver, tally = Driver(case), Tally()
    engines: Sequence[Engine] = (theirs.view.engine, ours.view.engine)
    try:
        for engine in engines:
            engine.start(cold=True)
        while not driver.over:
            moment = driver.moment()
            said = [apply(engine, case, moment) for engine in engines]
            tally.aborts += sum(answer is True for answer in said[0])
            if said[0] != said[1]:
                tally.differing, tally.first = 1, f"before step {tally.steps}: {said[0]} against {said[1]}"
                break
            wanted, found = theirs.step(), ours.step()
            if wanted is None or found is None:
                if wanted is not found:
                    tally.differing, tally.first = 1, f"step {tally.steps}: only one engine ran"
                    break
                continue
            tally.count(wanted)
            if names := wanted.differs(found):
                tally.differing, tally.first = 1, told(tally.steps, names, wanted, found)
                break
            driver.stepped(wanted)
        tally.stuck = int(driver.stuck)
    finally:
        theirs.view.engine.close()
    return tally


def told(step: int, names: list[str], wanted: Seen, found: Seen) -> str:
    """A difference, in words short enough to read."""
    shown = [f"{n}: vLLM {str(getattr(wanted, n))[:300]}, ours {str(getattr(found, n))[:300]}" for n in names[:4]]
    return f"step {step}: {len(names)} fields differ: " + "; ".join(shown)


@dataclass(slots=True)
class Script:
    """A run of vLLM's scheduler, kept: what happened before each step, and what was seen of it."""

    case: Case
    moments: list[Moment]
    seen: list[Seen | None]


def record(case: Case) -> Script:
    """Run vLLM's scheduler alone, and keep everything."""
    observer, driver = Observer(TheirView(case)), Driver(case)
    script = Script(case, [], [])
    observer.view.engine.start(cold=True)
    while not driver.over:
        moment = driver.moment()
        apply(observer.view.engine, case, moment)
        seen = observer.step()
        script.moments.append(moment)
        script.seen.append(seen)
        if seen is not None:
            driver.stepped(seen)
    observer.view.engine.close()
    return script


def replayed(script: Script) -> Iterator[list[str]]:
    """Our engine through a kept run, step by step: the fields that differ."""
    observer = Observer(OurView(script.case))
    observer.view.engine.start(cold=True)
    for moment, wanted in zip(script.moments, script.seen, strict=True):
        apply(observer.view.engine, script.case, moment)
        found = observer.step()
        if wanted is None or found is None:
            yield [] if wanted is found else ["one ran, the other did not"]
        else:
            yield wanted.differs(found)
