"""The pool against a dumb allocator of sets: whatever happens in whatever order, every law holds after every event.

The reference keeps, for each block, the set of its holders and the tuple of tokens that it ends; its free queue is
two lists that are walked. It shares nothing with the pool but the order of events.
"""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from trials.block_pool import BlockPool
from trials.engine import GroupAudit, PoolGeometry
from trials.prefix_index import ROOT
from trials.recount import check_row

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Sequence:
    """What the caller of a pool keeps of one sequence."""

    number: int
    tokens: list[int]
    num_keys: int  # of its leading full blocks others may ask for so many
    table: list[int] = field(default_factory=list)
    num_indexed: int = 0
    num_counted: int = 0


class Reference:
    """Blocks as sets of holders; free ones in two lists, head first."""

    def __init__(self, num_blocks: int, reserve: int, caching: bool) -> None:
        self.caching = caching
        self.usable = range(reserve, num_blocks)
        self.forget_all()

    def forget_all(self) -> None:
        self.blank = list(self.usable)
        self.idle: list[int] = []
        self.holders: dict[int, set[int]] = {block: set() for block in self.usable}
        self.content: dict[int, Tokens] = {}
        self.listed: list[int] = []  # blocks with content, oldest first

    @property
    def available(self) -> int:
        return len(self.blank) + len(self.idle)

    def take(self, holder: int) -> int:
        block = (self.blank or self.idle).pop(0)
        self.content.pop(block, None)
        if block in self.listed:
            self.listed.remove(block)
        self.holders[block] = {holder}
        return block

    def find(self, tokens: Tokens) -> int | None:
        return next((block for block in self.listed if self.content[block] == tokens), None)

    def hold(self, block: int, holder: int) -> None:
        if not self.holders[block]:
            self.idle.remove(block)
        self.holders[block].add(holder)

    def make_known(self, block: int, tokens: Tokens) -> None:
        if block not in self.listed:
            self.content[block] = tokens
            self.listed.append(block)

    def release(self, table: list[int], held: int, size: int, holder: int) -> None:
        blank = []
        for place in reversed(range(len(table))):
            block = table[place]
            self.holders[block].remove(holder)
            if self.holders[block]:
                continue
            if self.caching and held >= (place + 1) * size:
                self.idle.append(block)
            else:
                blank.append(block)
        self.blank = blank + self.blank


