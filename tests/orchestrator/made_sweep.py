"""A small sweep's folder, made by running real trials in this process; what knee.json says is made up by hand."""

import shutil
from pathlib import Path

import numpy as np
import yaml

from orchestrator.folder import SweepFolder, TrialCard, TrialRecord, write_text
from orchestrator.points import Role
from search_spaces.outcome import CandidateOutcome, Interval, Kind, Outcome, VerdictRow
from trials.spec import TrialSpec, trial_spec
from trials.trace import make_trace, save_trace
from trials.worker import run_trial

SIZES = (4, 16, 64)
WINNER = 64  # not the best of the three by value: knee.json alone says who won
NASTY = '<script>alert("x")</script> & co'


def make_trace_file(path: Path, seed: int = 0, rows: int = 24) -> Path:
    """Made-up requests, 15 ms apart on average."""
    rng = np.random.default_rng(seed)
    arrival_ns = np.cumsum(rng.exponential(15e6, rows)).astype(np.int64)
    save_trace(make_trace(arrival_ns, rng.integers(10, 300, rows), rng.integers(2, 40, rows)), path)
    return path


def make_spec(trace: Path, block_size: int = 16, **more: object) -> TrialSpec:
    asked: dict[str, object] = {
        "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"},
        "model": "llama-3.1-8b",
        "pool": {"bytes": "64MiB"},
        "policy": {"block_size": block_size, "max_model_len": 512},
        "trace": {"path": str(trace)},
        "slo": "ttft:p99<500ms;itl:p99<50ms",
    }
    return trial_spec(asked | more)


def add_trial(sweep: SweepFolder, number: int, spec: TrialSpec, control: str | None = None) -> TrialRecord:
    """Run it and leave its files as a sweep does."""
    attempt = sweep.attempt(number, 1)
    attempt.mkdir(parents=True)
    write_text(attempt / "spec.json", spec.model_dump_json())
    result = run_trial(spec, attempt)
    card = TrialCard(
        number=number, control=control, params={"policy.block_size": spec.policy.block_size}, spec=spec,
        spec_hash=result.hashes.spec, build="made", state=result.status, decides=1, repeat=spec.repeat,
    )  # fmt: skip
    sweep.save_card(card)
    record = sweep.load_trial(number)
    assert record is not None
    return record


def measure_again(sweep: SweepFolder, number: int, of: int, role: Role) -> None:
    """A trial beside the search, with the files of the one that it measures again; its card says nothing more."""
    card = sweep.load_trials()[of].card
    shutil.copytree(sweep.trial(of), sweep.trial(number))
    sweep.save_card(card.model_copy(update={"number": number, "role": role, "of": of, "params": {}}))


def build(folder: Path, decided: bool = True, **more: object) -> SweepFolder:
    """Three block sizes, two repeats each, and a control; with knee.json if `decided`."""
    trace = make_trace_file(folder.parent / "made.parquet")
    sweep = SweepFolder(folder)
    settings = {
        "name": f"made {NASTY}",
        "trials": 3,
        "slo": "ttft:p99<500ms;itl:p99<50ms",
        "calibration": {"load": 2},
    }
    write_text(sweep.sweep_yaml, yaml.safe_dump(settings))
    records = []
    for repeat in (0, 1):
        for size in SIZES:
            spec = make_spec(trace, size, repeat=repeat, **more)
            records.append(add_trial(sweep, len(records), spec))
    contiguous = {
        "policy": {"layout": "contiguous", "block_size": 512, "max_model_len": 512, "prefix_caching": False}
    }
    records.append(add_trial(sweep, len(records), make_spec(trace, **contiguous, **more), "contiguous"))
    if decided:
        save_outcome(sweep, made_outcome(records))
    return sweep


def save_outcome(sweep: SweepFolder, outcome: Outcome) -> None:
    write_text(sweep.knee_json, outcome.model_dump_json(indent=1))


def made_outcome(records: list[TrialRecord], kind: Kind = "knee") -> Outcome:
    candidates = [_candidate([r for r in records if r.params["policy.block_size"] == s]) for s in (*SIZES, 512)]
    winner = next(c for c in candidates if c.block_size == WINNER)
    verdicts = [
        VerdictRow(option=c.label, control=not c.in_space, signal=f"{c.value} tokens/s {NASTY}",
                   verdict="ship" if c is winner else "reject", reason="made up")
        for c in candidates
    ]  # fmt: skip
    return Outcome(
        kind=kind, sentence=f"Use block size {WINNER} {NASTY}.", objective="qualified_output_throughput",
        winner=winner.label, winner_trial=winner.trials[0], winner_trials=winner.trials, tied=("block 16",),
        binding="ttft:p99<500ms", smallest_effect=0.013, min_gain=0.02, num_repeats=2, noise="made up",
        candidates=tuple(candidates), verdicts=tuple(verdicts),
    )  # fmt: skip


def _candidate(records: list[TrialRecord]) -> CandidateOutcome:
    first = records[0]
    values = tuple(r.result.metrics.qualified_output_throughput for r in records if r.result is not None)
    size = int(first.params["policy.block_size"])
    return CandidateOutcome(
        label=first.control or f"block {size}", controls=(first.control,) if first.control else (),
        in_space=first.control is None, is_default=size == 16, block_size=size, policy={"block_size": size},
        trials=tuple(r.number for r in records), repeats=tuple(r.repeat for r in records), values=values,
        value=sum(values) / len(values), feasible=size != 4, why_not=("made up",) if size == 4 else (),
        behind_best=Interval(mean=3.5, low=1.0, high=6.0) if size == 16 else None, tied=size == 16,
        evidence="modelled",
    )  # fmt: skip


def settled(records: list[TrialRecord]) -> Outcome:
    """Every trial a candidate of its own, named by its parameters; the first is chosen."""
    one = [_candidate([r]) for r in records]
    labels = [" ".join(f"{k.rpartition('.')[2]}={v}" for k, v in r.params.items()) for r in records]
    candidates = [c.model_copy(update={"label": name}) for c, name in zip(one, labels, strict=True)]
    won = candidates[0]
    verdicts = tuple(
        VerdictRow(option=c.label, control=False, signal=f"{c.value} tokens/s", verdict="inspect", reason="made up")
        for c in candidates
    )
    return Outcome(
        kind="knee", sentence=f"Use {won.label}.", objective="qualified_output_throughput", winner=won.label,
        winner_trial=won.trials[0], winner_trials=won.trials, min_gain=0.02, num_repeats=1, noise="made up",
        candidates=tuple(candidates), verdicts=verdicts,
    )  # fmt: skip
