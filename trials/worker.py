"""One trial in one clean process: `python -P -m trials.worker SPEC OUT [--lock requests.parquet]
[--ownership-at NS]`.

Reads spec.json, writes into OUT: requests.parquet, ledger.parquet, ownership.parquet, attempt.json and, last and
whole, result.json. Progress goes to stdout as JSON lines. Exit 0 whenever result.json was written, whatever it
says; 2 where spec, trace or schedule cannot be used, with the reason.
`--describe SPEC` prints what this interpreter's engine is and accepts, as JSON.
"""

import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from trials.applied import unapplied
from trials.budget import open_within
from trials.content import Content
from trials.engine import Engine, EngineDied, EngineFacts, EngineStart, PoolGeometry, Refused
from trials.engines import domain_of, engine_module
from trials.exhausted import ran_out
from trials.fingerprint import engine_hash, environment, spec_hash, table_digest_of, trace_hash
from trials.geometry import block_table_bytes
from trials.group_result import EffectiveGroup
from trials.ladder import Asked, Locks, Outcome, run
from trials.occupancy import unbalanced_pools
from trials.pool_size import Sized, size_pool
from trials.result import Effective, Hashes, Ledger, TrialResult, save_result
from trials.spec import MODELLED, TrialSpec, explain
from trials.step_tables import load_table
from trials.superpose import superposed
from trials.table_checks import outside
from trials.tables import read_locks, write_ledger, write_ownership, write_requests
from trials.trace import Trace, load_trace, write_whole
from trials.units import SpecError, parse_count

RESIDUAL_SHARE, RESIDUAL_BYTES = 0.02, 64 << 20
_PROBE_DEADLINE_S = 120.0


def say(text: str, kind: str = "progress") -> None:
    """One line for whoever started this process; `starting` lines come before the engine is open."""
    print(json.dumps({kind: text}), flush=True)


def hashes_of(spec: TrialSpec, trace: Trace, identity: Mapping[str, Any]) -> Hashes:
    """The three hashes of a trial."""
    known = trace_hash(trace)
    return Hashes(spec=spec_hash(spec, known, table_digest_of(spec)), trace=known, engine=engine_hash(identity))


def run_trial(
    spec: TrialSpec, out: Path, locks: Locks | None = None, ownership_at_ns: int | None = None
) -> TrialResult:
    """Run the trial in this process and write its files into `out`. Never raises for what an engine does."""
    wall = time.time()
    module = engine_module(spec.engine.name)
    module.prepare(spec)
    stored = load_trace(Path(spec.trace.path))
    trace = superposed(stored, spec.trace.superpose)
    asked = time.perf_counter()
    identity = module.identity(spec)  # an engine that has to be imported for it is loaded now
    asked = time.perf_counter() - asked
    hashes = hashes_of(spec, stored, identity)
    evidence = "modelled" if spec.engine.name in MODELLED else "measured"
    blank = TrialResult(
        status="failed", evidence=evidence, hashes=hashes, requested=requested(spec)
    )  # replaced below unless something breaks
    attempt: dict[str, Any] = {
        "host": platform.node(), "pid": os.getpid(), "trace_path": spec.trace.path, "started_s": wall,
        "engine_identity": identity, "environment": environment(), "threads": spec.engine.threads,
        "engine_start": asdict(EngineStart(load_s=asked)),
    }  # fmt: skip
    probe = _probe(spec)
    if probe is not None:
        attempt["probe_s"] = probe
    say("opening the engine", "starting")
    try:
        content = Content(trace)
        if spec.measure.sizes_pool:
            done = size_pool(lambda own: module.open(own, content), trace, spec, say)
        else:
            engine = open_within(spec, lambda own: module.open(own, content))
            done = _run(engine, trace, spec, Asked(locks, ownership_at_ns, time.monotonic), attempt)
        if isinstance(done, Refused):
            result = blank.model_copy(
                update={"status": "refused", "reason": done.words, "ineligible_because": (done.words,)}
            )
        else:
            _write_tables(done.outcome, done.facts, out)
            result = judge(done.outcome, done.facts, spec, blank)
            result = result.model_copy(update={"warnings": warnings_of(done, spec)})
            for warning in result.warnings:
                say(f"warning: {warning}")
    except EngineDied as died:
        words = traceback.format_exc()
        print(words, file=sys.stderr, flush=True)
        status = "refused" if ran_out(words) else "failed"  # not enough memory is an answer to what was asked
        result = blank.model_copy(
            update={"status": status, "reason": str(died), "ineligible_because": (f"engine died: {died}",)}
        )
    attempt["wall_s"] = time.time() - wall
    text = json.dumps(attempt, indent=1, sort_keys=True) + "\n"
    write_whole(out / "attempt.json", lambda path: path.write_text(text, encoding="utf-8"))
    save_result(result, out / "result.json")
    return result


