"""Who waits, who is next, and whether it fits: the decision, without carrying it out."""

import heapq
from dataclasses import dataclass

from trials.block_pool import BlockPool
from trials.content import Content
from trials.engine import Cause, Refusal
from trials.plan import Run
from trials.policies import QUEUES, Queue
from trials.prefix_index import ROOT
from trials.spec import PoolPolicy

_MANY = 1024  # entries of those that wait no more, before they are dropped


@dataclass(slots=True)
class Grant:
    """An admission that fits. `hit` are full blocks from the cache; `copy` is a common beginning to copy out."""

    hit: list[int]
    copy: tuple[int, int] | None  # (block, tokens)
    cached: int  # tokens that need not be computed
    claim: int  # new blocks


class Admission:
    """The queue of one engine, and the rule of its head: the first that does not fit ends admission."""

    def __init__(self, policy: PoolPolicy, pool: BlockPool, content: Content) -> None:
        self._pool = pool
        self._content = content
        self._size = pool.block_size
        self._partial = policy.prefix_match == "partial"
        self._reserve_prompt = policy.reserve_prompt
        self._reserve_output = policy.reserve_output == "full"
        self._margin = int(policy.watermark * pool.num_blocks)  # of the configured count, rounded down
        self._lookup: tuple[int, int, list[int]] = (-1, -1, [])  # (row, epoch, blocks) of the last match
        self.queue: Queue = QUEUES[policy.queue](lambda run: len(self._match(run)))
        self.num_waiting = self.waiting_tokens = 0
        self._shortest: list[tuple[int, int, Run]] = []  # heap of (tokens wanted, turn, run), lazily cleaned
        self._turns = 0

    def enqueue(self, run: Run, back: bool = False) -> None:
        """Queue a request; `back`: it was running and comes back."""
        known = run.num_prompt_tokens + run.sampled
        run.waiting = True
        self.num_waiting += 1
        self.waiting_tokens += known
        self._turns += 1
        if len(self._shortest) > 2 * self.num_waiting + _MANY:
            self._shortest = [entry for entry in self._shortest if entry[2].waiting and entry[2] is not run]
            heapq.heapify(self._shortest)
        heapq.heappush(self._shortest, (self._wanted(run), self._turns, run))
        if back:
            self.queue.push_back(run)
        else:
            self.queue.push(run)

    def dequeue(self, run: Run) -> None:
        """The request leaves the queue, admitted or cancelled."""
        self.queue.remove(run)
        run.waiting = False
        self.num_waiting -= 1
        self.waiting_tokens -= run.num_prompt_tokens + run.sampled

    def _wanted(self, run: Run) -> int:
        """Tokens that must find room where nothing is in the cache."""
        return run.num_prompt_tokens + (run.num_output_tokens - 1 if self._reserve_output else run.sampled)

    def _match(self, run: Run) -> list[int]:
        """Leading full blocks of the run that are in the cache; at least one token is left to compute."""
        if not run.keys:
            return []
        row, epoch, blocks = self._lookup
        if row != run.row or epoch != self._pool.epoch:
            known = run.num_prompt_tokens + run.sampled
            blocks = self._pool.index.match(run.keys, (known - 1) // self._size)
            self._lookup = (run.row, self._pool.epoch, blocks)
        return blocks

    def _common_beginning(self, run: Run, hit: list[int]) -> tuple[int, int] | None:
        """The block behind the hit ones that has most tokens in common with the run, and how many."""
        before = len(hit) * self._size
        most = run.num_prompt_tokens + run.sampled - 1 - before
        best: tuple[int, int] | None = None
        parent = run.keys[len(hit) - 1] if hit else ROOT
        for block, row in self._pool.index.followers(parent):
            common = min(self._content.common_tokens(run.row, row) - before, most, self._size)
            if common > (best[1] if best else 0):
                best = block, common
                if common == min(most, self._size):
                    break
        return best

    def judge(self, run: Run, count_of: int, num_running: int) -> Grant | Refusal:
        """Whether the run fits now. `count_of`: the most tokens that this step may compute of it.

        A block to copy from must stay while the rest is taken; where that does not fit, nothing is copied.
        """
        hit = self._match(run)
        if self._partial and (copy := self._common_beginning(run, hit)) is not None:
            verdict = self._weigh(run, count_of, num_running, (hit, copy))
            if isinstance(verdict, Grant):
                return verdict
        return self._weigh(run, count_of, num_running, (hit, None))

    def _weigh(
        self, run: Run, count_of: int, num_running: int, found: tuple[list[int], tuple[int, int] | None]
    ) -> Grant | Refusal:
        """Whether the run fits with what was found in the cache: (full blocks, a common beginning to copy)."""
        pool, size, (hit, copy) = self._pool, self._size, found
        known = run.num_prompt_tokens + run.sampled
        cached = len(hit) * size + (copy[1] if copy else 0)
        upto = cached + min(known - cached, count_of)
        claim = -(-upto // size) - len(hit)
        if self._reserve_output or self._reserve_prompt:
            upto = self._wanted(run)
        want = -(-upto // size) - len(hit)
        idle = pool.num_idle([*hit, copy[0]] if copy else hit) if hit or copy else 0
        margin = self._margin if num_running else 0
        if want + idle + margin > pool.available:
            return Refusal(self._why_not(want + idle), run.row, want + idle)
        return Grant(list(hit), copy, cached, want if self._reserve_output else claim)

    def _why_not(self, taken: int) -> Cause:
        """The head of the queue wants `taken` blocks and does not get them."""
        if taken <= self._pool.available:
            return Cause.WATERMARK
        heap = self._shortest
        while heap:
            wanted, _, run = heap[0]
            if run.waiting and wanted == self._wanted(run):
                break
            heapq.heappop(heap)
        if heap and -(-heap[0][0] // self._size) + self._margin <= self._pool.available:
            return Cause.HEAD_OF_LINE
        return Cause.MEMORY
