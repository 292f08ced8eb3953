"""A modelled trial answers with the same bytes in any process, order, folder and hash seed."""

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders import build_trace
from trials.spec import TrialSpec, trial_spec
from trials.trace import Trace, save_trace
from trials.worker import run_trial

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("plain", "tight", "closed", "ladder")


def shared_trace() -> Trace:
    prompts, outputs = [33, 70, 18, 64, 51] * 8, [20, 5, 44, 1, 13] * 8
    ids = [[k % 3, 10 + k % 3, 20 + k % 2, 30 + k, 90 + k][: -(-p // 16)] for k, p in enumerate(prompts)]
    return build_trace(prompts, outputs, arrivals_ms=[17.0 * k for k in range(40)], ids=ids)


def spec(name: str, trace: Path) -> TrialSpec:
    changes = {
        "plain": {"trace": {"path": str(trace), "warmup": "200ms"}},
        "tight": {"pool": {"blocks": 14}, "policy": {"block_size": 8, "reserve_prompt": False}},
        "closed": {"measure": {"load": {"concurrency": 5}}},
        "ladder": {"measure": {"ladder": {"low": 0.5, "high": 8.0, "within": 0.5}}, "phases": ["steady"]},
    }[name]
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "roofline:l4"}, "model": "qwen3-0.6b", "pool": {"blocks": 30},
        "trace": {"path": str(trace)}, "slo": "ttft:p90<60ms;itl:p90<50ms", **changes,
    })  # fmt: skip


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "t.parquet"
    save_trace(shared_trace(), path)
    return path


def results(names: tuple[str, ...], trace: Path, out: Path) -> dict[str, bytes]:
    for name in names:
        run_trial(spec(name, trace), out / name)
    return {name: (out / name / "result.json").read_bytes() for name in names}


def test_result_does_not_depend_on_the_order_of_trials_in_a_process(trace_file: Path, tmp_path: Path) -> None:
    forwards = results(NAMES, trace_file, tmp_path / "a")
    backwards = results(NAMES[::-1], trace_file, tmp_path / "b")
    assert forwards == backwards
    assert len(set(forwards.values())) == len(NAMES)


def test_result_does_not_depend_on_process_hash_seed_or_folder(trace_file: Path, tmp_path: Path) -> None:
    here = results(NAMES, trace_file, tmp_path / "here")
    for number, seed in enumerate(("0", "1", None)):
        folder = tmp_path / f"{number} elsewhere"
        folder.mkdir()
        moved = Path(shutil.copy(trace_file, folder / f"other-{number}.parquet"))
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | ({"PYTHONHASHSEED": seed} if seed else {})
        name = NAMES[number]
        (folder / "spec.json").write_text(spec(name, moved).model_dump_json())
        command = [sys.executable, "-P", "-m", "trials.worker", "spec.json", "out"]
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, timeout=60)
        assert (folder / "out" / "result.json").read_bytes() == here[name]


def test_columns_are_the_same_bytes_as_well(trace_file: Path, tmp_path: Path) -> None:
    results(("tight",), trace_file, tmp_path / "a")
    results(("tight",), trace_file, tmp_path / "b")
    for name in ("requests.parquet", "ledger.parquet"):
        assert (tmp_path / "a" / "tight" / name).read_bytes() == (tmp_path / "b" / "tight" / name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_result_names_no_path_host_process_or_date(name: str, trace_file: Path, tmp_path: Path) -> None:
    text = results((name,), trace_file, tmp_path)[name].decode()
    for place in (str(tmp_path), str(trace_file), trace_file.name, str(ROOT), str(Path.home()), "/tmp/"):
        assert place not in text
    assert platform.node() not in re.findall(r"[^\"\s,:]+", text)
    assert time.strftime("%Y-%m-%d") not in text
    # Epoch seconds or ns of the last hours would begin like this.
    assert str(int(time.time()))[:6] not in re.findall(r"\b(\d{6})\d{4}\b", text)


def test_seed_moves_the_audits_and_nothing_else(trace_file: Path, tmp_path: Path) -> None:
    from trials.result import load_result

    run_trial(spec("tight", trace_file), tmp_path / "0")
    run_trial(spec("tight", trace_file).model_copy(update={"seed": 7}), tmp_path / "7")
    a, b = (load_result(tmp_path / n / "result.json") for n in "07")
    assert (a.metrics, a.ledger, a.counts) == (b.metrics, b.ledger, b.counts)
    assert a.hashes.spec != b.hashes.spec
