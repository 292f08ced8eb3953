"""Ends that a user sets to a sweep, GPU-hours and a time of day: as rules for `stopping`, and as one writes them.

What is counted is what is held: from the start of an attempt to its end, times the GPUs of its slot, lost attempts
and earlier drivers of the folder included. Where slots have no GPU it is slot-hours. A trial that would, by the
mean of those before it, end past the limit is not begun; what still runs at the limit is ended and left for later.
"""

import datetime
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.config import Sweep
from orchestrator.folder import SweepFolder, TrialRecord, read_json
from orchestrator.opening import slot_needs
from orchestrator.stopping import Standing, Stop
from trials.units import SpecError, parse_ns

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Limits:
    """`gpu_hours`: None for no end. `until_s`: seconds of the epoch. `devices`: GPUs a slot holds, 0 = count slots.
    `spent_s`: slot seconds of earlier drivers of the folder."""

    gpu_hours: float | None = None
    until_s: float | None = None
    devices: int = 0
    spent_s: float = 0.0

    def no_more(self, standing: Standing) -> str | None:
        """Why no further trial is begun."""
        expected_s = standing.mean_s or 0.0
        ahead = Standing(
            standing.now_s + expected_s, standing.finished, standing.running,
            standing.slot_s + expected_s, standing.mean_s,
        )  # fmt: skip
        why = self.over(ahead)
        return why if why is None or self.over(standing) else f"another trial would pass it: {why}"

    def over(self, standing: Standing) -> str | None:
        """Why what runs is ended."""
        hours = (self.spent_s + standing.slot_s) * max(1, self.devices) / 3600
        if self.gpu_hours is not None and hours >= self.gpu_hours:
            return f"{self.gpu_hours:g} {'GPU' if self.devices else 'slot'}-hours are used"
        if self.until_s is not None and standing.now_s >= self.until_s:
            return f"it is {datetime.datetime.fromtimestamp(self.until_s):%Y-%m-%d %H:%M}"
        return None


def rules(limits: Limits, sweep: Sweep, folder: SweepFolder) -> tuple[tuple[Stop, ...], tuple[Stop, ...]]:
    """Before each ask, and while trials run: with what this folder has held already, and what a slot holds here."""
    needs = slot_needs(sweep)
    known = replace(limits, devices=needs.gpus * needs.bundles, spent_s=slot_seconds(folder.load_trials()))
    return (known.no_more,), (known.over,)


def slot_seconds(records: Iterable[TrialRecord]) -> float:
    """How long all attempts that stand in a folder held their slots."""
    spent = 0.0
    for attempt in (a for record in records for a in record.attempts):
        held = attempt.info.get("held_s", read_json(attempt.folder / "lost.json").get("wall_s", 0.0))
        spent += float(held) if isinstance(held, int | float) else 0.0
    return spent


def read_limits(gpu_hours: float | None, until: str | None) -> Limits:
    """As options give them. SpecError."""
    if gpu_hours is not None and not 0 < gpu_hours < math.inf:
        raise SpecError(f"--gpu-hours {gpu_hours:g}: write a number above 0")
    return Limits(gpu_hours, None if until is None else parse_until(until, datetime.datetime.now()))


def parse_until(text: str, now: datetime.datetime) -> float:
    """`07:30` (the next one), `2026-12-01T07:30`, or `8h` from now, as seconds of the epoch. Else SpecError."""
    clock = _CLOCK.fullmatch(text.strip())
    if clock is not None:
        today = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        return (today if today > now else today + _DAY).timestamp()
    try:
        end = datetime.datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        try:
            return now.timestamp() + parse_ns(text, "--until") / 1e9
        except SpecError:
            raise SpecError(f"--until {text}: write a time as 07:30, 2026-12-01T07:30, or 8h from now") from None
    if end <= now.timestamp():
        raise SpecError(f"--until {text}: that has passed; it is {now:%Y-%m-%d %H:%M}")
    return end
