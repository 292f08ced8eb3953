"""Public traces are looked for where somebody said and nowhere else; without them, what is left out is said."""

from pathlib import Path

import pytest

from benchmarks import public_traces, simulator_speed, truth
from benchmarks.agreement_loads import GENERATED, available, load
from benchmarks.public_traces import PUBLIC, RUNS, TRACES, absent, folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRACES, raising=False)
    monkeypatch.delenv(RUNS, raising=False)


def test_an_argument_comes_before_the_environment_and_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder(TRACES) is None
    monkeypatch.setenv(TRACES, "")
    assert folder(TRACES) is None
    monkeypatch.setenv(TRACES, "/a")
    assert folder(TRACES) == Path("/a")
    assert folder(TRACES, Path("/b")) == Path("/b")


def test_no_script_looks_outside_the_checkout() -> None:
    scripts = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "Makefile"]
    mine = Path(__file__)
    outside = [p.name for p in scripts if p != mine and '"shared" /' in p.read_text(encoding="utf-8")]
    assert outside == []
    assert "../" not in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_what_is_absent_is_named_with_its_publisher(tmp_path: Path) -> None:
    for name, one in PUBLIC.items():
        assert absent(name, None).startswith(f"{name}: {TRACES} is not set; ")
        assert str(tmp_path) in absent(name, tmp_path)
        assert one.where in absent(name, tmp_path)


def test_the_schedulers_are_compared_on_a_generated_trace_where_no_public_one_is(tmp_path: Path) -> None:
    sources, missing = available(None)
    assert sources == [GENERATED]
    assert len(missing) == len(PUBLIC)
    assert len(load(None, GENERATED)) > 1000
    conv = tmp_path / PUBLIC["azure conv"].files
    conv.parent.mkdir()
    conv.write_text((ROOT / "tests/golden/azure_small.csv").read_text())
    assert available(tmp_path)[0] == ["azure conv"]
    assert len(load(tmp_path, "azure conv")) > 0


def test_cases_of_an_absent_trace_are_left_out_and_the_others_run() -> None:
    assert list(simulator_speed.cases_of(None, simulator_speed.shared_trace())) == [
        "shared", "shared, 20/s", "shared, 35/s",
    ]  # fmt: skip


def test_without_a_run_there_is_nothing_to_compare_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["truth.py"])
    assert truth.main() == 2
    said = capsys.readouterr().err
    assert RUNS in said
    assert public_traces.RUN_WHERE in said
