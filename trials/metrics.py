"""From a replay's columns to its result: latency beside occupancy. Each number is defined in docs/metrics.md."""

from dataclasses import dataclass

import numpy as np

from trials import activity, breakdown, pressure, sharing
from trials.churn import broken_flow, churn, occupancy, reuse_gap_ns
from trials.engine import EngineFacts, Outcome
from trials.holding import attained_share, backlog_grew, hold, with_divergence
from trials.latency import Fates, Flags, Latencies, Runs, check_tokens, fates, latencies, order_runs, qualifies
from trials.occupancy import Held, held, ledger
from trials.percentiles import percentiles_ms, population, spread
from trials.recording import Replay
from trials.result import Counts, Ledger, MaxSlack, Metrics, Observation, ReplayResult
from trials.segments import Segments, largest_slack, segments
from trials.slo import Slo
from trials.trace import Trace
from trials.waste import waste


@dataclass(frozen=True, slots=True)
class _Scene:
    """What every part of the measurement looks at."""

    replay: Replay
    facts: EngineFacts
    trace: Trace | None
    runs: Runs
    parts: Segments
    seen: Held
    fate: Fates
    good: Flags  # [R] met the limits of a request, counted or not

    @property
    def window_s(self) -> float:
        begin, finish = self.replay.window_ns
        return (finish - begin) / 1e9

    @property
    def qualified(self) -> Flags:
        return self.good & self.fate.offered


def measure(replay: Replay, facts: EngineFacts, slo: Slo, trace: Trace | None = None) -> ReplayResult:
    """Measure one replay. Pure, O(steps + blocks + requests). `trace`: what tells of content and of forks.

    Raises RecordingError where the columns contradict each other, ValueError where the window has no length.
    """
    begin, finish = replay.window_ns
    if finish <= begin:
        raise ValueError(f"the window {replay.window_ns} has no length: nothing can be measured in it")
    runs = order_runs(replay)
    check_tokens(replay, runs)
    fate = fates(replay.requests)
    parts = segments(replay, runs, facts.groups[facts.token_group].block_size)
    good = qualifies(replay.requests, fate, slo)
    scene = _Scene(replay, facts, trace, runs, parts, held(replay, facts), fate, good)
    observed = latencies(replay, runs, fate)
    counts, metrics = _counts(scene), _metrics(scene, observed)
    held_slo = hold(observed, slo, attained_share(counts.qualified, counts.offered))
    held_slo = with_divergence(held_slo, metrics.divergence_short_blocks)
    values_ms = {name: ns / 1e6 if np.isfinite(ns) else None for name, ns in held_slo.values_ns.items()}
    return ReplayResult(
        phase="cold" if replay.phase == "cold" else "steady", load=replay.load, clock=replay.clock,
        stopped_early=replay.stopped_early, void_because=tuple(replay.void_because),
        observation=_observation(scene), counts=counts,
        metrics=metrics.model_copy(update={"slo_values_ms": values_ms}), ledger=_ledger(scene, metrics),
        holds=held_slo.holds, attainment=held_slo.attainment, binding=held_slo.binding,
    )  # fmt: skip


def _ledger(scene: _Scene, metrics: Metrics) -> Ledger:
    replay, facts, seen = scene.replay, scene.facts, scene.seen
    shares = breakdown.byte_shares(replay, scene.runs, scene.parts, facts, seen)
    unexplained = pressure.unexplained_waste(metrics.waste_byte_seconds, metrics.failed_admissions_by_free_bytes)
    return ledger(replay, facts, seen).model_copy(update={
        "by_length": breakdown.by_length(replay, shares, scene.fate.offered),
        "by_state": breakdown.by_state(shares, seen),
        "broken_laws": (*broken_flow(replay, facts), *sharing.broken_bound(replay), *unexplained),
    })  # fmt: skip


def _observation(scene: _Scene) -> Observation:
    replay, requests = scene.replay, scene.replay.requests
    begin, finish = replay.window_ns
    warmup = int(np.sum((requests.counted == 0) & (requests.arrival_ns < begin)))
    return Observation(
        start_ns=begin, end_ns=finish, num_steps=int(np.sum(replay.steps["idle"] == 0)), warmup=warmup,
        drain_end_ns=replay.drain_end_ns, most_running=int(replay.steps["num_running"].max(initial=0)),
        preemptions=int(requests.preemptions.sum()),
    )  # fmt: skip