class PoolMachine(RuleBasedStateMachine):
    rules_run = 0
    sequences = Bundle("sequences")

    @initialize(
        size=st.sampled_from([1, 2, 3, 4]), blocks=st.integers(3, 14), reserve=st.sampled_from([0, 0, 1]),
        caching=st.sampled_from([True, True, True, False]),
    )  # fmt: skip
    def build(self, size: int, blocks: int, reserve: int, caching: bool) -> None:
        self.size, self.blocks = size, blocks
        self.pool = BlockPool(blocks, size, reserve, caching)
        self.plain = Reference(blocks, reserve, caching)
        self.live: dict[int, Sequence] = {}
        self.names: dict[Tokens, int] = {}
        self.events = {"allocated": 0, "released": 0, "evicted": 0, "copied": 0}
        self.born = 0

    # ---- helpers
    def end(self, sequence: Sequence, place: int) -> Tokens:
        return tuple(sequence.tokens[: (place + 1) * self.size])

    def key(self, tokens: Tokens) -> int:
        return self.names.setdefault(tokens, len(self.names))

    def take(self, count: int, holder: int) -> list[int]:
        taken = self.pool.take(count)
        for block in taken:
            cached = not self.plain.blank
            assert block == self.plain.take(holder)
            self.events["evicted"] += cached
        self.events["allocated"] += count
        return taken

    def index(self, sequence: Sequence, full: int) -> None:
        """As the scheduler does: what is full can be found from now on. No block is registered twice."""
        first = sequence.num_indexed
        while first < full and sequence.table[first] in self.plain.listed:  # a fork's parent was there before
            first += 1
        if full <= first or not self.pool.caching:
            return
        keys = [self.key(self.end(sequence, place)) for place in range(full)]
        self.pool.register(
            sequence.table[first:full], keys[first:], keys[first - 1] if first else ROOT, sequence.number
        )
        for place in range(first, full):
            self.plain.make_known(sequence.table[place], self.end(sequence, place))
        sequence.num_indexed = full
        sequence.num_counted = max(sequence.num_counted, full)

    def release(self, sequence: Sequence) -> None:
        del self.live[sequence.number]
        before = self.plain.available
        self.pool.release(sequence.table, len(sequence.tokens), sequence.num_counted)
        self.plain.release(sequence.table, len(sequence.tokens), self.size, sequence.number)
        self.events["released"] += self.plain.available - before

    # ---- what can happen
    @rule(target=sequences, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), keys=st.integers(0, 5))
    def allocate(self, tokens: list[int], keys: int) -> Sequence | MultipleResults[Sequence]:
        """A prompt comes: what is known of it is shared, the rest gets new blocks, all or nothing."""
        sequence = Sequence(self.born, tokens, keys)
        full = min(len(tokens) // self.size, keys)
        names = [self.key(self.end(sequence, place)) for place in range(full)] if self.pool.caching else []
        hit = self.pool.index.match(names, (len(tokens) - 1) // self.size)
        expected: list[int] = []
        for place in range(min(len(names), (len(tokens) - 1) // self.size)):
            found = self.plain.find(self.end(sequence, place))
            if found is None:
                break
            expected.append(found)
        assert hit == expected
        idle = sum(not self.plain.holders[block] for block in hit)
        assert self.pool.num_idle(hit) == idle
        need = -(-len(tokens) // self.size) - len(hit)
        if need + idle > self.plain.available:
            return multiple()
        self.born += 1
        self.live[sequence.number] = sequence
        if hit:
            self.pool.share(hit)
        for block in hit:
            self.plain.hold(block, sequence.number)
        sequence.table = hit + self.take(need, sequence.number)
        sequence.num_indexed = sequence.num_counted = len(hit)
        self.pool.accounts.fill(len(tokens) - len(hit) * self.size)
        self.index(sequence, full)
        return sequence

    @rule(sequence=sequences, token=st.integers(0, 1))
    def append(self, sequence: Sequence, token: int) -> None:
        """A token is written: into a new block, into its own tail, or into a copy of a tail that others hold."""
        if sequence.number not in self.live:
            return
        place = len(sequence.tokens) // self.size
        if place == len(sequence.table):
            if not self.plain.available:
                return
            sequence.table += self.take(1, sequence.number)
        elif place < sequence.num_counted and not self.make_writable(sequence, place):
            return
        written = sequence.table[place]
        assert self.plain.holders[written] == {sequence.number}, "a block that several hold is written"
        assert written not in self.plain.listed, "a block that can be found is written"
        sequence.tokens.append(token)
        self.pool.accounts.fill(1)
        full = len(sequence.tokens) // self.size
        if sequence.num_indexed < full <= sequence.num_keys:
            self.index(sequence, full)

    def make_writable(self, sequence: Sequence, place: int) -> bool:
        """False where there is no block for a copy."""
        block = sequence.table[place]
        others = self.plain.holders[block] - {sequence.number}
        assert self.pool.must_copy(block) == bool(others)
        if others:
            if not self.plain.available:
                return False
            cached = not self.plain.blank
            copy = self.pool.copy_on_write(block, len(sequence.tokens) % self.size)
            assert copy == self.plain.take(sequence.number)
            self.plain.holders[block].remove(sequence.number)
            sequence.table[place] = copy
            self.events["allocated"] += 1
            self.events["evicted"] += cached
            self.events["copied"] += 1
        else:
            self.pool.own(block)
        sequence.num_counted = place
        return True

    @rule(target=sequences, sequence=sequences)
    def share(self, sequence: Sequence) -> Sequence | MultipleResults[Sequence]:
        """A fork holds all that its parent holds."""
        if sequence.number not in self.live:
            return multiple()
        child = Sequence(self.born, list(sequence.tokens), sequence.num_keys, list(sequence.table))
        self.born += 1
        self.live[child.number] = child
        self.pool.fork(sequence.table, len(sequence.tokens))
        for block in sequence.table:
            self.plain.hold(block, child.number)
        sequence.num_counted = child.num_counted = len(sequence.table)
        child.num_indexed = sequence.num_indexed
        return child

    @rule(sequence=consumes(sequences))
    def finish(self, sequence: Sequence) -> None:
        if sequence.number in self.live:
            self.release(sequence)

    @rule(sequence=consumes(sequences))
    def preempt(self, sequence: Sequence) -> None:
        """It goes, and all that is full can be found, should it come back."""
        if sequence.number in self.live:
            self.index(sequence, len(sequence.tokens) // self.size)
            self.release(sequence)

    @precondition(lambda self: len(self.live) > 2)
    @rule(data=st.data())
    def cancel_all_but_one(self, data: st.DataObject) -> None:
        kept = data.draw(st.sampled_from(sorted(self.live)))
        for sequence in [s for n, s in self.live.items() if n != kept]:
            self.release(sequence)

    @rule(most=st.integers(1, 8))
    def evict(self, most: int) -> None:
        """Somebody takes blocks, whatever content they had, and gives them back with nothing in them."""
        count = min(most, self.plain.available)
        passing = Sequence(self.born, [], 0)
        self.born += 1
        passing.table = self.take(count, passing.number)
        self.live[passing.number] = passing
        self.laws()
        self.release(passing)

    @precondition(lambda self: not self.live)
    @rule()
    def start_cold(self) -> None:
        self.pool.drop_cached()
        self.plain.forget_all()

    # ---- the laws
    @invariant()
    def laws(self) -> None:
        type(self).rules_run += 1
        if not hasattr(self, "pool"):
            return
        pool, plain = self.pool, self.plain
        tables = [s.table for s in self.live.values()]
        pool.check_invariants(tables)
        assert pool.available == plain.available
        assert pool.free_ids() == plain.blank
        assert pool.cached_ids() == plain.idle
        for block in plain.usable:
            assert pool.ref_count(block, tables) == len(plain.holders[block])
        # Copies that would be made, were every holder of a shared tail to write.
        tails = {s.table[-1] for s in self.live.values() if len(s.tokens) % self.size}
        assert pool.tail_copies == sum(len(plain.holders[block]) - 1 for block in tails)

    @invariant()
    def accounts_are_what_a_recount_finds(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        geometry = PoolGeometry(
            self.size, self.blocks, pool.reserve_blocks, 64, 0, self.blocks * self.size * 64, self.size, self.size
        )
        audit = GroupAudit(
            {s.number: s.table for s in self.live.values() if s.tokens},
            {s.number: len(s.tokens) for s in self.live.values() if s.tokens},
            pool.free_ids(), pool.cached_ids(), list(range(pool.reserve_blocks)),
        )  # fmt: skip
        row = pool.accounts.peek()
        if all(s.tokens for s in self.live.values()):
            assert check_row(row, audit, geometry) == []
        events = {name: getattr(row, f"{name}_blocks") for name in self.events}
        assert events == self.events

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for sequence in list(self.live.values()):
                self.release(sequence)
            self.laws()
            self.accounts_are_what_a_recount_finds()
            assert self.pool.available == len(self.plain.usable)


class TestPool(PoolMachine.TestCase):  # type: ignore[misc]
    """The machine, and that it went far enough."""

    def runTest(self) -> None:
        """At least 20,000 rules, the laws checked after each."""
        PoolMachine.rules_run = 0
        super().runTest()
        assert PoolMachine.rules_run >= 20_000


TestPool.settings = settings(max_examples=420, stateful_step_count=50, deadline=None, derandomize=True)
