"""Trial results made by hand, for judging."""

from trials.result import (
    Counts,
    Effective,
    Hashes,
    Ledger,
    Metrics,
    Observation,
    Percentiles,
    ReplayResult,
    TrialResult,
)  # fmt: skip

SLO = "ttft:p99<500ms;itl:p99<50ms"


def make_replay(value=100.0, ttft=100.0, itl=20.0, attainment=1.0, phase="steady", load="rate_scale=1",
                waste=10.0, tokens=1000, unbalanced=0, void=(), holds=None):  # fmt: skip
    if holds is None:
        holds = ttft is not None and itl is not None and ttft <= 500 and itl <= 50 and attainment >= 0.99
    metrics = Metrics(
        qualified_output_throughput=value, qualified_output_tokens=tokens,
        ttft_ms=Percentiles(n=10, p99=ttft), itl_ms=Percentiles(n=10, p99=itl),
        slo_values_ms={"ttft:p99<500ms": ttft, "itl:p99<50ms": itl}, waste_byte_seconds={"total": waste},
    )  # fmt: skip
    return ReplayResult(
        phase=phase, load=load, clock="virtual", void_because=void,
        observation=Observation(start_ns=0, end_ns=10**9, num_steps=5, warmup=0, drain_end_ns=10**9),
        counts=Counts(offered=10, completed=10, qualified=10), metrics=metrics,
        ledger=Ledger(unbalanced_rows=unbalanced), holds=holds, attainment=attainment,
    )  # fmt: skip


def make_result(value=100.0, *, status="complete", eligible=True, cold=None, block_size=16, hashes=None,
                reason="", evidence="modelled", **replay):  # fmt: skip
    deciding = make_replay(value, **replay)
    replays = (make_replay(value, **replay, phase="cold") if cold is None else cold, deciding)
    if status != "complete":
        replays = ()
    return TrialResult(
        status=status, reason=reason, evidence=evidence, eligible=eligible,
        ineligible_because=() if eligible else ("made so",),
        hashes=hashes or Hashes(spec="s", trace="t", engine="e"), requested={},
        effective=Effective(block_size=block_size, kernel_block_size=block_size, num_blocks=9, reserve_blocks=0,
                            pool_bytes=9000, bytes_per_token=10, reuse_quantum_tokens=block_size),
        replays=replays, decides=1 if replays else None,
        counts=deciding.counts, metrics=deciding.metrics if replays else Metrics(),
        ledger=deciding.ledger if replays else Ledger(),
    )  # fmt: skip
