"""Bars, points and churn: what they say, and that an empty one says why it is empty."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from orchestrator.plots_bars import Bars, Part, bars_svg
from orchestrator.plots_churn import churn_svg, divergence_svg
from orchestrator.plots_points import Cloud, Curve, Point, cloud_svg, curves_svg
from trials.result import ChurnStretch, Percentiles

PARTS = (
    Part("slack", "vermilion", (1.0, 2.5), "//"),
    Part("stranded", "blue", (0.0, 4.0)),
    Part("padding", "sky", (0.0, 0.0)),
)
BARS = Bars("Waste", "GiB x s", ("block 16", "block <64>"), PARTS)
POINTS = (Point("trial 1: a", 1, 10.0), Point("trial 2: b", 2, 12.0, "chosen"))
CLOUD = Cloud("History", "trial", "tokens/s", POINTS, ((1, 10.0), (2, 12.0)), "best so far", True)


def _stretch(i: int) -> ChurnStretch:
    times = Percentiles(n=5, p50=1.0, p99=None if i == 1 else 3.0)
    return ChurnStretch(start_ns=i * 10**9, steps=5, step_ms=times, allocated_blocks=7, released_blocks=7,
                        evicted_blocks=i, copied_blocks=0, occupancy=0.5, table_depth=3)  # fmt: skip


STRETCHES = tuple(map(_stretch, range(3)))


def _svgs() -> dict[str, str]:
    curve = Curve("block 16", "blue", (10.0, 20.0), (5.0, 6.0), (9.0, 30.0))
    three = np.array([1.0, 4.0, 2.0])
    return {
        "b": bars_svg(BARS, "b"),
        "c": cloud_svg(CLOUD, "c"),
        "v": curves_svg([curve], "Gap", "slots, %", "v"),
        "h": churn_svg(STRETCHES, "block 16", "h"),
        "d": divergence_svg(np.arange(4.0), three, three * 2, "block 16", "d"),
    }


@pytest.mark.parametrize(("key", "svg"), _svgs().items())
def test_every_picture_is_well_formed_and_told_in_words(key: str, svg: str) -> None:
    root = ET.fromstring(svg)
    words = next(e.text for e in root.iter() if e.get("id") == f"{key}-d")
    assert words
    assert any(digit in words for digit in "123456789")


def test_bars_tell_their_numbers_and_leave_out_what_is_nothing_everywhere() -> None:
    svg = bars_svg(BARS, "b")
    assert "block 16: slack 1; block &lt;64&gt;: slack 2.5, stranded 4." in svg
    assert ">padding<" not in svg


def test_an_empty_picture_says_why() -> None:
    nothing = Bars("Waste", "GiB x s", ("a",), (Part("slack", "blue", (0.0,)),), "nothing was wasted")
    assert ">nothing was wasted<" in bars_svg(nothing, "b")
    assert ">nothing measured yet<" in cloud_svg(Cloud("History", "x", "y", ()), "c")
    assert "no step in the window" in curves_svg([], "Gap", "x", "v")


def test_a_stretch_without_a_finite_time_is_a_hole_and_no_error() -> None:
    assert "21 blocks were handed out and 3 evicted" in churn_svg(STRETCHES, "block 16", "h")
