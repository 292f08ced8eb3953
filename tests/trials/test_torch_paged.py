"""Plans on real tensors: the tokens are those of a model without a cache, whatever the blocks, and guards hold."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_torch_model import WholeSequence

from tests.builders import works_of
from trials.content import Content
from trials.engine import EngineFacts, PoolGeometry, Refused, StepShape, Work
from trials.engines.kernels.batch import BadBlock
from trials.engines.kernels.calls import num_signatures
from trials.engines.kernels.config import TorchConfig, kv_bytes, why_refused
from trials.engines.kernels.resident import PeakResident, release_freed_memory
from trials.engines.own import PagedEngine
from trials.engines.torch_model import LlamaModel
from trials.engines.torch_paged import PlanMismatch, TorchExecution, open_execution
from trials.model import ModelSpec
from trials.plan import Chunk, Plan, Run
from trials.ragged import Ragged
from trials.spec import PoolPolicy
from trials.trace import STARTS, Trace, TraceMeta, make_trace

MODEL = ModelSpec(
    num_layers=2, num_kv_heads=2, num_query_heads=4, head_dim=16, hidden_size=48,
    intermediate_size=40, vocab_size=97, kv_dtype="float32", dtype="float32",
)  # fmt: skip
MAX_LEN = 80
REQUESTS = {0: (1, 24), 1: (16, 20), 2: (33, 12), 3: (47, 30), 4: (15, 18), 5: (64, 16)}  # row: prompt, output
NO_SHAPE = StepShape(0, 0, 0, 0, 0, 0, 0, 0)


def prompt_of(row: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng(row + 50).integers(0, MODEL.vocab_size, REQUESTS[row][0])


def config(block: int, layout: str = "paged", num_tokens: int = 480, **other: object) -> TorchConfig:
    size = MAX_LEN if layout == "contiguous" else block
    per_token = MODEL.kv_bytes_per_token
    geometry = PoolGeometry(size, num_tokens // size, 0, per_token, 0, num_tokens * per_token, size, size)
    fixed = {"max_num_seqs": 8, "max_model_len": MAX_LEN, "max_num_batched_tokens": 64, "seed": 2}
    return TorchConfig(MODEL, geometry, layout=layout, **(fixed | other))  # type: ignore[arg-type]


def poison(execution: TorchExecution, blocks: list[int]) -> None:
    execution.attention.pool[:, :, blocks] = float("nan")


class Driver:
    """A scheduler in a few lines: all that decode, and one chunk of whoever comes first and is not computed yet."""

    def __init__(self, execution: TorchExecution, chunk: int = 24) -> None:
        self.execution, self.chunk = execution, chunk
        self.size = execution.config.geometry.block_size
        self.free = [int(b) for b in np.random.default_rng(9).permutation(execution.config.geometry.num_blocks)]
        self.runs: dict[int, Run] = {}
        self.step = 0
        poison(execution, self.free)

    def admit(self, row: int) -> Run:
        self.runs[row] = Run(row, *REQUESTS[row])
        return self.runs[row]

    def preempt(self, row: int) -> None:
        run = self.runs.pop(row)
        run.sampled, run.computed, run.began = run.sampled_at(self.step), 0, -1
        self._release(run)
        self.runs = {row: run, **self.runs}

    def _release(self, run: Run) -> None:
        poison(self.execution, run.table)
        self.free = run.table[::-1] + self.free
        run.table = []

    def _hold(self, run: Run, num_tokens: int) -> None:
        while len(run.table) * self.size < num_tokens:
            run.table.append(self.free.pop())

    def plan(self) -> Plan:
        decoding = {row: run for row, run in self.runs.items() if run.began >= 0}
        chunks = []
        for run in self.runs.values():
            known = run.known_at(self.step)
            if run.began < 0 and not chunks:
                count = min(self.chunk, known - run.computed)
                chunks.append(Chunk(run, run.computed, count, run.computed + count == known))
                self._hold(run, run.computed + count)
            elif run.began >= 0:
                self._hold(run, run.computed_at(self.step) + 1)
        return Plan(self.step, decoding, chunks, [], NO_SHAPE)

    def run_step(self, plan: Plan | None = None) -> tuple[int, int | None]:
        plan = plan or self.plan()
        spent = self.execution.execute(plan)
        self.step += 1
        for chunk in plan.chunks:
            chunk.run.computed += chunk.num_tokens
            if chunk.samples:
                chunk.run.sampled += 1
                chunk.run.began = self.step
        for row, run in list(self.runs.items()):
            if run.sampled_at(self.step) == run.num_output_tokens:
                del self.runs[row]
                self._release(run)
                self.execution.forget(row)
        return spent

    def serve(self, preempt: dict[int, int] | None = None) -> dict[int, list[int]]:
        """All requests, two at first and one more every third step; `preempt`: step -> row, if it runs then."""
        waiting = list(REQUESTS)
        while waiting or self.runs:
            if waiting and self.step % 3 == 0:
                self.admit(waiting.pop(0))
            victim = (preempt or {}).get(self.step)
            if victim in self.runs:
                self.preempt(victim)
            self.run_step()
        return {row: self.execution.delivered(row) for row in REQUESTS}


@pytest.fixture(scope="module")
def expected() -> dict[int, list[int]]:
    """Greedy answers of the same weights without a cache: the whole sequence is computed for every token."""
    weights = TorchExecution(config(16), prompt_of).model.weights
    model = LlamaModel(MODEL, weights, MAX_LEN, 1)
    answers = {}
    for row, (num_prompt, num_output) in REQUESTS.items():
        ids = prompt_of(row).tolist()
        for _ in range(num_output):
            hidden = model.forward(torch.tensor(ids), WholeSequence(MODEL, len(ids)))
            ids.append(int(model.logits(hidden, torch.tensor([len(ids) - 1])).argmax()))
        answers[row] = ids[num_prompt:]
    return answers


@pytest.mark.parametrize(
    ("block", "layout"),
    [(1, "paged"), (3, "paged"), (16, "paged"), (64, "paged"), (80, "paged"), (0, "contiguous")],
)
@pytest.mark.parametrize("preempted", [False, True])
def test_tokens_depend_on_neither_blocks_nor_preemption(
    block: int, layout: str, preempted: bool, expected: dict[int, list[int]]
) -> None:
    execution = TorchExecution(config(block, layout), prompt_of)
    execution.warm_up()
    preempt = {5: 0, 11: 1, 12: 3, 13: 1, 20: 3, 21: 2, 30: 5, 40: 5} if preempted else None
    assert Driver(execution).serve(preempt) == expected


@pytest.mark.parametrize("chunk", [1, 7, 56])
def test_tokens_do_not_depend_on_chunks(chunk: int, expected: dict[int, list[int]]) -> None:
    assert Driver(TorchExecution(config(4), prompt_of), chunk).serve({9: 0, 25: 4}) == expected


def test_answers_have_the_forced_length_and_vary(expected: dict[int, list[int]]) -> None:
    assert {row: len(tokens) for row, tokens in expected.items()} == {r: o for r, (_, o) in REQUESTS.items()}
    assert len({token for tokens in expected.values() for token in tokens}) > 20


def test_bfloat16_pool_serves_at_half_the_bytes() -> None:
    wide = config(4)
    model = MODEL.model_copy(update={"kv_dtype": "bfloat16"})
    old = wide.geometry
    half = replace(old, bytes_per_token=model.kv_bytes_per_token, pool_bytes=old.pool_bytes // 2)
    narrow = replace(wide, model=model, geometry=half)
    served = []
    for setting, chunk in ((narrow, 24), (narrow, 5)):
        execution = TorchExecution(setting, prompt_of)
        execution.warm_up()
        assert 2 * execution.device().pool == TorchExecution(wide, prompt_of).device().pool
        served.append(Driver(execution, chunk).serve({9: 0}))
    assert served[0] == served[1]  # what a prefill reads of itself is what it wrote


def test_a_replay_starts_from_nothing_and_answers_the_same(expected: dict[int, list[int]]) -> None:
    execution = TorchExecution(config(16), prompt_of)
    assert Driver(execution).serve() == expected
    execution.forget(0)
    assert execution.delivered(0) == expected[0]  # kept after the end, until the next replay
    execution.reset()
    with pytest.raises(KeyError):
        execution.delivered(0)
    assert Driver(execution).serve({7: 1}) == expected


def test_blocks_are_copied_before_anything_is_written(expected: dict[int, list[int]]) -> None:
    execution = TorchExecution(config(4), prompt_of)
    driver = Driver(execution)
    run = driver.admit(1)
    for _ in range(6):
        driver.run_step()
    plan = driver.plan()
    old, new = run.table[-1], driver.free.pop()
    run.table[-1] = new
    plan.copies = [(old, new)]
    before = execution.attention.pool[:, :, old].clone()
    driver.run_step(plan)
    tail = run.computed_at(driver.step - 1) % 4
    assert torch.equal(execution.attention.pool[:, :, new, :, :tail], before[:, :, :, :tail])
    assert torch.equal(execution.attention.pool[:, :, old].nan_to_num(), before.nan_to_num())  # left alone
    poison(execution, [old])
    while driver.runs:
        driver.run_step()
    assert execution.delivered(1) == expected[1]


def test_copies_happen_all_at_once() -> None:
    execution = TorchExecution(config(4), prompt_of)
    pool = execution.attention.pool
    pool[:, :, 0], pool[:, :, 1], pool[:, :, 2] = 10.0, 11.0, 12.0
    execution.execute(Plan(0, {}, [], [(0, 1), (1, 2)], NO_SHAPE))
    assert [float(pool[1, 1, block, 1, 3, 15]) for block in (0, 1, 2)] == [10.0, 10.0, 11.0]
    with pytest.raises(BadBlock, match="block 120"):
        execution.execute(Plan(0, {}, [], [(0, 120)], NO_SHAPE))


def test_preempted_requests_give_their_table_row_back(expected: dict[int, list[int]]) -> None:
    execution = TorchExecution(config(16, max_num_seqs=2), prompt_of)
    driver = Driver(execution)
    for row in (0, 1):
        driver.admit(row)
    for _ in range(4):
        driver.run_step()
    for row in (0, 1):
        driver.preempt(row)
    kept, driver.runs = driver.runs, {}
    driver.admit(2)
    for _ in range(3):
        driver.run_step()  # row 2 decodes in a table row that one of the others had
    for resumed in (1, 0):
        driver.runs[resumed] = kept[resumed]
        while len(driver.runs) == 2:
            driver.run_step()
    while driver.runs:
        driver.run_step()
    assert {row: execution.delivered(row) for row in (0, 1, 2)} == {row: expected[row] for row in (0, 1, 2)}


def test_nothing_is_compiled_after_the_warm_up() -> None:
    execution = TorchExecution(config(16), prompt_of)
    execution.warm_up()
    before = num_signatures()
    Driver(execution).serve({9: 0})
    assert num_signatures() == before


def test_a_block_that_is_not_there_stops_the_step() -> None:
    execution = TorchExecution(config(16), prompt_of)
    driver = Driver(execution)
    run = driver.admit(1)
    driver.run_step()
    plan = driver.plan()
    run.table[-1] = 30
    with pytest.raises(
        BadBlock, match="row 1: entry 1 of its block table is block 30; the pool has blocks 0 to 29"
    ):
        execution.execute(plan)


def test_contradictions_of_plan_and_tokens_are_named() -> None:
    execution = TorchExecution(config(16), prompt_of)
    run = Run(1, 16, 4, table=[0])
    with pytest.raises(
        PlanMismatch, match="row 1: a chunk to position 16 does not sample, but 16 tokens are known"
    ):
        execution.execute(Plan(0, {}, [Chunk(run, 0, 16, False)], [], NO_SHAPE))
    execution.execute(Plan(0, {}, [Chunk(run, 0, 16, True)], [], NO_SHAPE))
    run.computed = 16
    with pytest.raises(PlanMismatch, match="row 1: 1 blocks do not hold position 16"):
        execution.execute(Plan(1, {1: run}, [], [], NO_SHAPE))
    run.computed = 17
    with pytest.raises(PlanMismatch, match="row 1: decodes position 17, but 17 tokens are known"):
        execution.execute(Plan(1, {1: run}, [], [], NO_SHAPE))
    with pytest.raises(PlanMismatch, match="row 2: 30 prompt ids below 97 expected, got 33"):
        execution.execute(Plan(1, {}, [Chunk(Run(2, 30, 4, table=[1, 2]), 0, 8, False)], [], NO_SHAPE))
    with pytest.raises(ValueError, match=r"row 5: 6 blocks are more .* max_model_len needs \(5\)"):
        execution.execute(Plan(1, {}, [Chunk(Run(5, 64, 4, table=[1] * 6), 0, 8, False)], [], NO_SHAPE))


@pytest.mark.parametrize("clock", ["wall", "cpu"])
def test_attention_is_part_of_the_steps_time(clock: str) -> None:
    execution = TorchExecution(config(1, clock=clock), prompt_of)
    driver = Driver(execution)
    driver.admit(5)
    for _ in range(6):
        duration_ns, attention_ns = driver.run_step()
        assert attention_ns is not None
        assert 0 < attention_ns < duration_ns < 10**10


def test_device_accounts_are_the_tensors_storage() -> None:
    setting = config(16)
    execution = TorchExecution(setting, prompt_of)
    start = execution.warm_up()
    assert start.load_s > 0
    assert start.warmup_s > 0
    device = execution.device()
    assert device.pool == kv_bytes(setting) == setting.geometry.pool_bytes
    assert device.block_tables == 8 * (MAX_LEN // 16) * 4
    assert device.weights == MODEL.weights_bytes + 5 * 48 * 4
    assert device.workspace > 0
    assert device.observed >= device.resident > 0
    assert device.allocator_reserve > 0


def test_the_peak_outlives_the_memory_that_made_it() -> None:
    peak = PeakResident()
    peak.reset()
    low = peak.look()
    passing = np.ones(32 << 20, np.uint8)
    high = peak.look()
    del passing
    release_freed_memory()
    assert peak.look() < high
    assert peak.bytes >= high > low + (24 << 20)
    peak.reset()
    assert peak.bytes < high


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": MODEL.model_copy(update={"dtype": "bfloat16"})}, "walk computes in float32, not in bfloat16"),
        ({"model": MODEL.model_copy(update={"kv_dtype": "fp8"})}, "float32, bfloat16, not fp8"),
        ({"model": MODEL.model_copy(update={"head_dim": 15})}, "heads of multiples of 2, not of 15"),
        ({"model": MODEL.model_copy(update={"path": "weights/x"})}, "does not read 'weights/x'"),
        ({"model": MODEL.model_copy(update={"num_layers": 3})}, "must hold 768 bytes a token .* given 512"),
        ({"layout": "contiguous"}, "block_size 16 must be max_model_len 80"),
    ],
)
def test_what_cannot_run_is_refused_in_words(change: dict[str, object], words: str) -> None:
    assert why_refused(config(16)) is None
    refused = open_execution(replace(config(16), **change), prompt_of)  # type: ignore[arg-type]
    assert isinstance(refused, Refused)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(refused.words)


SHARED_ROWS = 24


def shared_trace() -> Trace:
    """Requests of three families; within a family prompts share their leading ids of 8 tokens."""
    rng = np.random.default_rng(1)
    prompts, outputs = rng.integers(1, 60, SHARED_ROWS), rng.integers(1, 40, SHARED_ROWS)
    shared = [int(rng.integers(0, prompt // 8 + 1)) for prompt in prompts]
    ids = [[100 * (row % 3) + n for n in range(count)] for row, count in enumerate(shared)]
    zero, none = np.zeros(SHARED_ROWS, np.int64), np.full(SHARED_ROWS, -1, np.int64)
    return Trace(
        arrival_ns=zero, num_prompt_tokens=prompts, num_output_tokens=outputs, session=none, priority=zero,
        parent=none, inherited_tokens=zero, starts=zero, think_ns=zero, cancel_after_ns=none,
        cancel_after_tokens=none, after=Ragged.empty(SHARED_ROWS), prefix_ids=Ragged.of(ids),
        meta=TraceMeta(tokens_per_id=8, tail_rule="floor"),
    )  # fmt: skip


def answers_of_the_engine(policy: PoolPolicy, num_tokens: int) -> tuple[dict[int, list[int]], int, int]:
    """The real scheduler over a tight pool: (tokens by row, preemptions, prefix tokens hit)."""
    trace = shared_trace()
    content = Content(trace)
    setting = config(
        policy.block_size, policy.layout, num_tokens, max_num_seqs=policy.max_num_seqs, max_model_len=120
    )
    size = 120 if policy.layout == "contiguous" else policy.block_size
    geometry = replace(setting.geometry, block_size=size, num_blocks=num_tokens // size)
    execution = TorchExecution(
        replace(setting, geometry=geometry), lambda row: content.prompt_tokens(row, MODEL.vocab_size)
    )
    facts = EngineFacts("torch_paged", "", "measured", "wall", (geometry,), 1, (), max_model_len=120)
    engine = PagedEngine(facts, policy, content, execution)
    engine.start(cold=True)
    poison(execution, list(range(geometry.num_blocks)))
    todo, preempted, hit, steps = list(range(SHARED_ROWS)), 0, 0, 0
    while True:
        if todo and steps % 2 == 0:
            row = todo.pop(0)
            assert (
                engine.add(Work(row, int(trace.num_prompt_tokens[row]), int(trace.num_output_tokens[row]))) is None
            )
        step = engine.step()
        steps += 1
        if step is not None:
            preempted += len(step.preempted)
            hit += sum(tokens for _, tokens in step.admitted)
        elif not todo:
            break
    answers = {row: execution.delivered(row) for row in range(SHARED_ROWS)}
    assert [len(answers[row]) for row in answers] == trace.num_output_tokens.tolist()
    return answers, preempted, hit


def test_tokens_depend_on_neither_sharing_nor_eviction_nor_preemption() -> None:
    shape = {"max_model_len": 120, "max_num_seqs": 12, "max_num_batched_tokens": 64}
    alone, preempted, hit = answers_of_the_engine(PoolPolicy(layout="contiguous", **shape), 4800)
    assert (preempted, hit) == (0, 0)
    for block, num_tokens in ((1, 170), (4, 180), (5, 200), (16, 208)):
        answers, preempted, hit = answers_of_the_engine(PoolPolicy(block_size=block, **shape), num_tokens)
        assert answers == alone
        assert preempted > 5
        assert hit > 20


def forking_trace() -> Trace:
    """Samples of one prompt, branches in mid-answer, forks of forks, a fork with a prompt of its own."""
    parents = [-1, 0, 0, 0, -1, 4, 5, 4, -1, 8, 9, 0]
    prompts = [21, 21, 21, 27, 32, 32, 32, 50, 9, 12, 12, 40]
    outputs = [24, 9, 1, 7, 20, 1, 12, 6, 20, 13, 9, 5]
    inherited = [0, 21, 21, 27, 0, 32, 32, 41, 0, 12, 12, 40]
    starts = [STARTS["arrival"] if parent < 0 else STARTS["fork"] for parent in parents]
    return make_trace(
        np.zeros(12, np.int64), np.array(prompts), np.array(outputs), parent=np.array(parents),
        inherited_tokens=np.array(inherited), starts=np.array(starts),
    )  # fmt: skip


def answers_of_forks(policy: PoolPolicy, num_tokens: int) -> tuple[dict[int, list[int]], int, int, int]:
    """(tokens by row, blocks copied, preemptions, forks that began on their parent's blocks)."""
    trace = forking_trace()
    content = Content(trace)
    setting = config(
        policy.block_size, policy.layout, num_tokens, max_num_seqs=policy.max_num_seqs, max_model_len=120
    )
    size = 120 if policy.layout == "contiguous" else policy.block_size
    geometry = replace(setting.geometry, block_size=size, num_blocks=num_tokens // size)
    execution = TorchExecution(
        replace(setting, geometry=geometry), lambda row: content.prompt_tokens(row, MODEL.vocab_size),
        content.inherits,
    )  # fmt: skip
    facts = EngineFacts("torch_paged", "", "measured", "wall", (geometry,), 1, (), max_model_len=120)
    engine = PagedEngine(facts, policy, content, execution)
    engine.start(cold=True)
    poison(execution, list(range(geometry.num_blocks)))
    for work in works_of(trace):
        assert engine.add(work) is None
    copied = preempted = shared = 0
    ended: list[int] = []
    while (step := engine.step()) is not None:
        copied += step.ledger[0].copied_blocks
        preempted += len(step.preempted)
        shared += len({row for row, _ in step.admitted} & set(step.started))
        ended += [row for row, _ in step.ended]
    assert sorted(ended) == list(range(12))
    at_once = [row for row in range(12) if trace.num_output_tokens[row] == 1 and trace.parent[row] >= 0]
    answers = {row: execution.delivered(row) for row in range(12) if row not in at_once}
    assert [len(tokens) for row, tokens in answers.items()] == [
        int(trace.num_output_tokens[row]) for row in answers
    ]
    return answers, copied, preempted, shared


def test_forks_that_share_blocks_say_what_they_would_say_alone() -> None:
    """Greedy tokens of forks under copy-on-write equal those of the same prompts served without any sharing."""
    shape = {"max_model_len": 120, "max_num_seqs": 16, "max_num_batched_tokens": 64}
    alone, copied, _, shared = answers_of_forks(PoolPolicy(layout="contiguous", **shape), 120 * 16)
    assert (copied, shared) == (0, 0)
    assert len({tuple(tokens[:5]) for tokens in alone.values()}) > 4
    preemptions = 0
    for block, num_tokens, other in (
        (16, 960, {}), (16, 960, {"prefix_caching": False}), (16, 1600, {"reserve_output": "full"}),
        (5, 100, {}), (4, 100, {"victim": "largest"}), (1, 90, {}), (8, 160, {"prefix_match": "partial"}),
    ):  # fmt: skip
        policy = PoolPolicy.model_validate({"block_size": block, "sharing": "cow"} | shape | other)
        answers, copied, preempted, shared = answers_of_forks(policy, num_tokens)
        assert answers == alone, policy
        assert shared >= 3
        assert copied > 1 or block == 1
        preemptions += preempted
    assert preemptions > 5


def test_partial_matches_leave_the_tokens_as_they_are() -> None:
    """What is copied out of another's block was computed there before: also where twins come together."""
    shape = {"max_model_len": 120, "max_num_seqs": 12, "max_num_batched_tokens": 64}
    alone, _, _ = answers_of_the_engine(PoolPolicy(layout="contiguous", **shape), 4800)
    for block, num_tokens in ((5, 200), (16, 224)):
        policy = PoolPolicy.model_validate({"block_size": block, "prefix_match": "partial"} | shape)
        answers, _, hit = answers_of_the_engine(policy, num_tokens)
        assert answers == alone
        assert hit > 20


_FRESH = """
import json, sys
from trials.engines.kernels.threads import prepare_process
prepare_process(int(sys.argv[1]))
from test_torch_paged import Driver, config, prompt_of
from trials.engines.torch_paged import open_execution
execution = open_execution(config(16, num_tokens=80_000, threads=int(sys.argv[1])), prompt_of)
tokens = Driver(execution).serve({9: 0})
device = execution.device()
print(json.dumps({"tokens": tokens, "residual": device.residual, "pool": device.pool}))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fresh_process_explains_its_memory_and_answers_the_same(
    threads: int, expected: dict[int, list[int]]
) -> None:
    here = Path(__file__).resolve().parent
    environment = os.environ | {"PYTHONPATH": f"{here.parents[1]}{os.pathsep}{here}"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _FRESH, str(threads)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert {int(row): tokens for row, tokens in answer["tokens"].items()} == expected
    assert answer["pool"] > 39 << 20
    assert abs(answer["residual"]) < 32 << 20
