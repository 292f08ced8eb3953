"""Small traces, specs and engines with defaults, for tests."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trials.content import Content
from trials.engine import DeviceBytes, EngineFacts, PoolGeometry, StepShape, Work
from trials.engines.own import PagedEngine, effective_knobs
from trials.engines.simulator import Modelled
from trials.plan import Plan
from trials.recount import check_row
from trials.spec import PoolPolicy
from trials.trace import STARTS, Ragged, Trace, TraceMeta, make_trace

MS = 1_000_000
BUILT: list[PagedEngine] = []  # by build_engine, in this test; conftest looks at each when the test is over


def build_trace(
    prompts: list[int],
    outputs: list[int],
    arrivals_ms: list[float] | None = None,
    ids: list[list[int]] | None = None,
    tokens_per_id: int = 16,
) -> Trace:
    """A trace from plain lists; prefix ids follow the ceil rule."""
    at = np.array([round(a * MS) for a in arrivals_ms]) if arrivals_ms else np.zeros(len(prompts), np.int64)
    meta = TraceMeta(tokens_per_id=tokens_per_id if ids else 0)
    ragged = Ragged.of(ids) if ids else None
    return make_trace(at, np.array(prompts), np.array(outputs), prefix_ids=ragged, meta=meta)


def token_time(shape: StepShape) -> tuple[int, int]:
    """1 ms a step and 10 us a token: deterministic, and different for different shapes."""
    tokens = shape.num_decodes + shape.chunk_tokens
    return MS + 10_000 * tokens + shape.decode_context, shape.decode_context + shape.chunk_pairs


class Watched(Modelled):
    """The simulator's execution; keeps what the last plan copied."""

    copies: tuple[tuple[int, int], ...] = ()

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        self.copies = tuple(plan.copies)
        return super().execute(plan)


