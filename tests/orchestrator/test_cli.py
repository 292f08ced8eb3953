"""Laws of the command line: exit codes, one JSON document, errors in words, folders that lose nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from fake_rooms import SWEEP, write_trace
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.config import SWEEP_ONLY
from orchestrator.folder import SweepFolder

ROOT = Path(__file__).resolve().parents[2]
VERBS = (
    "doctor", "trial", "bound", "run", "resume", "status", "report", "reproduce", "check", "calibrate", "controls",
    "diff", "trace",
)  # fmt: skip


def kvknee(*arguments):
    """In this process -> (exit code, stdout, stderr)."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    return done.exit_code, done.stdout, done.stderr


def start(folder, *arguments):
    """In a process of its own, in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", *map(str, arguments)],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def sweep_file(tmp_path):
    write_trace(tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text(SWEEP)
    return tmp_path / "s.yaml"


@pytest.fixture
def trial_file(tmp_path):
    data = {k: v for k, v in yaml.safe_load(SWEEP).items() if k not in SWEEP_ONLY}
    write_trace(tmp_path / "t.parquet")
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "trial.yaml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep that was really run, with --json: (folder, stdout, stderr)."""
    folder = tmp_path_factory.mktemp("finished")
    write_trace(folder / "t.parquet")
    (folder / "s.yaml").write_text(SWEEP)
    code, out, err = kvknee("run", folder / "s.yaml", "--set", "controls=[contiguous, vendor_default]",
                            "--set", "repeats=1", "-o", folder / "out", "--json")  # fmt: skip
    assert code == 0, err
    return folder / "out", out, err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_every_leaf_an_example(verb):
    code, out, _ = kvknee(verb, "--help")
    assert code == 0
    assert verb == "trace" or "Example: kvknee" in " ".join(out.split())


def test_help_imports_no_heavy_library():
    heavy = ("torch", "ray", "mlflow", "optuna", "pandas", "matplotlib", "numba")
    code = f"import sys, orchestrator.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_trial_prints_a_ledger_that_adds_up_to_the_pool(trial_file, tmp_path):
    code, out, err = kvknee("trial", trial_file, "-o", tmp_path / "one")
    assert code == 0, err
    rows = {line.split("│")[1].strip(): line.split("│")[3].strip().replace(",", "")
            for line in out.splitlines() if line.count("│") == 4}  # fmt: skip
    accounts = ("payload", "tail_slack", "reserved_ahead", "cached", "free", "reserve", "padding", "remainder")
    assert sum(int(rows[a]) for a in accounts) == int(rows["sum"]) == int(rows["pool"]) == 1 << 30
    assert (tmp_path / "one" / "result.json").is_file()


def test_trial_json_is_one_document_with_the_result_as_written(trial_file, tmp_path):
    code, out, _ = kvknee("trial", trial_file, "-o", tmp_path / "one", "--set", "policy.block_size=32", "--json")
    document = json.loads(out)
    assert code == document["exit_code"] == 0
    assert document["result"] == json.loads((tmp_path / "one" / "result.json").read_text())
    assert document["result"]["effective"]["block_size"] == 32


def test_trial_shows_owners_at_a_moment_and_a_static_batch_beside_the_lifecycle(trial_file, tmp_path):
    code, out, err = kvknee(
        "trial", trial_file, "-o", tmp_path / "one", "--ownership-at", "50ms", "--compare-static", "--json"
    )
    assert code == 0, err
    names = [row["name"] for row in json.loads(out)["static"]]
    assert "tail slack of claimed slots" in names
    owners = pq.read_table(tmp_path / "one" / "ownership.parquet").to_pandas()
    asked = owners[owners["moment"] == "asked"]
    assert (asked["time_ns"] >= 50_000_000).all()
    assert len(asked) > 0


def test_a_moment_without_a_unit_is_refused_in_words(trial_file, tmp_path):
    code, _, err = kvknee("trial", trial_file, "-o", tmp_path / "one", "--ownership-at", "50")
    assert code == 2
    assert "--ownership-at" in err
    assert "no unit" in err


def test_a_trial_whose_limits_cannot_be_kept_is_no_error(trial_file, tmp_path):
    code, out, _ = kvknee(
        "trial", trial_file, "-o", tmp_path / "one", "--goodput", "ttft:0.001 tpot:0.001", "--json"
    )
    assert code == 0
    assert json.loads(out)["result"]["counts"]["qualified"] == 0


def test_run_json_is_one_document_and_names_folder_outcome_recipe_and_report(finished):
    folder, out, _ = finished
    document = json.loads(out)
    assert Path(document["folder"]) == folder
    assert document["outcome"] == json.loads((folder / "knee.json").read_text())
    assert Path(document["recipe"]).is_file()
    assert Path(document["report"]).is_file()
    assert document["exit_code"] == 0


