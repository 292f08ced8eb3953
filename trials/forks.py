"""Forks: rows that continue their parent's content from the moment it holds what they inherit.

Under copy-on-write (vLLM v0) a fork holds its parent's blocks too, and whoever writes into the shared tail first
copies it. Under prefix sharing (vLLM v1) a fork is an ordinary request that meets its parent in the prefix cache.
"""

from trials.plan import Run
from trials.serving import Serving


class Forks:
    """Forks that have not started, by parent, and how one starts."""

    def __init__(self, serving: Serving, copying: bool, max_num_seqs: int) -> None:
        self._serving = serving
        self._copying = copying
        self._max_num_seqs = max_num_seqs
        self.pending: dict[int, list[Run]] = {}

    def hold(self, run: Run) -> None:
        """Keep a fork until its parent has come so far."""
        self.pending.setdefault(run.parent, []).append(run)

    def forget(self, row: int) -> bool:
        """The fork was cancelled before it started. False if there is no such fork."""
        for parent, forks in self.pending.items():
            kept = [fork for fork in forks if fork.row != row]
            if len(kept) < len(forks):
                self.pending[parent] = kept
                return True
        return False

    def due(self, runs: dict[int, Run], ending: set[int]) -> list[tuple[Run, Run | None]]:
        """(fork, parent) of all that start now; parent None: it is over, or ends without holding enough."""
        out: list[tuple[Run, Run | None]] = []
        for row in list(self.pending):
            parent = runs.get(row)
            held = parent.computed_at(self._serving.step) if parent and not parent.waiting else 0
            over = parent is None or row in ending
            kept = []
            for fork in self.pending[row]:
                if held >= fork.inherited_tokens:
                    out.append((fork, parent))
                elif over:
                    out.append((fork, None))
                else:
                    kept.append(fork)
            if kept:
                self.pending[row] = kept
            else:
                del self.pending[row]
        return out

    def may_share(self) -> bool:
        """Whether a fork can run at once, on its parent's blocks."""
        return self._copying and len(self._serving.running) < self._max_num_seqs

    def share(self, fork: Run, parent: Run) -> list[Run]:
        """The fork holds its parent's blocks too; returns it if it is done already.

        The tail is shared only where both hold exactly as much of it. A fork that inherits the whole of what it
        knows samples its first token from the parent's own step.
        """
        serving = self._serving
        size, tokens = serving.block_size, fork.inherited_tokens
        if parent.computed_at(serving.step) != tokens:
            tokens -= tokens % size
        blocks = parent.table[: -(-tokens // size)]
        serving.pool.fork(blocks, tokens)
        parent.num_counted = max(parent.num_counted, len(blocks))
        fork.table, fork.num_counted = list(blocks), len(blocks)
        fork.num_indexed = min(parent.num_indexed, tokens // size, len(fork.keys))
        fork.computed, fork.forked = tokens, True
        serving.join(fork)
        serving.changes.admitted.append((fork.row, tokens))
        if tokens % size:
            serving.sharing_tail[fork.row] = fork
            serving.sharing_tail[parent.row] = parent
        return serving.sample_first(fork) if tokens == fork.num_prompt_tokens else []

    def bound(self) -> int:
        """Blocks that the next step could take, were every live fork to write: copies, and blocks opened."""
        if not self._copying:
            return 0
        serving = self._serving
        crossing = serving.ring.crossing(serving.step)
        opened = sum(run.forked for run in crossing.values()) if crossing else 0
        opened += sum(run.forked and run.computed % serving.block_size == 0 for run in serving.partial.values())
        return serving.pool.tail_copies + opened
