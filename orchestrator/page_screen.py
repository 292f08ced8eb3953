"""The report's screen: what the simulator said of every candidate, beside what was measured of some."""

from orchestrator.markup import Value, figures, folded, nothing, paragraph, table
from orchestrator.plots_points import Cloud, Point, cloud_svg
from orchestrator.screened import ScreenReport, ScreenRow, incomparable, load_screen, whether_followed
from orchestrator.shown import Sweep
from orchestrator.shown_quantities import objective_of

_NO_SCREEN = (
    "No screen was taken: every candidate that the search asked for ran on the engine itself. "
    "A sweep takes one where `screen` names the step times of a simulator."
)


def screened(sweep: Sweep) -> str:
    """Screened against measured, their agreement in rank, and whether the screen was followed."""
    report = load_screen(sweep.folder)
    if report is None:
        return nothing(_NO_SCREEN)
    unit = objective_of(sweep).panel.unit
    cloud = _cloud(report, sweep)
    rows: list[list[Value]] = [
        [_called(sweep, r), r.role or "not listed", r.value, _missed(r.over), r.measured, _missed(r.measured_over)]
        for r in report.rows
    ]
    head = ["candidate", "listed as", f"screened, {unit}", "misses its worst bound by",
            f"measured, {unit}", "then missed by"]  # fmt: skip
    note = (
        f"{report.candidates} candidates in {report.simulated} simulated replays of {report.requests} requests "
        f"({report.step_time}), {report.seconds:.1f} s. A screen orders the space and never decides."
    )
    caption = "Where the order is right, points rise to the right."
    return (
        paragraph(_agreement(report)) + figures([(cloud_svg(cloud, "screen"), caption)], ["screen"])
        + paragraph(note, "note") + folded("Data", table("Screened and measured", head, rows))
    )  # fmt: skip


def _agreement(report: ScreenReport) -> str:
    end = f" It was {whether_followed(report)}."
    if report.tau is None or report.regret is None:
        return f"{report.measured} candidates were measured: {incomparable(report)}.{end}"
    return (
        f"Over {report.measured} measured candidates Kendall's tau is {report.tau:.2f}; the screen's first choice "
        f"is {report.regret:.1%} under the best of them.{end}"
    )


def screen_cloud(sweep: Sweep) -> Cloud | None:
    """What a live plot is made of; None where no screen was taken."""
    report = load_screen(sweep.folder)
    return None if report is None else _cloud(report, sweep)


def _cloud(report: ScreenReport, sweep: Sweep) -> Cloud:
    """Those that have both numbers; filled where every bound held when measured."""
    goal = objective_of(sweep).panel
    both = [(r, r.value, r.measured) for r in report.rows if r.value is not None and r.measured is not None]
    points = tuple(Point(_called(sweep, r), value, measured, "candidate", _held(r)) for r, value, measured in both)
    names = f"screened (modelled), {goal.unit}", f"{goal.name} when run, {goal.unit}"
    return Cloud("Screened against measured", *names, points, nothing="no screened candidate has been measured yet")


def _called(sweep: Sweep, row: ScreenRow) -> str:
    return sweep.short.get(row.label, row.label)


def _held(row: ScreenRow) -> bool:
    return row.measured_over is not None and row.measured_over <= 0


def _missed(over: float | None) -> str:
    return "without bound" if over is None else f"{over:.1%}" if over > 0 else "–"
