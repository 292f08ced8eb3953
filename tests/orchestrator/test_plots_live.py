"""Live plots: what Bokeh is given, in stand-in colours, without the network."""

import json
from dataclasses import replace

import pytest
from test_plots import PANEL, POINTS

from orchestrator.plots import INK, PALETTE
from orchestrator.plots_live import both_live, cloud_live, knee_live, ledger_live, library
from orchestrator.plots_points import Cloud, Point
from trials.ledger import ACCOUNTS

TRIALS = (Point("trial 1: a", 1, 10.0), Point("trial 2: b", 2, 12.0, "chosen"))
CLOUD = Cloud("History", "trial", "tokens/s", TRIALS)


@pytest.mark.parametrize("item", [knee_live(POINTS, PANEL), cloud_live(CLOUD), ledger_live("A", 1 << 30),
                                  both_live((("live", "live tokens", "blue"),), "%")])  # fmt: skip
def test_live_plots_are_finite_json_in_stand_in_colours_and_fetch_nothing(item: dict[str, object]) -> None:
    text = json.dumps(item, allow_nan=False)
    assert INK in text
    assert any(colour in text for colour in PALETTE.values())
    assert "http" not in text


def test_a_live_knee_holds_label_range_and_feasibility_of_each_point() -> None:
    text = json.dumps(knee_live(POINTS, PANEL))
    assert all(label in text for label in ("block_size=4", "block_size=16", "contiguous"))
    assert "block_size=64" not in text  # it has no value
    assert '["low", [440.0]]' in text
    assert '["feasible", ["no"]]' in text


def test_a_live_knee_says_which_value_is_a_lower_bound() -> None:
    text = json.dumps(knee_live([replace(POINTS[1], at_least=True)], PANEL))
    assert '["least", [">= "]]' in text
    assert "@least@y" in text


def test_the_ledgers_source_waits_for_every_account() -> None:
    text = json.dumps(ledger_live("B", 1 << 30))
    assert '"name": "B"' in text
    assert all(f'"{account}"' in text for account in ACCOUNTS)


def test_the_library_carries_its_copyright() -> None:
    assert "Copyright" in library()[:2000]
