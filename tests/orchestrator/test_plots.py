"""Plots as inline SVG: what they show, and that they can stand in one page, in any colour scheme."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.frames import Binned
from orchestrator.plots import log_ticks
from orchestrator.plots_knee import KneePoint, Panel, knee_svg
from orchestrator.plots_ledger import ledger_svg, occupancy_svg, tokens_svg
from trials.ledger import ACCOUNTS

PANEL = Panel("TTFT p99", "ms", "modelled", 500.0)
POINTS = [
    KneePoint("block_size=4", 4, 450.0, 440.0, 460.0, True, "candidate"),
    KneePoint("block_size=16", 16, 300.0, 290.0, 320.0, True, "chosen"),
    KneePoint("block_size=64", 64, None, None, None, False, "tied"),
    KneePoint("contiguous", 8192, 900.0, 900.0, 900.0, False, "control", in_space=False),
]


def _binned(bins: int = 50) -> Binned:
    accounts = {a: np.zeros(bins) for a in ACCOUNTS}
    accounts["payload"] = np.linspace(0, 600, bins)
    accounts["free"] = 1000 - accounts["payload"]
    half = np.full(bins, 30.0)
    return Binned(np.linspace(0, 5, bins + 1), accounts, 1000, half, half + 5, 100, half, half * 2)


def _all() -> dict[str, str]:
    return {
        "k": knee_svg(POINTS, PANEL, "k"),
        "l": ledger_svg(_binned(), "block <16> & co", "l"),
        "t": tokens_svg(_binned(), "block 16", "t"),
        "o": occupancy_svg(_binned(), "block 16", "modelled", "o"),
    }


@pytest.mark.parametrize(("key", "svg"), _all().items())
def test_every_plot_is_well_formed_and_described(key: str, svg: str) -> None:
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{key}-t {key}-d"
    words = {e.get("id"): e.text for e in root.iter() if e.get("id") in (f"{key}-t", f"{key}-d")}
    assert all(words.values())
    assert len(words) == 2


def test_ids_are_of_one_plot_alone_and_all_links_lead_somewhere() -> None:
    seen: set[str] = set()
    for key, svg in _all().items():
        ids = re.findall(r'\bid="([^"]+)"', svg)
        assert all(i.startswith(f"{key}-") for i in ids)
        assert not seen & set(ids)
        seen |= set(ids)
        links = re.findall(r'href="#([^"]+)"', svg) + re.findall(r"url\(#([^)]+)\)", svg)
        assert set(links) <= set(ids)


@pytest.mark.parametrize("svg", _all().values())
def test_a_plot_follows_the_page_and_fetches_nothing(svg: str) -> None:
    assert "currentColor" in svg
    assert "var(--" in svg
    assert not re.search(r"(?:fill|stroke): #[0-9a-f]{6}", svg.replace("#ffffff", ""))
    assert not re.search(r"(?:href|src)=\"(?!#)", svg)
    assert "<style" not in svg
    assert "<metadata" not in svg


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert knee_svg(POINTS, PANEL, "k") == knee_svg(POINTS, PANEL, "k")


def test_the_knee_says_evidence_limit_and_choice_in_words() -> None:
    svg = knee_svg(POINTS, PANEL, "k")
    assert "TTFT p99 in ms, modelled: block_size=4 450, block_size=16 300, contiguous 900." in svg
    assert "Limit 500 ms. Chosen: block_size=16." in svg
    assert "TTFT p99 (modelled)" in svg
    assert "SLO 500 ms" in svg


def test_a_lower_bound_has_its_sign_in_the_words_and_in_the_picture() -> None:
    bound = replace(POINTS[1], at_least=True)
    svg = knee_svg([POINTS[0], bound], PANEL, "k")
    assert "block_size=4 450, block_size=16 &gt;= 300." in svg
    assert "≥" in svg
    assert "≥" not in knee_svg(POINTS, PANEL, "k")


def test_a_knee_without_values_is_still_a_plot() -> None:
    svg = knee_svg([KneePoint("a", 1, None, None, None, False, "candidate")], PANEL, "k")
    assert "nothing measured yet" in svg
    assert "Nothing is chosen." in svg


def test_the_ledger_draws_accounts_that_hold_bytes_and_the_pool_total() -> None:
    svg = ledger_svg(_binned(), "block 16", "l")
    assert all(f">{label}<" in svg for label in ("payload", "free", "pool total"))
    assert ">padding<" not in svg
    assert "payload 30.0%, free 70.0%" in svg


def test_titles_are_escaped() -> None:
    svg = ledger_svg(_binned(), "block <16> & co", "l")
    assert "block &lt;16&gt; &amp; co" in svg
    assert "<16>" not in svg


def test_a_plot_with_the_most_bins_stays_small() -> None:
    assert len(ledger_svg(_binned(600), "x", "l")) < 150_000


def test_an_overloaded_control_does_not_flatten_the_others() -> None:
    far = KneePoint("contiguous", 8192, 2e6, 2e6, 2e6, False, "control", in_space=False)
    assert ">1,000,000<" in knee_svg([*POINTS[:2], far], PANEL, "k")
    assert ">1,000,000<" not in knee_svg(POINTS, PANEL, "k")


@pytest.mark.parametrize(("low", "high", "marks"), [
    (0.4, 30.0, ["0.5", "1", "2", "5", "10", "20"]), (1.1, 130.0, ["10", "100"]),
    (70.0, 2e6, ["100", "1,000", "10,000", "100,000", "1,000,000"]),
])  # fmt: skip
def test_a_log_axis_is_marked_in_plain_numbers_at_least_twice(low: float, high: float, marks: list[str]) -> None:
    assert list(log_ticks(low, high).values()) == marks


def _top(svg: str, ids: str) -> float:
    """The y of the first text in a group: SVG counts downwards."""
    group = svg[svg.index(f'id="{ids}"') :]
    found = re.search(r'<text[^>]*?(?:y="([-0-9.]+)"|translate\([-0-9.]+ ([-0-9.]+)\))', group)
    assert found is not None
    return float(found[1] or found[2])


def test_a_title_of_many_lines_does_not_run_into_the_legend() -> None:
    long = (
        "block_size=16 max_num_seqs=256 max_num_batched_tokens=2048 watermark=0 queue=fcfs victim=largest (chosen)"
    )
    for svg in (ledger_svg(_binned(), long, "l"), occupancy_svg(_binned(), long, "modelled", "l")):
        axis = _top(svg, "l-axes_1")
        assert _top(svg, "l-legend_1") > axis
