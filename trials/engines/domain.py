"""What an engine says of itself before anything runs: block sizes that it takes, knobs that it does not have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Domain:
    """Block sizes in tokens: at least `minimum`, and multiples of `multiple_of`."""

    minimum: int = 1
    multiple_of: int = 1
    not_applicable: tuple[str, ...] = ()  # fields of the policy that change nothing here
    source: str = "any"  # who says so

    def accepts(self, block_size: int) -> bool:
        """Whether the engine would take that block size."""
        return block_size >= self.minimum and block_size % self.multiple_of == 0
