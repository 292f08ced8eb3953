"""The negative control: our scheduler with one rule broken at a time. The comparison must see every one.

Rules are those of vLLM v1's scheduler and pool; each is broken in one place (agreement_changes.py).
"""

import random
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.agreement_changes import Changed
from benchmarks.agreement_loads import Case
from benchmarks.agreement_pair import Script, replayed
from trials.spec import PoolPolicy
from trials.trace import Ragged, TraceMeta, make_trace


def _broken(rule: str, place: str, *changes: tuple[str, str]) -> Changed:
    return Changed(rule, f"trials.{place}", changes)


RULES = (
    _broken("ids are handed out from the highest", "block_pool:BlockPool.drop_cached",
            ("range(self.num_blocks - 1, self.reserve_blocks - 1, -1)",
             "range(self.reserve_blocks, self.num_blocks)")),
    _broken("hit tokens are charged to the budget", "scheduler:Scheduler._admit",
            ("left -= count", "left -= count + verdict.cached")),
    _broken("the last admitted is served first", "scheduler:Scheduler._serve_in_order",
            ("list(serving.running.values())", "list(serving.running.values())[::-1]")),
    _broken("a prefill takes room for one token more", "serving:Serving.compute",
            ("need = -(-end // size)", "need = -(-(end + 1) // size)")),
    _broken("one token more than asked is sampled", "decode_ring:DecodeRing.begin",
            ("run.num_output_tokens - run.sampled - 1", "run.num_output_tokens - run.sampled")),
    _broken("a preempted request restarts from its prompt", "serving:Serving.preempt",
            ("run.computed = 0", "run.computed = run.sampled = 0")),
    _broken("a prompt's blocks cannot be found while they are allocated", "serving:Serving.compute",
            ("if full > run.num_indexed:", "if False:")),
    _broken("blocks with answer tokens cannot be found", "scheduler:Scheduler.schedule",
            ("if filling := ring.filling(step):", "if False:")),
    _broken("the most recently released is evicted first", "idle_queue:LeastRecentlyUsed.put",
            ("self._blocks += blocks", "self._blocks[self._head : self._head] = blocks")),
    _broken("a lookup finds the newest copy", "prefix_index:PrefixIndex.add",
            ("self._younger.setdefault(key, []).append(block)",
             "self._younger.setdefault(key, []).append(self._oldest[key]); self._oldest[key] = block")),
    _broken("the newest copy takes the place of an evicted one", "prefix_index:PrefixIndex.drop",
            ("younger.pop(0)", "younger.pop()")),
    _broken("blocks without content go to the far end", "block_pool:BlockPool.release",
            ("self._blank += blank\n", "self._blank[:0] = blank\n")),
    _broken("a release begins with the first block", "block_pool:BlockPool.release",
            ("table[num_counted:full][::-1]", "table[num_counted:full]")),
    _broken("a hit may cover the last token", "admission:Admission._match",
            ("(known - 1) // self._size", "known // self._size")),
    _broken("after a preemption only the prompt is looked up", "admission:Admission._match",
            ("known = run.num_prompt_tokens + run.sampled", "known = run.num_prompt_tokens")),
    _broken("new blocks are taken before hits are held", "serving:Serving.take_in",
            ("fresh = pool.take(grant.claim)", "fresh = early"),
            ("if grant.hit:", "early = pool.take(grant.claim)\n    if grant.hit:")),
    _broken("only the first chunk must fit, whatever is reserved", "admission:Admission._weigh",
            ("if self._reserve_output or self._reserve_prompt:", "if self._reserve_output:")),
    _broken("room for the first answer token must be there too", "admission:Admission._weigh",
            ("upto = self._wanted(run)", "upto = self._wanted(run) + 1")),
    _broken("idle hit blocks are not counted as taken", "admission:Admission._weigh",
            ("if want + idle + margin > pool.available", "if want + margin > pool.available")),
    _broken("an idle engine keeps the watermark", "admission:Admission._weigh",
            ("margin = self._margin if num_running else 0", "margin = self._margin")),
    _broken("the watermark is rounded up", "admission:Admission.__init__",
            ("int(policy.watermark * pool.num_blocks)", "-int(-policy.watermark * pool.num_blocks // 1)")),
    _broken("the largest request is preempted", "scheduler:Scheduler.__init__",
            ("VICTIMS[policy.victim]", 'VICTIMS["largest"]')),
    _broken("a preempted request's content is forgotten", "serving:Serving.preempt",
            ("if self.pool.caching and full > run.num_indexed:", "if False:")),
    _broken("a preempted request goes to the back of the queue", "scheduler:Scheduler._make_room",
            ("enqueue(victim, back=True)", "enqueue(victim)")),
    _broken("a step that preempted admits", "scheduler:Scheduler._admit",
            ("if serving.changes.preempted:", "if False:")),
    _broken("the shortest waiting request goes first", "admission:Admission.__init__",
            ("QUEUES[policy.queue]", 'QUEUES["shortest_job"]')),
    _broken("an aborted request runs on", "scheduler:Scheduler.cancel",
            ("self._runs.pop(row, None)", "self._runs.get(row)"), ("self.serving.let_go(run)", "pass")),
    _broken("the last of those that finish releases first", "decode_ring:DecodeRing.advance",
            ("key=lambda run: run.admission", "key=lambda run: -run.admission")),
    _broken("the long-prefill threshold binds a lone request", "scheduler:Scheduler._most",
            ("if self.chunk_limit and len(self._runs) > 1", "if self.chunk_limit")),
    _broken("requests of all priorities queue by arrival", "admission:Admission.__init__",
            ("QUEUES[policy.queue]", 'QUEUES["fcfs"]')),
    _broken("the victim's priority does not count", "scheduler:Scheduler.__init__",
            ("VICTIMS[policy.victim]", 'VICTIMS["last_admitted"]')),
    _broken("a victim's budget is not given back", "scheduler:Scheduler._make_room",
            ("back += served.pop(victim.row)", "served.pop(victim.row)")),
)  # fmt: skip