def requested(spec: TrialSpec) -> dict[str, Any]:
    """The spec as asked, without locators."""
    asked = spec.model_dump(mode="json")
    asked["trace"].pop("path")
    asked["engine"].pop("python")
    asked["model"].pop("path")
    if spec.engine.table is not None:
        asked["engine"]["step_time"] = "table"  # which one is in the spec hash
    return asked


def _probe(spec: TrialSpec) -> float | None:
    """A measured CPU trial first takes the machine's speed; a modelled one does not depend on it."""
    if spec.engine.name in MODELLED or spec.engine.device != "cpu":
        return None
    if spec.engine.name != "torch_paged":
        return _probe_apart()
    from trials.engines.kernels.speed import probe_speed

    return float(probe_speed())


def _probe_apart() -> float | None:
    """In a process of its own: vLLM does not start beside what the probe imports. None where that is not here."""
    asked = "from trials.engines.kernels.speed import probe_speed; print(probe_speed())"
    command = [sys.executable, "-P", "-c", asked]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_DEADLINE_S, check=True)
    except subprocess.SubprocessError:
        return None
    return float(done.stdout.split()[-1])


def _run(
    engine: Engine | Refused, trace: Trace, spec: TrialSpec, asked: Asked, attempt: dict[str, Any]
) -> Sized | Refused:
    if isinstance(engine, Refused):
        return engine
    identified = attempt["engine_start"]["load_s"]
    attempt["engine_start"] = asdict(replace(engine.start_up, load_s=engine.start_up.load_s + identified))
    try:
        return Sized(run(engine, trace, spec, say, asked), engine.facts)
    finally:
        engine.close()


def _write_tables(outcome: Outcome, facts: EngineFacts, out: Path) -> None:
    recorded = [measured.replay for measured in outcome.replays]
    write_requests(recorded, out / "requests.parquet")
    write_ledger(recorded, facts, out / "ledger.parquet")
    write_ownership(recorded, facts, out / "ownership.parquet")


def judge(outcome: Outcome, facts: EngineFacts, spec: TrialSpec, blank: TrialResult) -> TrialResult:
    """One trial's result from its replays: which decides, and whether it may win at all."""
    decides = outcome.replays[outcome.decides]
    metrics = decides.result.metrics.model_copy(update={"capacity_load": outcome.capacity_load})
    failed = [m.replay.failed for m in outcome.replays if m.replay.failed]
    reasons = ineligible(outcome, facts)
    return blank.model_copy(
        update={
            "status": "failed" if failed else "complete", "reason": failed[0] if failed else "",
            "eligible": not reasons, "ineligible_because": tuple(reasons),
            "effective": effective(facts, spec), "replays": tuple(m.result for m in outcome.replays),
            "decides": outcome.decides, "counts": decides.result.counts, "metrics": metrics,
            "ledger": decides.result.ledger,
            "audited_steps": sum(m.replay.audited_steps for m in outcome.replays), "capacity": outcome.capacity,
        }
    )  # fmt: skip


def warnings_of(done: Sized, spec: TrialSpec) -> tuple[str, ...]:
    """What does not speak against the trial, but has to be known: step times beyond what their model covers."""
    if (spec.engine.step_time or "").startswith("roofline:") and (ranks := done.facts.ranks) > 1:
        return (f"step times are one GPU's: what {ranks} ranks share out and exchange is not in them",)
    if spec.engine.table is None:
        return ()
    table, decides = load_table(spec.engine.table), done.outcome.replays[done.outcome.decides]
    words = outside(table, decides.replay.steps, done.facts.groups[done.facts.token_group].block_size)
    return (words,) if words else ()


def effective(facts: EngineFacts, spec: TrialSpec) -> Effective:
    """What the trial is credited with, read back from the engine."""
    group = facts.groups[facts.token_group]
    knobs = dict(facts.effective)
    return Effective(
        block_size=group.block_size, kernel_block_size=group.kernel_block_size, num_blocks=group.num_blocks,
        reserve_blocks=group.reserve_blocks, pool_bytes=facts.pool_bytes,
        bytes_per_token=sum(g.bytes_per_token for g in facts.groups if not g.keeps_states) * facts.ranks,
        reuse_quantum_tokens=facts.reuse_quantum_tokens, block_table_bytes=_table_bytes(facts, spec),
        ranks=facts.ranks, groups=tuple(_group(g) for g in facts.groups) if len(facts.groups) > 1 else (),
        layout=knobs.get("layout", "paged"), knobs=knobs, not_applicable=facts.not_applicable,
    )  # fmt: skip


def _table_bytes(facts: EngineFacts, spec: TrialSpec) -> int:
    several = len(facts.groups) * facts.ranks > 1
    return block_table_bytes(spec, facts.groups, facts.ranks) if several else block_table_bytes(spec)


