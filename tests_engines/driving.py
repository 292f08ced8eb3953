"""Specs, traces and a plain driver for engines that compute: everything is counted and audited at every step."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.contracts.engine_laws import forks_of, work
from trials.content import Content
from trials.engine import Engine, Outcome, Step
from trials.engines.shapes import llama_config
from trials.ragged import Ragged
from trials.recount import check_row
from trials.spec import TrialSpec, trial_spec
from trials.trace import STARTS, Trace, TraceMeta, make_trace, with_links

ROOT = Path(__file__).parent.parent
MODEL = {
    "num_layers": 2, "num_kv_heads": 2, "num_query_heads": 4, "head_dim": 32, "hidden_size": 64,
    "intermediate_size": 96, "vocab_size": 512, "kv_dtype": "float32", "dtype": "float32",
}  # fmt: skip


def make_spec(name: str, block_size: int, num_blocks: int, path: str = "none.parquet", **more: Any) -> TrialSpec:
    """A small model in float32. `more`: policy fields, or parts of engine, model and (played) trace."""
    own, played = more.pop("engine", {}), more.pop("played", {})
    model = more.pop("model", {})
    model = model if "path" in model else MODEL | model
    policy = {
        "block_size": block_size, "max_model_len": 192, "max_num_seqs": 8, "max_num_batched_tokens": 64,
    } | more  # fmt: skip
    return trial_spec(
        {
            "engine": {"name": name, "threads": 1, **own}, "model": model, "pool": {"blocks": num_blocks},
            "policy": policy, "trace": {"path": path} | played, "slo": "ttft:p99<60s;itl:p99<60s", "seed": 3,
        }
    )  # fmt: skip


def make_requests(
    prompts: Sequence[int], outputs: Sequence[int], ids: Sequence[Sequence[int]] | None = None, per: int = 16
) -> Trace:
    """All at once; prefix ids of `per` tokens, the rest of each prompt private."""
    n = len(prompts)
    meta = TraceMeta(tokens_per_id=per if ids else 0, tail_rule="floor")
    ragged = Ragged.of([list(i) for i in ids]) if ids else None
    return make_trace(np.zeros(n, np.int64), np.array(prompts), np.array(outputs), prefix_ids=ragged, meta=meta)


def make_forks(prompt: int, output: int, inherited: Sequence[int], more: int = 8) -> Trace:
    """Row 0, and forks of it that inherit so many tokens, add `more` of their own and answer five."""
    prompts, outputs = [prompt, *(i + more for i in inherited)], [output, *[5] * len(inherited)]
    return forks_of(make_requests(prompts, outputs), inherited)


def make_session(turns: Sequence[tuple[int, int]]) -> Trace:
    """A conversation: each turn (new prompt tokens, answer tokens) repeats all that was told and said before it."""
    n, held, inherited = len(turns), 0, list[int]()
    for new, output in turns:
        inherited.append(held)
        held += new + output
    trace = make_trace(
        np.zeros(n, np.int64), np.array([i + new for i, (new, _) in zip(inherited, turns, strict=True)]),
        np.array([output for _, output in turns]),
    )  # fmt: skip
    linked = replace(
        trace, parent=np.arange(-1, n - 1), inherited_tokens=np.array(inherited), session=np.zeros(n, np.int64),
        starts=np.array([STARTS["arrival"], *[STARTS["think"]] * (n - 1)]),
    )  # fmt: skip
    return with_links(linked, Ragged.of([[], *([row] for row in range(n - 1))]))


def make_folder(folder: Path, weights: bool) -> Path:
    """A model's folder of MODEL's shape as it would be published, with weights of its own or without."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **llama_config(make_spec("simulator", 16, 9, engine={"step_time": "constant:1"}).model, 192)
    )
    if weights:
        torch.manual_seed(11)
        LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    return folder


