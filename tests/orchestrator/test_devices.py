"""What a GPU did while a trial ran on it: a slowed device voids, memory must come back. Readers are made up."""

import threading
import time
from pathlib import Path

import pytest
from made_results import make_result

from orchestrator.devices import NvmlReader, Reading, Watch, open_reader, settle
from orchestrator.launch import Launch, launch, void
from orchestrator.process_group import Deadlines
from trials.result import load_result, save_result
from trials.spec import trial_spec

MIB = 1 << 20


class Made:
    """Devices that do what a list says; the last entry stays."""

    def __init__(self, *moments: list[Reading]) -> None:
        self.moments = list(moments)

    def read(self) -> list[Reading]:
        return self.moments.pop(0) if len(self.moments) > 1 else self.moments[0]


def gpu(used: int = 0, reasons: int = 0, **more: float) -> list[Reading]:
    return [Reading("GPU-0", used * MIB, 1500, 700.0, 300.0, 60, reasons)]


def watched(*moments: list[Reading], measuring: bool = True) -> Watch:
    started = threading.Event()
    if measuring:
        started.set()
    watch = Watch(Made(*moments), started, every_s=0.01)
    time.sleep(0.15)
    watch.stop()
    return watch


@pytest.mark.parametrize(
    ("bit", "words"),
    [(0x8, "hardware slowdown"), (0x20, "software"), (0x40, "thermal slowdown .hardware"), (0x80, "power brake")],
)
def test_a_device_that_was_slowed_while_it_measured_is_named_with_its_reason(bit: int, words: str) -> None:
    import re

    said = watched(gpu(reasons=bit)).throttled()
    assert re.search(rf"GPU-0: .*{words}.* in \d+ of \d+ samples", said), said


@pytest.mark.parametrize("bit", [0x0, 0x1, 0x2, 0x4])
def test_idle_set_clocks_and_the_power_cap_void_nothing(bit: int) -> None:
    assert watched(gpu(reasons=bit)).throttled() == ""


def test_what_slowed_the_device_before_it_measured_voids_nothing() -> None:
    assert watched(gpu(reasons=0x40), measuring=False).throttled() == ""


def test_clocks_cap_and_reasons_are_kept_for_the_attempt() -> None:
    said = watched(gpu(used=5, reasons=0x4), gpu(used=9)).summary()["GPU-0"]
    assert said["power_cap_w"] == [700.0]
    assert said["sm_clock_mhz"] == [1500, 1500, 1500]
    assert said["used_bytes_max"] == 9 * MIB
    assert (said["power_capped_samples"], said["reasons"]) == (1, "0x4")


def test_a_device_that_cannot_be_read_is_said_and_no_trial_fails_of_it() -> None:
    class Gone:
        def read(self) -> list[Reading]:
            raise OSError("GPU is lost")

    watch = Watch(Gone(), threading.Event(), every_s=0.01)
    watch.stop()
    assert watch.summary() == {"trouble": "GPU is lost"}


def test_a_slot_is_fit_again_when_its_memory_is_back_at_the_baseline() -> None:
    reader = Made(gpu(900), gpu(700), gpu(130))
    slept: list[float] = []
    assert settle(reader, gpu(100), 60, slept.append) == ""
    assert len(slept) == 2
    said = settle(Made(gpu(900)), gpu(100), 1.0, lambda _: None)
    assert "not back at its baseline after 1 s" in said
    assert "GPU-0: 800 MiB" in said


def test_voided_replays_cannot_win(tmp_path: Path) -> None:
    save_result(make_result(100.0), tmp_path / "result.json")
    void(tmp_path / "result.json", "a device was slowed down")
    result = load_result(tmp_path / "result.json")
    assert not result.eligible
    assert all("a device was slowed down" in r.void_because for r in result.replays)
    assert "void: a device was slowed down" in result.ineligible_because


ANSWER = """
import json, shutil, sys, time
print(json.dumps({"progress": "measuring"}), flush=True)
time.sleep(0.7)
shutil.copy(RESULT, sys.argv[2] + "/result.json")
"""


def test_a_trial_on_a_slowed_device_comes_back_void_with_what_was_seen(tmp_path: Path) -> None:
    save_result(make_result(100.0), tmp_path / "made.json")
    (tmp_path / "worker.py").write_text(f"RESULT = {str(tmp_path / 'made.json')!r}\n" + ANSWER)
    spec = trial_spec(
        {
            "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"}, "model": "llama-3.1-8b",
            "pool": {"blocks": 100}, "trace": {"path": "/nowhere"}, "slo": "ttft:p99<500ms",
        }
    )  # fmt: skip
    how = Launch(tmp_path, ("-I", "-S", str(tmp_path / "worker.py")), Deadlines(), reader=Made(gpu(reasons=0x40)))
    assert launch(spec, tmp_path / "out", how).exit_code == 0
    assert not load_result(tmp_path / "out" / "result.json").eligible
    said = (tmp_path / "out" / "attempt.json").read_text()
    assert "thermal slowdown" in said
    assert '"throttled"' in said


def test_without_a_device_there_is_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert open_reader() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "nonsense")
    assert open_reader() is None
    with pytest.raises(OSError, match=r"cannot be read|not installed"):
        NvmlReader(["GPU-that-is-not-there"])
