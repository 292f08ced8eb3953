"""The wheel is whole: installed where there is no checkout, its verbs work on what it brought along."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_BUILD = """import sys
from setuptools import build_meta
out = sys.argv[1]  # setuptools puts its own into sys.argv
build_meta.build_wheel(out)
build_meta.build_sdist(out)
"""
SWEEP = """engine: {name: simulator, step_time: roofline:h100-sxm}
model: llama-3.1-8b
pool: {bytes: 8GiB}
policy: {max_model_len: 32768}
trace: {path: t.parquet, window: {start: 0s, duration: 5s}}
slo: "ttft:p99<500ms;itl:p99<50ms"
space: block_size
repeats: 1
controls: [contiguous]
executor: {kind: process, slots: 1}
tracking: null
"""


def _run(command: list[str | Path], cwd: Path) -> str:
    """Without this checkout on any path."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, made of the tracked files alone."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    _run([sys.executable, "-c", _BUILD, out], source)
    return out


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel; what it depends on is found where this test runs."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(own)
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


def test_wheel_and_sdist_hold_every_file_of_the_packages(built: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "trials", "search_spaces", "orchestrator"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    wanted = {name for name in listed.stdout.split() if (ROOT / name).is_file()}
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        assert not wanted - set(wheel.namelist())
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        assert not wanted - {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}


def test_the_version_comes_from_one_place(built: Path, installed: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert next(built.glob("*.whl")).name.startswith(f"kvknee-{version}-")
    code = "import importlib.metadata as m; print(m.version('kvknee'))"
    assert _run([installed, "-c", code], installed.parent).strip() == version


def test_the_installed_wheel_examines_its_machine_and_sweeps_a_ready_space(installed: Path, tmp_path: Path) -> None:
    where = _run([installed, "-c", "import orchestrator; print(orchestrator.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parents[1])
    kvknee = [installed, "-m", "orchestrator.cli"]
    assert "numba" in _run([*kvknee, "doctor"], tmp_path)
    _run([*kvknee, "trace", "generate", "chat", "-o", "t.parquet"], tmp_path)
    (tmp_path / "s.yaml").write_text(SWEEP)
    shown = _run([*kvknee, "run", "s.yaml", "-o", "out"], tmp_path)
    assert "block_size=256" in shown
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
