"""What an engine says of itself before anything runs: block sizes that it takes, knobs that it does not have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Domain:
    """Block sizes in tokens: at least `minimum`, a multiple of `multiple_of`, or exactly one of `one_of`."""

    minimum: int = 1
    multiple_of: int = 1
    one_of: tuple[int, ...] = ()
    not_applicable: tuple[str, ...] = ()  # fields of the policy that change nothing here
    source: str = "any"  # who says so

    def accepts(self, block_size: int) -> bool:
        """Whether the engine would take that block size."""
        if self.one_of and block_size in self.one_of:
            return True
        if self.one_of and self.multiple_of == 1:
            return False
        return block_size >= self.minimum and block_size % self.multiple_of == 0
