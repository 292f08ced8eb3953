"""What makes the report answer to the mouse, packed into the page: library, data and the page's own script.

Library and data are gzip in base64, a third of their size; the page's script unpacks them. A browser that cannot,
or may not run scripts, shows the page as it is: drawings and tables are all there.
"""

import base64
import gzip
import json
from importlib import resources
from typing import Any

from orchestrator.page_compare import compare_figures, compare_trials
from orchestrator.page_screen import screen_cloud
from orchestrator.page_search import front_cloud, history_cloud
from orchestrator.plots import INK, PALETTE
from orchestrator.plots_live import cloud_live, knee_live, library
from orchestrator.shown import Sweep
from orchestrator.shown_quantities import knee_points, leaders, quantities


def scripts(sweep: Sweep) -> str:
    """The elements at the end of the page. Nothing that a user wrote stands in them but in base64."""
    figures = compare_figures(sweep)
    leads = leaders(sweep)
    for i, quantity in enumerate(quantities(sweep)):
        points = knee_points(sweep.shown, quantity, leads)
        if any(p.middle is not None for p in points):
            figures[f"knee{i}"] = knee_live(points, quantity.panel)
    clouds = {"history": history_cloud(sweep), "front": front_cloud(sweep), "screen": screen_cloud(sweep)}
    for key, cloud in clouds.items():
        if cloud is not None and cloud.points:
            figures[key] = cloud_live(cloud)
    colours = {INK: "ink", **{hexadecimal: name for name, hexadecimal in PALETTE.items()}}
    data: dict[str, Any] = {"colours": colours, "figures": figures, "compared": compare_trials(sweep)}
    letters = packed(json.dumps(data, allow_nan=False, separators=(",", ":")))
    own = (resources.files("orchestrator") / "page.js").read_text(encoding="utf-8")
    return (
        f'<script type="text/plain" id="library">{packed(library())}</script>\n'
        f'<script type="text/plain" id="data">{letters}</script>\n'
        f"<script>\n{own}</script>"
    )


def packed(text: str) -> str:
    """gzip in base64; the same text gives the same letters."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode("ascii")