HOT = 3  # row of the prompt that many repeat


def control_cases() -> list[Case]:
    """Small made-up loads in which every rule matters: short of blocks, sharing, quoting, aborting."""
    policies = (
        (10, 131, {"block_size": 4, "watermark": 0.05}),
        (2, 29, {"block_size": 16, "reserve_prompt": False, "long_prefill_token_threshold": 24}),
        (12, 150, {"block_size": 4, "queue": "priority", "victim": "priority", "prefix_caching": False,
                   "reserve_prompt": False, "max_num_batched_tokens": 24, "long_prefill_token_threshold": 8}),
        (4, 107, {"block_size": 4, "watermark": 0.2}),
        (13, 60, {"block_size": 16}),
    )  # fmt: skip
    common = {"max_model_len": 400, "max_num_seqs": 24, "max_num_batched_tokens": 64}
    return [
        _made(seed, PoolPolicy.model_validate({**common, **policy}), blocks) for seed, blocks, policy in policies
    ]


def _made(seed: int, policy: PoolPolicy, num_blocks: int) -> Case:
    """90 requests: shared beginnings, exact repeats, turns that quote the answer before them, lone long prompts."""
    rng = random.Random(f"control/{seed}")
    prompts: list[int] = []
    outputs: list[int] = []
    ids: list[list[int]] = []
    parents: list[int] = []
    inherited: list[int] = []
    due, at = [], 0
    for row in range(90):
        kind: float = 0.4 if row == HOT else rng.random()
        parent, inherits, names = -1, 0, list[int]()
        prompt, output = rng.randint(1, 120), rng.choice((1, 2, rng.randint(1, 80), rng.randint(60, 200)))
        if kind < 0.3:  # a beginning that others have too; ids of 10 tokens never meet a block's end
            names = [1000 * rng.randrange(2) + k for k in range(min(prompt // 10, rng.randint(1, 8)))]
        elif kind < 0.5:  # one prompt of whole blocks, again and again, now and then with more behind it
            parent, inherits = (HOT, 64) if row > HOT else (-1, 0)
            prompt = 64 + rng.choice((0, 0, 0, 20)) * (row > HOT)
        elif kind < 0.75 and row:  # the next turn: context and a part of the answer, then something new
            parent = rng.randrange(max(0, row - 15), row)
            inherits = min(prompts[parent] + rng.randint(0, outputs[parent]), 280)
            prompt = inherits + rng.randint(0, 30)
        elif kind < 0.78:
            prompt = 380
        prompts.append(max(prompt, 1))
        outputs.append(min(output, policy.max_model_len - prompts[-1]))
        ids.append(names)
        parents.append(parent)
        inherited.append(inherits)
        at += rng.choice((0, 0, 30, 60, 2500 if kind > 0.97 else 90)) * 1_000_000
        due.append(at)
    trace = make_trace(
        np.asarray(due, np.int64), np.asarray(prompts, np.int64), np.asarray(outputs, np.int64),
        prefix_ids=Ragged.of(ids), meta=TraceMeta(tokens_per_id=10, tail_rule="floor"),
        parent=np.asarray(parents, np.int64), inherited_tokens=np.asarray(inherited, np.int64),
    )  # fmt: skip
    priorities = [rng.randrange(3) for _ in range(len(trace))]
    return Case(trace, policy, num_blocks, due, priorities, abort_share=0.15, forks=seed == 4, seed=seed)


@dataclass(frozen=True, slots=True)
class Caught:
    """Where a broken rule first showed; step -1: nowhere."""

    rule: str
    load: int
    step: int
    fields: str


def caught(broken: Changed, scripts: list[Script]) -> Caught:
    """Run our scheduler with the rule broken through the kept loads until a step differs."""
    with broken.applied():
        for number, script in enumerate(scripts, start=1):
            step = -1
            try:
                for step, names in enumerate(replayed(script)):
                    names = [name for name in names if name != "refusal"]  # vLLM does not say it; ours is derived
                    if names:
                        return Caught(broken.rule, number, step, ", ".join(names[:3]))
            except Exception as error:  # a broken rule may also break a law of the pool, which says so
                return Caught(broken.rule, number, step + 1, f"{type(error).__name__}: {error}"[:60])
    return Caught(broken.rule, 0, -1, "")
