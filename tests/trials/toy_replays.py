"""Replays made by hand, and by a dumb server that keeps every token's time, to check the measurement against."""

import random
from dataclasses import dataclass, field

import numpy as np

from trials.engine import Cause, EngineFacts, Outcome, PoolGeometry
from trials.recording import LEDGER_COLUMNS, STEP_COLUMNS, Replay, Requests

MS = 1_000_000


def make_facts(block_size=16, num_blocks=100, bytes_per_token=64, reserve=0, padding=0, extra=0, ranks=1):
    block = block_size * bytes_per_token + padding
    group = PoolGeometry(
        block_size,
        num_blocks,
        reserve,
        bytes_per_token,
        padding,
        num_blocks * block + extra,
        block_size,
        block_size,
    )
    return EngineFacts("toy", "e" * 8, "modelled", "virtual", (group,), ranks, ())


@dataclass
class Line:
    """A request by hand: `runs` are (first step, tokens)."""

    arrival_ns: int
    prompt: int
    asked: int
    runs: list = field(default_factory=list)
    outcome: Outcome = Outcome.COMPLETED
    counted: int = 1
    preemptions: int = 0
    recomputed: int = 0
    cached: int = 0
    admitted_step: int | None = None


def make_steps(durations_ns, idle=(), gap_ns=0, **columns):
    n = len(durations_ns)
    steps = {name: np.zeros(n, np.int64) for name in STEP_COLUMNS}
    steps["duration_ns"] = np.asarray(durations_ns, np.int64)
    steps["start_ns"] = np.concatenate([[0], np.cumsum(steps["duration_ns"] + gap_ns)[:-1]]).astype(np.int64)
    steps["attention_ns"][:] = -1
    steps["refusal_row"][:] = -1
    steps["idle"][list(idle)] = 1
    for name, values in columns.items():
        steps[name] = np.asarray(values, np.int64)
    return steps


def make_ledger(num_steps, facts, **columns):
    """Rows of one lane; an empty pool unless said otherwise."""
    ledger = {name: np.zeros(num_steps, np.int64) for name in LEDGER_COLUMNS}
    group = facts.groups[0]
    ledger["free_blocks"][:] = group.num_blocks - group.reserve_blocks
    ledger["reserve_blocks"][:] = group.reserve_blocks
    for name, values in columns.items():
        ledger[name] = np.asarray(values, np.int64)
    return ledger


def make_requests(lines, steps):
    end = steps["start_ns"] + steps["duration_ns"]
    rows = []
    for row, line in enumerate(lines):
        first = int(end[line.runs[0][0]]) if line.runs else -1
        last = max((int(end[f + n - 1]) for f, n in line.runs), default=-1)
        step = line.admitted_step if line.admitted_step is not None else (line.runs[0][0] if line.runs else -1)
        admitted = int(steps["start_ns"][step]) if step >= 0 else -1
        delivered = sum(n for _, n in line.runs)
        times = (line.arrival_ns, 0, -1, admitted, first, last, last)
        tokens = (line.prompt, line.asked, delivered, line.cached, line.recomputed)
        rows.append((row, *times, int(line.outcome), *tokens, line.preemptions, line.counted))
    table = np.asarray(rows, np.int64).reshape(len(lines), 16)
    return Requests(*(np.ascontiguousarray(table[:, i]) for i in range(16)))


def make_replay(lines, durations_ns, facts=None, window_ns=None, idle=(), gap_ns=0, steps=None, ledger=None):
    facts = facts or make_facts()
    columns = make_steps(durations_ns, idle, gap_ns, **(steps or {}))
    runs = [(row, f, n) for row, line in enumerate(lines) for f, n in line.runs]
    table = np.asarray(runs, np.int64).reshape(len(runs), 3)
    finish = int(columns["start_ns"][-1] + columns["duration_ns"][-1])
    return Replay(
        phase="cold", load="rate_scale 1", clock="virtual", steps=columns,
        ledger=make_ledger(len(durations_ns), facts, **(ledger or {})), requests=make_requests(lines, columns),
        runs=(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()),
        window_ns=window_ns or (0, finish), drain_end_ns=finish,
    )  # fmt: skip


@dataclass
class Served:
    """What the dumb server knows of one request."""

    line: Line
    tokens_ns: list = field(default_factory=list)
    stays: list = field(default_factory=list)  # per stay in the pool: [(step, tokens held)]
    running: bool = False


def toy_server(seed, num_requests=12, block_size=4, facts=None, trouble=0.0):
    """(Replay, [Served], facts). One token a step each; `trouble`: chance of a preemption or pause."""
    rng = random.Random(seed)
    facts = facts or make_facts(
        block_size=block_size, num_blocks=4000, bytes_per_token=3, reserve=2, padding=5, extra=7
    )
    arrivals = sorted(rng.randrange(400 * MS) for _ in range(num_requests))
    all_served = [Served(Line(at, rng.randint(1, 20), rng.randint(1, 12), counted=int(rng.random() < 0.8)))
                  for at in arrivals]  # fmt: skip
    now, step, rows, durations, idle = 0, 0, [], [], []
    waiting, running, due = [], [], list(all_served)
    while due or waiting or running:
        while due and due[0].line.arrival_ns <= now:
            waiting.append(due.pop(0))
        if not waiting and not running:
            durations.append(due[0].line.arrival_ns - now)
            idle.append(step)
            rows.append((0, 0, 0, 0, 0))
            now, step = due[0].line.arrival_ns, step + 1
            continue
        paused = None
        if len(running) > 1 and rng.random() < trouble:
            paused = running[-1]
            if rng.random() < 0.5:  # preempted: its blocks are gone
                running.pop()
                waiting.insert(0, paused)
                paused.line.preemptions += 1
                paused.line.recomputed += paused.line.prompt + len(paused.tokens_ns) - 1
        while waiting and len(running) < 4 and waiting[0] is not paused:
            running.append(waiting.pop(0))
            running[-1].stays.append([])
        duration = rng.randint(1, 60) * MS // 3
        now += duration
        durations.append(duration)
        payload = slack = 0
        for served in list(running):
            line = served.line
            held = line.prompt + len(served.tokens_ns) - (1 if served is paused else 0)
            served.stays[-1].append((step, held))
            payload, slack = payload + held, slack + -held % block_size
            if served is paused:
                continue
            if line.runs and line.runs[-1][0] + line.runs[-1][1] == step and len(served.stays[-1]) > 1:
                line.runs[-1] = (line.runs[-1][0], line.runs[-1][1] + 1)
            else:
                line.runs.append((step, 1))
            served.tokens_ns.append(now)
            if len(served.tokens_ns) == line.asked:
                running.remove(served)
        rows.append((payload, slack, len(waiting), sum(s.line.prompt for s in waiting), len(running)))
        step += 1
    group = facts.groups[0]
    table = np.asarray(rows, np.int64)
    live = (table[:, 0] + table[:, 1]) // block_size
    replay = make_replay(
        [s.line for s in all_served], durations, facts, idle=idle,
        steps={"num_waiting": table[:, 2], "waiting_tokens": table[:, 3], "num_running": table[:, 4],
               "refusal_cause": np.where(table[:, 2] > 0, int(Cause.SLOTS), 0)},
        ledger={"payload_tokens": table[:, 0], "logical_tokens": table[:, 0], "tail_slack_tokens": table[:, 1],
                "free_blocks": group.num_blocks - group.reserve_blocks - live},
    )  # fmt: skip
    return replay, all_served, facts
