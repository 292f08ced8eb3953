"""Forks on an engine that shares by prefix only: ordinary requests, queued when their parent has come so far."""

from collections.abc import Callable

from trials.engine import Work


class Branches:
    """Forks that have not started, by parent."""

    def __init__(self) -> None:
        self.pending: dict[int, list[Work]] = {}

    def hold(self, work: Work) -> None:
        """Keep a fork until its parent holds what it inherits."""
        self.pending.setdefault(work.parent, []).append(work)

    def forget(self, row: int) -> bool:
        """The fork was cancelled before it started. False if there is no such fork."""
        for parent, forks in self.pending.items():
            kept = [fork for fork in forks if fork.row != row]
            if len(kept) < len(forks):
                self.pending[parent] = kept
                return True
        return False

    def due(self, held_of: Callable[[int], int | None]) -> list[Work]:
        """Those that start now, and no longer wait: their parent holds enough, or is over (`held_of` says None)."""
        out: list[Work] = []
        for parent in list(self.pending):
            held = held_of(parent)
            kept: list[Work] = []
            for fork in self.pending[parent]:
                (out if held is None or held >= fork.inherited_tokens else kept).append(fork)
            if kept:
                self.pending[parent] = kept
            else:
                del self.pending[parent]
        return out
