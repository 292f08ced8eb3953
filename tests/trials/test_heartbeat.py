"""How far a replay is, said now and then; what it comes to is the same with and without."""

import itertools
import re

import numpy as np

from tests.builders import build_engine
from trials.heartbeat import Heartbeat
from trials.load import offer
from trials.replay import replay
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.trace import make_trace

TRACE = make_trace(np.arange(200) * 1_000_000, np.full(200, 20), np.full(200, 8))
OFFER = offer(TRACE, TraceSpec(path="t"), Load(rate_scale=1.0), "cold")


def _replayed(rule):
    return replay(build_engine(TRACE, PoolPolicy()), TRACE, OFFER, 0, rule)


def test_it_is_said_once_a_second_how_far_a_replay_is() -> None:
    said: list[str] = []
    ticks = itertools.count(step=0.6)
    _replayed(Heartbeat(OFFER, "simulated", said.append, lambda: next(ticks)))
    assert said
    pattern = r"cold rate_scale=1: (\d+) of 200 requests, \d+\.\d of 0\.2 s of simulated time"
    done = [int(re.fullmatch(pattern, line)[1]) for line in said]
    assert done == sorted(done)
    assert done[-1] <= 200


def test_a_heartbeat_moves_nothing_and_hides_no_rule() -> None:
    ticks = itertools.count()
    watched, plain = _replayed(Heartbeat(OFFER, "engine", lambda _: None, lambda: next(ticks))), _replayed(None)
    assert watched.drain_end_ns == plain.drain_end_ns
    for name in plain.steps:
        assert np.array_equal(watched.steps[name], plain.steps[name])
    stopped = _replayed(Heartbeat(OFFER, "engine", print, lambda: 0.0, lambda recorder, now: "enough"))
    assert stopped.stopped_early == "enough"
