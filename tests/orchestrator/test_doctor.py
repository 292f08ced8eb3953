"""The doctor says what is there, what is missing, and what to do; it changes nothing."""

import importlib.metadata
import socket
from collections.abc import Callable

import pytest

from orchestrator import doctor
from orchestrator.doctor import Finding, Report, as_rows, examine


@pytest.fixture(scope="module")
def report() -> Report:
    return examine()


def finding(report: Report, name: str) -> Finding:
    return next(f for f in report.findings if f.name == name)


def test_this_environment_is_fit_to_run_and_says_so(report: Report) -> None:
    assert report.exit_code == 0, report.lines
    for name in ("python", "ray", "optuna", "mlflow", "torch", "engine simulator", "engine torch_paged"):
        assert finding(report, name).status == "ok", finding(report, name)
    assert finding(report, "mlflow").says == importlib.metadata.version("mlflow")


def test_every_trouble_has_a_remedy_and_every_finding_words(report: Report) -> None:
    assert all(f.says for f in report.findings)
    assert all(f.remedy for f in report.findings if f.status != "ok")
    names = [f.name for f in report.findings]
    assert len(set(names)) == len(names)
    assert len(as_rows(report)) == len(names)
    assert all(any(f.name in line and f.says in line for line in report.lines) for f in report.findings)


def test_no_gpu_is_no_fault(report: Report) -> None:
    assert finding(report, "GPUs").status == "ok"


def fake_version(changed: dict[str, str | None]) -> Callable[[str], str]:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name not in changed:
            return real(name)
        found = changed[name]
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    return version


@pytest.mark.parametrize(
    ("name", "version", "word"),
    [("mlflow", "3.18.0", "!=3.18.0"), ("optuna", "4.9.0", "optuna>=5"), ("ray", None, "pip install 'ray>=2.60'")],
)
def test_an_unfit_library_is_missing_and_named(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str | None, word: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", fake_version({name: version}))
    found = doctor._library(name)
    assert found.status == "missing"
    assert word in found.remedy
    assert Report(findings=(found,)).exit_code == 3


def test_a_cluster_that_does_not_answer_is_missing_and_told_in_seconds() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    found = doctor._guarded("ray cluster", lambda: doctor._cluster(f"127.0.0.1:{port}"), "missing")
    assert found.status == "missing"
    assert "nothing answers" in found.says
    nonsense = doctor._guarded("ray cluster", lambda: doctor._cluster("head"), "missing")
    assert "10.0.0.5:6379" in nonsense.says


@pytest.mark.ray
def test_a_cluster_that_answers_is_counted(local_ray: None) -> None:
    import ray

    found = doctor._cluster(ray.get_runtime_context().gcs_address)
    assert found.status == "ok"
    assert "1 nodes, 4 CPUs, 2 GPUs" in found.says
    assert ray.is_initialized(), "a connection of others is left alone"
