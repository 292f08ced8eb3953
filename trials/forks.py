"""Forks: rows that continue their parent's content from the moment it holds what they inherit.

Under copy-on-write (vLLM v0) a fork holds its parent's blocks too, and whoever writes into the shared tail first
copies it. Under prefix sharing (vLLM v1) a fork is an ordinary request that meets its parent in the prefix cache.

At the end of a step forks start in the order in which they came. One that finds all slots taken (those of requests
that end in this step included), or whose parent is over without ever having held enough, queues like anyone else.
Where output is reserved, what a fork will need is reserved when it starts, its own copy of the tail included; one
for which that is not there queues.
"""

from collections.abc import Iterable

from trials.plan import Run
from trials.serving import Serving
from trials.spec import PoolPolicy


class Forks:
    """Forks that have not started, by parent, and how one starts. A step looks only at parents that moved."""

    def __init__(self, serving: Serving, policy: PoolPolicy) -> None:
        self._serving = serving
        self._copying = policy.sharing == "cow"
        self._max_num_seqs = policy.max_num_seqs
        self._budget = policy.max_num_batched_tokens
        self.pending: dict[int, dict[int, Run]] = {}  # parent -> forks by row
        self._parent_of: dict[int, int] = {}
        self._number_of: dict[int, int] = {}  # pending fork -> its place among all that came
        self._came = 0
        self._look: set[int] = set()  # parents to look at after the next step
        self._dates: dict[int, list[int]] = {}  # step -> decoding parents that then hold what a fork inherits

    def hold(self, fork: Run) -> None:
        """Keep a fork until its parent has come so far."""
        self.pending.setdefault(fork.parent, {})[fork.row] = fork
        self._parent_of[fork.row] = fork.parent
        self._number_of[fork.row] = self._came
        self._came += 1
        self._look.add(fork.parent)

    def holds(self, row: int) -> bool:
        """Whether the row is a fork that has not started."""
        return row in self._parent_of

    def _let(self, fork: int) -> None:
        """The fork is pending no more."""
        parent = self._parent_of.pop(fork)
        del self._number_of[fork]
        del self.pending[parent][fork]
        if not self.pending[parent]:
            del self.pending[parent]

    def forget(self, row: int) -> bool:
        """The fork was cancelled before it started. False if there is no such fork."""
        if row not in self._parent_of:
            return False
        self._let(row)
        self.parent_is_over(row)
        return True

    def parent_is_over(self, row: int) -> None:
        """Its forks will not find it any more."""
        if row in self.pending:
            self._look.add(row)

    def moved(self, rows: Iterable[int]) -> set[int]:
        """Parents to look at after this step: those of `rows` (chunks, endings), and those that were noted."""
        look = {row for row in rows if row in self.pending} | self._look
        self._look = set()
        look.update(self._dates.pop(self._serving.step, ()))
        return look & self.pending.keys()

    def due(self, parents: set[int], runs: dict[int, Run], ending: set[int]) -> list[tuple[Run, Run | None]]:
        """(fork, parent) of all that start now; parent None: it is over, or ends without holding enough."""
        out: list[tuple[Run, Run | None]] = []
        for row in parents:
            parent = runs.get(row)
            held = parent.computed_at(self._serving.step) if parent and not parent.waiting else 0
            over = (parent is None and not self.holds(row)) or row in ending
            for fork in self.pending[row].values():
                if parent is not None and held >= fork.inherited_tokens:
                    out.append((fork, parent))
                elif over:
                    out.append((fork, None))
                elif parent is not None and parent.began >= 0:
                    date = self._serving.step + fork.inherited_tokens - held
                    self._dates.setdefault(date, []).append(row)
        out.sort(key=lambda found: self._number_of[found[0].row])
        for fork, _ in out:
            self._let(fork.row)
        return out

    # ---- starting
    def share(self, fork: Run, parent: Run, sampled: bool) -> list[Run] | None:
        """The fork holds its parent's blocks too; what is done already, or None where it has to queue.

        `sampled`: the parent delivered a token in this step. A fork that inherits all it knows then samples its
        first token from the parent's own step; else it computes at least its last token itself. The tail is
        shared only where both hold exactly as much of it.
        """
        serving, size = self._serving, self._serving.block_size
        if not self._copying or len(serving.running) >= self._max_num_seqs:
            return None
        held = parent.computed_at(serving.step)
        tokens = min(fork.inherited_tokens, serving.content.common_tokens(fork.row, parent.row))
        if tokens == fork.num_prompt_tokens and not (sampled and held == tokens):
            tokens -= 1
        if tokens != held:
            tokens -= tokens % size
        if serving.reserving:
            if not serving.fork_reserved(fork, parent, tokens):
                return None
        else:
            serving.fork(fork, parent, tokens)
        serving.changes.admitted.append((fork.row, tokens))
        return [fork] if tokens == fork.num_prompt_tokens and serving.sample_first(fork) else []

    def bound(self) -> int:
        """Blocks that the next step could take, were every live fork to write: copies, and blocks opened."""
        serving = self._serving
        if not self._copying or serving.reserving:
            return 0
        crossing = serving.ring.crossing(serving.step)
        opened = sum(run.forked for run in crossing.values()) if crossing else 0
        opened += sum(self._most_opened(run) for run in serving.partial.values() if run.forked)
        return serving.pool.tail_copies + opened

    def _most_opened(self, run: Run) -> int:
        """Blocks that a fork which is not decoding opens where it gets the whole budget of a step."""
        end = run.computed + min(run.num_prompt_tokens + run.sampled - run.computed, self._budget)
        return -(-end // self._serving.block_size) - len(run.table)
