"""kvknee export: true numbers under the names that other tools read."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.json_format import Parse
from made_sweep import WINNER, build, measure_again
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.export import FORMATS, export
from orchestrator.export_prometheus import counted
from orchestrator.exported import gather
from orchestrator.folder import SweepFolder
from trials.result import TrialResult
from trials.units import SpecError


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    return build(tmp_path_factory.mktemp("export") / "sweep")


def _result(sweep: SweepFolder, number: int) -> TrialResult:
    result = sweep.load_trials()[number].result
    assert result is not None
    return result


def _samples(sweep: SweepFolder, tmp_path: Path) -> list[Sample]:
    (written,) = export(sweep.path, "vllm", tmp_path / "out.prom")
    families = text_string_to_metric_families(written.read_text(encoding="utf-8"))
    return [sample for family in families for sample in family.samples]


def _of(samples: list[Sample], name: str, trial: int) -> dict[str, float]:
    """By `le`, or by nothing."""
    return {s.labels.get("le", ""): s.value for s in samples if s.name == name and s.labels["trial"] == str(trial)}


def test_prometheus_reads_it_and_histograms_are_those_of_the_requests(sweep: SweepFolder, tmp_path: Path) -> None:
    samples, result = _samples(sweep, tmp_path), _result(sweep, 1)
    name = "vllm:time_to_first_token_seconds"
    buckets = _of(samples, f"{name}_bucket", 1)
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets["+Inf"] == _of(samples, f"{name}_count", 1)[""] == result.metrics.ttft_ms.n
    assert result.metrics.ttft_ms.mean is not None
    mean_s = _of(samples, f"{name}_sum", 1)[""] / result.metrics.ttft_ms.n
    assert mean_s == pytest.approx(result.metrics.ttft_ms.mean / 1e3)
    assert {s.labels["evidence"] for s in samples} == {"modelled"}


def test_gaps_are_summed_under_vllms_name(sweep: SweepFolder, tmp_path: Path) -> None:
    samples, times = _samples(sweep, tmp_path), _result(sweep, 0).metrics.itl_ms
    name = "vllm:inter_token_latency_seconds"
    assert times.mean is not None
    assert _of(samples, f"{name}_count", 0)[""] == times.n
    assert _of(samples, f"{name}_sum", 0)[""] == pytest.approx(times.mean * times.n / 1e3)


def test_buckets_hold_what_is_at_or_below_their_bound() -> None:
    assert counted(np.array([0.5, 1.0, 2.0, 9.0]), (1.0, 2.0)) == [2, 3, 4]
    assert counted(np.array([], float), (1.0,)) == [0, 0]


def test_a_label_may_hold_anything(sweep: SweepFolder, tmp_path: Path) -> None:
    shutil.copytree(sweep.path, tmp_path / "sweep")
    outcome = sweep.load_outcome()
    assert outcome is not None
    nasty = 'a "b" \\ c\nd'
    first = outcome.candidates[0].model_copy(update={"label": nasty})
    spoilt = outcome.model_copy(update={"candidates": (first, *outcome.candidates[1:])})
    (tmp_path / "sweep" / "knee.json").write_text(spoilt.model_dump_json())
    assert nasty in {s.labels["candidate"] for s in _samples(SweepFolder(tmp_path / "sweep"), tmp_path)}


def test_what_was_measured_again_is_known_by_its_candidate_and_role_in_every_format(tmp_path: Path) -> None:
    folder = build(tmp_path / "sweep")
    measure_again(folder, 7, 2, "confirm")
    for how in FORMATS:
        out = tmp_path / how
        text = "".join(path.read_text(encoding="utf-8") for path in export(folder.path, how, out, [7]))
        assert f"block {WINNER}" in text, how
        assert "confirm" in text, how
    (own,) = export(folder.path, "aiperf-csv", tmp_path / "own", [2])
    assert "confirm" not in own.read_text(encoding="utf-8")


def test_otlp_is_what_a_collector_parses_and_names_are_the_conventions(sweep: SweepFolder, tmp_path: Path) -> None:
    (written,) = export(sweep.path, "otel", tmp_path / "out.json", [1])
    data = Parse(written.read_text(encoding="utf-8"), MetricsData())
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    known = {value for name, value in vars(gen_ai_metrics).items() if name.startswith("GEN_AI_")}
    assert {m.name for m in metrics} <= known
    assert len(metrics) == 4
    for metric in metrics:
        for point in metric.histogram.data_points:
            assert sum(point.bucket_counts) == point.count == _result(sweep, 1).counts.completed
            assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
            assert point.min <= point.sum / point.count <= point.max
    whose = {a.key: a.value.string_value for a in data.resource_metrics[0].resource.attributes}
    assert whose["kvknee.evidence"] == "modelled"
    assert whose["kvknee.spec_hash"] == _result(sweep, 1).hashes.spec


def test_aiperfs_file_has_its_keys_units_and_our_numbers(sweep: SweepFolder, tmp_path: Path) -> None:
    files = export(sweep.path, "aiperf-json", tmp_path / "out")
    assert [f.relative_to(tmp_path / "out").as_posix() for f in files[:1]] == ["0000/profile_export_aiperf.json"]
    assert len(files) == 7
    found, metrics = json.loads(files[1].read_text()), _result(sweep, 1).metrics
    for key, ours in (("time_to_first_token", metrics.ttft_ms), ("inter_token_latency", metrics.tpot_ms),
                      ("request_latency", metrics.e2el_ms), ("inter_chunk_latency", metrics.itl_ms)):  # fmt: skip
        assert found[key]["unit"] == "ms"
        assert found[key]["avg"] == pytest.approx(ours.mean)
        assert found[key]["p99"] == pytest.approx(ours.p99)
        assert found[key]["count"] == ours.n
    assert found["request_throughput"] == {"unit": "requests/sec", "avg": metrics.request_throughput}
    assert found["kvknee"]["evidence"] == "modelled"


def test_aiperfs_table_says_the_same(sweep: SweepFolder, tmp_path: Path) -> None:
    (written,) = export(sweep.path, "aiperf-csv", tmp_path / "out", [1])
    records, totals, whose = written.read_text(encoding="utf-8").split("\n\n")
    rows = {row["Metric"]: row for row in csv.DictReader(io.StringIO(records))}
    ours = _result(sweep, 1).metrics.ttft_ms
    assert float(rows["Time to First Token (ms)"]["p99"]) == pytest.approx(ours.p99, abs=0.005)
    assert rows["Inter Chunk Latency (ms)"]["p1"] == ""
    values = {row["Metric"]: row["Value"] for row in csv.DictReader(io.StringIO(totals))}
    assert float(values["Request Count (requests)"]) == 24
    assert dict(csv.reader(io.StringIO(whose)))["spec_hash"] == _result(sweep, 1).hashes.spec


def test_a_trials_own_folder_can_be_exported(sweep: SweepFolder) -> None:
    (one,) = gather(sweep.attempt(2, 1))
    assert one.result.hashes.spec == _result(sweep, 2).hashes.spec


def test_what_cannot_be_exported_is_said(sweep: SweepFolder, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="did you mean 'vllm'"):
        export(sweep.path, "vlm", tmp_path / "x")
    with pytest.raises(SpecError, match="trial 99 has no result to export; those that have: 0, 1"):
        export(sweep.path, "vllm", tmp_path / "x", [99])
    with pytest.raises(SpecError, match=r"neither sweep\.yaml nor result\.json"):
        export(tmp_path, "vllm", tmp_path / "x")
    with pytest.raises(SpecError, match="a folder, but vllm is one file"):
        export(sweep.path, "vllm", tmp_path)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(SpecError, match="a file, but aiperf-csv is one file a trial"):
        export(sweep.path, "aiperf-csv", tmp_path / "file")
    (tmp_path / "sweep.yaml").write_text("name: empty\n")
    with pytest.raises(SpecError, match="no trial has ended with a result yet"):
        export(tmp_path, "otel", tmp_path / "x")
    assert (tmp_path / "file").read_text() == "kept"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("how", FORMATS)
def test_the_verb_says_what_it_wrote(sweep: SweepFolder, tmp_path: Path, how: str) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["export", str(sweep.path), "--as", how, "-o", str(out), "--trial", "3", "--json"]
    )
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["format"] == how
    assert [Path(f).is_file() for f in said["files"]] == [True]
