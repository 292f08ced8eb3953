"""One trial in one process: what is written, when, and every way in which a trial may not win."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trials.worker
from tests.builders import MS, build_engine, build_trace
from trials.content import Content
from trials.engine import DeviceBytes, Engine, Refused, StepShape
from trials.engines import simulator
from trials.engines.own import PagedEngine
from trials.engines.simulator import Modelled
from trials.ledger import Accounts
from trials.result import load_result
from trials.spec import TraceSpec, TrialSpec, trial_spec
from trials.tables import read_locks
from trials.trace import Trace, save_trace
from trials.worker import describe, main, run_trial

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = [40, 80, 25, 60, 33, 90] * 4


@pytest.fixture(autouse=True)
def strict_floats() -> Iterator[None]:
    """As the process sets them: no NaN or overflow passes in silence."""
    with np.errstate(all="raise", under="ignore"):
        yield


def made_trace() -> Trace:
    return build_trace(
        PROMPTS, [12, 30, 1, 8, 25, 17] * 4, arrivals_ms=[30.0 * k for k in range(24)],
        ids=[[7, 8, 9 + k % 2, 20 + k, 50 + k, 80 + k][: -(-p // 16)] for k, p in enumerate(PROMPTS)],
    )  # fmt: skip


def asked(folder: Path, trace: Trace | None = None, **changes: Any) -> TrialSpec:
    """A spec on a trace written into `folder`."""
    path = folder / "trace.parquet"
    save_trace(trace or made_trace(), path)
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"}, "model": "llama-3.1-8b",
        "pool": {"blocks": 40}, "trace": {"path": str(path)}, "slo": "ttft:p99<500ms;itl:p99<50ms",
        **changes,
    })  # fmt: skip


def write_spec(spec: TrialSpec, path: Path) -> Path:
    path.write_text(spec.model_dump_json())
    return path


def worker(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "trials.worker", *map(str, arguments)]
    inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, env={**inherited, **env}, timeout=60, check=False
    )


def with_engine(
    monkeypatch: pytest.MonkeyPatch, execution: Modelled, made: type[PagedEngine] = PagedEngine
) -> None:
    """The worker opens an engine of ours that executes with `execution`."""

    def opened(spec: TrialSpec, content: Content) -> Engine | Refused:
        plain = build_engine(made_trace(), spec.policy, num_blocks=40)
        return made(plain.facts, spec.policy, content, execution)

    module = SimpleNamespace(open=opened, identity=simulator.identity, prepare=simulator.prepare)
    monkeypatch.setattr(trials.worker, "engine_module", lambda name: module)


class Executes(Modelled):
    """1 ms a step; device bytes as given."""

    def __init__(self, device: DeviceBytes | None = None) -> None:
        super().__init__(lambda shape: (MS, 0), device or DeviceBytes())


# ---- what is written
def test_process_writes_all_files_result_last_and_exits_0(tmp_path: Path) -> None:
    done = worker(write_spec(asked(tmp_path), tmp_path / "spec.json"), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names >= {"result.json", "attempt.json", "requests.parquet", "ledger.parquet", "ownership.parquet"}
    result = load_result(tmp_path / "out" / "result.json")
    assert (result.status, result.evidence, result.eligible) == ("complete", "modelled", True)
    assert result.counts.offered == 24
    assert result.decides == 1
    assert [r.phase for r in result.replays] == ["cold", "steady"]
    assert result.audited_steps > 0
    said = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [kind for line in said for kind in line]
    assert kinds[0] == "starting"
    assert set(kinds[1:]) == {"progress"}
    attempt = json.loads((tmp_path / "out" / "attempt.json").read_text())
    assert {"host", "pid", "wall_s", "engine_start", "environment", "engine_identity"} <= set(attempt)


def test_result_is_the_last_file_written(tmp_path: Path) -> None:
    run_trial(asked(tmp_path), tmp_path / "out")
    age = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    assert max(age, key=lambda name: age[name]) == "result.json"


def test_process_killed_in_mid_run_leaves_no_result(tmp_path: Path) -> None:
    long = build_trace([2000] * 3000, [400] * 3000, arrivals_ms=[100.0 * k for k in range(3000)])
    spec = asked(tmp_path, long, pool={"bytes": "16GiB"})
    path = write_spec(spec, tmp_path / "s.json")
    command = [sys.executable, "-P", "-m", "trials.worker", str(path), str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "requests" in line:  # the replay has begun
                break
        time.sleep(0.05)
        process.kill()
    assert process.returncode == -9
    assert not list((tmp_path / "out").glob("*result.json*"))


# ---- outcomes
def test_pool_that_holds_no_block_is_refused_with_the_reason_and_exit_0(tmp_path: Path) -> None:
    spec = asked(tmp_path, pool={"bytes": "1MiB"})
    assert main([str(write_spec(spec, tmp_path / "s.json")), str(tmp_path / "out")]) == 0
    result = load_result(tmp_path / "out" / "result.json")
    assert (result.status, result.eligible) == ("refused", False)
    assert "no request fits" in result.reason
    assert result.ineligible_because == (result.reason,)
    assert result.replays == ()


DYING = """
import sys
import trials.worker
from trials.engines.simulator import Modelled

