"""What stands in MLflow: one parent, one child an attempt, exact bytes as artifacts, and never anything twice."""

import json
import math
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator import entries
from orchestrator.entries import SweepEntry, TrialEntry, decode, encode, metrics_of, params_of, run_status
from orchestrator.spool import Spool
from orchestrator.tracking import Logged, MlflowTracker
from orchestrator.writer import SpoolWriter
from trials.result import (
    Counts,
    Hashes,
    Ledger,
    Metrics,
    Observation,
    Percentiles,
    ReplayResult,
    TrialResult,
    save_result,
)
from trials.spec import TrialSpec, trial_spec


def spec_of(**args: object) -> TrialSpec:
    return trial_spec(
        {
            "engine": {"name": "simulator", "step_time": "roofline:h100-sxm", "args": args},
            "model": "llama-3.1-8b",
            "pool": {"blocks": 100},
            "trace": {"path": "/nowhere/trace.parquet"},
            "slo": "ttft:p99<500ms",
        }
    )


def result_of(status: str = "complete") -> TrialResult:
    metrics = Metrics(
        ttft_ms=Percentiles(n=3, mean=1.5, p99=None), output_throughput=12.5, slo_values_ms={"ttft:p99<500ms": 3.0}
    )
    counts, ledger = Counts(offered=4, completed=3), Ledger(pool_slots=2**53 + 1, time_mean={"payload": 5.5})
    seen = Observation(start_ns=0, end_ns=1, num_steps=1, warmup=0, drain_end_ns=1)
    replay = ReplayResult(
        phase="steady", load="rate_scale=1", clock="virtual", observation=seen, counts=counts, metrics=metrics,
        ledger=ledger,
    )  # fmt: skip
    return TrialResult(
        status=status, evidence="modelled", hashes=Hashes(spec="s" * 64, trace="t" * 64, engine="e" * 64),
        requested={}, replays=(replay,), decides=0, counts=counts, metrics=metrics, ledger=ledger,
    )  # fmt: skip


def entry_of(folder: Path, number: int = 1, attempt: int = 1, result: TrialResult | None = None) -> TrialEntry:
    place = folder / f"{number:04d}-{attempt}"
    place.mkdir(parents=True, exist_ok=True)
    if result is not None:
        save_result(result, place / "result.json")
    labels = (("kvknee.control", "contiguous"),)
    return TrialEntry(number, attempt, spec_of(), result, place, 1_000, 61_000, labels)


class Seen:
    """What MLflow holds of one sweep."""

    def __init__(self, uri: str, folder: Path) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(uri)
        experiment = self.client.get_experiment_by_name("kvknee")
        assert experiment is not None
        sweep = (folder / "spool" / "sweep_id").read_text().strip()
        found = self.client.search_runs([experiment.experiment_id], f"tags.`kvknee.sweep` = '{sweep}'")
        assert len(found) == 1, "one parent run a sweep"
        self.parent: Any = found[0]
        mark = f"tags.`mlflow.parentRunId` = '{self.parent.info.run_id}'"
        runs = self.client.search_runs([experiment.experiment_id], mark, order_by=["attributes.start_time ASC"])
        self.children: list[Any] = list(runs)

    def artifact(self, run: Any, name: str, into: Path) -> str:
        return Path(self.client.download_artifacts(run.info.run_id, name, str(into))).read_text()


