"""Which stretch of the trace each repeat measures: disjoint, and the same for all candidates.

Windows at the trace's end are held out: the search never sees them, and what it chose is measured there again.
"""

from dataclasses import dataclass

import numpy as np

from trials.spec import Window
from trials.trace import Ints, Trace
from trials.units import SpecError

_SLACK = (
    0.02  # the last window may outlast the last arrival by this share: a trace ends with a request, not a minute
)


@dataclass(frozen=True, slots=True)
class Windows:
    """`repeats`: one a repeat. `held_out`: never searched, may be fewer than asked. `notes`: why they are fewer."""

    repeats: tuple[Window | None, ...]
    held_out: tuple[Window, ...] = ()
    notes: tuple[str, ...] = ()


def rows_in(trace: Trace, window: Window | None) -> Ints:
    """Rows that arrive inside the window (ns from the first arrival); None = all rows."""
    since = trace.arrival_ns - trace.arrival_ns[0]
    if window is None:
        return np.arange(len(trace), dtype=np.int64)
    return np.flatnonzero((since >= window.start) & (since < window.start + window.duration)).astype(np.int64)


def repeat_windows(trace: Trace, asked: Window | None, repeats: int) -> tuple[Window | None, ...]:
    """One window a repeat. Without one asked, the trace's span is cut into equal parts.

    Raises SpecError where the trace is too short (saying how many fit) or a window holds no request.
    """
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    if asked is None:
        if repeats == 1:
            return (None,)
        duration = span // repeats + 1
        windows = [window_of(r * duration, duration) for r in range(repeats)]
    else:
        fit = _fit(trace, span, asked)
        if fit < repeats:
            raise SpecError(
                f"trace.window: {repeats} windows of {asked.duration / 1e9:g} s from {asked.start / 1e9:g} s on do "
                f"not fit into the trace's {span / 1e9:g} s: {fit} fit; lower repeats, or shorten the window"
            )
        windows = [asked.model_copy(update={"start": asked.start + r * asked.duration}) for r in range(repeats)]
    for r, window in enumerate(windows):
        if not len(rows_in(trace, window)):
            raise SpecError(
                f"repeat {r}: no request arrives in its window of {window.duration / 1e9:g} s from "
                f"{window.start / 1e9:g} s on; lower repeats, or choose trace.window"
            )
    return tuple(windows)


def planned_windows(trace: Trace, asked: Window | None, repeats: int, held_out: int) -> Windows:
    """Repeats from where the window was asked, held-out windows of the same length at the trace's end.

    Without a window asked, the span is cut into parts for both; with a single repeat the whole trace is searched.
    Raises SpecError as `repeat_windows` does; that held-out windows do not fit is a note.
    """
    if not held_out:
        return Windows(repeat_windows(trace, asked, repeats))
    if asked is None:
        if repeats == 1:
            words = (
                "nothing is held out: the whole trace is searched; give trace.window, or repeats, to hold some back"
            )
            return Windows((None,), (), (words,))
        try:
            parts = [w for w in repeat_windows(trace, None, repeats + held_out) if w is not None]
        except SpecError:
            words = f"nothing is held out: the trace cannot be cut into {repeats} + {held_out} windows"
            return Windows(repeat_windows(trace, None, repeats), (), (words,))
        return Windows(tuple(parts[:repeats]), tuple(parts[repeats:]))
    searched = repeat_windows(trace, asked, repeats)
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    fit = _fit(trace, span, asked)
    places = range(max(repeats, fit - held_out), fit)
    found = [asked.model_copy(update={"start": asked.start + k * asked.duration}) for k in places]
    kept = tuple(window for window in found if len(rows_in(trace, window)))
    short = held_out - len(kept)
    words = (
        f"held out: {len(kept)} of {held_out} windows; the trace has room for {fit} of {asked.duration / 1e9:g} s "
        f"from {asked.start / 1e9:g} s on, and {repeats} are searched"
    )
    return Windows(searched, kept, (words,) if short else ())


def window_of(start_ns: int, duration_ns: int) -> Window:
    """A window from numbers; as written by people its times carry a unit."""
    return Window.model_validate({"start": f"{start_ns}ns", "duration": f"{duration_ns}ns"})


def _fit(trace: Trace, span: int, asked: Window) -> int:
    """A trace ends with a request, not with a minute: its n requests stand for n gaps, not n - 1."""
    gap = span / (len(trace) - 1) if len(trace) > 1 else 0.0
    room = span - asked.start + max(_SLACK * asked.duration, gap)
    return max(0, int(room // asked.duration))
