"""Those that are being served: who runs, who decodes, which blocks they hold, and what a step changed.

Carries decisions out and takes none: the scheduler says who computes, who makes room and who comes in.

The burst of a step counts the copies that it makes before a write, and the blocks that forked rows open in it.
"""

from dataclasses import dataclass, field

from trials.admission import Grant
from trials.block_pool import BlockPool
from trials.content import Content
from trials.decode_ring import DecodeRing
from trials.engine import Outcome
from trials.plan import Chunk, Run
from trials.prefix_index import ROOT
from trials.spec import PoolPolicy


@dataclass(slots=True)
class Changes:
    """What a step changed, by row."""

    began: list[int] = field(default_factory=list)
    paused: list[int] = field(default_factory=list)
    ended: list[tuple[int, Outcome]] = field(default_factory=list)
    admitted: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[tuple[int, int]] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    burst_blocks: int = 0

    def clear(self) -> None:
        """A new step begins; most steps change nothing."""
        if self.began or self.paused or self.ended or self.admitted or self.preempted or self.started:
            self.began, self.paused, self.ended = [], [], []
            self.admitted, self.preempted, self.started = [], [], []
        self.burst_blocks = 0


class Serving:
    """The running set of one engine over its pool. `step` is the step under way."""

    def __init__(self, policy: PoolPolicy, pool: BlockPool, content: Content) -> None:
        self.pool = pool
        self.content = content
        self.block_size = pool.block_size
        self.reserving = policy.reserve_output == "full"
        self.forking = policy.sharing == "cow"
        self._partial_match = policy.prefix_match == "partial"
        self.step = 0
        self.running: dict[int, Run] = {}  # in admission order
        self.partial: dict[int, Run] = {}  # of these, who is not decoding: in a prefill, or standing still
        self.ring = DecodeRing(pool.block_size)
        self.sharing_tail: dict[int, Run] = {}  # running, and its tail block may be somebody else's too
        self.changes = Changes()
        self.chunks: list[Chunk] = []  # of the step under way
        self.copies: list[tuple[int, int]] = []
        self._coming_copies: list[tuple[int, int]] = []  # decided behind a step, made in front of the next
        self._admissions = 0

    def begin_step(self) -> None:
        """Nothing is planned yet."""
        self.changes.clear()
        self.chunks, self.copies = [], []
        if self._coming_copies:
            self.copies, self._coming_copies = self._coming_copies, self.copies
        if self._partial_match:
            self.pool.index.settle()

    # ---- coming in
    def take_in(self, run: Run, grant: Grant) -> None:
        """Carry an admission out: references first, so that a hit cannot be evicted; then new blocks."""
        pool, size = self.pool, self.block_size
        if grant.hit:
            pool.share(grant.hit)
        if grant.copy:
            pool.share([grant.copy[0]])
        fresh = pool.take(grant.claim)
        if self.reserving:
            pool.accounts.reserve(len(fresh) * size)
        run.table = grant.hit + fresh
        run.num_indexed = run.num_counted = len(grant.hit)
        if grant.copy:
            self._copy_out(grant.copy, fresh[0], len(grant.hit))
        run.computed = grant.cached
        self.join(run)
        self.changes.admitted.append((run.row, grant.cached))

    def _copy_out(self, found: tuple[int, int], into: int, depth: int) -> None:
        """A common beginning is copied out of a block, `depth` blocks deep, that is then let go again."""
        block, tokens = found
        self._fill_by_copy(tokens)
        self.pool.give_back(block, depth)
        self.copies.append((block, into))

    def _fill_by_copy(self, tokens: int) -> None:
        """A fresh block begins with `tokens` copied ones."""
        accounts = self.pool.accounts
        if self.reserving:
            accounts.reach(self.block_size)
        accounts.copy(tokens)
        accounts.refer(tokens)

    def fork(self, run: Run, parent: Run, tokens: int) -> None:
        """The run holds its parent's leading `tokens` too, in the same blocks; both may write the tail next."""
        blocks = parent.table[: -(-tokens // self.block_size)]
        self.pool.fork(blocks, tokens)
        parent.num_counted = max(parent.num_counted, len(blocks))
        run.table, run.num_counted = blocks, len(blocks)
        run.num_indexed = min(parent.num_indexed, tokens // self.block_size, len(run.keys))
        run.computed, run.forked = tokens, True
        self.join(run)
        if tokens % self.block_size:
            self.sharing_tail[run.row] = run
            self.sharing_tail[parent.row] = parent

    def fork_reserved(self, run: Run, parent: Run, tokens: int) -> bool:
        """Likewise where output is reserved: full blocks are shared, the tail is copied at once, and all that the
        run will need is claimed. False, and nothing done, where that is not there."""
        size, full = self.block_size, tokens // self.block_size
        claim = -(-(run.num_prompt_tokens + run.num_output_tokens - 1) // size) - full
        if claim > self.pool.available:
            return False
        self.fork(run, parent, full * size)
        fresh = self.pool.take(claim)
        self.pool.accounts.reserve(claim * size)
        run.table = run.table + fresh
        if tokens % size:
            self._fill_by_copy(tokens % size)
            # All copies of a step read before any of them writes: a tail that is itself to be copied is empty.
            written = {new: old for old, new in self._coming_copies}
            tail = parent.table[full]
            self._coming_copies.append((written.get(tail, tail), fresh[0]))
            run.computed = tokens
        return True

    def join(self, run: Run) -> None:
        """Last in running order."""
        run.admission = self._admissions
        self._admissions += 1
        self.running[run.row] = self.partial[run.row] = run

    # ---- computing
    def need(self, run: Run, count: int) -> int:
        """Blocks that `count` more tokens of a running request take now, a copy of a shared tail included."""
        held = run.computed_at(self.step)
        need = max(0, -(-(held + count) // self.block_size) - len(run.table))
        if run.row in self.sharing_tail and self.pool.must_copy(run.table[held // self.block_size]):
            need += 1
        return need

    def serve(self, run: Run, count: int) -> None:
        """`count` tokens of a running request join the step; its blocks are there to be taken."""
        if run.row in self.sharing_tail:
            self._own_tail(run)
        if run.began < 0:
            self.compute(run, count)
            return
        held = run.computed_at(self.step)
        if held % self.block_size == 0:
            self.open_blocks({run.row: run})
        if len(run.keys) > run.num_indexed and (held + 1) % self.block_size == 0:
            self.register_filled({run.row: run})

    def open_blocks(self, crossing: dict[int, Run]) -> None:
        """Decodes whose token of this step lies in a new block get it, in running order."""
        if self.reserving:
            self.pool.accounts.reach(len(crossing) * self.block_size)
        else:
            for run, block in zip(crossing.values(), self.pool.take(len(crossing)), strict=True):
                run.table.append(block)
            if self.forking:
                self.changes.burst_blocks += sum(run.forked for run in crossing.values())
        self.ring.blocks += len(crossing)

    def compute(self, run: Run, count: int) -> None:
        """`count` tokens of a prefill join the step, in new blocks where its table does not reach."""
        start, end, size = run.computed, run.computed + count, self.block_size
        need = -(-end // size) - len(run.table)
        if need > 0:
            run.table += self.pool.take(need)
            if run.forked:
                self.changes.burst_blocks += need
        if self.reserving:
            self.pool.accounts.reach((-(-end // size) - -(-start // size)) * size)
        full = min(end // size, len(run.keys))
        if full > run.num_indexed:
            # Before the step runs, so that a later admission of the same step finds them.
            self.register(run, full)
        run.computed = end
        self.chunks.append(Chunk(run, start, count, end == run.num_prompt_tokens + run.sampled))

    def uncompute(self, run: Run) -> None:
        """What this step was to compute of the run is dropped; content that will not exist cannot be found."""
        for chunk in self.chunks:
            if chunk.run is run:
                self.chunks.remove(chunk)
                run.computed = chunk.start
                break
        held = run.computed_at(self.step)
        if run.began >= 0 and held % self.block_size == 0:
            self.ring.blocks -= 1  # the block that its token would have opened
        full = held // self.block_size
        if run.num_indexed > full:
            self.pool.retract(run.table[full : run.num_indexed])
            run.num_indexed = full
            run.num_counted = min(run.num_counted, full)

    def register(self, run: Run, full: int) -> None:
        """The run's leading `full` blocks can be found from now on."""
        first = run.num_indexed
        parent = run.keys[first - 1] if first else ROOT
        self.pool.register(run.table[first:full], run.keys[first:full], parent, run.row)
        run.num_indexed = full
        run.num_counted = max(run.num_counted, full)

    def register_filled(self, filling: dict[int, Run]) -> None:
        """Decodes whose token of this step completes a block that other rows may ask for."""
        for run in list(filling.values()):
            self.register(run, run.computed_at(self.step) // self.block_size + 1)
            if run.num_indexed == len(run.keys):
                self.ring.filled_all(run)

    def _own_tail(self, run: Run) -> None:
        """The run is about to write into its tail block: a copy of it, if anybody else holds it."""
        held = run.computed_at(self.step)
        place = held // self.block_size
        block = run.table[place]
        if self.pool.must_copy(block):
            run.table[place] = self.pool.copy_on_write(block, held % self.block_size)
            self.copies.append((block, run.table[place]))
            self.changes.burst_blocks += 1
        else:
            self.pool.own(block)
        run.num_counted = min(run.num_counted, place)
        del self.sharing_tail[run.row]

    def sample_first(self, run: Run) -> bool:
        """The run delivered a token that ends a prefill: it decodes from the next step on, or is done (True)."""
        run.sampled += 1
        self.changes.began.append(run.row)
        if run.sampled == run.num_output_tokens:
            return True
        del self.partial[run.row]
        self.ring.begin(run, self.step)
        return False

    # ---- giving way
    def stand_still(self, run: Run) -> None:
        """A decode that this step does not reach."""
        self.ring.stop(run, self.step)
        self.partial[run.row] = run
        self.changes.paused.append(run.row)

    def preempt(self, run: Run) -> None:
        """Everything is released, to be recomputed; content stays matchable until it is taken."""
        if run.began >= 0:
            self.changes.paused.append(run.row)
        held = run.computed_at(self.step)
        full = held // self.block_size
        if self.pool.caching and full > run.num_indexed:
            # Nobody but the run itself can ask for these; now it may.
            known = len(run.keys)
            if full > known:
                run.keys = run.keys + self.content.private_keys(run.row, self.block_size, known, full)
            self.register(run, full)
        self.let_go(run)
        self.changes.preempted.append((run.row, held))
        run.computed = 0
        run.preemptions += 1
        run.forked = False

    def let_go(self, run: Run) -> None:
        """Out of the running set; everything is released."""
        del self.running[run.row]
        if run.began >= 0:
            self.ring.stop(run, self.step)
        else:
            del self.partial[run.row]
        if self.sharing_tail:
            self.sharing_tail.pop(run.row, None)
        if self.copies or self._coming_copies:
            self._drop_copies(set(run.table))
        self.pool.release(run.table, run.computed, run.num_counted, self.ahead_of(run, run.computed))
        run.table, run.num_indexed, run.num_counted = [], 0, 0

    def _drop_copies(self, into: set[int]) -> None:
        """Nobody needs a copy into blocks that are let go, and they may be the target of another one."""
        self.copies = [copy for copy in self.copies if copy[1] not in into]
        self._coming_copies = [copy for copy in self._coming_copies if copy[1] not in into]

    def ahead_of(self, run: Run, held: int) -> int:
        """Tokens reserved beyond the block that holds the last of `held` tokens."""
        if not self.reserving:
            return 0
        return (len(run.table) - -(-held // self.block_size)) * self.block_size
