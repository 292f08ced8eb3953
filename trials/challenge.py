"""A load to beat: held to on one window after another before anything is searched.

A challenger that is no better than the best so far costs one replay, and that one ends as soon as it is sure. The
lower median of the windows decides a capacity, so a challenger is out once it failed on more windows than that
median forgives; until then nothing is known of it.
"""

from collections.abc import Sequence

from trials.bracket import Bracket, rung_from, rungs
from trials.capacity import UNITS, Searched, Windowed, load_of, part_of, placed, words
from trials.result import Capacity, CapacityPart
from trials.spec import Ladder
from trials.trace import Trace


def beaten(
    windows: Sequence[Windowed], ladder: Ladder, phase: str, trace: Trace
) -> tuple[Searched, Capacity] | None:
    """What a challenger came to that did not hold the load to beat; None where it may, and has to be searched.

    What was learned of each window is kept in it, so that a search does not try that rung again.
    """
    values = rungs(ladder)
    assert ladder.beat is not None
    rung = rung_from(values, ladder.beat)
    assert rung is not None
    load, probed, lost = load_of(ladder.over, values[rung]), [], 0
    for window in windows:
        holds = window.known[rung] = window.replays.passes(load, phase)
        probe = window.replays.done[window.replays.place_of(load, phase)]
        bracket = Bracket(rung, None, None, ()) if holds else Bracket(None, rung, None, ())
        part = part_of(bracket, values, [m.result for m in window.replays.done], probe.result)
        probed.append(placed(part, probe, window.spec, trace))
        lost += not holds
        if lost > (len(windows) - 1) // 2:
            found = Searched(window.replays.done, window.replays.place_of(load, phase), probed[-1])
            return found, _rejected(ladder, values[rung], probed, window.spec.trace.superpose)
    return None


def _rejected(ladder: Ladder, beat: float, probed: Sequence[CapacityPart], superposed: int) -> Capacity:
    found = Capacity(
        over=ladder.over, last=ladder.high, value=None, low=None, high=None, less_than=beat,
        needs_requests=max(p.needs_requests for p in probed), superposed=superposed, decides=len(probed) - 1,
        parts=tuple(probed),
    )  # fmt: skip
    if found.needs_requests:
        return found.model_copy(update={"words": words(found)})
    said = f"< {beat:g} {UNITS[ladder.over]}: the load to beat does not hold ({probed[-1].binding} binds)"
    return found.model_copy(update={"words": said})
