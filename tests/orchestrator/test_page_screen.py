"""Screened against measured in the report: both numbers, their agreement, and a dropped screen said so."""

from pathlib import Path

import pytest
from made_sweep import build

from orchestrator.folder import SweepFolder
from orchestrator.page_screen import screened
from orchestrator.screened import ScreenReport, ScreenRow, save_screen
from orchestrator.shown import read_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    return build(tmp_path_factory.mktemp("screen") / "sweep")


def _report(**more: object) -> ScreenReport:
    rows = (
        ScreenRow(params={"block_size": 4}, label="block <4>", value=90.0, over=0.0, role="promising",
                  measured=95.0, measured_over=0.0),
        ScreenRow(params={"block_size": 16}, label="block 16", value=80.0, over=0.25, role="check",
                  measured=70.0, measured_over=None),
        ScreenRow(params={"block_size": 64}, label="block 64", value=None, over=None),
    )  # fmt: skip
    report = ScreenReport(asks="x", words="made up", step_time="roofline:h100-sxm", candidates=3, simulated=3,
                          requests=60, window_s=(0.0, 9.0), seconds=1.5, keep=0.3, rows=rows)  # fmt: skip
    return report.model_copy(update=more)


def test_without_a_screen_the_page_says_so(sweep: SweepFolder) -> None:
    assert "No screen was taken" in screened(read_sweep(sweep))


def test_both_numbers_and_their_agreement_are_shown(sweep: SweepFolder) -> None:
    path = save_screen(sweep, _report(measured=2, tau=1.0, regret=0.034))
    html = screened(read_sweep(sweep))
    path.unlink()
    assert "tau is 1.00; the screen&#x27;s first choice is 3.4% under" in html
    assert "It was followed." in html
    assert "block &lt;4&gt;" in html
    assert "block <4>" not in html
    assert all(word in html for word in ("not listed", "25.0%", "without bound", "2 points"))


def test_a_screen_that_was_dropped_or_cannot_be_judged_says_why(sweep: SweepFolder) -> None:
    rows = _report().rows[:1] + _report().rows[2:]
    path = save_screen(sweep, _report(measured=1, rows=rows, dropped="its first choice fell"))
    html = screened(read_sweep(sweep))
    path.unlink()
    assert "1 candidates were measured: too few to compare." in html
    assert "It was dropped: its first choice fell." in html


@pytest.mark.parametrize(
    ("alike", "words"),
    [
        ({"measured": 7.0, "measured_over": 0.0}, "2 candidates were measured: all came to the same"),
        ({"value": 7.0, "over": 0.0}, "2 candidates were measured: the screen gave all of them the same"),
    ],
)
def test_where_all_are_alike_the_page_says_that_and_not_that_they_are_few(
    alike: dict[str, float], words: str, sweep: SweepFolder
) -> None:
    rows = tuple(r.model_copy(update=alike) if r.measured is not None else r for r in _report().rows)
    path = save_screen(sweep, _report(measured=2, rows=rows))
    html = screened(read_sweep(sweep))
    path.unlink()
    assert words in html
    assert "too few" not in html


def test_a_broken_screen_counts_as_none(sweep: SweepFolder) -> None:
    path: Path = sweep.path / "screen.json"
    path.write_text("{")
    assert "No screen was taken" in screened(read_sweep(sweep))
    path.unlink()
