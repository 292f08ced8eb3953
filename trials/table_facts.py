"""What a calibration says of its table beside the times: the price of a block, its reach, how far it is off."""

from pydantic import BaseModel, ConfigDict


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BlockTerm(_Model):
    """What a block costs a decode beside its tokens, over all layers. None: one block size was measured."""

    ns_per_block: float | None = None
    error_ns: float | None = None  # standard error

    @property
    def words(self) -> str:
        if self.ns_per_block is None or self.error_ns is None:
            return "not known: one block size was measured"
        told = "" if self.ns_per_block > 2 * self.error_ns else ", not told from zero"
        return f"{self.ns_per_block:.4g} ns a block, standard error {self.error_ns:.2g}{told}"


class Region(_Model):
    """The most that was timed, of each; times beyond are extrapolated."""

    num_decodes: float
    mean_context: float
    tokens: float
    mean_before: float
    block_sizes: tuple[int, ...]


class Residual(_Model):
    """Predicted / timed - 1, over the steps of one kind."""

    kind: str  # all | decode | prefill | mixed
    held_out: bool
    steps: int
    median: float
    p90_abs: float
    of_total: float  # of the summed time
