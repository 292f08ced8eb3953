"""What both schedulers are given: requests of public traces, repeated samples, aborts, the policy of each cell."""

import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.public_traces import PUBLIC, absent
from trials.formats import reader
from trials.generate import generate, load_preset
from trials.spec import PoolPolicy
from trials.trace import Ragged, Trace, TraceMeta, make_trace

BLOCK_SIZES = (1, 4, 16, 64, 256)
SMALL_BLOCK = 16  # below it prompts are capped, or hashing every token would be all that is measured
CAP_TOKENS = 16_000
SAMPLED_SHARE = 0.15  # of requests, where a cell has repeated samples
GENERATED = "generated"  # the ready preset `chat`, where no public trace is at hand


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: everything that decides it. Picklable; `number` seeds whatever is drawn."""

    number: int
    source: str
    block_size: int
    caching: bool
    tight: bool
    budget: int


@dataclass(frozen=True, slots=True)
class Case:
    """A cell made concrete. `due_ns` in row order; `priorities` are the rows'."""

    trace: Trace
    policy: PoolPolicy
    num_blocks: int
    due_ns: list[int]
    priorities: list[int]
    abort_share: float  # of requests
    forks: bool  # repeated samples come as forks of the first, not as requests of their own
    seed: int


def cells(sources: list[str]) -> Iterator[Cell]:
    """The whole grid."""
    grid = itertools.product(sources, BLOCK_SIZES, (True, False), (True, False), (64, 2048))
    for number, (source, size, caching, tight, budget) in enumerate(grid):
        yield Cell(number, source, size, caching, tight, budget)


def available(folder: Path | None) -> tuple[list[str], list[str]]:
    """(sources that can be read, why the others cannot). Without any public trace a generated one is taken."""
    found = [name for name, one in PUBLIC.items() if one.paths(folder)]
    return found or [GENERATED], [absent(name, folder) for name in PUBLIC if name not in found]


def load(folder: Path | None, source: str) -> Trace:
    if source == GENERATED:
        return generate(load_preset("chat"))
    one = PUBLIC[source]
    return reader(one.form)(one.paths(folder))


def case(cell: Cell, whole: Trace, requests: int) -> Case:
    """The cell's requests and policy, drawn from the cell's number alone."""
    rng = random.Random(f"agreement/{cell.number}")
    first = rng.randrange(max(1, len(whole) - requests + 1))
    samples = rng.choice((False, True))
    trace = _excerpt(whole, first, requests, cell.block_size < SMALL_BLOCK, rng if samples else None)
    longest = int((trace.num_prompt_tokens + trace.num_output_tokens).max())
    total = int((trace.num_prompt_tokens + trace.num_output_tokens).sum())
    usable = longest + longest // 20 if cell.tight else min(total, 6 * longest) + longest
    priority = rng.random() < 0.2
    policy = PoolPolicy(
        block_size=cell.block_size, prefix_caching=cell.caching, max_model_len=longest,
        max_num_seqs=64 if cell.budget == 64 else rng.choice((16, 256)), max_num_batched_tokens=cell.budget,
        watermark=rng.choice((0.0, 0.0, 0.01, 0.05, 0.2)), reserve_prompt=rng.random() < 0.6,
        long_prefill_token_threshold=rng.choice((0, 0, 0, cell.budget // 3)),
        queue="priority" if priority else "fcfs", victim="priority" if priority else "last_admitted",
    )  # fmt: skip
    scale = rng.choice((2, 8, 32))
    at = trace.arrival_ns - int(trace.arrival_ns[0])
    return Case(
        trace=trace, policy=policy, num_blocks=-(-usable // cell.block_size) + 1, due_ns=(at // scale).tolist(),
        priorities=[rng.randrange(3) for _ in range(len(trace))], abort_share=rng.choice((0.0, 0.1, 0.3)),
        forks=samples and rng.random() < 0.5,
        seed=cell.number,
    )  # fmt: skip


def _excerpt(whole: Trace, first: int, requests: int, capped: bool, rng: random.Random | None) -> Trace:
    """Consecutive rows, prompts capped where asked, some of them sampled twice to four times at once."""
    rows, copies = [], []
    for row in range(first, min(first + requests, len(whole))):
        for number in range(rng.choice((2, 3, 4)) if rng and rng.random() < SAMPLED_SHARE else 1):
            rows.append(row)
            copies.append(number)
    taken = whole.take(np.asarray(sorted(set(rows)), np.int64))
    place = np.asarray([row - first for row in rows], np.int64)
    prompts = taken.num_prompt_tokens[place]
    if capped:
        prompts = np.minimum(prompts, CAP_TOKENS)
    leaders = np.arange(len(rows)) - np.asarray(copies, np.int64)
    parents = np.where(np.asarray(copies) > 0, leaders, -1)
    per = taken.meta.tokens_per_id
    ids = [
        _fitting(taken.prefix_ids.row(int(p)).tolist(), int(n), taken.meta)
        for p, n in zip(place, prompts, strict=True)
    ]
    return make_trace(
        taken.arrival_ns[place], prompts, taken.num_output_tokens[place],
        prefix_ids=Ragged.of(ids) if per else None,
        meta=TraceMeta(tokens_per_id=per, tail_rule=taken.meta.tail_rule),
        parent=parents, inherited_tokens=np.where(parents >= 0, prompts, 0),
    )  # fmt: skip


def _fitting(ids: list[int], prompt: int, meta: TraceMeta) -> list[int]:
    """As many ids as a capped prompt can have."""
    if not ids:
        return ids
    per = meta.tokens_per_id
    return ids[: -(-prompt // per) if meta.tail_rule == "ceil" else prompt // per]
