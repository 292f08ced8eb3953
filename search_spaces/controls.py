"""Deliberately chosen points of a space, or beside it, that every verdict table shows."""

from collections.abc import Callable

from search_spaces.dimension import Value
from search_spaces.space import Space, with_policy
from trials.spec import TrialSpec
from trials.units import SpecError, nearest


def _extreme(space: Space, pick: Callable[[tuple[Value, ...]], Value]) -> TrialSpec | None:
    sizes = next((d.values for d in space.dimensions if d.field == "block_size"), ())
    return with_policy(space.base, block_size=pick(sizes)) if sizes else None


def _contiguous(space: Space) -> TrialSpec:
    """Maximum-context reservation: one block of max_model_len a sequence, nothing shared, dense attention."""
    longest = space.base.policy.max_model_len
    return with_policy(space.base, layout="contiguous", block_size=longest, prefix_caching=False)


# None: this space has no such point.
CONTROLS: dict[str, Callable[[Space], TrialSpec | None]] = {
    "contiguous": _contiguous,
    "one_block": lambda space: with_policy(space.base, layout="paged", block_size=space.base.policy.max_model_len),
    "vendor_default": lambda space: with_policy(space.base, block_size=min(16, space.base.policy.max_model_len)),
    "smallest": lambda space: _extreme(space, lambda sizes: min(sizes, key=lambda v: int(v))),
    "largest": lambda space: _extreme(space, lambda sizes: max(sizes, key=lambda v: int(v))),
}  # fmt: skip


def control_spec(space: Space, name: str) -> TrialSpec | None:
    """The spec of a control over the space's base; None where the space does not move block size."""
    if name not in CONTROLS:
        raise SpecError(f"control {name!r} does not exist; {nearest(name, CONTROLS)}")
    return CONTROLS[name](space)
