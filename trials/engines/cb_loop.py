"""The manager's own thread, one turn at a time.

transformers serves in a background thread that loops without end. Here that thread waits before every turn until
it is let go, so that a trial's step is exactly one turn of it: what it decides and computes is its own. When it
dies, its error is what the trial says.
"""

import threading
from collections.abc import Callable
from typing import Any

from trials.engine import EngineDied

_LOOK_S = 0.5  # how often a wait looks whether the thread is still there


class ServingThread:
    """`start()`, then `turn()` as often as wanted; between turns the thread stands still and may be looked into."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self._body, self._run = manager._generation_loop_body, manager._run_generation_loop
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._free = self._over = False
        self._around: Callable[[Callable[[], Any]], int] | None = None
        self._found = 0
        manager._generation_loop_body, manager._run_generation_loop = self._one_turn, self._whole_life

    def _whole_life(self) -> None:
        try:
            self._run()
        finally:
            self._over = True
            self._stands.release()

    def _one_turn(self, processor: Any, bootstrapping: bool) -> bool:
        if not self._free:
            self._stands.release()
            self._await_leave()
        if self._around is None:
            return bool(self._body(processor, bootstrapping))
        goes_on: list[bool] = []
        self._found = self._around(lambda: goes_on.append(self._body(processor, bootstrapping)))
        return goes_on[0]

    def _await_leave(self) -> None:
        """Stand still until the next turn; end with the process, should whoever drives have ended first."""
        while not self._go.acquire(timeout=_LOOK_S):
            if not threading.main_thread().is_alive():
                raise SystemExit

    def start(self) -> Any:
        """Start the thread; its batch processor, once it stands before its first turn. Raises EngineDied."""
        self.manager.start()
        self._wait()
        return self.manager.batch_processor

    def turn(self, around: Callable[[Callable[[], Any]], int] | None = None) -> int:
        """Let the thread take one turn, inside `around` if given, whose answer is returned.

        Raises EngineDied with the error that the thread died of.
        """
        self._around = around
        self.manager._wake_up_loop.set()  # a turn that finds nothing to do must not sleep
        self._go.release()
        self._wait()
        return self._found

    def _wait(self) -> None:
        while not self._stands.acquire(timeout=_LOOK_S):
            pass
        if self._over:
            error = self.manager.background_thread_status.fatal_error
            said = f"{type(error).__name__}: {error}" if error is not None else "it ended without an error"
            raise EngineDied(f"transformers' serving thread died: {said}") from error

    def stop(self) -> None:
        """End the thread, whatever it still has to do. May be called twice."""
        if self._free:
            return
        self._free = True
        self._go.release()
        if self.manager.is_running():
            self.manager.stop(block=True, timeout=30, hard_stop=True)
