"""The dumb oracle: a paged engine that walks every sequence at every step, one block at a time.

Written from the rules alone, with sets, tuples and plain lists; it shares no code with the product but the word
list of what a request is. Content is compared token by token: a block's key is the tuple of all tokens from the
start to its end. Every choice (victim, queue, eviction) is a look at everybody.
"""

from dataclasses import dataclass, field

from trials.content import Content
from trials.engine import Work
from trials.spec import PoolPolicy

Key = tuple[object, ...]


@dataclass(eq=False)
class Seq:
    row: int
    tokens: list[object]  # the whole content, answer included
    num_prompt: int
    num_output: int
    arrival: int = 0
    priority: int = 0
    parent: int = -1
    inherited: int = 0
    delivered: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    forked: bool = False
    sampled_now: bool = False  # a token was delivered in this step

    @property
    def known(self) -> int:
        return self.num_prompt + self.delivered

    @property
    def total(self) -> int:
        return self.num_prompt + self.num_output - 1


class PlainPool:
    """Two lists, head first: `blank` without content, `idle` with content in the order they became idle."""

    def __init__(self, ids: range, policy: PoolPolicy) -> None:
        self.blank: list[int] = list(ids)
        self.idle: list[int] = []
        self.holders: dict[int, int] = dict.fromkeys(ids, 0)
        self.content: dict[int, Key] = {}
        self.registered: list[int] = []  # blocks with content, oldest registration first
        self.unwritten: set[int] = set()  # registered in this step
        self.born: dict[int, int] = {}
        self.uses: dict[int, int] = {}
        self.depth: dict[int, int] = {}
        self.births = 0
        self.policy = policy
        self.events: dict[str, int] = {}
        self.no_events()

    def no_events(self) -> dict[str, int]:
        names = ("allocated_blocks", "released_blocks", "evicted_blocks", "copied_blocks")
        said, self.events = self.events, dict.fromkeys(names, 0)
        return said

    def rank(self, block: int) -> int:
        """The lowest is given up first; among equals, who became idle first."""
        known = {"fifo": self.born, "lfu": self.uses}.get(self.policy.eviction)
        if known is not None:
            return known[block]
        return -self.depth[block] if self.policy.eviction == "length_aware" else 0

    @property
    def queue(self) -> list[int]:
        """All that can be taken, in the order in which it would be."""
        return self.blank + sorted(self.idle, key=self.rank)

    def __len__(self) -> int:
        return len(self.blank) + len(self.idle)

    def pop(self) -> int:
        if self.blank:
            block = self.blank.pop(0)
        else:
            block = min(self.idle, key=self.rank)
            self.idle.remove(block)
            self.forget(block)
            self.events["evicted_blocks"] += 1
        self.events["allocated_blocks"] += 1
        self.births += 1
        self.born[block], self.uses[block], self.holders[block] = self.births, 0, 1
        return block

    def register(self, block: int, key: Key) -> None:
        self.content[block] = key
        self.registered.append(block)
        self.unwritten.add(block)

    def forget(self, block: int) -> None:
        del self.content[block]
        self.registered.remove(block)

    def find(self, key: Key) -> int | None:
        return next((b for b in self.registered if self.content[b] == key), None)

    def hold(self, block: int) -> None:
        if block in self.idle:
            self.idle.remove(block)
        self.holders[block] += 1

    def release(self, blocks: list[int]) -> None:
        places = list(range(len(blocks)))
        emptied = []
        for place in reversed(places) if self.policy.free_order == "tail_first" else places:
            block = blocks[place]
            self.holders[block] -= 1
            if self.holders[block]:
                continue
            self.events["released_blocks"] += 1
            self.depth[block] = place
            if block in self.content:
                self.idle.append(block)
            else:
                emptied.append(block)
        self.blank = emptied + self.blank


