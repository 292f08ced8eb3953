"""Cancels, samples and beams: exact shares, seeded, marked, in order, and a life that an engine can lead."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.builders import build_engine, build_trace
from trials.content import Content
from trials.engine import Outcome
from trials.fingerprint import trace_hash
from trials.load import offer
from trials.overlay import Beams, Cancels, Forks, Overlay, overlaid, stagger_sessions
from trials.replay import replay
from trials.spec import Load, PoolPolicy, TraceSpec
from trials.trace import COLUMNS, NONE, STARTS, Ragged, Trace, TraceError, make_trace, validate, with_links
from trials.units import SpecError

S = 10**9


def plain(rows: int = 200, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    return make_trace(
        np.sort(rng.integers(0, 60 * S, rows)), rng.integers(1, 300, rows), rng.integers(1, 120, rows)
    )


def cancels(**more: Any) -> Overlay:
    return Overlay(cancels=Cancels(**{"share": 0.15, **more}))


ALL = Overlay(
    forks=Forks(share=0.1, width=3),
    beams=Beams(share=0.2, width=3, every=8),
    cancels=Cancels(share=0.3, patience="2s"),
)


# --- seeds and marks


def test_the_same_seed_gives_the_same_trace_and_another_another() -> None:
    assert trace_hash(overlaid(plain(), ALL, 3)) == trace_hash(overlaid(plain(), ALL, 3))
    assert trace_hash(overlaid(plain(), ALL, 3)) != trace_hash(overlaid(plain(), ALL, 4))


def test_touched_columns_are_marked_and_what_was_done_is_told() -> None:
    trace = plain()
    assert overlaid(trace, cancels(patience="1s"), 7).meta.synthetic == ("cancel_after_ns",)
    assert overlaid(trace, cancels(after_tokens=9), 7).meta.synthetic == ("cancel_after_tokens",)
    done = overlaid(trace, ALL, 7)
    assert {"parent", "inherited_tokens", "starts", "num_output_tokens", "cancel_after_tokens"} <= set(
        done.meta.synthetic
    )
    assert [note.split(":")[0] for note in done.meta.notes] == ["overlay, seed 7"] * 3


def test_cancels_leave_all_other_columns_as_they_are() -> None:
    trace = plain()
    done = overlaid(trace, cancels(after_tokens=9, patience="1s"), 7)
    for name in COLUMNS:
        if not name.startswith("cancel"):
            assert getattr(done, name).tolist() == getattr(trace, name).tolist()


def test_another_share_of_samples_leaves_the_lengths_of_the_trace_alone() -> None:
    trace = plain()
    done = overlaid(trace, Overlay(forks=Forks(share=0.4, width=4)), 1)
    own = done.parent < 0
    for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens"):
        assert getattr(done, name)[own].tolist() == getattr(trace, name).tolist()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 30), seed=st.integers(0, 99), forks=st.floats(0, 1), beams=st.floats(0, 1),
    width=st.integers(2, 5), every=st.integers(2, 20), share=st.floats(0, 1),
)  # fmt: skip
def test_any_overlay_is_a_valid_trace_in_order(
    rows: int, seed: int, forks: float, beams: float, width: int, every: int, share: float
) -> None:
    overlay = Overlay(
        forks=Forks(share=forks, width=width), beams=Beams(share=beams, width=width, every=every),
        cancels=Cancels(share=share, after_tokens=5),
    )  # fmt: skip
    done = overlaid(plain(rows, seed), overlay, seed)
    validate(done)
    assert (np.diff(done.arrival_ns) >= 0).all()


# --- cancels


def test_exactly_the_asked_share_is_given_up() -> None:
    done = overlaid(plain(200), cancels(after_tokens=9), 0)
    assert int((done.cancel_after_tokens >= 0).sum()) == 30
    assert (done.cancel_after_tokens[done.cancel_after_tokens >= 0] >= 1).all()
    again = overlaid(done, cancels(share=1.0, patience="1s"), 0)
    assert int((again.cancel_after_ns >= 0).sum()) == 170  # those that have a cancel keep it


def test_tokens_before_a_cancel_are_geometric_and_patience_is_exponential() -> None:
    trace = plain(20_000)
    tokens = overlaid(trace, cancels(share=1.0, after_tokens=30), 1).cancel_after_tokens
    assert tokens.mean() == pytest.approx(30, rel=0.03)
    assert float((tokens > 60).mean()) == pytest.approx((1 - 1 / 30) ** 60, rel=0.05)
    waits = overlaid(trace, cancels(share=1.0, patience="5s"), 1).cancel_after_ns / S
    assert waits.mean() == pytest.approx(5, rel=0.03)
    assert waits.std() == pytest.approx(5, rel=0.05)


def test_a_burst_is_neighbours_given_up_at_one_moment() -> None:
    trace = plain(200)
    done = overlaid(trace, cancels(share=0.2, patience="3s", bursts=4), 5)
    rows = np.flatnonzero(done.cancel_after_ns >= 0)
    moments = Counter((done.arrival_ns + done.cancel_after_ns)[rows].tolist())
    assert sorted(moments.values()) == [10, 10, 10, 10]
    for moment in moments:
        group = rows[(done.arrival_ns + done.cancel_after_ns)[rows] == moment]
        assert group.tolist() == list(range(group[0], group[0] + 10))
        assert moment == int(trace.arrival_ns[group].max()) + 3 * S


# --- samples


def test_samples_fork_at_the_end_of_the_prompt_right_behind_their_parent() -> None:
    trace = plain(100)
    done = overlaid(trace, Overlay(forks=Forks(share=0.25, width=4)), 2)
    forks = np.flatnonzero(done.starts == STARTS["fork"])
    assert (len(forks), len(done)) == (75, 175)
    for row in forks.tolist():
        parent = int(done.parent[row])
        assert 1 <= row - parent <= 3
        assert done.num_prompt_tokens[row] == done.inherited_tokens[row] == done.num_prompt_tokens[parent]
        assert done.arrival_ns[row] == done.arrival_ns[parent]
        assert Content(done).common_tokens(row, parent) == done.num_prompt_tokens[parent]
    assert set(done.num_output_tokens[forks].tolist()) <= set(trace.num_output_tokens.tolist())


def test_samples_of_prompts_with_ids_share_the_whole_prompt() -> None:
    trace = build_trace([40, 40], [9, 9], ids=[[1, 2, 3], [1, 2, 4]])
    done = overlaid(trace, Overlay(forks=Forks(share=1.0, width=2)), 0)
    content = Content(done)
    assert [content.common_tokens(0, row) for row in (1, 2, 3)] == [40, 32, 32]


def test_links_of_the_trace_stay_what_they_were() -> None:
    trace = plain(6)
    linked = with_links(trace, Ragged.of([[], [0], [], [1, 2], [], [4]]))
    done = overlaid(linked, Overlay(forks=Forks(share=1.0, width=3)), 0)
    own = np.flatnonzero(done.starts != STARTS["fork"]).tolist()
    assert [[own.index(r) for r in done.after.row(row).tolist()] for row in own] == [[], [0], [], [1, 2], [], [4]]


# --- beams


def test_a_beam_search_keeps_its_width_and_ends_where_the_answer_does() -> None:
    trace = build_trace([50], [100])
    done = overlaid(trace, Overlay(beams=Beams(share=1.0, width=3, every=10)), 4)
    rounds = 9  # after 10, 20, ... 90 tokens of 100
    assert len(done) == 3 + rounds
    assert int((done.cancel_after_tokens >= 0).sum()) == rounds
    assert (done.num_prompt_tokens + done.num_output_tokens == 150).all()
    begins = done.num_prompt_tokens - 50
    ends = np.where(done.cancel_after_tokens >= 0, begins + done.cancel_after_tokens, 100)
    for token in range(100):
        assert int(((begins <= token) & (token < ends)).sum()) == 3


def test_a_beam_goes_on_from_a_living_one_in_mid_answer() -> None:
    done = overlaid(build_trace([50], [100]), Overlay(beams=Beams(share=1.0, width=3, every=10)), 4)
    content = Content(done)
    for row in range(1, len(done)):
        parent = int(done.parent[row])
        said = int(done.inherited_tokens[row] - done.num_prompt_tokens[parent])
        assert content.common_tokens(row, parent) == done.inherited_tokens[row]
        given_up = int(done.cancel_after_tokens[parent])
        assert given_up == NONE or given_up > said or said == 0


@pytest.mark.parametrize("sharing", ["prefix", "cow"])
def test_an_engine_leads_every_row_to_its_end(sharing: str) -> None:
    """Samples complete; of each beam search exactly `width` hypotheses do, and all others are given up."""
    trace = build_trace([40, 50, 60, 33, 47, 20] * 5, [30, 64, 20, 40, 21, 7] * 5, [float(n) for n in range(30)])
    for overlay in (Overlay(forks=Forks(share=0.5, width=3)), Overlay(beams=Beams(share=0.5, width=3, every=5))):
        done = overlaid(trace, overlay, 3)
        engine = build_engine(done, PoolPolicy(sharing=sharing), num_blocks=600)
        recorded = replay(engine, done, offer(done, TraceSpec(path="t"), Load(rate_scale=1.0), "cold"))
        assert recorded.failed is None
        assert not recorded.void_because
        assert not recorded.broken_laws
        outcomes = Counter(Outcome(int(o)) for o in recorded.requests.outcome)
        doomed = int((done.cancel_after_tokens >= 0).sum())
        assert outcomes == Counter({Outcome.COMPLETED: len(done) - doomed, Outcome.CANCELLED: doomed})


# --- refused


@pytest.mark.parametrize(
    ("law", "given", "reason"),
    [
        (Cancels, {"share": 0.5}, "after_tokens or patience"),
        (Cancels, {"share": 1.5, "patience": "1s"}, "less than or equal to 1"),
        (Cancels, {"share": 1.0, "patience": "99999d"}, "less than or equal to 72057594037927936"),
        (Cancels, {"share": 0.5, "after_tokens": 0}, "greater than or equal to 1"),
        (Cancels, {"share": 0.5, "after_tokens": 5, "bursts": 2}, "bursts need patience"),
        (Cancels, {"share": 0.5, "after_tokens": 5, "patience": "1s", "bursts": 2}, "no after_tokens"),
        (Cancels, {"share": 0.5, "patience": 0}, "greater than 0"),
        (Forks, {"share": 0.5, "width": 1}, "greater than or equal to 2"),
        (Beams, {"share": 0.5, "every": 1}, "greater than or equal to 2"),
        (Overlay, {}, "nothing to put on the trace"),
    ],
)
def test_what_cannot_be_put_on_a_trace_is_refused(law: Any, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        law(**given)


def test_what_does_not_fit_the_trace_is_refused() -> None:
    with pytest.raises(SpecError, match="too few for 50 bursts"):
        overlaid(plain(20), cancels(patience="1s", bursts=50), 0)
    with pytest.raises(SpecError, match="seed -1"):
        overlaid(plain(20), ALL, -1)


# --- sessions that begin apart


def sessions() -> Trace:
    trace = make_trace(
        np.array([0, 0, 0, 5, 5, 9]) * S, np.arange(1, 7), np.ones(6, np.int64),
        session=np.array([0, 1, NONE, 0, 1, 0]), parent=np.array([NONE, NONE, NONE, 0, 1, 3]),
    )  # fmt: skip
    return with_links(trace, Ragged.of([[], [], [], [0], [1], [3]]))


def test_sessions_begin_at_uniform_moments_and_nothing_moves_inside_them() -> None:
    done = stagger_sessions(sessions(), 60 * S, 8)
    assert done.arrival_ns[0] == 0
    assert (np.diff(done.arrival_ns) >= 0).all()
    for name, prompts in ((0, [1, 4, 6]), (1, [2, 5])):
        rows = np.flatnonzero(done.session == name)
        assert done.num_prompt_tokens[rows].tolist() == prompts
        assert np.diff(done.arrival_ns[rows]).tolist() == ([5 * S, 4 * S] if name == 0 else [5 * S])
        assert [done.after.row(r).tolist() for r in rows[1:].tolist()] == [[int(r)] for r in rows[:-1]]
    assert done.meta.synthetic == ("arrival_ns",)


def test_a_stagger_is_seeded_uniform_and_needs_a_width() -> None:
    rows = 3_000
    trace = make_trace(np.zeros(rows, np.int64), np.ones(rows, np.int64), np.ones(rows, np.int64),
                       session=np.arange(rows))  # fmt: skip
    done = stagger_sessions(trace, 60 * S, 1)
    assert np.histogram(done.arrival_ns, 4, (0, 60 * S))[0] == pytest.approx(np.full(4, rows / 4), rel=0.12)
    assert trace_hash(done) == trace_hash(stagger_sessions(trace, 60 * S, 1))
    assert trace_hash(done) != trace_hash(stagger_sessions(trace, 60 * S, 2))
    for width, seed in ((0, 0), (5, -1)):
        with pytest.raises(TraceError, match="a width and a seed from 0 are needed"):
            stagger_sessions(trace, width, seed)
