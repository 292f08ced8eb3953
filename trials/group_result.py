"""What a result says of KV groups and ranks: the shape of each group, and each pool's part of the ledger."""

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EffectiveGroup(_Model):
    """Layers that share block tables, as the engine grouped them. Bytes are of one rank."""

    kind: str
    num_layers: int
    block_size: int  # tokens behind a block
    window: int = 0
    bytes_per_token: int  # of one state, where the group keeps states
    keeps_states: bool = False  # a block holds one state, whatever the sequence's length
    padding_bytes_per_block: int
    reuse_quantum_tokens: int  # of this group; the model's is a multiple of it


class GroupLedger(_Model):
    """Byte accounts of one group on one rank. What no group has of a shared pool stands in its first group."""

    group: int
    rank: int
    kind: str
    block_size: int
    time_mean: dict[str, float] = Field(default_factory=dict)
    peak: dict[str, int] = Field(default_factory=dict)  # in the row of the whole ledger's peak
    live_blocks: dict[str, float] = Field(default_factory=dict)  # time mean and peak
