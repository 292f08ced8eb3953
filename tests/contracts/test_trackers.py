"""One suite over every tracker: recording never blocks and never raises, and nothing is told twice."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.entries import SweepEntry, TrialEntry
from orchestrator.tracking import MemoryTracker, MlflowTracker, Tracker
from orchestrator.tracking_apart import ApartSender
from orchestrator.tracking_send import Sender
from trials.result import Hashes, TrialResult
from trials.spec import TrialSpec, trial_spec


def spec_of(block_size: int = 16) -> TrialSpec:
    return trial_spec(
        {
            "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"},
            "model": "llama-3.1-8b",
            "pool": {"blocks": 100},
            "policy": {"block_size": block_size},
            "trace": {"path": "/nowhere/trace.parquet"},
            "slo": "ttft:p99<500ms",
        }
    )


def entry_of(number: int, folder: Path, attempt: int = 1) -> TrialEntry:
    result = TrialResult(
        status="complete", evidence="modelled", hashes=Hashes(spec="s" * 64, trace="t" * 64, engine="e" * 64),
        requested={},
    )  # fmt: skip
    return TrialEntry(number, attempt, spec_of(), result, folder / str(number), 1_000, 2_000)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(params=["memory", "sqlite", "apart", "unreachable"])
def open_tracker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Tracker]]:
    made: list[Tracker] = []

    def make() -> Tracker:
        if request.param == "memory":
            made.append(MemoryTracker())
        elif request.param in ("sqlite", "apart"):
            uri, connect = (
                request.getfixturevalue("mlflow_uri"),
                {"sqlite": Sender, "apart": ApartSender}[request.param],
            )
            made.append(MlflowTracker(tmp_path / "sweep", uri=uri, connect=connect))
        else:
            made.append(MlflowTracker(tmp_path / "sweep", uri=f"http://127.0.0.1:{free_port()}"))
        return made[-1]

    yield make
    for tracker in made:
        tracker.close(10)


def test_recording_takes_no_time_and_never_raises(open_tracker: Callable[[], Tracker], tmp_path: Path) -> None:
    tracker = open_tracker()
    began = time.monotonic()
    tracker.record(SweepEntry("sweep"))
    for number in range(20):
        tracker.record(entry_of(number, tmp_path))
    assert time.monotonic() - began < 1.0
    tracker.close(0.0)


def test_an_entry_that_cannot_be_written_raises_nothing(open_tracker: Callable[[], Tracker]) -> None:
    tracker = open_tracker()
    tracker.record("no entry at all")  # type: ignore[arg-type]
    tracker.record(SweepEntry("sweep", params=(("k", object()),)))  # type: ignore[arg-type]
    tracker.close(0.0)


def test_closing_twice_is_allowed(open_tracker: Callable[[], Tracker]) -> None:
    tracker = open_tracker()
    assert tracker.close(30) == tracker.close(30) == 0


def test_an_unreachable_server_leaves_entries_unsent_and_closing_says_how_many(tmp_path: Path) -> None:
    tracker = MlflowTracker(tmp_path / "sweep", uri=f"http://127.0.0.1:{free_port()}")
    for number in range(3):
        tracker.record(entry_of(number, tmp_path))
    began = time.monotonic()
    assert tracker.close(25) == 3
    assert time.monotonic() - began < 26
    assert tracker.trouble