def test_plain_lines_tell_progress_where_there_is_no_terminal(finished):
    _, _, err = finished
    assert "5/5 done: 4 complete, 1 reused" in err
    assert "best so far" in err
    assert "ETA" in err


def test_a_sweep_leaves_the_files_that_scripts_read(finished):
    folder = SweepFolder(finished[0])
    for path in (folder.sweep_yaml, folder.journal, folder.summary_csv, folder.knee_json, folder.recipe_yaml,
                 folder.report_html):  # fmt: skip
        assert path.is_file(), path
    for name in ("spec.json", "result.json", "attempt.json", "requests.parquet", "ledger.parquet", "log.txt"):
        assert (folder.attempt(0, 1) / name).is_file(), name


@pytest.mark.parametrize("arguments", [("status",), ("trace", "describe"), ("run", "--dry-run")])
def test_a_reader_that_has_seen_enough_is_no_fault(finished, sweep_file, arguments):
    of = {"status": finished[0], "trace": sweep_file.parent / "t.parquet", "run": sweep_file}[arguments[0]]
    command = [sys.executable, "-m", "orchestrator.cli", *arguments, str(of)]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_status_tells_of_a_finished_sweep(finished):
    code, out, _ = kvknee("status", finished[0], "--json")
    document = json.loads(out)
    assert code == 0
    assert document["states"] == {"waiting": 0, "running": 0, "complete": 4, "reused": 1}
    assert not document["driven"]
    assert "outcome:" in kvknee("status", finished[0])[1]


def test_a_damaged_answer_is_said_and_the_way_to_make_it_anew(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "out")
    whole = (tmp_path / "out" / "knee.json").read_text()
    (tmp_path / "out" / "knee.json").write_text(whole[: len(whole) // 2])
    code, _, err = kvknee("status", tmp_path / "out")
    assert code == 2
    assert "knee.json: damaged; `kvknee report" in err
    assert kvknee("report", tmp_path / "out")[0] == 0
    assert kvknee("status", tmp_path / "out")[0] == 0


def test_report_judges_a_folder_anew_to_the_same(finished):
    folder = SweepFolder(finished[0])
    before = folder.knee_json.read_bytes(), folder.recipe_yaml.read_bytes()
    code, out, err = kvknee("report", folder.path)
    assert code == 0, err
    assert (folder.knee_json.read_bytes(), folder.recipe_yaml.read_bytes()) == before
    assert "outcome:" in out
    assert "verdict" in out


def test_resume_of_a_finished_sweep_runs_nothing_and_prints_the_same_outcome(finished):
    code, out, err = kvknee("resume", finished[0], "--json")
    assert code == 0, err
    assert json.loads(out)["outcome"] == json.loads(finished[1])["outcome"]


def test_a_recipe_reproduces(finished):
    code, out, err = kvknee("reproduce", finished[0] / "recipe.yaml", "--json")
    assert code == 0, err + out
    assert json.loads(out)["ledger_equal"]


def test_a_folder_of_another_sweep_is_refused_and_left_as_it_is(finished):
    folder = finished[0]
    before = (folder / "sweep.yaml").read_bytes()
    code, _, err = kvknee("run", folder.parent / "s.yaml", "--set", "seed=9", "-o", folder)
    assert code == 2
    assert "holds another sweep" in err
    assert "seed: 0 -> 9" in err
    assert (folder / "sweep.yaml").read_bytes() == before


def test_a_dry_run_names_everything_and_writes_nothing(sweep_file, tmp_path):
    before = sorted(p.name for p in tmp_path.iterdir())
    code, out, _ = kvknee(
        "run", sweep_file, "--dry-run", "-n", "4", "--max-concurrent", "3", "-o", tmp_path / "out"
    )
    assert code == 0
    assert "block_size=8, block_size=16, block_size=32" in out
    assert "budget 4 trials" in out
    document = json.loads(kvknee("run", sweep_file, "--dry-run", "--max-concurrent", "3", "--json")[1])
    assert document["candidates"] == [{"block_size": 8}, {"block_size": 16}, {"block_size": 32}]
    assert document["sweep"]["executor"]["slots"] == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_nothing_feasible_exits_with_3_and_names_the_nearest_miss(sweep_file, tmp_path):
    code, out, err = kvknee("run", sweep_file, "-o", tmp_path / "out", "--goodput", "ttft:0.001", "-n", "1",
                            "--set", "controls=[]", "--set", "repeats=1")  # fmt: skip
    assert code == 3, err
    assert "no feasible candidate; nearest miss block_size=16" in out  # the default is asked for first
    assert not (tmp_path / "out" / "recipe.yaml").exists()
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "absent.yaml"),
        ("run", "s.yaml", "--set", "policy.blocksize=3"),
        ("run", "s.yaml", "--goodput", "ttft"),
        ("run", "s.yaml", "-n", "0"),
        ("run", "s.yaml", "--colour"),
        ("trial", "s.yaml"),
        ("resume", "."),
        ("status", "absent"),
        ("report", "."),
        ("reproduce", "absent.yaml"),
        ("juggle",),
    ],
)
def test_bad_input_exits_with_2_and_words_without_a_traceback(sweep_file, monkeypatch, arguments):
    monkeypatch.chdir(sweep_file.parent)
    code, out, err = kvknee(*arguments)
    assert code == 2
    assert err.strip()
    assert "Traceback" not in err + out