class PlainEngine:
    """Plan, allocate, preempt, admit, finish, fork: every rule in its plainest form."""

    LOOK = 128  # how far `longest_prefix` looks

    def __init__(self, policy: PoolPolicy, num_blocks: int, reserve: int, content: Content) -> None:
        self.policy, self.size = policy, policy.block_size
        self.caching = policy.prefix_caching
        self.reserving = policy.reserve_output == "full"
        self.pool = PlainPool(range(reserve, num_blocks), policy)
        self.margin = int(policy.watermark * num_blocks)
        self.content = content
        self.waiting: list[Seq] = []
        self.running: list[Seq] = []
        self.pending: list[Seq] = []  # forks that have not started
        self.copies: list[tuple[int, int]] = []  # of this step
        self.coming: list[tuple[int, int]] = []  # decided behind a step for the next
        self.burst = 0
        self.started: list[int] = []

    # ---- in and out
    def add(self, row: int, num_prompt: int, num_output: int) -> None:
        self.take_on(Work(row, num_prompt, num_output))

    def take_on(self, work: Work) -> None:
        tokens: list[object] = []
        for node, end in self.content.path(work.row):
            tokens += [(node, at) for at in range(len(tokens), end)]
        seq = Seq(
            work.row, tokens, work.num_prompt_tokens, work.num_output_tokens, work.arrival_ns, work.priority,
            work.parent, work.inherited_tokens,
        )  # fmt: skip
        if seq.inherited and any(s.row == seq.parent for s in self.live):
            self.pending.append(seq)
        else:
            self.enqueue(seq, back=False)

    @property
    def live(self) -> list[Seq]:
        return [*self.running, *self.waiting, *self.pending]

    def cancel(self, row: int) -> bool:
        for group in (self.waiting, self.running, self.pending):
            for seq in list(group):
                if seq.row == row:
                    group.remove(seq)
                    self.let_go(seq)
                    return True
        return False

    def let_go(self, seq: Seq) -> None:
        self.pool.release(seq.blocks)
        self.copies = [c for c in self.copies if c[1] not in seq.blocks]
        self.coming = [c for c in self.coming if c[1] not in seq.blocks]
        seq.blocks = []

    # ---- the queue
    def enqueue(self, seq: Seq, back: bool) -> None:
        if back and self.policy.queue in ("fcfs", "longest_prefix"):
            self.waiting.insert(0, seq)
            return
        self.waiting.append(seq)
        if self.policy.queue == "priority":
            self.waiting.sort(key=lambda s: (s.priority, s.arrival, s.row))
        elif self.policy.queue == "shortest_job":
            self.waiting.sort(key=lambda s: (s.num_output - s.delivered, s.arrival, s.row))

    def head(self) -> Seq:
        if self.policy.queue != "longest_prefix":
            return self.waiting[0]
        best = self.waiting[0]
        for seq in self.waiting[: self.LOOK]:
            if len(self.hits(seq)) > len(self.hits(best)):
                best = seq
        return best

    # ---- blocks
    def key(self, seq: Seq, block: int) -> Key:
        return tuple(seq.tokens[: (block + 1) * self.size])

    def ceil(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def take(self, seq: Seq, upto: int) -> None:
        while len(seq.blocks) < self.ceil(upto):
            seq.blocks.append(self.pool.pop())
            self.burst += seq.forked

    def write(self, seq: Seq, count: int) -> None:
        """`count` tokens are computed; full blocks can be found from now on."""
        if self.caching:
            for j in range((seq.computed + count) // self.size):
                if seq.blocks[j] not in self.pool.content:
                    self.pool.register(seq.blocks[j], self.key(seq, j))

    def hits(self, seq: Seq) -> list[int]:
        found: list[int] = []
        if self.caching:
            for j in range((seq.known - 1) // self.size):
                block = self.pool.find(self.key(seq, j))
                if block is None:
                    break
                found.append(block)
        return found

    def beginning(self, seq: Seq, hit: list[int]) -> tuple[int, int] | None:
        """A written block that follows the hit ones and has most tokens in common with what is to come."""
        if not self.caching or self.policy.prefix_match != "partial":
            return None
        before = len(hit) * self.size
        best, most = None, 0
        for block in self.pool.registered:
            content = self.pool.content[block]
            if block in self.pool.unwritten or len(content) != before + self.size:
                continue
            most_here = min(self.size, seq.known - 1 - before)
            same = 0
            while same < most_here and content[before + same] == seq.tokens[before + same]:
                same += 1
            if content[:before] == tuple(seq.tokens[:before]) and same > most:
                best, most = (block, same), same
        return best

    def tail_is_shared(self, seq: Seq) -> bool:
        """Whether its next token lies in a block that somebody else holds too."""
        place = seq.computed // self.size
        return seq.computed % self.size > 0 and self.pool.holders[seq.blocks[place]] > 1

    def need(self, seq: Seq, count: int) -> int:
        return max(0, self.ceil(seq.computed + count) - len(seq.blocks)) + self.tail_is_shared(seq)

    # ---- giving way
    def victim(self) -> Seq:
        place = {seq.row: n for n, seq in enumerate(self.running)}
        if self.policy.victim == "last_admitted":
            return self.running[-1]
        if self.policy.victim == "fewest_outputs":
            return min(self.running, key=lambda s: (s.delivered, -s.num_prompt, -place[s.row]))
        if self.policy.victim == "largest":
            return max(self.running[1:] or self.running, key=lambda s: (len(s.blocks), place[s.row]))
        return max(self.running, key=lambda s: (s.priority, s.arrival, -place[s.row]))

    def preempt(self, seq: Seq) -> None:
        self.running.remove(seq)
        self.let_go(seq)
        seq.computed, seq.forked, seq.sampled_now = 0, False, False
        self.enqueue(seq, back=True)

    def unplan(self, seq: Seq, count: int) -> None:
        """What was planned of a victim is not computed: content that will not exist is not found."""
        for j in range(seq.computed // self.size, (seq.computed + count) // self.size):
            if seq.blocks[j] in self.pool.content:
                self.pool.forget(seq.blocks[j])

    # ---- one step
    def step(self) -> dict[str, object]:
        policy = self.policy
        self.pool.unwritten = set()
        self.copies, self.coming = self.coming, []
        self.burst, self.started = 0, []
        left, plan, preempted = policy.max_num_batched_tokens, {}, []
        threshold = policy.long_prefill_token_threshold
        cap = threshold if threshold and len(self.running) + len(self.waiting) > 1 else 1 << 60
        for seq in list(self.running):
            if left == 0:
                break
            if seq not in self.running:
                continue
            count = min(seq.known - seq.computed, cap, left)
            while seq in self.running and self.need(seq, count) > len(self.pool):
                victim = self.victim()
                if victim.row in plan:
                    given = plan.pop(victim.row)[1]
                    left += given
                    self.unplan(victim, given)
                preempted.append((victim.row, victim.computed))
                self.preempt(victim)
            if seq not in self.running:
                break
            if self.tail_is_shared(seq):
                place = seq.computed // self.size
                old, new = seq.blocks[place], self.pool.pop()
                self.pool.holders[old] -= 1
                seq.blocks[place] = new
                self.pool.events["copied_blocks"] += 1
                self.copies.append((old, new))
                self.burst += 1
            self.take(seq, seq.computed + count)
            self.write(seq, count)
            plan[seq.row] = (seq, count)
            left -= count
        admitted = [] if preempted else self.admit(left, cap, plan)
        held = {seq.row: seq.computed + plan.get(seq.row, (seq, 0))[1] for seq in self.running}
        report = {
            "tokens": {row: count for row, (_, count) in plan.items()},
            "preempted": preempted,
            "admitted": admitted,
            "waiting": [s.row for s in self.waiting],
            "accounts": self.accounts(held),
            "copies": list(self.copies),
            "burst": self.burst,
            "shape": self.shape(list(plan.values())),
        }
        return {**report, "finished": self.finish(plan, admitted), "started": self.started}

    def shape(self, plan: list[tuple[Seq, int]]) -> tuple[int, ...]:
        """What a step-time model sees: who delivered in the step before decodes, all others compute chunks."""
        decodes = [seq.computed + 1 for seq, _ in plan if seq.sampled_now]
        chunks = [(seq.computed, count) for seq, count in plan if not seq.sampled_now]
        return (
            len(decodes), sum(decodes), sum(self.ceil(n) for n in decodes),
            len(chunks), sum(count for _, count in chunks), sum(start for start, _ in chunks),
            sum(start + k + 1 for start, count in chunks for k in range(count)),
            sum(seq.computed + count == seq.known for seq, count in plan),
        )  # fmt: skip

    def admit(self, left: int, cap: int, plan: dict[int, tuple[Seq, int]]) -> list[tuple[int, int]]:
        admitted = []
        while self.waiting and left > 0 and len(self.running) < self.policy.max_num_seqs:
            seq = self.head()
            hit = self.hits(seq)
            for copy in (self.beginning(seq, hit), None):
                start = len(hit) * self.size + (copy[1] if copy else 0)
                count = min(seq.known - start, cap, left)
                upto = start + count
                if self.reserving:
                    upto = seq.total
                elif self.policy.reserve_prompt:
                    upto = seq.known
                want = self.ceil(upto) - len(hit)
                idle = sum(self.pool.holders[b] == 0 for b in [*hit, *([copy[0]] if copy else [])])
                fits = want + idle + (self.margin if self.running else 0) <= len(self.pool)
                if fits:
                    break
            if not fits:
                break
            self.waiting.remove(seq)
            for block in [*hit, *([copy[0]] if copy else [])]:
                self.pool.hold(block)
                self.pool.uses[block] += 1
            seq.blocks, seq.computed = list(hit), start
            self.take(seq, seq.total if self.reserving else start + count)
            if copy:
                self.copy_out(copy[0], seq, len(hit))
            self.write(seq, count)
            self.running.append(seq)
            admitted.append((seq.row, start))
            plan[seq.row] = (seq, count)
            left -= count
        return admitted

    def copy_out(self, source: int, seq: Seq, place: int) -> None:
        """What was found is copied into the sequence's own block, and let go where it stood."""
        self.pool.events["copied_blocks"] += 1
        self.copies.append((source, seq.blocks[place]))
        self.pool.holders[source] -= 1
        if not self.pool.holders[source]:
            self.pool.events["released_blocks"] += 1
            self.pool.depth[source] = place
            self.pool.idle.append(source)

    def finish(self, plan: dict[int, tuple[Seq, int]], admitted: list[tuple[int, int]]) -> list[int]:
        """The step has run: tokens are delivered, forks start, what is done lets go in schedule order."""
        finished = []
        for seq in self.running:
            seq.sampled_now = False
        for seq, count in plan.values():
            seq.computed += count
            if seq.computed < seq.known:
                continue
            seq.delivered += 1
            seq.sampled_now = True
            if seq.delivered == seq.num_output:
                finished.append(seq)
        while due := [(fork, parent) for fork in self.pending for parent in self.due(fork, finished)]:
            for fork, parent in due:
                self.pending.remove(fork)
                self.started.append(fork.row)
                hit = self.share(fork, parent) if parent is not None else None
                if hit is None:
                    self.enqueue(fork, back=False)
                    continue
                admitted.append((fork.row, hit))
                if fork.delivered == fork.num_output:
                    finished.append(fork)
        for seq in finished:
            self.running.remove(seq)
            self.let_go(seq)
        return [seq.row for seq in finished]

    def due(self, fork: Seq, finished: list[Seq]) -> list[Seq | None]:
        """[parent to share with], [None] where it starts without, [] where it does not start yet."""
        for seq in self.running:
            if seq.row == fork.parent:
                if seq.computed >= fork.inherited:
                    return [seq]
                return [None] if seq in finished else []
        alive = any(seq.row == fork.parent for seq in [*self.waiting, *self.pending])
        return [] if alive else [None]

    def share(self, fork: Seq, parent: Seq) -> int | None:
        """Tokens that the fork takes over from its parent, or None where it must queue."""
        if self.policy.sharing != "cow" or len(self.running) >= self.policy.max_num_seqs:
            return None
        tokens = 0
        while tokens < fork.inherited and fork.tokens[tokens] == parent.tokens[tokens]:
            tokens += 1
        at_once = tokens == fork.num_prompt and parent.computed == tokens and parent.sampled_now
        if tokens == fork.num_prompt and not at_once:
            tokens -= 1
        if parent.computed != tokens:
            tokens = tokens // self.size * self.size
        full = tokens // self.size
        shared = full if self.reserving else self.ceil(tokens)
        fresh = self.ceil(fork.total) - full if self.reserving else 0
        if fresh > len(self.pool):
            return None
        fork.blocks = parent.blocks[:shared]
        for block in fork.blocks:
            self.pool.hold(block)
        fork.blocks += [self.pool.pop() for _ in range(fresh)]
        if self.reserving and tokens % self.size:
            self.pool.events["copied_blocks"] += 1
            source = parent.blocks[full]  # or what that is itself still to be copied from
            self.coming.append(
                (next((old for old, new in self.coming if new == source), source), fork.blocks[full])
            )
        fork.computed, fork.forked, fork.sampled_now = tokens, True, at_once
        fork.delivered += at_once
        self.running.append(fork)
        return tokens

    def bound(self) -> int:
        """Blocks that copies, and blocks opened by forked rows, could take in the next step."""
        most = 0
        for block, holders in self.pool.holders.items():
            shared_tail = [s for s in self.running if s.computed % self.size and self.at_tail(s) == block]
            if len(shared_tail) > 1:
                assert holders == len(shared_tail)
                most += holders - 1
        for seq in self.running:
            if seq.forked:
                count = min(seq.known - seq.computed, self.policy.max_num_batched_tokens)
                most += max(0, self.ceil(seq.computed + count) - len(seq.blocks))
        return most

    def at_tail(self, seq: Seq) -> int:
        return seq.blocks[seq.computed // self.size]

    def accounts(self, held: dict[int, int]) -> dict[str, int]:
        """Counted from scratch: tokens a block holds, whoever points at it."""
        fill: dict[int, int] = {}
        ahead = 0
        for seq in self.running:
            for j, block in enumerate(seq.blocks):
                inside = max(0, min(self.size, held[seq.row] - j * self.size))
                fill[block] = max(fill.get(block, 0), inside)
            ahead += (len(seq.blocks) - self.ceil(held[seq.row])) * self.size
        cached = sum(b in self.pool.content for b in [*self.pool.blank, *self.pool.idle])
        return {
            **self.pool.no_events(),
            "payload_tokens": sum(fill.values()),
            "tail_slack_tokens": sum(self.size - n for n in fill.values()) - ahead,
            "reserved_ahead_tokens": ahead,
            "cached_blocks": cached,
            "free_blocks": len(self.pool) - cached,
            "logical_tokens": sum(held[s.row] for s in self.running),
        }