def _group(group: PoolGeometry) -> EffectiveGroup:
    return EffectiveGroup(
        kind=group.kind, num_layers=group.num_layers, block_size=group.block_size, window=group.window,
        bytes_per_token=group.bytes_per_token, keeps_states=group.keeps_states,
        padding_bytes_per_block=group.padding_bytes_per_block, reuse_quantum_tokens=group.reuse_quantum_tokens,
    )  # fmt: skip


def ineligible(outcome: Outcome, facts: EngineFacts) -> list[str]:
    """Why the trial cannot win, in words; empty where it may."""
    reasons = []
    for measured in outcome.replays:
        name = f"{measured.replay.phase} {measured.replay.load}"
        reasons += [f"{name}: {law}" for law in measured.replay.broken_laws[:3]]
        reasons += [f"{name}: {law}" for law in measured.result.ledger.broken_laws[:3]]
        reasons += [f"{name}: void: {why}" for why in measured.result.void_because]
        if measured.replay.failed:
            reasons.append(f"{name}: {measured.replay.failed}")
        reasons += [f"{name}: {said}" for said in unbalanced_pools(measured.replay, facts)]
        book = measured.result.ledger
        reasons += [f"{name}: {said}" for said in (_residual(book, facts), pool_residual(book, facts)) if said]
        reasons += [f"{name}: {said}" for said in unapplied(measured.replay, facts)]
        if not measured.replay.audited_steps:
            reasons.append(f"{name}: no step was audited")
    raced_out = outcome.capacity is not None and outcome.capacity.less_than is not None  # and so ended early
    if not raced_out and not outcome.replays[outcome.decides].result.metrics.output_throughput > 0:
        reasons.append("no output token was delivered inside the window")
    if outcome.capacity is not None and outcome.capacity.needs_requests:
        reasons.append(outcome.capacity.words)
    return reasons


def _residual(ledger: Ledger, facts: EngineFacts) -> str:
    """Device bytes that no account explains, beyond what may be left open."""
    ranks = [(f" of rank {rank}", device) for rank, device in enumerate(ledger.rank_devices)]
    for of, device in [*ranks, ("", ledger.device)]:  # what one rank leaks is little beside all of them
        allowed, found = max(RESIDUAL_SHARE * device.get("observed", 0), RESIDUAL_BYTES), device.get("residual", 0)
        if abs(found) > allowed:
            return f"{found} bytes on the device{of} are in no account (allowed {allowed:.0f})"
    if any(group.remainder_bytes < 0 for group in facts.groups):
        return "the blocks are more than the pool"
    return ""


def pool_residual(ledger: Ledger, facts: EngineFacts) -> str:
    """Pool bytes of the device that the ledger does not have, or the other way round; none may be left open.

    Whole blocks or all of the pool may stand on the device: the remainder is allocated by some engines only.
    """
    found = ledger.device.get("pool", 0)
    said = facts.pool_bytes
    whole = said - sum(max(pool.remainder_bytes, 0) for pool in facts.pools) * facts.ranks
    if not found or whole <= found <= said:
        return ""
    return f"the pool has {found} bytes on the device, the ledger {said}: {found - said:+} bytes are in no account"


def describe(spec: TrialSpec) -> dict[str, Any]:
    """What this interpreter's engine is, and which block sizes and knobs it takes."""
    module = engine_module(spec.engine.name)
    module.prepare(spec)
    domain = domain_of(spec)
    identity = module.identity(spec)
    knobs = [name for name in type(spec.policy).model_fields if name not in domain.not_applicable]
    return {
        "engine": spec.engine.name, "engine_hash": engine_hash(identity), "identity": identity,
        "block_sizes": {"minimum": domain.minimum, "multiple_of": domain.multiple_of, "source": domain.source},
        "knobs": knobs, "not_applicable": list(domain.not_applicable), "environment": environment(),
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """The process's face; see the module's docstring. No overflow and no NaN passes in silence."""
    with np.errstate(all="raise", under="ignore"):
        return _answer(arguments)


def _answer(arguments: list[str]) -> int:
    try:
        if len(arguments) == 2 and arguments[0] == "--describe":
            print(json.dumps(describe(read_spec(Path(arguments[1]))), sort_keys=True))
            return 0
        options = dict(zip(arguments[2::2], arguments[3::2], strict=False))
        if len(arguments) < 2 or len(arguments) % 2 or not options.keys() <= {"--lock", "--ownership-at"}:
            print(__doc__, file=sys.stderr)
            return 2
        locks = read_locks(Path(options["--lock"])) if "--lock" in options else None
        at_ns = parse_count(options["--ownership-at"], "--ownership-at") if "--ownership-at" in options else None
        run_trial(read_spec(Path(arguments[0])), Path(arguments[1]), locks, at_ns)
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def read_spec(path: Path) -> TrialSpec:
    """The spec that whoever started this process wrote; SpecError where it is none."""
    try:
        return TrialSpec.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise explain(error, str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
