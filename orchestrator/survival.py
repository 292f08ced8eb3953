"""What a winner has to survive before a recipe is written: a window overlaid with bursts of cancels and with forks.

Every engine takes forks: those without copy-on-write as requests that meet in the prefix cache. Forks are requests
more: the load is thinned by as much, so that it is the bursts that have to be survived and not a higher load.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from orchestrator.windows import window_of as window_from
from trials.fingerprint import trace_hash
from trials.load import window_of
from trials.overlay import Cancels, Forks, Overlay, Share, overlaid
from trials.spec import Load, Ns, TraceSpec, TrialSpec, Window
from trials.superpose import superposed
from trials.trace import STARTS, Trace, load_trace, save_trace
from trials.units import SpecError


class SurvivalSpec(BaseModel):
    """Shares of requests that are given up, in `bursts` groups of neighbours each at one moment, and sampled
    `width` times. `of_capacity`: the share of its capacity at which a candidate has to survive.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cancels: Share = 0.1
    bursts: int = Field(default=4, ge=1, strict=True)
    patience: Annotated[Ns, Field(gt=0)] = 2_000_000_000  # from a burst's last arrival
    forks: Share = 0.02
    width: int = Field(default=4, ge=2, le=1024, strict=True)
    of_capacity: float = Field(default=0.8, gt=0, le=1)
    seed: int = Field(default=0, ge=0, strict=True)

    @model_validator(mode="after")
    def _something(self) -> "SurvivalSpec":
        if not self.cancels and not self.forks:
            raise ValueError("nothing to survive: give a share of cancels or of forks, or survival: null")
        return self

    @property
    def words(self) -> str:
        return f"{self.cancels:.0%} given up in {self.bursts} bursts, {self.forks:.0%} sampled {self.width} times"


@dataclass(frozen=True, slots=True)
class Bursts:
    """A window under bursts, and by what its rate is multiplied so that as many requests come as without them."""

    trace: TraceSpec
    thinner: float

    def load(self, asked: Load) -> Load:
        """The load at which it is replayed. A rate in requests a second counts the forks already; a closed load has
        no rate."""
        return asked if asked.rate_scale is None else Load(rate_scale=asked.rate_scale * self.thinner)


def bursts_on(asked: SurvivalSpec, spec: TrialSpec, window: Window | None, folder: Path) -> Bursts:
    """The window and what warms it up, overlaid, as a trace file in `folder` that goes by its hash. SpecError."""
    stored = superposed(load_trace(Path(spec.trace.path)), spec.trace.superpose)
    stretch, start, end = window_of(stored, spec.trace.model_copy(update={"window": window}))
    at = stored.arrival_ns - int(stored.arrival_ns[0])
    part = stored.take(np.flatnonzero((at >= stretch) & (at < end)).astype(np.int64))
    trace = _fitting(_laid(asked, part), spec.policy.max_model_len)
    path = folder / f"{trace_hash(trace)[:16]}.parquet"
    if not path.is_file():
        save_trace(trace, path)
    begin = max(0, start - int(at[at >= stretch][0]))
    counted = window_from(begin, end - start)
    changed = {"path": str(path.resolve()), "window": counted, "warmup": begin, "superpose": 1}
    return Bursts(spec.trace.model_copy(update=changed), len(part) / len(trace))


def _laid(asked: SurvivalSpec, part: Trace) -> Trace:
    num = len(part)
    bursts = min(asked.bursts, round(asked.cancels * num))
    cancels = {"share": asked.cancels, "patience": f"{asked.patience}ns", "bursts": bursts} if bursts else None
    forks = Forks(share=asked.forks, width=asked.width) if round(asked.forks * num) else None
    if cancels is None and forks is None:
        raise SpecError(f"survival: {num} requests are too few for {asked.words}; lengthen the window")
    given_up = Cancels.model_validate(cancels) if cancels else None
    return overlaid(part, Overlay(cancels=given_up, forks=forks), asked.seed)


def _fitting(trace: Trace, max_model_len: int) -> Trace:
    """Answers of forks cut to what the model may hold: their lengths were drawn from prompts of all lengths."""
    room = np.maximum(max_model_len - trace.num_prompt_tokens, 1)
    forks = trace.starts == STARTS["fork"]
    outputs = np.where(forks, np.minimum(trace.num_output_tokens, room), trace.num_output_tokens)
    return replace(trace, num_output_tokens=outputs)
