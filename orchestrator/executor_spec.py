"""What a sweep says of where its trials run, and what one slot reserves there."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SlotSpec(BaseModel):
    """What one slot reserves: `bundles` times `cpus` and `gpus`, whole ones, since timing trials share no device.

    None: what the engine needs (threads; tensor x pipeline parallel GPUs over the bundles). `strategy` None:
    STRICT_PACK, all on one node; engines that span nodes declare SPREAD. `accelerator_type` and `labels` are Ray's:
    `H200`, `{pool: fast}`. `exclusive_node`: the whole node, and no other slot on it. `pin_cores`: the trial stays
    on cores of its own; None: where the engine is measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: int | None = Field(default=None, ge=1, strict=True)
    gpus: int | None = Field(default=None, ge=0, strict=True)
    bundles: int = Field(default=1, ge=1, le=64, strict=True)
    strategy: Literal["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"] | None = None
    accelerator_type: str | None = None
    labels: dict[str, str] = {}
    exclusive_node: bool = False
    pin_cores: bool | None = None

    @model_validator(mode="after")
    def _coherent(self) -> "SlotSpec":
        if self.strategy in ("SPREAD", "STRICT_SPREAD") and self.bundles == 1:
            raise ValueError(f"slot.strategy {self.strategy} needs bundles: 2 or more")
        if self.exclusive_node and self.bundles > 1:
            raise ValueError("slot.exclusive_node is for slots of one bundle")
        return self


class ExecutorSpec(BaseModel):
    """Where trials run. `slots`: how many at once, None = one a CPU; measured CPU trials run one at a time.

    `launch`: a new process by fork of a warm server, or by exec; auto forks what can be forked. `wait_for_nodes_s`:
    how long a cluster that grows may take to bring nodes; without it, what no node has is an error at once.
    `lease_s`: a node that has not heard of the driver for so long ends what it runs. `content`: a folder or bucket
    that driver and nodes reach (`file:///nfs/kvknee`, `s3://...`); None: traces travel through Ray.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["ray", "process"] = "ray"
    slots: int | None = Field(default=None, ge=1, le=65536, strict=True)
    address: str | None = None
    slot: SlotSpec = SlotSpec()
    launch: Literal["auto", "exec", "fork"] = "auto"
    start_deadline_s: float = Field(default=300.0, gt=0)
    run_deadline_s: float = Field(default=3600.0, gt=0)
    wait_for_nodes_s: float = Field(default=0.0, ge=0)
    lease_s: float = Field(default=60.0, ge=1)
    content: str | None = None