def _counts(scene: _Scene) -> Counts:
    requests, fate = scene.replay.requests, scene.fate
    counted = requests.counted == 1

    def of(outcome: Outcome) -> int:
        return int(np.sum(counted & (requests.outcome == outcome)))

    wrong = int(np.sum(counted & fate.wrong_length))
    return Counts(
        offered=int(fate.offered.sum()), completed=of(Outcome.COMPLETED) - wrong,
        qualified=int(scene.qualified.sum()), cancelled=of(Outcome.CANCELLED),
        rejected=of(Outcome.REJECTED), failed=of(Outcome.FAILED) + wrong,
        unfinished=of(Outcome.UNFINISHED),
    )  # fmt: skip


def _tokens_inside(scene: _Scene) -> int:
    """Output tokens that came in [begin, finish), of any request."""
    begin, finish = scene.replay.window_ns
    low, high = np.searchsorted(scene.replay.end_ns, [begin, finish])
    runs = scene.runs
    inside = np.minimum(runs.last + 1, high) - np.maximum(runs.first, low)
    return int(np.maximum(inside, 0).sum())


def _max_tail_slack(scene: _Scene) -> MaxSlack:
    size = scene.facts.groups[scene.facts.token_group].block_size
    value, request, step = largest_slack(scene.parts, scene.seen, size)
    return MaxSlack(value=value, row=int(scene.replay.requests.row[request]) if request >= 0 else -1, step=step)


def _metrics(scene: _Scene, observed: Latencies) -> Metrics:
    replay, facts, seen = scene.replay, scene.facts, scene.seen
    return Metrics(
        ttft_ms=percentiles_ms(observed.ttft), itl_ms=percentiles_ms(observed.itl),
        tpot_ms=percentiles_ms(observed.tpot), e2el_ms=percentiles_ms(observed.e2el),
        **_rates(scene), **_sharing(scene),
        admitted_concurrency=spread(replay.steps["num_running"], seen.lasted_ns),
        qualified_concurrency=activity.qualified_concurrency(replay, scene.good),
        failed_admissions=activity.failed_admissions(replay, seen),
        failed_admissions_by_free_bytes=pressure.pressure_bins(replay, seen),
        first_failed_admission=pressure.first_failed(replay, seen),
        largest_admissible_tokens=pressure.largest_admissible(replay, facts, seen),
        max_tail_slack_tokens=_max_tail_slack(scene),
        attention_share=activity.attention_share(replay, seen),
        block_table_depth=activity.block_table_depth(replay, seen), occupancy=occupancy(facts, seen),
        waste_byte_seconds=waste(replay, scene.runs, facts, seen),
        churn=churn(replay, scene.runs, scene.parts, facts, seen).model_copy(
            update={"reuse_gap_ms": percentiles_ms(population(reuse_gap_ns(replay, scene.trace)))}
        ),
        backlog_grew=backlog_grew(replay, seen),
    )  # fmt: skip


def _rates(scene: _Scene) -> dict[str, float]:
    """Tokens and requests, and per second of the window."""
    requests, window_s = scene.replay.requests, scene.window_s
    begin, finish = scene.replay.window_ns
    counted, qualified = requests.counted == 1, scene.qualified
    ended = scene.fate.served & (requests.end_ns >= begin) & (requests.end_ns < finish)
    tokens = int(requests.num_delivered[qualified].sum())
    return {
        "output_throughput": _tokens_inside(scene) / window_s, "request_throughput": int(ended.sum()) / window_s,
        "qualified_output_throughput": tokens / window_s, "request_goodput": int(qualified.sum()) / window_s,
        "qualified_output_tokens": tokens, "num_preemptions": int(requests.preemptions[counted].sum()),
        "num_recomputed_tokens": int(requests.recomputed_tokens[counted].sum()),
        "prefix_hit_rate": activity.hit_rate(requests),
    }  # fmt: skip


def _sharing(scene: _Scene) -> dict[str, int | None]:
    """Block events, and what sharing saved, copied and may still cost."""
    replay, facts, seen = scene.replay, scene.facts, scene.seen
    events = activity.block_events(replay)
    burst, bound, short = sharing.divergence(replay, facts, seen)
    return {
        "alloc_events": events["allocated"], "free_events": events["released"], "evict_events": events["evicted"],
        "copy_events": events["copied"], "copied_bytes": sharing.copied_bytes(facts, events["copied"]),
        "duplicated_tail_bytes": sharing.duplicated_tail_bytes(replay, facts, scene.trace),
        "net_shared_bytes_saved": sharing.shared_bytes_saved(facts, seen),
        "divergence_burst_blocks": burst, "divergence_bound_blocks": bound, "divergence_short_blocks": short,
        "map_calls": activity.map_calls(facts, events["allocated"]),
    }  # fmt: skip