class Remembering(Watched):
    """Carries plans out on made-up tokens: what a row reads through its table must be what it wrote or inherited.

    A copy out of a block that is still empty, or a write into one that others hold, shows here.
    """

    def __init__(self, trace: Trace, size: int) -> None:
        super().__init__(token_time, DeviceBytes())
        self._content, self._size = Content(trace), size
        self._slots: dict[int, object] = {}  # block * size + offset -> token
        self._known: dict[int, list[object]] = {}

    def reset(self) -> None:
        self._slots = {}

    def _tokens(self, row: int) -> list[object]:
        if row not in self._known:
            out = self._known[row] = []
            for node, end in self._content.path(row):
                out += [(node, at) for at in range(len(out), end)]
        return self._known[row]

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        size, slots = self._size, self._slots
        assert len({new for _, new in plan.copies}) == len(plan.copies)
        copied = {new * size + k: slots.get(old * size + k) for old, new in plan.copies for k in range(size)}
        slots.update(copied)
        rows = [(run, run.computed_at(plan.step), 1) for run in plan.decoding.values()]
        rows += [(chunk.run, chunk.start, chunk.num_tokens) for chunk in plan.chunks]
        for run, start, count in rows:
            tokens = self._tokens(run.row)
            for at in range(start, start + count):
                slots[run.table[at // size] * size + at % size] = tokens[at]
        for run, start, count in rows:
            end = start + count
            first = 0 if count > 1 or (end + run.row) % 4 == 0 else max(0, end - size)  # all, or the tail
            read = [slots.get(run.table[at // size] * size + at % size) for at in range(first, end)]
            assert read == self._tokens(run.row)[first:end], f"row {run.row} reads what it did not write"
        return super().execute(plan)


def build_engine(
    trace: Trace,
    policy: PoolPolicy | None = None,
    num_blocks: int = 64,
    reserve_blocks: int = 0,
    bytes_per_token: int = 64,
    step_time: Callable[[StepShape], tuple[int, int]] = token_time,
    remembering: bool = False,
) -> PagedEngine:
    """The simulator on a pool of `num_blocks` blocks; `remembering`: every token read is looked at."""
    policy = policy or PoolPolicy()
    size = policy.block_size
    pool = num_blocks * size * bytes_per_token
    geometry = PoolGeometry(size, num_blocks, reserve_blocks, bytes_per_token, 0, pool, size, size)
    facts = EngineFacts(
        "simulator", "0" * 64, "modelled", "virtual", (geometry,), 1, effective_knobs(policy, geometry),
        max_model_len=policy.max_model_len,
    )  # fmt: skip
    watched = Remembering(trace, size) if remembering else Watched(step_time, DeviceBytes(pool=pool))
    engine = PagedEngine(facts, policy, Content(trace), watched)
    BUILT.append(engine)
    return engine


def let_everybody_go(engine: PagedEngine) -> None:
    """What is still alive in an engine is cancelled; then nothing is held, and every block stands in the queue
    exactly once, as many as the accounts say."""
    scheduler = engine._scheduler
    alive = [*scheduler.serving.running, *(run.row for run in scheduler.admission.queue)]
    alive += [row for forks in scheduler.forks.pending.values() for row in forks]
    for row in alive:
        assert engine.cancel(row)
    assert scheduler.idle
    assert engine.step() is None
    engine.check()
    audit = engine.audit().groups[0]
    assert not audit.tables
    assert sorted([*audit.free, *audit.cached, *audit.reserve]) == list(range(engine.geometry.num_blocks))
    assert engine._pool.tail_copies == 0
    assert not check_row(engine.ledger()[0], audit, engine.geometry)


def copies_of(engine: PagedEngine) -> tuple[tuple[int, int], ...]:
    """(from, to) of the blocks that the last step copied before it wrote anything."""
    watched = engine._execution
    assert isinstance(watched, Watched)
    return watched.copies


def works_of(trace: Trace) -> list[Work]:
    """What an engine is told of each row; rows that start as forks name their parent."""
    fork = trace.starts == STARTS["fork"]
    columns = (
        np.arange(len(trace)), trace.num_prompt_tokens, trace.num_output_tokens, trace.arrival_ns, trace.priority,
        np.where(fork, trace.parent, -1), np.where(fork, trace.inherited_tokens, 0),
    )  # fmt: skip
    return [Work(*values) for values in zip(*(c.tolist() for c in columns), strict=True)]


@dataclass(frozen=True)
class Case:
    """A small load and the engine that serves it."""

    trace: Trace
    policy: PoolPolicy
    num_blocks: int
    reserve: int

    def engine(self) -> PagedEngine:
        return build_engine(self.trace, self.policy, self.num_blocks, self.reserve, remembering=True)


def family_trace(rng: random.Random, count: int, per: int, gaps_ms: tuple[float, ...] = (0.0,)) -> Trace:
    """Prefix trees, forks at the prompt's end and in mid-answer, forks of forks, turns that repeat an answer."""
    prompts, outputs, ids = list[int](), list[int](), list[list[int]]()
    parents, inherits, starts = list[int](), list[int](), list[int]()
    for row in range(count):
        parent, inherited, prompt = -1, 0, rng.randint(1, 40)
        names = [rng.choice([0, 0, 1]) + 10 * k for k in range(-(-prompt // per))] if rng.random() < 0.6 else []
        start = "arrival"
        if row and rng.random() < 0.5:
            parent, names = rng.randrange(max(0, row - 3), row), []
            last = prompts[parent] + outputs[parent]
            inherited = rng.choice([prompts[parent], prompts[parent], rng.randint(1, last)])
            prompt = inherited + rng.choice([0, 0, 0, rng.randint(1, 20)])
            start = "fork" if rng.random() < 0.7 else "arrival"
        prompts.append(prompt)
        outputs.append(rng.choice([1, 2, rng.randint(1, 30)]))
        ids.append(names)
        parents.append(parent)
        inherits.append(inherited)
        starts.append(STARTS[start])
    at = np.cumsum([round(rng.choice(gaps_ms) * MS) for _ in range(count)])
    return make_trace(
        at - at[0], np.array(prompts), np.array(outputs), Ragged.of(ids), TraceMeta(tokens_per_id=per),
        parent=np.array(parents), inherited_tokens=np.array(inherits), starts=np.array(starts),
        priority=np.array([rng.choice([0, 0, 1, 5]) for _ in range(count)]),
    )  # fmt: skip


def policy_case(seed: int, **fixed: object) -> Case:
    """A small load under any policy; `fixed` are knobs that must be so."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 3, 4, 8, 16])
    trace = family_trace(rng, rng.randint(3, 14), rng.choice([2, 5, 8]))
    reserve = rng.choice([0, 0, 1])
    knobs = {
        "block_size": size,
        "sharing": rng.choice(["prefix", "cow", "cow"]),
        "prefix_caching": rng.random() < 0.8,
        "prefix_match": rng.choice(["block", "partial"]),
        "eviction": rng.choice(["lru", "fifo", "lfu", "length_aware"]),
        "victim": rng.choice(["last_admitted", "fewest_outputs", "largest", "priority"]),
        "queue": rng.choice(["fcfs", "longest_prefix", "priority", "shortest_job"]),
        "free_order": rng.choice(["tail_first", "head_first"]),
        "watermark": rng.choice([0.0, 0.0, 0.1]),
        "reserve_prompt": rng.random() < 0.7,
        "reserve_output": rng.choice(["none", "none", "none", "full"]),
        "max_num_seqs": rng.choice([2, 4, 64]),
        "max_num_batched_tokens": rng.choice([3, 8, 24, 200]),
        "long_prefill_token_threshold": rng.choice([0, 0, 0, 5]),
    } | fixed
    policy = PoolPolicy.model_validate(knobs)
    longest = int((trace.num_prompt_tokens + trace.num_output_tokens).max())
    need = -(-longest // policy.block_size) + reserve
    return Case(trace, policy, rng.randint(need, need * 3), reserve)
