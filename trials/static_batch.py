"""What a packed batch of the same final lengths would have claimed, beside what the lifecycle claimed.

A static batch holds every request at its final length at once: nothing arrives, grows, waits or leaves. Its slack
follows from the lengths alone and comes out close to the lifecycle's; what it cannot show is the churn by which
blocks are handed out and come back. Pure arithmetic over a replay's requests and result.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from trials.engine import Cause, Outcome
from trials.recording import Ints
from trials.result import Effective, ReplayResult

REQUEST_COLUMNS = ("outcome", "num_prompt_tokens", "num_delivered", "preemptions", "recomputed_tokens")
LEDGER_COLUMNS = ("refusal_cause", "allocated_blocks", "released_blocks", "evicted_blocks", "copied_blocks")


class Compared(BaseModel):
    """One quantity as the static batch has it and as the lifecycle showed it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    static: float
    lifecycle: float
    unit: str


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """What a whole replay did, from its files: warm-up and drain are in it, as their blocks were handed out too."""

    final_tokens: Ints  # [R] held at the end by each request that was served; the last sampled token has no KV
    blocks: Mapping[str, int]  # events
    preemptions: int
    recomputed_tokens: int
    failed_admissions: int  # steps that kept the head of the queue out


def lifecycle(requests: Mapping[str, Ints], ledger: Mapping[str, Ints]) -> Lifecycle:
    """From REQUEST_COLUMNS of requests.parquet and LEDGER_COLUMNS of ledger.parquet, the rows of one replay."""
    served = requests["outcome"] == Outcome.COMPLETED
    return Lifecycle(
        final_tokens=(requests["num_prompt_tokens"] + requests["num_delivered"] - 1)[served],
        blocks={name: int(ledger[name].sum()) for name in LEDGER_COLUMNS[1:]},
        preemptions=int(requests["preemptions"].sum()),
        recomputed_tokens=int(requests["recomputed_tokens"].sum()),
        failed_admissions=int((ledger["refusal_cause"] != Cause.NONE).sum()),
    )


def compare_static(life: Lifecycle, effective: Effective, shown: ReplayResult) -> tuple[Compared, ...]:
    """Claims compare over the window, events over the whole replay. Empty where nothing was served."""
    if not len(life.final_tokens):
        return ()
    size, metrics, ledger = effective.block_size, shown.metrics, shown.ledger
    blocks = -(-life.final_tokens // size)
    claimed, mean_slots = int(blocks.sum()), float(blocks.mean()) * size
    usable = effective.num_blocks - effective.reserve_blocks
    means = [ledger.time_mean.get(name, 0.0) for name in ("payload", "tail_slack", "reserved_ahead")]
    running, peak = metrics.admitted_concurrency.mean, metrics.admitted_concurrency.peak
    held = ledger.allocated_slots
    rows: list[tuple[str, float, float, str]] = [
        ("tail slack of claimed slots", 1 - int(life.final_tokens.sum()) / (claimed * size),
         means[1] / sum(means) if sum(means) else 0.0, "share"),
        ("claimed slots a sequence", mean_slots, held.mean / running if running else 0.0, "tokens"),
        ("claimed slots at the peak", peak * mean_slots, held.peak, "tokens"),
        ("requests in the pool at once", usable * size // mean_slots, running, "requests"),
        ("blocks handed out", claimed, life.blocks["allocated_blocks"], "blocks"),
        ("blocks let go", claimed, life.blocks["released_blocks"], "blocks"),
        ("cached blocks evicted", 0, life.blocks["evicted_blocks"], "blocks"),
        ("blocks copied", 0, life.blocks["copied_blocks"], "blocks"),
        ("preemptions", 0, life.preemptions, "requests"),
        ("tokens computed again", 0, life.recomputed_tokens, "tokens"),
        ("failed admissions", 0, life.failed_admissions, "steps"),
    ]  # fmt: skip
    return tuple(Compared(name=n, static=float(a), lifecycle=float(b), unit=u) for n, a, b, u in rows)
