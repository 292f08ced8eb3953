"""screen.json: what the simulator said of every candidate, what is listed to be measured, and whether it was right.

Written when the screen has run, completed when the sweep is concluded; a resumed sweep goes on with what it lists.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.config import Sweep
from orchestrator.folder import SweepFolder, write_text
from search_spaces.candidates import Measured
from search_spaces.neighbours import Key, key_of
from search_spaces.screen import Agreement, Listed, Role, Screen, Screened, agreement
from search_spaces.space import Space, Value
from trials.fingerprint import canonical_json, digest

_FILE = "screen.json"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScreenRow(_Model):
    """A candidate: what the simulator said (`over`: share by which its worst bound is missed, None: without bound),
    why it is to be measured, if it is, and what was measured then."""

    params: dict[str, Value]
    label: str
    value: float | None
    over: float | None
    role: Role | None = None
    measured: float | None = None
    measured_over: float | None = None


class ScreenReport(_Model):
    """The whole screen. `asks`: digest of the question, so that another space or table is another screen."""

    asks: str
    words: str
    step_time: str
    candidates: int
    simulated: int  # distinct replays; candidates that a simulator cannot tell apart share one
    requests: int
    window_s: tuple[float, float]
    seconds: float
    keep: float
    rows: tuple[ScreenRow, ...]
    measured: int = 0
    tau: float | None = None
    regret: float | None = None
    dropped: str = ""  # why it was not followed, or from then on no more; written when it is dropped
    misled: str = ""  # why it should not have been, by all that was measured; it may have been seen too late


def question_of(sweep: Sweep) -> str:
    """What a screen depends on."""
    spec, screen = sweep.config.space, sweep.config.screen
    assert screen is not None
    moved = spec if isinstance(spec, str) else spec.model_dump(mode="json")
    asked = {"base": sweep.hash(sweep.space.base), "space": moved, "screen": screen.model_dump(mode="json")}
    return digest(canonical_json(asked).encode())


def load_screen(folder: SweepFolder) -> ScreenReport | None:
    """What stands in the folder; None where there is none, or it is not whole."""
    try:
        return ScreenReport.model_validate_json((folder.path / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None


def save_screen(folder: SweepFolder, report: ScreenReport) -> Path:
    """Written whole or not at all."""
    write_text(folder.path / _FILE, report.model_dump_json(indent=1) + "\n")
    return folder.path / _FILE


def drop_screen(folder: SweepFolder, why: str) -> None:
    """Write down that the folder's screen is not followed any more, so that all who read it say the same."""
    if (report := load_screen(folder)) is not None:
        save_screen(folder, report.model_copy(update={"dropped": why}))


def with_screen(folder: SweepFolder, sweep: Sweep) -> Sweep:
    """The sweep with what its folder's screen lists; as it is where there is none, or it is another question's."""
    if sweep.config.screen is None:
        return sweep
    report = load_screen(folder)
    if report is None or report.asks != question_of(sweep):
        return sweep
    return followed(sweep, report)


def followed(sweep: Sweep, report: ScreenReport) -> Sweep:
    """The sweep that measures what the screen lists; a grid's budget is then the list's, unless it was dropped."""
    said = {key_of(row.params): _screened(row.params, row.value, row.over) for row in report.rows}
    order = [row for row in report.rows if row.role is not None]
    listed = tuple(Listed(dict(row.params), row.role) for row in order if row.role is not None)
    screen = Screen(listed, said, report.dropped)
    if sweep.config.sampler != "exhaustive" or report.dropped:
        return replace(sweep, screen=screen)
    return replace(sweep, screen=screen, budget=min(sweep.budget, len(listed) * sweep.config.repeats))


def rows_of(space: Space, said: Sequence[Screened], listed: Sequence[Listed]) -> tuple[ScreenRow, ...]:
    """What is listed, in its order, then the others."""
    by_key = {key_of(one.params): one for one in said}
    roles = {key_of(one.params): one.role for one in listed}
    unseen = {key_of(one.params): Screened(one.params, None, float("inf")) for one in listed}
    return tuple(_row(space, (unseen | by_key)[key], roles.get(key)) for key in dict.fromkeys([*roles, *by_key]))


