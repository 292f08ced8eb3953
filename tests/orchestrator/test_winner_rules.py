"""Nobody wins who may not, and every surface names the same winner: command line, report, MLflow and Optuna."""

import json
from pathlib import Path

import optuna
import pytest
import yaml
from doctored_worker import SIZE_OF
from fake_rooms import SWEEP, write_trace
from typer.testing import CliRunner

from orchestrator import opening
from orchestrator.cli import app
from orchestrator.folder import SweepFolder
from orchestrator.process_slots import ProcessExecutor

WORKER = Path(__file__).with_name("doctored_worker.py")


@pytest.fixture
def doctored(monkeypatch):
    """Trials of sweeps in this process are answered by the engine that lies."""
    monkeypatch.setitem(opening._EXECUTORS, "process", lambda sweep: ProcessExecutor(2, worker=("-P", str(WORKER))))


def run(tmp_path, names):
    """A sweep over these rivals, its trials in MLflow -> (what the command line said, the folder)."""
    write_trace(tmp_path / "t.parquet")
    asked = yaml.safe_load(SWEEP) | {
        "space": {"vary": {"policy.block_size": {"one_of": sorted(SIZE_OF[name] for name in names)}}},
        "repeats": 1, "controls": [], "tracking": {}, "phases": ["cold"],
    }  # fmt: skip
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(asked))
    return CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "out")]), tmp_path / "out"


def mlflow_parent(out):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{out / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    (parent,) = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    return parent.data.tags


def study_of(out):
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / "study.journal")))
    return optuna.load_study(study_name="toy", storage=storage)


def test_sixty_wins_over_a_hundred_that_may_not_win_on_every_surface(tmp_path, doctored):
    done, out = run(tmp_path, SIZE_OF)
    assert done.exit_code == 5, done.stderr  # a ledger does not balance, and that is said too
    assert "block_size=32: 60 qualified tok/s" in done.stdout
    assert "LEDGER DOES NOT BALANCE" in done.stdout
    winner = next(r.number for r in SweepFolder(out).load_trials() if r.spec.policy.block_size == 32)
    knee = json.loads((out / "knee.json").read_text())
    assert (knee["winner"], knee["winner_trial"]) == ("block_size=32", winner)
    against = {row["option"].split()[0]: row for row in knee["verdicts"]}
    assert [name for name, row in against.items() if row["verdict"] != "reject"] == ["block_size=32"]
    for name, words in (
        ("infeasible", "ttft:p99<500ms missed"), ("failed", "the engine fell over"), ("nan", "not a number"),
        ("no tokens", "no qualified token"), ("unbalanced", "does not balance"), ("refused", "refused: no room"),
        ("refused its hard requests", "attainment"),
    ):  # fmt: skip
        assert words in against[f"block_size={SIZE_OF[name]}"]["reason"], name
    page = (out / "report.html").read_text()
    assert "block_size=32: 60 qualified tok/s" in page
    tags = mlflow_parent(out)
    assert (tags["kvknee.winner"], tags["kvknee.winner_trial"]) == ("block_size=32", str(winner))
    study = study_of(out)
    assert study.best_trial.number == study.user_attrs["kvknee.winner_trial"] == winner
    recipe = yaml.safe_load((out / "recipe.yaml").read_text())
    assert recipe["spec"]["policy"]["block_size"] == 32


def test_without_it_nothing_is_feasible_and_the_nearest_miss_is_named_on_every_surface(tmp_path, doctored):
    done, out = run(tmp_path, SIZE_OF.keys() - {"feasible", "unbalanced"})
    assert done.exit_code == 3, done.stderr
    said = "no feasible candidate; nearest miss block_size=1: ttft:p99<500ms at 505 ms against 500 ms, 1.0% over it"
    assert said in done.stdout
    assert "recipe: none, nothing is feasible" in done.stdout
    assert not (out / "recipe.yaml").exists()
    knee = json.loads((out / "knee.json").read_text())
    assert (knee["winner"], knee["nearest_miss"]["label"]) == (None, "block_size=1")
    page = (out / "report.html").read_text()
    assert "no feasible candidate" in page
    tags = mlflow_parent(out)
    assert (tags["kvknee.winner"], tags["kvknee.outcome"]) == ("none", "infeasible")
    assert tags["kvknee.sentence"] == said
    study = study_of(out)
    assert study.user_attrs["kvknee.winner"] is None
    with pytest.raises(ValueError, match="feasible"):
        _ = study.best_trial


def test_a_flat_curve_keeps_the_default_and_is_no_knee(tmp_path):
    """Real trials: a step costs the same whatever its blocks, and the pool is never full."""
    write_trace(tmp_path / "t.parquet")
    asked = yaml.safe_load(SWEEP) | {
        "engine": {"name": "simulator", "step_time": "linear:2000,20"}, "pool": {"bytes": "4GiB"},
        "space": {"vary": {"policy.block_size": {"powers_of_two": [4, 64]}}}, "trace": {"path": "t.parquet"},
        "repeats": 2, "held_out": 1, "survival": {}, "controls": [],
    }  # fmt: skip
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(asked))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.stderr
    outcome = json.loads(done.stdout)["outcome"]
    assert outcome["kind"] == "flat"
    assert outcome["sentence"].startswith("flat within noise: keep the default, block_size=16")
    assert len(outcome["tied"]) == 5
    assert outcome["confirmed"][0]["parts"][:2] == ["winner", "default"]
    assert [s["survived"] for s in outcome["survival"]] == [True]
    (verdict,) = [v for v in outcome["verdicts"] if v["verdict"] == "ship"]
    assert verdict["option"] == "block_size=16"
