"""A sweep as it runs, on stderr: a live block on a terminal, a line a change elsewhere. rich is imported late."""

import sys

from orchestrator.progress import Picture, Viewer

_ORDER = ("running", "complete", "refused", "failed", "reused", "waiting")


def states_line(picture: Picture) -> str:
    """`7/28 done: 1 running, 6 complete, 21 waiting`."""
    done = sum(n for state, n in picture.states.items() if state not in ("running", "waiting"))
    parts = [f"{picture.states[s]} {s}" for s in _ORDER if picture.states.get(s)]
    return f"{done}/{picture.planned} done: {', '.join(parts)}"


def best_line(picture: Picture) -> str:
    if picture.best:
        label, value = picture.best
        return f"best so far {label} at {f'{value:.4g} {picture.unit}'.rstrip()}, feasible"
    finished = any(n for state, n in picture.states.items() if state not in ("running", "waiting"))
    return "nothing feasible yet" if finished else "no result yet"


def eta_line(picture: Picture) -> str:
    if picture.eta_s is None:
        return "ETA unknown yet"
    minutes, seconds = divmod(round(picture.eta_s), 60)
    return f"ETA {minutes} min {seconds:02d} s" if minutes else f"ETA {seconds} s"


def slots_line(picture: Picture) -> str:
    """`2 of 4 slots busy`."""
    plural = "" if picture.at_once == 1 else "s"
    return f"{min(len(picture.running), picture.at_once)} of {picture.at_once} slot{plural} busy"


def block(picture: Picture) -> list[str]:
    """All that a terminal shows of a sweep that runs."""
    lines = [states_line(picture), f"{best_line(picture)}; {eta_line(picture)}", slots_line(picture)]
    lines += [f"  trial {number} on {says or 'its way'}" for number, says in sorted(picture.running.items())]
    return [*lines, f"last fault: {picture.fault}"] if picture.fault else lines


class Lines:
    """One line whenever a trial ends."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, picture: Picture) -> None:
        finished = {s: n for s, n in picture.states.items() if s not in ("running", "waiting")}
        key = str(sorted(finished.items()))
        if key != self._last:
            self._last = key
            self.say(f"{states_line(picture)}; {best_line(picture)}; {eta_line(picture)}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Screen:
    """A block that is drawn over, with what each running trial says of itself."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def show(self, picture: Picture) -> None:
        from rich.text import Text

        self._live.update(Text("\n".join(block(picture))))

    def say(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text))

    def close(self) -> None:
        self._live.stop()


def open_viewer() -> Viewer:
    return Screen() if sys.stderr.isatty() else Lines()