execute = Modelled.execute

def breaks(self, plan):
    if plan.step == 5:
        raise IndexError("the table ends here")
    return execute(self, plan)

Modelled.execute = breaks
sys.exit(trials.worker.main(sys.argv[1:]))
"""


def test_engine_that_dies_in_a_step_is_a_failed_trial_with_its_traceback_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    spec = write_spec(asked(tmp_path), tmp_path / "s.json")
    command = [sys.executable, str(tmp_path / "dying.py"), str(spec), str(tmp_path / "out")]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0
    assert "in breaks" in done.stderr
    assert "IndexError: the table ends here" in done.stderr
    result = load_result(tmp_path / "out" / "result.json")
    assert (result.status, result.eligible) == ("failed", False)
    assert result.reason == "step 5: IndexError: the table ends here"
    assert "engine died" in result.ineligible_because[0]


class Stalls(PagedEngine):
    def step(self):  # type: ignore[no-untyped-def]
        step = super().step()
        if step is not None and self._scheduler.serving.step > 3:
            self._scheduler.cancel(next(iter(self._scheduler.serving.running), -1))
            step.shape, step.ended, step.began = StepShape(0, 0, 0, 0, 0, 0, 0, 0), (), ()
            return step
        return step if step is not None else self._step


def test_replay_without_progress_is_a_failed_trial_that_says_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_engine(monkeypatch, Executes(), Stalls)
    result = run_trial(asked(tmp_path, phases=["cold"]), tmp_path / "out")
    assert (result.status, result.eligible) == ("failed", False)
    assert "no token computed in 1000 steps" in result.reason
    assert result.counts.completed < result.counts.offered


class CutsShort(PagedEngine):
    """Takes the last token from the first request that is to deliver more than 20."""

    cut = False

    def step(self):  # type: ignore[no-untyped-def]
        step, serving = super().step(), self._scheduler.serving
        for run in list(serving.ring.runs.values()):
            if not self.cut and run.num_output_tokens > 20 and run.last_step > serving.step:
                serving.ring.stop(run, serving.step)
                run.num_output_tokens -= 1
                serving.ring.begin(run, serving.step)
                self.cut = True
        return step


def test_void_replay_is_not_eligible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_engine(monkeypatch, Executes(), CutsShort)
    result = run_trial(asked(tmp_path, phases=["cold"]), tmp_path / "out")
    assert result.status == "complete"
    assert not result.eligible
    assert any("void: 1 requests were delivered another length" in why for why in result.ineligible_because)
    assert result.counts.failed == 1


def test_broken_account_makes_the_trial_ineligible_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Accounts.fill

    def loses_one(self: Accounts, tokens: int) -> None:
        fill(self, tokens)
        self.tail_slack_tokens -= tokens > 20

    monkeypatch.setattr(Accounts, "fill", loses_one)
    result = run_trial(asked(tmp_path), tmp_path / "out")
    assert result.status == "complete"
    assert not result.eligible
    assert any("account tail_slack_tokens: running" in why for why in result.ineligible_because)
    assert any("ledger rows do not add up to the pool" in why for why in result.ineligible_because)
    assert result.ledger.unbalanced_rows > 0


MIB = 1 << 20


@pytest.mark.parametrize(
    ("weights", "observed", "eligible"),
    [
        (100 * MIB, 100 * MIB, True),
        (100 * MIB, 164 * MIB, True),  # 64 MiB may stay open
        (100 * MIB, 164 * MIB + 1, False),
        (100 * MIB, 36 * MIB - 1, False),  # signed: too little is as wrong as too much
        (9800 * MIB, 10_000 * MIB, True),  # 2 % of what is observed
        (9799 * MIB, 10_000 * MIB, False),
        (0, 0, True),  # nothing to observe
    ],
)
def test_device_bytes_in_no_account_beyond_what_may_stay_open_make_the_trial_ineligible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: int, observed: int, eligible: bool
) -> None:
    with_engine(monkeypatch, Executes(DeviceBytes(weights=weights, observed=observed)))
    result = run_trial(asked(tmp_path, phases=["cold"]), tmp_path / "out")
    assert result.ledger.residual_bytes == observed - weights
    assert result.eligible == eligible
    if not eligible:
        assert "on the device are in no account" in result.ineligible_because[0]


@pytest.mark.parametrize(("more", "eligible"), [(0, True), (1, False), (-1, False)])
def test_pool_bytes_of_the_device_are_the_ledger_s_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int, eligible: bool
) -> None:
    spec = asked(tmp_path, phases=["cold"])
    with_engine(monkeypatch, Executes())
    effective = run_trial(spec, tmp_path / "first").effective
    assert effective is not None
    with_engine(monkeypatch, Executes(DeviceBytes(pool=effective.pool_bytes + more)))
    result = run_trial(spec, tmp_path / "out")
    assert result.eligible == eligible
    assert all("bytes are in no account" in why for why in result.ineligible_because)


def test_trial_that_delivers_no_token_in_its_window_cannot_win(tmp_path: Path) -> None:
    """Every request is longer than the context."""
    trace = build_trace([9000] * 5, [10] * 5, arrivals_ms=[0, 10, 20, 30, 40])
    result = run_trial(asked(tmp_path, trace, pool={"blocks": 4000}), tmp_path / "out")
    assert (result.status, result.eligible) == ("complete", False)
    assert result.counts.rejected == result.counts.offered == 5
    assert "no output token was delivered inside the window" in result.ineligible_because


def test_single_request_trace_has_a_throughput_of_this_world(tmp_path: Path) -> None:
    """Its window was 1 ns long: 12 tokens a ns were 12 billion a second; at rate_scale 2 it was 0 ns and the
    worker ended with a traceback."""
    trace = build_trace([40], [12])
    for scale in (1.0, 2.0):
        spec = asked(tmp_path, trace, measure={"load": {"rate_scale": scale}})
        result = run_trial(spec, tmp_path / "out")
        assert result.eligible
        seconds = (result.replays[0].observation.end_ns - result.replays[0].observation.start_ns) / 1e9
        assert result.metrics.output_throughput == pytest.approx(12 / seconds, rel=0.1)
        assert result.metrics.output_throughput < 1000


# ---- locks
@pytest.mark.parametrize("measure", [{"load": {"rate_scale": 3.0}}, {"load": {"concurrency": 4}}])
def test_trial_locked_to_a_schedule_has_the_same_rows_under_another_step_time(
    tmp_path: Path, measure: dict[str, Any]
) -> None:
    first = run_trial(asked(tmp_path, measure=measure), tmp_path / "a")
    slower = asked(tmp_path, measure=measure, engine={"name": "simulator", "step_time": "constant:9000"})
    spec = write_spec(slower, tmp_path / "s.json")
    arguments = [str(spec), str(tmp_path / "b"), "--lock", str(tmp_path / "a" / "requests.parquet")]
    assert main(arguments) == 0
    locked = load_result(tmp_path / "b" / "result.json")
    free = run_trial(slower, tmp_path / "c")
    assert [r.ledger.rows_digest for r in locked.replays] == [r.ledger.rows_digest for r in first.replays]
    assert locked.replays[0].clock == "steps"
    if "rate_scale" in measure["load"]:
        assert free.replays[0].ledger.rows_digest != first.replays[0].ledger.rows_digest


def test_schedule_without_this_load_is_refused_instead_of_running_unlocked(tmp_path: Path) -> None:
    run_trial(asked(tmp_path), tmp_path / "a")
    other = write_spec(asked(tmp_path, measure={"load": {"rate_scale": 2.0}}), tmp_path / "s.json")
    done = worker(other, tmp_path / "b", "--lock", tmp_path / "a" / "requests.parquet")
    assert done.returncode == 2
    assert "no replay cold rate_scale=2; it has cold rate_scale=1, steady rate_scale=1" in done.stderr
    assert not (tmp_path / "b" / "result.json").exists()


def test_locks_are_read_back_in_arrival_order(tmp_path: Path) -> None:
    run_trial(asked(tmp_path), tmp_path / "a")
    locks = read_locks(tmp_path / "a" / "requests.parquet")
    assert sorted(locks) == [("cold", "rate_scale=1"), ("steady", "rate_scale=1")]


# ---- describe, and bad input
def test_describe_says_what_the_engine_is_without_opening_it(tmp_path: Path) -> None:
    spec = asked(tmp_path, pool={"bytes": "1MiB"})  # would be refused
    done = worker("--describe", write_spec(spec, tmp_path / "s.json"))
    assert done.returncode == 0, done.stderr
    said: Mapping[str, Any] = json.loads(done.stdout)
    assert said["engine"] == "simulator"
    assert said["engine_hash"] == describe(spec)["engine_hash"]
    assert said["identity"]["files"]["trials/block_pool.py"]
    assert said["block_sizes"]["minimum"] == 1


def test_hash_of_the_engine_in_the_result_is_the_described_one(tmp_path: Path) -> None:
    spec = asked(tmp_path)
    assert run_trial(spec, tmp_path / "out").hashes.engine == describe(spec)["engine_hash"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "trace.parquet").unlink(), "no such trace"),
        (lambda folder: (folder / "trace.parquet").write_bytes(b"PAR1"), "not a"),
        (lambda folder: (folder / "s.json").write_text('{"engine": 3'), "s.json"),
        (lambda folder: (folder / "s.json").write_text('{"modle": 3}'), "modle"),
        (lambda folder: (folder / "s.json").unlink(), "cannot be read"),
    ],
    ids=["trace absent", "trace damaged", "spec cut short", "spec with a typo", "spec absent"],
)
def test_bad_input_ends_with_exit_2_one_line_and_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, words: str
) -> None:
    spec = write_spec(asked(tmp_path), tmp_path / "s.json")
    spoil(tmp_path)
    assert main([str(spec), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("error: ")
    assert not (tmp_path / "out" / "result.json").exists()


def test_window_without_a_request_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = asked(tmp_path)
    window = {"path": spec.trace.path, "window": {"start": "1h", "duration": "1s"}}
    late = spec.model_copy(update={"trace": TraceSpec.model_validate(window)})
    path = write_spec(late, tmp_path / "s.json")
    assert main([str(path), str(tmp_path / "out")]) == 2
    assert "the trace covers 0s .. 0.69s" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["a"], ["a", "b", "--lok", "c"], ["a", "b", "--lock"]])
def test_wrong_arguments_print_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "python -P -m trials.worker SPEC OUT" in capsys.readouterr().err


def test_a_measured_engine_of_another_kind_has_its_machine_probed_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, which leaves this one as it was; where that lacks what it takes, nothing is said."""
    commands = []

    def answered(command: list[str], **how: object) -> SimpleNamespace:
        commands.append(command[1:3])
        return SimpleNamespace(stdout="a warning\n0.25\n")

    monkeypatch.setattr(trials.worker.subprocess, "run", answered)
    spec = asked(tmp_path, engine={"name": "vllm"})
    assert trials.worker._probe(spec) == 0.25
    assert commands == [["-P", "-c"]]
    assert trials.worker._probe(asked(tmp_path, engine={"name": "vllm", "device": "cuda"})) is None

    def refused(command: list[str], **how: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(trials.worker.subprocess, "run", refused)
    assert trials.worker._probe(spec) is None
