"""Generated sessions: a turn repeats all that was said, and comes a think time after the answer in front of it."""

from typing import Any

import numpy as np
import pytest

from tests.builders import build_engine
from trials.content import Content
from trials.documents import validated
from trials.fingerprint import trace_hash
from trials.generate import Preset, generate
from trials.load import offer
from trials.replay import replay
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.trace import NONE, STARTS, Trace
from trials.units import SpecError

BASE: dict[str, Any] = {
    "name": "made up", "rows": 500, "arrivals": {"kind": "poisson", "rps": 2.0},
    "prompt": {"kind": "uniform", "min": 20, "max": 90}, "output": {"kind": "uniform", "min": 1, "max": 30},
}  # fmt: skip
SESSIONS = {"turns": {"kind": "tabulated", "weights": {1: 1, 3: 2, 7: 1}},
            "new_tokens": {"kind": "uniform", "min": 2, "max": 9}, "think": "10s"}  # fmt: skip


def drawn(**changes: Any) -> Trace:
    return generate(validated(Preset, {**BASE, **changes}, "preset.yaml"))


def test_sessions_leave_their_first_turns_as_they_were() -> None:
    alone, talking = drawn(), drawn(sessions=SESSIONS)
    first = talking.parent == NONE
    for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens"):
        assert getattr(talking, name)[first].tolist() == getattr(alone, name).tolist()


def test_a_turn_repeats_prompt_and_answer_in_front_of_it_and_adds_to_them() -> None:
    trace = drawn(rows=40, sessions=SESSIONS)
    content = Content(trace)
    later = np.flatnonzero(trace.starts == STARTS["think"]).tolist()
    assert later
    for row in later:
        before = int(trace.parent[row])
        said = int(trace.num_prompt_tokens[before] + trace.num_output_tokens[before])
        assert trace.after.row(row).tolist() == [before]
        assert trace.session[row] == trace.session[before]
        assert trace.inherited_tokens[row] == said
        assert 2 <= trace.num_prompt_tokens[row] - said <= 9
        assert content.common_tokens(row, before) == said
        assert trace.arrival_ns[row] == trace.arrival_ns[before] + trace.think_ns[row]


def test_lengths_of_sessions_and_think_times_follow_their_laws() -> None:
    trace = drawn(rows=4_000, sessions=SESSIONS)
    turns = np.bincount(trace.session)
    assert {int(n): float((turns == n).mean()) for n in np.unique(turns)} == {
        1: pytest.approx(0.25, abs=0.03), 3: pytest.approx(0.5, abs=0.03), 7: pytest.approx(0.25, abs=0.03)
    }  # fmt: skip
    think = trace.think_ns[trace.starts == STARTS["think"]] / 1e9
    assert think.mean() == pytest.approx(10, rel=0.05)


def test_sessions_are_seeded_and_go_with_samples_and_cancels() -> None:
    more = {"sessions": SESSIONS, "forks": {"share": 0.1, "width": 2}, "cancels": {"share": 0.2, "patience": "9s"}}
    assert trace_hash(drawn(**more)) == trace_hash(drawn(**more))
    assert trace_hash(drawn(seed=1, **more)) != trace_hash(drawn(**more))
    trace = drawn(**more)
    assert {STARTS["arrival"], STARTS["think"], STARTS["fork"]} == set(trace.starts.tolist())
    assert (trace.cancel_after_ns >= 0).mean() == pytest.approx(0.2, abs=0.001)


def test_a_flood_of_turns_is_refused() -> None:
    flood = {**SESSIONS, "turns": {"kind": "fixed", "tokens": 1_000_000}}
    with pytest.raises(SpecError, match="500000000 turns are more than"):
        drawn(sessions=flood)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sessions": {"turns": {"kind": "fixed", "tokens": 2}}}, "sessions.new_tokens: this key is needed"),
        ({"sessions": {**SESSIONS, "think": "10"}}, "has no unit"),
        ({"forks": {"width": 3}}, "forks.share: this key is needed"),
        ({"cancels": {"share": 0.1}}, "cancels need after_tokens or patience"),
    ],
)
def test_a_bad_preset_names_the_key(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        drawn(**changes)


def test_closed_sessions_replay_a_think_time_after_the_answer_and_open_ones_at_their_stamps() -> None:
    trace = drawn(rows=20, sessions={**SESSIONS, "think": "50ms"})
    for sessions in ("open", "closed"):
        engine = build_engine(trace, PoolPolicy(), num_blocks=2_000)
        spec = TraceSpec(path="t", sessions=sessions)
        recorded = replay(engine, trace, offer(trace, spec, Load(rate_scale=1.0), "cold"))
        assert recorded.failed is None
        came, ended = recorded.requests.arrival_ns, recorded.requests.end_ns
        for row in range(len(trace)):
            before = int(trace.parent[row])
            if before < 0 or sessions == "open":
                assert came[row] == trace.arrival_ns[row]
            else:
                assert came[row] == ended[before] + trace.think_ns[row]
