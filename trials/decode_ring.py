"""Decoding sequences, kept so that a step costs nothing for those to which nothing happens.

All of them advance one token a step. So a sequence crosses a block boundary every block_size steps: it waits in
the slot of the ring whose turn that is. The step at which it delivers its last token is known when it begins.
Its length is a subtraction. What a step needs of the whole set (count, context, blocks) is kept in O(1).
"""

from trials.plan import Run


class DecodeRing:
    """`runs`: all decoding sequences by row. `crossing` and `filling` name those of one step."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.runs: dict[int, Run] = {}
        self.context = 0  # tokens whose KV stands before the next step, summed
        self.blocks = 0  # blocks that those tokens lie in, summed
        self._crossing: dict[int, dict[int, Run]] = {}  # step mod block_size -> runs, in running order
        self._filling: dict[int, dict[int, Run]] = {}  # likewise: who fills a block that others may ask for
        self._due: dict[int, list[Run]] = {}  # step -> runs that deliver their last token then

    def begin(self, run: Run, step: int) -> None:
        """From `step` on the run computes one token a step, its first at position run.computed."""
        run.began = step
        run.last_step = step + run.num_output_tokens - run.sampled - 1
        self.runs[run.row] = run
        self.context += run.computed
        self.blocks += -(-run.computed // self.block_size)
        self._enter(self._crossing, (step - run.computed) % self.block_size, run)
        if len(run.keys) > run.num_indexed:
            self._enter(self._filling, (step - run.computed - 1) % self.block_size, run)
        due = self._due.get(run.last_step)
        if due is None:
            self._due[run.last_step] = [run]
        else:
            due.append(run)

    def _enter(self, ring: dict[int, dict[int, Run]], place: int, run: Run) -> None:
        slot = ring.get(place)
        if slot is None:
            ring[place] = {run.row: run}
            return
        last = next(reversed(slot.values())) if slot else run
        slot[run.row] = run
        if last.admission > run.admission:  # it decoded before, stood still, and begins again
            ring[place] = dict(sorted(slot.items(), key=lambda item: item[1].admission))

    def crossing(self, step: int) -> dict[int, Run] | None:
        """Runs whose token of this step opens a new block, in running order."""
        return self._crossing.get(step % self.block_size)

    def filling(self, step: int) -> dict[int, Run] | None:
        """Runs whose token of this step fills a block that other rows may ask for."""
        return self._filling.get(step % self.block_size)

    def filled_all(self, run: Run) -> None:
        """The run has no further block that others may ask for."""
        self._filling[(run.began - run.computed - 1) % self.block_size].pop(run.row, None)

    def advance(self, step: int) -> list[Run]:
        """`step` has run: all hold one token more. Returns who delivered their last one, in running order."""
        self.context += len(self.runs)
        due = self._due.pop(step, None)
        if due is None:
            return []
        if len(due) > 1:
            due.sort(key=lambda run: run.admission)
        return due

    def stop(self, run: Run, step: int) -> None:
        """Take a run out before `step` runs; its counts are settled as of then."""
        del self.runs[run.row]
        place = run.began - run.computed
        del self._crossing[place % self.block_size][run.row]
        filling = self._filling.get((place - 1) % self.block_size)
        if filling is not None:
            filling.pop(run.row, None)
        due = self._due.get(run.last_step)
        if due is not None:  # it is interrupted: it will deliver its last token later
            due.remove(run)
        passed = step - run.began
        run.computed += passed
        run.sampled += passed
        run.began = run.last_step = -1
        self.context -= run.computed
        self.blocks -= -(-run.computed // self.block_size)
