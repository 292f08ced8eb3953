"""What a sweep says of where its trials run."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ExecutorSpec(BaseModel):
    """Where trials run. `slots`: how many at once, None = one a CPU; measured CPU trials run one at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["ray", "process"] = "ray"
    slots: int | None = Field(default=None, ge=1)
    address: str | None = None
    start_deadline_s: float = Field(default=300.0, gt=0)
    run_deadline_s: float = Field(default=3600.0, gt=0)
