"""Running accounts of several KV groups that draw their blocks from one pool.

A free block belongs to no group: it is booked in the first one's account, whichever takes it. Once taken it is the
taking group's, and stays so while it is cached: whoever claims it then takes it out of that group's account.

    free (of all) --claim--> tail slack of g --fill--> payload of g --release--> cached of g | free (of all)
                             cached of h --claim (evicts)--> tail slack of g

Where a group keeps states, one a block, a claimed block is payload at once: a state has no slots to fill.
"""

from collections.abc import Mapping, Sequence

from trials.engine import LedgerRow, PoolGeometry
from trials.ledger import Accounts


class SharedPool:
    """One `Accounts` a group; those of `groups[0]` hold what is free and in reserve."""

    def __init__(self, geometries: Sequence[PoolGeometry]) -> None:
        first = geometries[0]
        usable = first.num_blocks - first.reserve_blocks
        self.groups = [
            Accounts(geometry.slots, 0 if number else usable, 0 if number else first.reserve_blocks, group=number)
            for number, geometry in enumerate(geometries)
        ]
        self._keeps_tokens = [
            account for account, g in zip(self.groups, geometries, strict=True) if not g.keeps_states
        ]
        self._states = [geometry.keeps_states for geometry in geometries]

    @property
    def available_blocks(self) -> int:
        """Free or cached, of all groups."""
        return self.groups[0].free_blocks + sum(account.cached_blocks for account in self.groups)

    def claim(self, group: int, blank: int, evicted: Mapping[int, int]) -> None:
        """`group` is handed `blank` free blocks, and so many that other groups' content was `evicted` from."""
        account = self.groups[group]
        self.groups[0].free_blocks -= blank
        count = blank
        for other, blocks in evicted.items():
            self.groups[other].cached_blocks -= blocks
            self.groups[other].evicted_blocks += blocks
            count += blocks
        account.allocated_blocks += count
        account.tail_slack_tokens += count * account.block_size
        if self._states[group]:
            account.fill(count)

    def fill(self, tokens: int) -> None:
        """Tokens are computed: every group that keeps tokens writes them into what it has claimed."""
        for account in self._keeps_tokens:
            account.fill(tokens)

    def share(self, group: int, held: int, revived: int) -> None:
        """A sequence takes references to full blocks, or states, of `group`."""
        self.groups[group].share(held, revived)

    def release(self, group: int, held: int, slack: int, cached: int, blank: int) -> None:
        """A sequence lets go of `held` tokens (or states); `cached` blocks and `blank` ones have no holder now."""
        account = self.groups[group]
        account.release(held, (slack, 0), cached, 0)
        account.payload_tokens -= blank * account.block_size
        account.released_blocks += blank
        self.groups[0].free_blocks += blank

    def forget(self) -> None:
        """All cached content is dropped (a cold start)."""
        for account in self.groups:
            self.groups[0].free_blocks += account.cached_blocks
            account.cached_blocks = 0

    def peek(self) -> tuple[LedgerRow, ...]:
        """The accounts now, a row a group, and the events since the last `rows()`."""
        return tuple(account.peek() for account in self.groups)

    def rows(self) -> tuple[LedgerRow, ...]:
        """The accounts now; event counts start again from zero."""
        return tuple(account.row() for account in self.groups)