def picks_of(folder: Path, trace: Trace, row: int) -> list[int]:
    """What the folder's own model says greedily at each place of a row's recorded answer."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    tokens = Content(trace).row_tokens(row, MODEL["vocab_size"])
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)[None]).logits[0]
    first = int(trace.num_prompt_tokens[row]) - 1
    return logits[first : len(tokens) - 1].argmax(-1).tolist()


@dataclass
class Driver:
    """Steps an engine, counts what each step delivers by the contract's words, and audits after every step."""

    engine: Engine
    trace: Trace
    delivered: dict[int, int] = field(default_factory=dict)
    flowing: set[int] = field(default_factory=set)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    hits: dict[int, int] = field(default_factory=dict)
    started: list[tuple[int, int]] = field(default_factory=list)  # (row, step)
    preempted: list[tuple[int, int]] = field(default_factory=list)
    ledger: list[tuple[int, ...]] = field(default_factory=list)
    steps: int = 0

    def add(self, rows: Iterable[int]) -> None:
        for row in rows:
            assert self.engine.add(work(self.trace, row)) is None

    def step(self) -> Step | None:
        step = self.engine.step()
        if step is None:
            return None
        for row in step.paused:
            assert row in self.flowing, f"row {row} paused, but delivered nothing in the step before"
            self.flowing.discard(row)
        for row in step.began:
            assert row not in self.flowing, f"row {row} began twice"
            self.flowing.add(row)
        for row, outcome in step.ended:
            assert row not in self.outcomes, f"row {row} ended twice"
            self.outcomes[row] = outcome
            if outcome is not Outcome.COMPLETED:
                self.flowing.discard(row)
        for row in self.flowing:
            self.delivered[row] = self.delivered.get(row, 0) + 1
        self.flowing -= self.outcomes.keys()
        for row, hit in step.admitted:
            self.hits.setdefault(row, hit)
        self.started += [(row, self.steps) for row in step.started]
        self.preempted += step.preempted
        self.ledger += [tuple(row) for row in step.ledger]
        self._balance(step)
        self.steps += 1
        self.check()
        return step

    def _balance(self, step: Step) -> None:
        (geometry,) = self.engine.facts.groups
        for row in step.ledger:
            inside = row.payload_tokens + row.tail_slack_tokens + row.reserved_ahead_tokens
            outside = row.cached_blocks + row.free_blocks + row.reserve_blocks
            assert inside + outside * geometry.block_size == geometry.num_blocks * geometry.block_size
        assert step.shape.num_decodes + step.shape.num_chunks <= step.num_running

    def check(self) -> None:
        """The running accounts against a recount of the engine's raw tables."""
        (row,), audit = self.engine.ledger(), self.engine.audit()
        assert check_row(row, audit.groups[0], self.engine.facts.groups[0]) == []

    def drain(self, most: int = 3000) -> "Driver":
        while self.step() is not None:
            assert self.steps < most, "no end"
        return self


def serve(engine: Engine, trace: Trace, rows: Iterable[int] | None = None) -> Driver:
    """A cold start, all rows at once, and the end."""
    engine.start(cold=True)
    driver = Driver(engine, trace)
    driver.add(range(len(trace)) if rows is None else rows)
    return driver.drain()


def is_empty(engine: Engine) -> bool:
    """Nothing is held: every block is free, cached or never handed out."""
    (row,), geometry = engine.ledger(), engine.facts.groups[0]
    held = row.payload_tokens + row.tail_slack_tokens + row.logical_tokens
    return not held and row.free_blocks + row.cached_blocks + row.reserve_blocks == geometry.num_blocks


def expected_hits(content: Content, trace: Trace, order: Sequence[int], block_size: int) -> dict[int, int]:
    """What each row of an ample pool finds when rows come one after the other: the content tree's own answer."""
    out: dict[int, int] = {}
    for place, row in enumerate(order):
        prompt = int(trace.num_prompt_tokens[row])
        common = 0
        for other in order[:place]:
            # The last token of an answer is never cached.
            held = int(trace.num_prompt_tokens[other] + trace.num_output_tokens[other]) - 1
            common = max(common, min(content.common_tokens(row, other), held))
        out[row] = min(common, prompt - 1) // block_size * block_size
    return out


def run_worker(spec: TrialSpec, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The worker as a trial gets it, in `folder`; with `arguments`, what it is asked in place of a trial."""
    path = folder / "spec.json"
    path.write_text(spec.model_dump_json())
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": str(folder)}
    command = [sys.executable, "-P", "-m", "trials.worker", *arguments, str(path)]
    command += [] if arguments else [str(folder)]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=280)
