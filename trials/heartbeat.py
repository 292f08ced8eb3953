"""How far a replay is, said about once a second to whoever watches; it moves no result.

It sits where a rule for stopping early does, asked after each step in which something changed, and looks at the
wall clock, which is an argument, once in so many of those.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trials.load import Offer

if TYPE_CHECKING:
    from trials.recorder import Recorder

_LOOK_EVERY = 64  # changed steps
_SAY_EVERY_S = 1.0


@dataclass(slots=True)
class Heartbeat:
    """Says and then does what `rule` says; a StopRule itself. `kind`: whose time it is, `simulated` or `engine`."""

    offer: Offer
    kind: str
    say: Callable[[str], None]
    clock_s: Callable[[], float]
    rule: "Callable[[Recorder, int], str | None] | None" = None
    _calls: int = 0
    _said_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._said_s = self.clock_s()

    def __call__(self, recorder: "Recorder", now: int) -> str | None:
        self._calls += 1
        if not self._calls % _LOOK_EVERY and (at_s := self.clock_s()) - self._said_s >= _SAY_EVERY_S:
            self._said_s = at_s
            self.say(self.words(recorder, now))
        return self.rule(recorder, now) if self.rule is not None else None

    def words(self, recorder: "Recorder", now: int) -> str:
        """`steady rate_scale=2: 812 of 2,400 requests, 31.4 of 95.0 s simulated`."""
        ended = sum(end >= 0 for end in recorder.end)
        return (
            f"{self.offer.phase} {self.offer.load.label}: {ended:,} of {len(self.offer.rows):,} requests, "
            f"{now / 1e9:.1f} of {self.offer.window_ns[1] / 1e9:.1f} s of {self.kind} time"
        )
