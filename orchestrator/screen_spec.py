"""What a sweep says of its screen: the simulator that sees every candidate before the engine sees a few."""

from pydantic import BaseModel, ConfigDict, Field

from trials.spec import Ns

_TEN_MINUTES_NS = 600 * 10**9


class ScreenSpec(BaseModel):
    """`step_time` is the simulator's: `table:FILE` of `kvknee calibrate`, or `roofline:GPU`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_time: str
    budget: Ns = Field(default=_TEN_MINUTES_NS, gt=0)  # wall time for all of it
    keep: float = Field(default=0.2, gt=0, le=1)  # share of the space that is called promising
    checks: int = Field(default=4, ge=0, le=100)  # unpromising candidates that are measured all the same