def test_a_sweep_is_one_parent_and_a_child_an_attempt_with_three_hashes(mlflow_uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    report = tmp_path / "report.html"
    report.write_text("<p>knee</p>")
    tracker = MlflowTracker(folder, uri=mlflow_uri)
    tracker.record(SweepEntry("my sweep", params=(("space", "block_size"),), tags=(("kvknee.goal", "knee"),)))
    tracker.record(entry_of(folder, 1, 1, None))
    tracker.record(entry_of(folder, 1, 2, result_of()))
    tracker.record(entry_of(folder, 2, 1, result_of("refused")))
    done = SweepEntry("my sweep", metrics=(("best", 7.0),), artifacts=(report,), status="FINISHED", ended_ms=99_000)
    tracker.record(done)
    assert tracker.close(60) == 0, tracker.trouble

    seen = Seen(mlflow_uri, folder)
    assert seen.parent.info.status == "FINISHED"
    assert seen.parent.info.end_time == 99_000
    assert seen.parent.data.params == {"space": "block_size"}
    assert seen.parent.data.metrics == {"best": 7.0}
    assert seen.parent.data.tags["kvknee.goal"] == "knee"
    assert seen.parent.info.run_name == "my sweep"
    assert seen.artifact(seen.parent, "report.html", tmp_path) == "<p>knee</p>"

    by_key = {(r.data.tags["kvknee.trial"], r.data.tags["kvknee.attempt"]): r for r in seen.children}
    assert {key: run.info.status for key, run in by_key.items()} == {
        ("1", "1"): "KILLED", ("1", "2"): "FINISHED", ("2", "1"): "FAILED",
    }  # fmt: skip
    run = by_key["1", "2"]
    assert (run.info.start_time, run.info.end_time) == (1_000, 61_000)
    tags = run.data.tags
    assert (tags["kvknee.spec_hash"], tags["kvknee.trace_hash"], tags["kvknee.engine_hash"]) == (
        "s" * 64, "t" * 64, "e" * 64,
    )  # fmt: skip
    assert (tags["kvknee.status"], tags["kvknee.evidence"]) == ("complete", "modelled")
    assert tags["kvknee.control"] == "contiguous"
    assert tags["mlflow.source.name"] == "kvknee"
    assert run.data.params["policy.block_size"] == "16"
    assert run.data.metrics["output_throughput"] == 12.5
    assert run.data.metrics["counts/offered"] == 4
    assert run.data.metrics["ledger/time_mean/payload"] == 5.5
    assert json.loads(seen.artifact(run, "ledger.json", tmp_path))["pool_slots"] == 2**53 + 1
    assert seen.artifact(run, "result.json", tmp_path) == (folder / "0001-2" / "result.json").read_text()


def test_what_an_unreachable_server_missed_is_sent_once_when_opened_again(mlflow_uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    away = MlflowTracker(folder, uri="http://127.0.0.1:9")
    away.record(SweepEntry("sweep"))
    away.record(entry_of(folder, 1, 1, result_of()))
    assert away.close(20) == 2
    for _ in range(2):
        back = MlflowTracker(folder, uri=mlflow_uri)
        assert back.close(60) == 0, back.trouble
    assert len(Seen(mlflow_uri, folder).children) == 1


def test_an_entry_sent_but_not_marked_makes_no_second_run(mlflow_uri: str, tmp_path: Path) -> None:
    """A driver killed between sending and marking: the spool still holds it."""
    folder = tmp_path / "sweep"
    first = MlflowTracker(folder, uri=mlflow_uri)
    first.record(SweepEntry("sweep", params=(("seed", "0"),)))
    first.record(entry_of(folder, 1, 1, result_of()))
    assert first.close(60) == 0, first.trouble
    (folder / "spool" / "sent.log").write_bytes(b"")
    again = MlflowTracker(folder, uri=mlflow_uri)
    again.record(SweepEntry("sweep", params=(("seed", "1"),), status="KILLED"))
    assert again.close(60) == 0, again.trouble
    seen = Seen(mlflow_uri, folder)
    assert len(seen.children) == 1
    assert seen.parent.info.status == "KILLED"
    assert seen.parent.data.params == {"seed": "0"}
    assert seen.parent.data.tags["kvknee.now.seed"] == "1"


def test_a_run_that_was_begun_and_not_ended_is_completed_not_doubled(mlflow_uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    first = MlflowTracker(folder, uri=mlflow_uri)
    first.record(SweepEntry("sweep"))
    assert first.close(60) == 0, first.trouble
    seen = Seen(mlflow_uri, folder)
    tags = {"mlflow.parentRunId": seen.parent.info.run_id, "kvknee.trial": "1", "kvknee.attempt": "1"}
    seen.client.create_run(seen.parent.info.experiment_id, tags=tags)
    again = MlflowTracker(folder, uri=mlflow_uri)
    again.record(entry_of(folder, 1, 1, result_of()))
    assert again.close(60) == 0, again.trouble
    (child,) = Seen(mlflow_uri, folder).children
    assert child.info.status == "FINISHED"
    assert child.data.metrics["output_throughput"] == 12.5


def test_the_ledger_over_steps_is_that_of_the_deciding_replay_and_thinned(mlflow_uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    entry = entry_of(folder, 1, 1, result_of())
    phases = ["cold"] * 10 + ["steady"] * 1000
    steps = [*range(10), *range(1000)]
    payload = np.asarray([-1] * 10 + [7 * step for step in range(1000)])
    table = pa.table({"phase": phases, "load": ["rate_scale=1"] * 1010, "step": steps, "payload": payload})
    pq.write_table(table, entry.folder / "ledger.parquet")
    tracker = MlflowTracker(folder, uri=mlflow_uri, logged=Logged(series_points=40, table_bytes=1 << 20))
    tracker.record(entry)
    assert tracker.close(60) == 0, tracker.trouble
    seen = Seen(mlflow_uri, folder)
    (child,) = seen.children
    history = seen.client.get_metric_history(child.info.run_id, "series/payload")
    assert len(history) == 40
    assert {m.step: m.value for m in history} == {m.step: 7.0 * m.step for m in history}
    assert max(m.step for m in history) == 999
    assert "ledger.parquet" in {f.path for f in seen.client.list_artifacts(child.info.run_id)}


def test_without_a_uri_the_database_and_artifacts_lie_in_the_sweeps_folder(mlflow_uri: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    MlflowClient(mlflow_uri).search_experiments()  # its tables are there
    shutil.copy(mlflow_uri.removeprefix("sqlite:///"), tmp_path / "mlflow.db")  # making new ones takes seconds
    tracker = MlflowTracker(tmp_path, experiment="of its own")
    tracker.record(SweepEntry("sweep"))
    tracker.record(entry_of(tmp_path, 1, 1, result_of()))
    assert tracker.close(60) == 0, tracker.trouble
    experiment = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").get_experiment_by_name("of its own")
    assert experiment is not None
    assert experiment.artifact_location == (tmp_path / "artifacts").as_uri()
    assert list((tmp_path / "artifacts").rglob("result.json"))


def test_entries_come_back_from_text_as_they_were(tmp_path: Path) -> None:
    trial = entry_of(tmp_path, 3, 2, result_of())
    lost = entry_of(tmp_path, 3, 1)
    sweep = SweepEntry("s", (("a", "b"),), (("m", math.inf),), (), (tmp_path / "x",), "FINISHED", 5)
    for entry in (trial, lost, sweep):
        text = encode(entry)
        assert "\n" not in text
        assert decode(text) == entry
    with pytest.raises(ValueError, match="not an entry"):
        decode('{"other": 1}')


def test_metrics_are_finite_numbers_under_keys_that_stores_accept() -> None:
    found = metrics_of(result_of())
    assert "ttft_ms.p99" not in found
    assert found["slo_values_ms.ttft:p99_500ms"] == 3.0
    assert all(math.isfinite(value) for value in found.values())
    assert not [key for key in found if not set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-. :/")]


def test_long_params_are_cut_and_say_so() -> None:
    params = params_of(spec_of(words="w" * 9000))
    assert len(params["engine.args.words"]) == entries.MAX_PARAM_CHARS
    assert params["engine.args.words"].endswith("…")


def test_the_status_of_a_run_is_true(tmp_path: Path) -> None:
    answers = {
        status: run_status(entry_of(tmp_path, result=result_of(status))) for status in ("complete", "failed")
    }
    assert answers == {"complete": "FINISHED", "failed": "FAILED"}
    assert run_status(entry_of(tmp_path)) == "KILLED"


class Carrier:
    """A connection to nowhere; what it is named after is never sent. `closed`: how often it was told to end."""

    def __init__(self, poison: str = "") -> None:
        self.went: list[str] = []
        self.closed, self._poison = 0, poison

    def send(self, text: str, key: int) -> None:
        entry = decode(text)
        assert isinstance(entry, SweepEntry)
        if entry.name == self._poison:
            raise RuntimeError("never")
        self.went.append(entry.name)

    def close(self) -> None:
        self.closed += 1


def test_an_entry_that_always_fails_holds_up_no_other(tmp_path: Path) -> None:
    carrier = Carrier("poison")
    writer = SpoolWriter(Spool(tmp_path), lambda: carrier)
    for name in ("a", "poison", "b", "c"):
        writer.put(SweepEntry(name))
    until = time.monotonic() + 10
    while len(carrier.went) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert writer.close(10) == 1
    assert carrier.went == ["a", "b", "c"]
    assert "never" in writer.trouble
    assert carrier.closed == 1


def test_entries_that_the_disk_refuses_are_held_and_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carrier, spool = Carrier(), Spool(tmp_path)

    def full(text: str) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr(spool, "append", full)
    writer = SpoolWriter(spool, lambda: carrier)
    for number in range(5):
        writer.put(SweepEntry(str(number)))
    assert writer.close(10) == 0
    assert sorted(carrier.went) == ["0", "1", "2", "3", "4"]
    assert "no space left" in writer.trouble


def test_an_entry_that_fails_once_while_it_closes_is_tried_again(tmp_path: Path) -> None:
    class Once(Carrier):
        def send(self, text: str, key: int) -> None:
            if text not in seen:
                seen.append(text)
                raise ConnectionError("an answer was lost")
            super().send(text, key)

    def when_closing() -> Carrier:
        closing.wait(10)
        return carrier

    seen: list[str] = []
    carrier, closing = Once(), threading.Event()
    writer = SpoolWriter(Spool(tmp_path), when_closing)
    writer.put(SweepEntry("late"))
    threading.Timer(0.2, closing.set).start()
    assert writer.close(10) == 0, writer.trouble
    assert carrier.went == ["late"]


def test_a_sweep_is_called_by_its_name_though_a_trial_was_sent_first(mlflow_uri: str, tmp_path: Path) -> None:
    tracker = MlflowTracker(tmp_path / "folder", uri=mlflow_uri)
    tracker.record(entry_of(tmp_path / "folder", 1, 1, result_of()))
    tracker.record(SweepEntry("its name"))
    assert tracker.close(60) == 0, tracker.trouble
    assert Seen(mlflow_uri, tmp_path / "folder").parent.info.run_name == "its name"