def test_an_error_with_json_is_a_document_too(sweep_file):
    code, out, err = kvknee("run", sweep_file, "--set", "policy.blocksize=3", "--json")
    document = json.loads(out)
    assert code == document["exit_code"] == 2
    assert "did you mean 'block_size'" in document["error"]
    assert "did you mean" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ui", "out", "--port", "99999"), "65535"), (("run", "--bogus", "s.yaml"), "--bogus"),
        (("trial",), "SPEC.yaml"), (("trail", "t.yaml"), "trail"), (("run", "s.yaml", "-n", "many"), "--trials"),
    ],
)  # fmt: skip
def test_what_is_typed_wrong_is_a_document_too(tmp_path, arguments, words):
    process = start(tmp_path, *arguments, "--json")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert words in json.loads(out)["error"]
    assert json.loads(out)["exit_code"] == 2
    assert words in err


def test_exit_codes_are_the_same_with_and_without_json(sweep_file):
    trace = sweep_file.parent / "t.parquet"
    for arguments, code in ((("trace", "describe", trace), 0), (("trace", "describe", sweep_file), 2)):
        for more in ((), ("--json",)):
            process = start(sweep_file.parent, *arguments, *more)
            process.communicate(timeout=60)
            assert process.returncode == code


def test_an_internal_error_exits_with_1_and_keeps_its_traceback(monkeypatch):
    def broken(address):
        raise ZeroDivisionError("provoked")

    monkeypatch.setattr("orchestrator.doctor.examine", broken)
    code, _, err = kvknee("doctor")
    assert code == 1
    kept = Path(err.strip().splitlines()[-1].removeprefix("traceback: "))
    assert "provoked" in kept.read_text()
    kept.unlink()


def test_a_folder_where_the_journal_belongs_is_the_users_to_mend(sweep_file, tmp_path):
    (tmp_path / "out" / "study.journal").mkdir(parents=True)
    (tmp_path / "out" / "sweep.yaml").write_text(_resolved(sweep_file))
    code, _, err = kvknee("run", sweep_file, "-o", tmp_path / "out")
    assert code == 2
    assert "study.journal: is a directory; a folder stands where a file is needed" in err


def _resolved(path):
    from orchestrator.resolve import load_sweep
    from orchestrator.sweep_file import sweep_yaml

    return sweep_yaml(load_sweep(path))


def wait_for(condition, seconds=30.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def check_finished(folder):
    states = json.loads(kvknee("status", folder.path, "--json")[1])["states"]
    assert states == {"waiting": 0, "running": 0, "complete": 6, "reused": 2}
    assert len(list(folder.trials.iterdir())) == 8


def long_enough(sweep_file):
    """Six trials with two controls; a heavy enough trace that a signal meets a running one."""
    write_trace(sweep_file.parent / "t.parquet", rows=2400, gap_s=0.025)
    return ("run", "s.yaml", "-o", "out", "--set", "controls=[vendor_default]", "--max-concurrent", "1")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_exits_with_130_says_how_to_go_on_and_resumes(sweep_file, sent):
    driver = start(sweep_file.parent, *long_enough(sweep_file))
    folder = SweepFolder(sweep_file.parent / "out")
    wait_for(lambda: folder.attempt(1, 1).is_dir())
    code, _, err = kvknee("resume", folder.path)
    assert code == 2
    assert "another kvknee runs this sweep" in err
    driver.send_signal(sent)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 130, err
    assert f"kvknee resume {folder.path}" in err
    assert kvknee("resume", folder.path)[0] == 0
    check_finished(folder)


def test_a_killed_sweep_resumes_to_exactly_its_budget(sweep_file):
    driver = start(sweep_file.parent, *long_enough(sweep_file))
    folder = SweepFolder(sweep_file.parent / "out")
    wait_for(lambda: folder.attempt(2, 1).is_dir())
    driver.kill()
    driver.communicate(timeout=60)
    assert kvknee("resume", folder.path)[0] == 0
    check_finished(folder)


def test_quiet_leaves_only_the_answer_and_errors(sweep_file, tmp_path):
    one = "space={vary: {policy.block_size: {one_of: [16]}}}"
    few = ("--set", "repeats=1", "--set", "controls=[]", "--set", one)
    code, out, err = kvknee("run", sweep_file, *few, "--quiet", "-o", tmp_path / "out")
    assert code == 0, err
    assert "outcome:" in out
    assert err == ""
    code, _, err = kvknee("run", sweep_file, "--quiet", "--set", "repeats=none")
    assert code == 2
    assert "repeats" in err
