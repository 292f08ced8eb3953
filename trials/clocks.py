"""Clocks: where time comes from in a replay."""

import time


class Clocks:
    """Where time comes from. `now` is ns since the replay began; idle spans are passed with `wait_until`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._source = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}.get(kind)
        self._zero = self._source() if self._source else 0
        self._skipped = 0

    @property
    def virtual(self) -> bool:
        """Time is what steps say they took."""
        return self._source is None

    def now(self) -> int:
        """Only where time is measured."""
        assert self._source is not None
        return self._source() - self._zero + self._skipped

    def resume_at(self, then_ns: int) -> None:
        """What passed since `then_ns` does not count."""
        if self._source is not None:
            self._skipped -= self.now() - then_ns

    def wait_until(self, due_ns: int) -> int:
        """Nothing runs: pass the time until `due_ns` (asleep by the wall, skipped by CPU time)."""
        if self._source is None:
            return due_ns
        if self.kind == "cpu":
            self._skipped += max(0, due_ns - self.now())
            return self.now()
        while (left := due_ns - self.now()) > 0:
            time.sleep(left / 1e9)
        return self.now()
