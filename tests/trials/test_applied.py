"""A knob that is recorded and not applied is seen in what the engine did; one that is applied never is."""

from dataclasses import replace

import pytest

from tests.builders import build_engine, build_trace
from trials.applied import unapplied
from trials.load import offer
from trials.replay import replay
from trials.spec import Load, PoolPolicy, TraceSpec

PROMPTS = [40, 80, 25, 60, 33, 90] * 3
TRACE = build_trace(
    PROMPTS, [12, 30, 4, 8, 25, 17] * 3, [5.0 * k for k in range(18)],
    ids=[[7, 8, 9 + k % 2, 20 + k, 50 + k, 80 + k][: -(-p // 16)] for k, p in enumerate(PROMPTS)],
)  # fmt: skip


def served(**policy):
    """(replay, facts) of an engine that applies all of it."""
    engine = build_engine(TRACE, PoolPolicy(max_num_batched_tokens=128, **policy), 24)
    return replay(engine, TRACE, offer(TRACE, TraceSpec(path="none"), Load(rate_scale=1.0), "cold")), engine.facts


def saying(facts, **knobs):
    """The same facts with other words for some knobs."""
    return replace(facts, effective=tuple(sorted((dict(facts.effective) | knobs).items())))


def test_knobs_that_were_applied_leave_nothing_to_say() -> None:
    for policy in (
        {},
        {"watermark": 0.2},
        {"max_num_seqs": 2},
        {"prefix_caching": False},
        {"reserve_output": "full"},
    ):
        assert unapplied(*served(**policy)) == []


@pytest.mark.parametrize(
    ("name", "word"),
    [("max_num_seqs", "2"), ("max_num_batched_tokens", "32"), ("max_model_len", "100"), ("prefix_caching", "False"),
     ("watermark", "0.6")],
)  # fmt: skip
def test_a_knob_that_is_only_said_is_named_with_what_was_done(name: str, word: str) -> None:
    done, facts = served()
    (said,) = unapplied(done, saying(facts, **{name: word}))
    assert said.startswith(f"knob {name} is recorded as {word} and was not applied: ")
    assert unapplied(done, replace(saying(facts, **{name: word}), not_applicable=(name,))) == []
