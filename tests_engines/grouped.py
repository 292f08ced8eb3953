"""Models of several KV groups on vLLM's own managers, stepped and recounted: what their tests share."""

from typing import Any

import numpy as np

from tests.contracts.engine_laws import MODEL, work
from trials.content import Content
from trials.engine import Engine, Refused, Step
from trials.engines import vllm_scheduler
from trials.ledger import ACCOUNTS, account_bytes, unbalanced_rows
from trials.recording import LEDGER_COLUMNS
from trials.recount import check_rows
from trials.spec import TrialSpec, trial_spec
from trials.trace import Trace

STEP_TIME = "linear:4000,40,10"
POLICY = {"block_size": 8, "max_model_len": 192, "max_num_seqs": 8, "max_num_batched_tokens": 64}
FULL = {"kind": "full", "num_layers": 2}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "sliding": [{"kind": "sliding_window", "window": 24, "num_layers": 6}, FULL],
    "sliding_alone": [{"kind": "sliding_window", "window": 24, "num_layers": 6}],
    "sliding_padded": [{"kind": "sliding_window", "window": 24, "num_layers": 5}, FULL],
    "wider_heads": [{"kind": "sliding_window", "window": 24, "num_layers": 4, "num_kv_heads": 4}, FULL],
    "odd_heads": [
        {"kind": "sliding_window", "window": 24, "num_layers": 4, "num_kv_heads": 3, "head_dim": 16},
        FULL,
    ],
    "chunked": [{"kind": "chunked_local", "window": 32, "num_layers": 6}, FULL],
    "latent": [{"kind": "mla", "latent_dim": 80, "num_layers": 4}],
    "states": [{"kind": "mamba", "state_bytes": 9000, "num_layers": 5}, FULL],
}


def spec_of(shape: str | list[dict[str, Any]], blocks: int = 120, ranks: int = 1, **policy: Any) -> TrialSpec:
    shape = SHAPES[shape] if isinstance(shape, str) else shape
    plain = {name: value for name, value in MODEL.items() if name != "num_layers"}
    return trial_spec({
        "engine": {"name": "vllm_scheduler", "step_time": STEP_TIME, "tensor_parallel_size": ranks,
                   "args": policy.pop("args", {})},
        "model": {**plain, "layers": shape}, "pool": policy.pop("pool", {"blocks": blocks}),
        "policy": POLICY | policy,
        "trace": {"path": "/none.parquet"}, "slo": "ttft:p99<60s", "phases": ["cold"],
    })  # fmt: skip


class Watched:
    """Steps an engine; after every step all groups and ranks are recounted and the pool adds up to the byte."""

    def __init__(self, spec: TrialSpec, trace: Trace) -> None:
        vllm_scheduler.prepare(spec)
        opened = vllm_scheduler.open(spec, Content(trace))
        assert not isinstance(opened, Refused), opened.words
        self.engine: Engine = opened
        self.trace, self.steps = trace, 0
        self.rows: list[tuple[int, ...]] = []
        self.hits: list[int] = []
        self.delivered: dict[int, int] = {}
        self.preempted = 0
        self._flowing: set[int] = set()
        self.engine.start(cold=True)

    def add(self, *rows: int) -> "Watched":
        for row in rows:
            assert self.engine.add(work(self.trace, row)) is None
        return self

    def step(self) -> Step | None:
        step = self.engine.step()
        if step is None:
            return None
        self.steps += 1
        assert self.steps < 5000, "no end"
        self.rows += [tuple(row) for row in step.ledger]
        self.hits += [hit for _, hit in step.admitted]
        self.preempted += len(step.preempted)
        self._flowing = (self._flowing | set(step.began)) - set(step.paused)
        for row in self._flowing:
            self.delivered[row] = self.delivered.get(row, 0) + 1
        self._flowing -= {row for row, _ in step.ended}
        assert check_rows(self.engine.ledger(), self.engine.audit().groups, self.engine.facts) == []
        return step

    def drain(self) -> "Watched":
        while self.step() is not None:
            pass
        return self

    def accounts(self) -> dict[str, np.ndarray]:
        facts = self.engine.facts
        columns = {name: np.array([r[i] for r in self.rows], np.int64) for i, name in enumerate(LEDGER_COLUMNS)}
        return account_bytes(columns, facts.groups, facts.ranks, facts.shared_pool)

    def adds_up(self) -> None:
        accounts = self.accounts()
        assert not len(unbalanced_rows(accounts))
        assert (np.sum([accounts[name] for name in ACCOUNTS], axis=0) == self.engine.facts.pool_bytes).all()
        assert all((accounts[name] >= 0).all() for name in ACCOUNTS)
