"""What a replay writes down while it runs: columns under way, in O(changes)."""

import struct
from array import array
from dataclasses import dataclass, field

import numpy as np

from trials.engine import LedgerRow, Outcome, Step
from trials.load import Offer
from trials.recording import LEDGER_COLUMNS, STEP_COLUMNS, Ints, Requests
from trials.trace import Trace

# One row as bytes: array.frombytes(pack(*row)) takes a fifth of the time of array.extend(row).
STEP_PACK = struct.Struct(f"{len(STEP_COLUMNS)}q").pack
RUN_PACK = struct.Struct("3q").pack
ROW_PACK = struct.Struct(f"{len(LEDGER_COLUMNS)}q").pack


@dataclass(slots=True)
class Recorder:
    """Columns under way. Requests are numbered by their place in the offer."""

    offer: Offer
    place: dict[int, int]  # row -> place
    arrival: list[int]
    met_step: list[int]
    admitted: list[int]
    first_token: list[int]
    last_token: list[int]
    end: list[int]
    outcome: list[int]
    delivered: list[int]
    cached: list[int]
    recomputed: list[int]
    preemptions: list[int]
    open_run: list[int]  # step of the first token of the run under way, -1
    cancel_step: list[int]
    started: set[int] = field(default_factory=set)  # forks whose parent came so far
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    ledger: "array[int]" = field(default_factory=lambda: array("q"))
    runs: "array[int]" = field(default_factory=lambda: array("q"))
    reasons: dict[int, str] = field(default_factory=dict)
    broken_laws: list[str] = field(default_factory=list)
    audited_steps: int = 0
    fruitless: int = 0  # steps that preempted since a token was last seen to be delivered
    builds: list[tuple[int, int, int]] = field(default_factory=list)  # (step, its end ns, how many)

    @classmethod
    def of(cls, offer: Offer) -> "Recorder":
        n = len(offer.rows)

        def column(value: int) -> list[int]:
            return [value] * n

        return cls(
            offer=offer, place={row: k for k, row in enumerate(offer.rows.tolist())},
            arrival=offer.due_ns.tolist(), met_step=column(-1), admitted=column(-1), first_token=column(-1),
            last_token=column(-1), end=column(-1), outcome=column(int(Outcome.UNFINISHED)), delivered=column(0),
            cached=column(0), recomputed=column(0), preemptions=column(0), open_run=column(-1),
            cancel_step=column(-1),
        )  # fmt: skip

    def changes(self, step: Step, index: int, now: int) -> None:
        """What the step says that changed, at its end `now`."""
        place = self.place
        if step.builds:
            self.builds.append((index, now, step.builds))
        if step.shape[7]:
            self.fruitless = 0
        elif step.preempted:
            self.fruitless += 1
        for row, hit in step.admitted:
            k = place[row]
            if self.admitted[k] < 0:
                self.admitted[k], self.cached[k] = now - step.duration_ns, hit
        for row in step.started:
            if self.admitted[place[row]] >= 0:  # on its parent's blocks, when the step had run
                self.admitted[place[row]] = now
        for row in step.paused:
            self.close_run(place[row], row, index, now - step.duration_ns)
        for row, dropped in step.preempted:
            k = place[row]
            self.preemptions[k] += 1
            self.recomputed[k] += dropped
        for row in step.began:
            k = place[row]
            self.open_run[k] = index
            if self.first_token[k] < 0:
                self.first_token[k] = now
        for row, tokens in step.extra:
            self.several(place[row], row, index, tokens, now)
        for row, outcome in step.ended:
            k = place[row]
            done = outcome is Outcome.COMPLETED
            self.close_run(k, row, index + done, now if done else now - step.duration_ns)
            self.finish(k, outcome, now)

    def close_run(self, k: int, row: int, stop: int, now: int) -> None:
        """The run under way delivered its last token in the step in front of `stop`, which ended at `now`."""
        first = self.open_run[k]
        if first < 0:
            return
        self.open_run[k] = -1
        if stop > first:
            self.runs.frombytes(RUN_PACK(row, first, stop - first))
            self.delivered[k] += stop - first
            self.last_token[k] = now

    def several(self, k: int, row: int, index: int, tokens: int, now: int) -> None:
        """More than one token in step `index`: the run under way ends there, each further token is a run."""
        self.close_run(k, row, index + 1, now)
        for _ in range(tokens - 1):
            self.runs.frombytes(RUN_PACK(row, index, 1))
        self.delivered[k] += tokens - 1
        self.open_run[k] = index + 1

    def finish(self, k: int, outcome: Outcome, now: int) -> None:
        self.outcome[k] = outcome
        self.end[k] = now

    def idle(self, rows: tuple[LedgerRow, ...], start: int, duration: int, events: bool) -> None:
        """A span in which nothing ran. Events since the last step belong to the next one, unless it is the end."""
        self.steps.extend((start, duration, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 1))
        for row in rows:
            self.ledger.extend(row if events else (*row[:9], 0, 0, 0, 0))

    def columns(self, trace: Trace) -> Requests:
        rows = self.offer.rows

        def column(values: list[int]) -> Ints:
            return np.asarray(values, np.int64)

        return Requests(
            row=rows, arrival_ns=column(self.arrival), met_step=column(self.met_step),
            cancel_step=column(self.cancel_step), admitted_ns=column(self.admitted),
            first_token_ns=column(self.first_token), last_token_ns=column(self.last_token),
            end_ns=column(self.end), outcome=column(self.outcome),
            num_prompt_tokens=trace.num_prompt_tokens[rows], num_output_tokens=trace.num_output_tokens[rows],
            num_delivered=column(self.delivered), cached_tokens=column(self.cached),
            recomputed_tokens=column(self.recomputed), preemptions=column(self.preemptions),
            counted=self.offer.counted,
        )  # fmt: skip