def _row(space: Space, one: Screened, role: Role | None) -> ScreenRow:
    label = space.label(space.policy_of(space.suggest(one.params)))
    over = None if one.over == float("inf") else one.over
    return ScreenRow(params=dict(one.params), label=label, value=one.value, over=over, role=role)


def best_of(rows: Sequence[ScreenRow]) -> str:
    """The label of the first choice."""
    merits = [(_screened(row.params, row.value, row.over).merit, row.label) for row in rows]
    return max(merits, key=lambda m: m[0])[1] if merits else "none"


def _screened(params: dict[str, Value], value: float | None, over: float | None) -> Screened:
    return Screened(params, value, float("inf") if over is None else over)


def compared(folder: SweepFolder, sweep: Sweep, measured: Sequence[Measured]) -> str:
    """Put what was measured beside what was screened, into screen.json; the comparison in words, empty without."""
    report = load_screen(folder)
    if report is None or sweep.config.screen is None:
        return ""
    seen = measured_of(sweep, measured)
    rows = tuple(_beside(row, seen.get(key_of(row.params))) for row in report.rows)
    checks = [key_of(row.params) for row in rows if row.role == "check"]
    said = {key_of(row.params): _screened(row.params, row.value, row.over) for row in rows}
    found = agreement(said, seen, checks, sweep.config.min_gain)
    latest = load_screen(folder) or report  # a driver that runs may have dropped it meanwhile
    report = latest.model_copy(update={
        "rows": rows, "measured": found.measured, "tau": found.tau, "regret": found.regret, "misled": found.misled,
    })  # fmt: skip
    save_screen(folder, report)
    return _words(report, found)


def measured_of(sweep: Sweep, measured: Sequence[Measured]) -> dict[Key, Screened]:
    """What was measured of each candidate of the space: its mean, and its worst bound."""
    found: dict[Key, list[Measured]] = {}
    for one in measured:
        params = sweep.space.params_of(one.policy)
        if params is not None and one.score.value is not None:
            found.setdefault(key_of(params), []).append(one)
    return {
        key: Screened(dict(key), fmean(m.score.value or 0.0 for m in trials), max(_over(m) for m in trials))
        for key, trials in found.items()
    }


def _over(one: Measured) -> float:
    return max([0.0, *(bound for _, bound in one.score.constraints)])


def _beside(row: ScreenRow, seen: Screened | None) -> ScreenRow:
    if seen is None:
        return row
    over = None if seen.over == float("inf") else seen.over
    return row.model_copy(update={"measured": seen.value, "measured_over": over})


def whether_followed(report: ScreenReport) -> str:
    """`dropped: it ...`, `followed`, or followed until it was seen too late that it should not have been."""
    if report.dropped:
        return f"dropped: {report.dropped}"
    return f"followed, though {report.misled}" if report.misled else "followed"


def incomparable(report: ScreenReport) -> str:
    """Why there is no order to compare; empty where there is one."""
    if report.tau is not None:
        return ""
    both = [row for row in report.rows if row.measured is not None]
    if len(both) < 2:
        return "too few to compare"
    if len({(row.measured, row.measured_over) for row in both}) == 1:
        return "all came to the same, so there is no order to compare"
    return "the screen gave all of them the same, so it has no order to compare"


def _words(report: ScreenReport, found: Agreement) -> str:
    if found.tau is None or found.regret is None:
        how = f"{found.measured} candidates measured: {incomparable(report)}"
    else:
        how = (
            f"Kendall's tau {found.tau:.2f} over {found.measured} measured candidates, its first choice "
            f"{found.regret:.1%} under the best of them"
        )
    return f"screen ({report.step_time}, {report.candidates} candidates): {how}; {whether_followed(report)}"
