"""The MLflow UI over a sweep's folder: parent and children are there, and the report shows as an artifact."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chromium import Tab, end
from mlflow import MlflowClient
from mlflow.entities import Run

pytestmark = pytest.mark.browser


@contextmanager
def _ui(folder: Path) -> Iterator[str]:
    """`mlflow ui` on loopback over the folder's database; ended with its workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "ui",
        "--backend-store-uri",
        uri,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with (folder / "ui.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--workers", "1"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder,
            env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}, start_new_session=True,
        )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            end(process)


def _family(folder: Path) -> tuple[Run, list[Run]]:
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=1000)
    parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    assert len(parents) == 1
    return parents[0], [r for r in runs if "mlflow.parentRunId" in r.data.tags]


def test_the_ui_nests_the_trials_and_shows_the_report(tab: Tab, swept: Path, pictures: Path) -> None:
    parent, children = _family(swept)
    assert len(children) >= 9
    tab.look(1440, height=1000)
    with _ui(swept) as address:
        _open_when_up(tab, f"{address}/#/experiments/{parent.info.experiment_id}/runs")
        link = f"document.querySelector('a[href*=\"runs/{parent.info.run_id}\"]')"
        tab.wait_for(f"{link} !== null")
        tab.evaluate(f"{link}.parentElement.parentElement.querySelector('button').click()")
        tab.wait_for(f"document.querySelector('a[href*=\"runs/{children[0].info.run_id}\"]') !== null")
        tab.picture(pictures / "mlflow-runs.png", whole=False)
        tab.open(f"{address}/#/experiments/{parent.info.experiment_id}/runs/{parent.info.run_id}")
        tab.wait_for("document.body.innerText.includes('kvknee.winner')")
        tab.wait_for(f"document.body.innerText.includes({children[0].info.run_name!r})")
        tab.picture(pictures / "mlflow-parent.png", whole=False)
        tab.open(
            f"{address}/#/experiments/{parent.info.experiment_id}/runs/{parent.info.run_id}/artifacts/report.html"
        )
        tab.wait_for("document.querySelector('iframe') !== null")
        frame = _frame(tab)
        tab.wait_for("document.querySelector('#answer .sentence').innerText.length > 20", frame)
        tab.wait_for("document.documentElement.dataset.live === 'ready'", frame)
        tab.picture(pictures / "mlflow-report.png", whole=False)
        assert "Where every byte went" in tab.evaluate("document.body.innerText", frame)


def _open_when_up(tab: Tab, url: str) -> None:
    """Workers of the server take seconds to listen."""
    for _ in range(60):
        tab.open(url)
        if tab.evaluate("location.href").startswith("http"):
            return
        tab.evaluate("new Promise((done) => setTimeout(done, 1000))")
    raise AssertionError("the MLflow UI did not come up")


def _frame(tab: Tab) -> int:
    """The execution context of the report inside MLflow's page."""
    for _ in range(100):
        tree = tab.call("Page.getFrameTree")["frameTree"]
        for child in tree.get("childFrames", []):
            context = tab.contexts.get(child["frame"]["id"])
            if context is not None and tab.evaluate("document.querySelectorAll('section').length", context):
                return context
        tab.evaluate("new Promise((done) => setTimeout(done, 200))")
    raise AssertionError("the report is not in a frame of MLflow's page")
