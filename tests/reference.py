"""The dumb oracle: a paged engine that walks every sequence at every step, one block at a time.

Written from the rules alone, with sets, tuples and one ordered free queue; it shares no code with the product
but the word list of what a request is. Content is compared token by token: a block's key is the tuple of all
tokens from the start to its end.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from trials.content import Content
from trials.spec import PoolPolicy


@dataclass(eq=False)
class Seq:
    row: int
    tokens: list[object]  # the whole content, answer included
    num_prompt: int
    num_output: int
    delivered: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.num_prompt + self.delivered


class PlainPool:
    """Free queue in one OrderedDict; per block: holders and content."""

    def __init__(self, ids: range) -> None:
        self.queue: OrderedDict[int, None] = OrderedDict((b, None) for b in ids)
        self.holders: dict[int, int] = dict.fromkeys(ids, 0)
        self.content: dict[int, tuple[object, ...]] = {}
        self.registered: list[int] = []  # blocks with content, oldest registration first
        self.events = {"allocated_blocks": 0, "released_blocks": 0, "evicted_blocks": 0}

    def pop(self) -> int:
        block = next(iter(self.queue))
        del self.queue[block]
        self.events["allocated_blocks"] += 1
        if block in self.content:
            self.events["evicted_blocks"] += 1
            del self.content[block]
            self.registered.remove(block)
        self.holders[block] = 1
        return block

    def register(self, block: int, key: tuple[object, ...]) -> None:
        self.content[block] = key
        self.registered.append(block)

    def find(self, key: tuple[object, ...]) -> int | None:
        return next((b for b in self.registered if self.content[b] == key), None)

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.holders[block] -= 1
            if self.holders[block]:
                continue
            self.events["released_blocks"] += 1
            self.queue[block] = None
            if block not in self.content:
                self.queue.move_to_end(block, last=False)
        # Blocks without content stand at the head, last block of the table nearest to the head's end.
        blank = [b for b in reversed(blocks) if not self.holders[b] and b not in self.content]
        for block in reversed(blank):
            self.queue.move_to_end(block, last=False)


class PlainEngine:
    """Plan, allocate, preempt, admit, finish: every rule in its plainest form."""

    def __init__(self, policy: PoolPolicy, num_blocks: int, reserve: int, content: Content) -> None:
        self.policy, self.size = policy, policy.block_size
        self.caching = policy.prefix_caching
        self.pool = PlainPool(range(reserve, num_blocks))
        self.margin = int(policy.watermark * num_blocks)
        self.content = content
        self.waiting: list[Seq] = []
        self.running: list[Seq] = []
        self.keys: dict[int, dict[int, tuple[object, ...]]] = {}

    def add(self, row: int, num_prompt: int, num_output: int) -> None:
        tokens: list[object] = []
        for node, end in self.content.path(row):
            tokens += [(node, at) for at in range(len(tokens), end)]
        self.waiting.append(Seq(row, tokens, num_prompt, num_output))

    def cancel(self, row: int) -> None:
        for group in (self.waiting, self.running):
            for seq in list(group):
                if seq.row == row:
                    group.remove(seq)
                    self.pool.release(seq.blocks)

    def key(self, seq: Seq, block: int) -> tuple[object, ...]:
        return tuple(seq.tokens[: (block + 1) * self.size])

    def ceil(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def take(self, seq: Seq, upto: int) -> None:
        while len(seq.blocks) < self.ceil(upto):
            seq.blocks.append(self.pool.pop())
        if self.caching:
            for j in range(upto // self.size):
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

    def preempt(self, seq: Seq) -> None:
        self.running.remove(seq)
        self.pool.release(seq.blocks)
        seq.blocks, seq.computed = [], 0
        self.waiting.insert(0, seq)

    def step(self) -> dict[str, object]:
        policy = self.policy
        left, plan, preempted = policy.max_num_batched_tokens, {}, []
        threshold = policy.long_prefill_token_threshold
        cap = threshold if threshold and len(self.running) + len(self.waiting) > 1 else 1 << 60
        i = 0
        while i < len(self.running) and left > 0:
            seq = self.running[i]
            count = min(seq.known - seq.computed, cap, left)
            while self.ceil(seq.computed + count) - len(seq.blocks) > len(self.pool.queue):
                victim = self.running[-1]
                self.preempt(victim)
                preempted.append(victim.row)
                if victim is seq:
                    break
            if seq not in self.running:
                break
            self.take(seq, seq.computed + count)
            plan[seq.row] = (seq, count)
            left -= count
            i += 1
        admitted = []
        if not preempted:
            while self.waiting and left > 0 and len(self.running) < policy.max_num_seqs:
                seq = self.waiting[0]
                hit = self.hits(seq)
                start = len(hit) * self.size
                count = min(seq.known - start, cap, left)
                want = self.ceil(seq.known if policy.reserve_prompt else start + count) - len(hit)
                idle = sum(self.pool.holders[b] == 0 for b in hit)
                if want + idle + (self.margin if self.running else 0) > len(self.pool.queue):
                    break
                self.waiting.pop(0)
                for block in hit:
                    self.pool.queue.pop(block, None)
                    self.pool.holders[block] += 1
                seq.blocks, seq.computed = hit, start
                self.take(seq, start + count)
                self.running.append(seq)
                admitted.append((seq.row, start))
                plan[seq.row] = (seq, count)
                left -= count
        held = {seq.row: seq.computed + plan.get(seq.row, (seq, 0))[1] for seq in self.running}
        report = {
            "tokens": {row: count for row, (_, count) in plan.items()},
            "preempted": preempted,
            "admitted": admitted,
            "waiting": [s.row for s in self.waiting],
            "accounts": self.accounts(held),
        }
        finished = []
        for seq, count in plan.values():
            seq.computed += count
            if seq.computed < seq.known:
                continue
            seq.delivered += 1
            if seq.delivered == seq.num_output:
                finished.append(seq.row)
                self.running.remove(seq)
                self.pool.release(seq.blocks)
        return {**report, "finished": finished}

    def accounts(self, held: dict[int, int]) -> dict[str, int]:
        """Counted from scratch: tokens a block holds, whoever points at it."""
        fill: dict[int, int] = {}
        for seq in self.running:
            for j, block in enumerate(seq.blocks):
                inside = max(0, min(self.size, held[seq.row] - j * self.size))
                fill[block] = max(fill.get(block, 0), inside)
        cached = sum(b in self.pool.content for b in self.pool.queue)
        events, self.pool.events = self.pool.events, dict.fromkeys(self.pool.events, 0)
        return {
            **events,
            "payload_tokens": sum(fill.values()),
            "tail_slack_tokens": sum(self.size - n for n in fill.values()),
            "cached_blocks": cached,
            "free_blocks": len(self.pool.queue) - cached,
            "logical_tokens": sum(held[s.row] for s in self.running),
        }
