"""What the scheduler hands to whatever executes a step: who decodes, which chunks are computed, what is copied.

`Run` is a request while it is served. A decoding run's length is never stored per step: it follows from the
step at which it began to decode, so that a step costs nothing for sequences to which nothing happens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trials.engine import DeviceBytes, StepShape


@dataclass(slots=True, eq=False)
class Run:
    """A request while it is served. Between steps: decoding iff `began >= 0`."""

    row: int
    num_prompt_tokens: int
    num_output_tokens: int  # forced length of the answer
    arrival_ns: int = 0
    priority: int = 0
    sampled: int = 0  # output tokens delivered before `began`
    computed: int = 0  # tokens whose KV is held, as of `began` while decoding, else now
    began: int = -1  # step of its first decode since it last (re)started, -1 while not decoding
    table: list[int] = field(default_factory=list)  # block ids in token order
    num_indexed: int = 0  # leading blocks that stand in the prefix index
    num_counted: int = 0  # leading blocks that carry a reference count: indexed or forked
    keys: list[int] = field(default_factory=list)  # content keys of leading blocks that others may ask for
    preemptions: int = 0
    admission: int = -1  # number of its latest admission: running order
    last_step: int = -1  # step of its last token, while decoding
    waiting: bool = False
    forked: bool = False  # it began by sharing its parent's blocks
    parent: int = -1
    inherited_tokens: int = 0

    def computed_at(self, step: int) -> int:
        """Tokens whose KV stands before `step` runs."""
        return self.computed + (step - self.began) if self.began >= 0 else self.computed

    def sampled_at(self, step: int) -> int:
        """Output tokens delivered before `step` runs."""
        return self.sampled + (step - self.began) if self.began >= 0 else self.sampled

    def known_at(self, step: int) -> int:
        """Prompt and delivered output tokens before `step` runs; the last of them has no KV yet."""
        return self.num_prompt_tokens + self.sampled_at(step)


@dataclass(slots=True)
class Chunk:
    """Tokens [start, start + num_tokens) of a run, computed in this step; `samples`: its last known token is."""

    run: Run
    start: int
    num_tokens: int
    samples: bool


@dataclass(slots=True)
class Plan:
    """One step, ready to execute. `decoding` is in running order; each of its runs computes ONE token, at
    position run.computed_at(step), whose id is the last token delivered. Blocks are allocated already."""

    step: int
    decoding: Mapping[int, Run]
    chunks: Sequence[Chunk]
    copies: Sequence[tuple[int, int]]  # (from block, to block), before anything is written
    shape: StepShape


class Execution(Protocol):
    """Executes plans: a step-time model, or real tensors."""

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        """Run the step -> (duration ns, attention ns or None where it is not told apart)."""

    def forget(self, row: int) -> None:
        """The row ended (finished, cancelled); drop what was kept of it. Preemption does NOT forget."""

    def reset(self) -> None:
        """A replay begins: no row is known, what the cache holds is of no use."""

    def device(self) -> DeviceBytes:
        """Device side of the ledger, at peak so far in this replay."""
