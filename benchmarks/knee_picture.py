"""A sweep's knee as a picture of its own: the first plot of its report, with colours for the page's variables.

    python benchmarks/knee_picture.py runs/demo/report.html docs/knee.svg

Nothing is drawn here: the plot is the report's, so what the picture shows was measured by that sweep.
"""

import argparse
import re
from pathlib import Path

COLOURS = {
    "blue": "#0072b2", "vermilion": "#d55e00", "green": "#009e73", "purple": "#cc79a7", "orange": "#e69f00",
    "sky": "#56b4e9", "yellow": "#f0e442", "grey": "#9a9a9a", "ink": "#333333",
    "line": "#cccccc", "soft": "#777777", "paper": "#ffffff", "card": "#ffffff",
}  # fmt: skip


def standalone(report: str) -> str:
    """The report's first SVG on white. ValueError where it has none, or uses a colour that is not known here."""
    found = re.search(r"<svg\b.*?</svg>", report, re.DOTALL)
    if found is None:
        raise ValueError("the report holds no plot")
    svg = found[0].replace("currentColor", COLOURS["ink"])
    svg = re.sub(r"var\(--([a-z]+)\)", lambda match: COLOURS[match[1]], svg)
    box = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg)
    if box is None:
        raise ValueError("the plot has no viewBox")
    width, height = (round(float(side) * 1.6) for side in box.groups())
    head = f'<svg width="{width}" height="{height}" font-family="sans-serif" '
    svg = svg.replace("<svg ", head, 1)
    return re.sub(r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="#ffffff"/>', svg, count=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.write_text(standalone(given.report.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
