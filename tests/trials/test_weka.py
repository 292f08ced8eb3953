"""Agent sessions: marks that are ends, ids of the session's own, whom a turn waits for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trials.content import Content
from trials.describe import describe, ideal_hits
from trials.fingerprint import trace_hash
from trials.formats.weka import read
from trials.trace import STARTS, Trace, TraceError

S = 10**9


def call(t: float, prompt: int = 64, output: int = 5, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    ids = list(range(1, prompt // 64 + 1)) if ids is None else ids
    return {"t": t, "type": "n", "in": prompt, "out": output, "hash_ids": ids, "api_time": 1.0, **more}


def agent(t: float, duration_ms: int | None, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"type": "subagent", "t": t, "duration_ms": duration_ms, "requests": list(calls)}


def session(folder: Path, *requests: dict[str, Any], name: str = "s", **more: Any) -> Path:
    path = folder / f"{name}.json"
    told = {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **more}
    path.write_text(json.dumps(told))
    return path


def links(trace: Trace) -> list[tuple[int, list[int]]]:
    return [(int(trace.arrival_ns[r]), trace.after.row(r).tolist()) for r in range(len(trace))]


def test_a_sub_agents_mark_is_its_end(tmp_path: Path) -> None:
    """A mark at 20.5 s of one that took 7.5 s: its call at 2 s of its own clock stands at 15 s."""
    trace = read([session(tmp_path, call(0), agent(20.5, 7500, call(0), call(2)), call(30))])
    assert [t / S for t, _ in links(trace)] == [0, 13, 15, 30]


def test_a_spawn_follows_the_turn_in_front_of_it_and_the_next_turn_behind_its_end_joins_it(tmp_path: Path) -> None:
    trace = read([session(tmp_path, call(0), agent(8, 5000, call(0), call(2)), call(12), call(20))])
    assert [after for _, after in links(trace)] == [[], [0], [1], [0, 2], [3]]
    assert trace.think_ns.tolist() == [0, 2 * S, 1 * S, 6 * S, 7 * S]  # the join: 12 s - the agent's last end, 6 s


def test_an_open_and_an_undisturbed_closed_replay_have_the_same_stamps(tmp_path: Path) -> None:
    """Think time is the stamp less the end of the last that is waited for, so both agree as recorded."""
    trace = read([session(tmp_path, call(0), call(3), agent(9, 4000, call(0), call(2)), call(10), call(11))])
    for row in range(1, len(trace)):
        ended = max(int(trace.arrival_ns[before]) + S for before in trace.after.row(row).tolist())
        assert trace.arrival_ns[row] == max(ended + trace.think_ns[row], ended)


def test_a_turn_between_start_and_end_of_a_sub_agent_does_not_wait_for_it(tmp_path: Path) -> None:
    """Started at 2 s after the turn at 0 s, over at 8 s: the turn at 4 s runs beside it, the one at 9 s joins."""
    trace = read([session(tmp_path, call(0), call(4), agent(8, 6000, call(0)), call(9))])
    assert links(trace) == [(0, []), (2 * S, [0]), (4 * S, [0]), (9 * S, [1, 2])]


def test_a_sub_agent_without_a_duration_begins_at_its_mark_and_nobody_waits(tmp_path: Path) -> None:
    trace = read([session(tmp_path, call(0), agent(5, None, call(0), call(3)), call(20))])
    assert links(trace) == [(0, []), (5 * S, [0]), (8 * S, [1]), (20 * S, [0])]
    assert any("sub-agents without a duration: 1" in note for note in trace.meta.notes)


def test_a_request_that_began_before_the_one_in_front_ended_does_not_wait_for_it(tmp_path: Path) -> None:
    trace = read([session(tmp_path, call(0), call(2, api_time=60.0), call(9), call(70))])
    assert [after for _, after in links(trace)] == [[], [0], [0], [2]]
    assert any("requests begun before the one in front had ended: 1" in note for note in trace.meta.notes)


def test_a_stamp_of_whole_seconds_is_no_overlap(tmp_path: Path) -> None:
    trace = read([session(tmp_path, call(0, api_time=5.9), call(5))])
    assert links(trace) == [(0, []), (5 * S, [0])]
    assert trace.think_ns.tolist() == [0, 0]


def test_ids_are_the_sessions_own(tmp_path: Path) -> None:
    """The same numbers in two sessions are other content; in one session, sub-agents included, the same."""
    one = session(tmp_path, call(0, 128), agent(9, 2000, call(0, 192, ids=[1, 2, 7])), name="a")
    other = session(tmp_path, call(0, 128, output=6), name="b")
    trace = read([one, other])
    content = Content(trace)
    rows = {(int(trace.session[r]), int(trace.num_prompt_tokens[r])): r for r in range(len(trace))}
    assert content.common_tokens(rows[0, 128], rows[0, 192]) == 128
    assert content.common_tokens(rows[0, 128], rows[1, 128]) == 0
    assert len({int(trace.prefix_ids.row(r)[0]) for r in range(len(trace))}) == 2


def test_sessions_all_begin_at_0_and_that_is_told(tmp_path: Path) -> None:
    paths = [session(tmp_path, call(0, output=n), call(5), name=f"s{n}") for n in (1, 2, 3)]
    trace = read(paths)
    assert trace.arrival_ns.tolist() == [0, 0, 0, 5 * S, 5 * S, 5 * S]
    assert trace.session.tolist() == [0, 1, 2, 0, 1, 2]
    assert any("3 sessions, all beginning at 0" in note for note in trace.meta.notes)


def test_exact_copies_of_a_session_are_left_out_and_listed(tmp_path: Path) -> None:
    paths = [session(tmp_path, call(0), call(5), name=n) for n in ("a", "b", "c")]
    trace = read(paths)
    assert len(trace) == 2
    assert any("exact copies of other sessions, left out: 2 (b.json, c.json)" in note for note in trace.meta.notes)


def test_one_session_a_line_reads_like_one_a_file(tmp_path: Path) -> None:
    paths = [session(tmp_path, call(0, output=n), call(5), name=f"s{n}") for n in (1, 2)]
    lines = tmp_path / "all.jsonl"
    lines.write_text("\n".join(path.read_text() for path in paths))
    assert trace_hash(read([lines])) == trace_hash(read(paths))


def test_a_failure_passes_its_links_on(tmp_path: Path) -> None:
    trace = read([session(tmp_path, call(0, 128), call(3, 192, output=0), call(8, 256))])
    assert links(trace) == [(0, []), (8 * S, [0])]
    assert (trace.parent.tolist(), trace.inherited_tokens.tolist()) == ([-1, 0], [0, 128])


def test_ids_follow_the_floor_rule(tmp_path: Path) -> None:
    assert read([session(tmp_path, call(0, 191, ids=[1, 2]))]).meta.tail_rule == "floor"
    for ids in ([1], [1, 2, 3]):
        with pytest.raises(TraceError, match=r"request 1: . hash_ids for 191 input tokens: at 64 .* must be 2"):
            read([session(tmp_path, call(0, 191, ids=ids))])


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"hash_id_scope": "global"}, "only 'local' is read"),
        ({"block_size": 0}, "a whole number from 1 is needed"),
        ({"block_size": 64.0}, "a whole number from 1 is needed"),
        ({"requests": {}}, "a list is needed"),
        ({"requests": [7]}, "a request is an object"),
        ({"requests": [{"t": 0, "in": 5, "out": 1}]}, "request 1: hash_ids missing"),
        ({"requests": [{"type": "subagent", "t": 1}]}, "request 1: requests missing"),
    ],
)
def test_what_is_no_session_is_refused(tmp_path: Path, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read([session(tmp_path, call(0), **more)])


def test_sessions_of_another_block_size_are_refused(tmp_path: Path) -> None:
    paths = [session(tmp_path, call(0), name="a"), session(tmp_path, call(0, ids=[]), name="b", block_size=128)]
    with pytest.raises(TraceError, match="block_size 128 behind sessions of 64; import them apart"):
        read(paths)


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    inner = call(0)
    for _ in range(30):
        inner = agent(1, 1, inner)
    with pytest.raises(TraceError, match="nested over 20 deep"):
        read([session(tmp_path, call(0), inner)])


def test_real_sessions_keep_floor_ids_order_and_what_their_publisher_counts(real_traces: Path) -> None:
    paths = sorted((real_traces / "weka").glob("*.json"))
    trace = read(paths)
    told = [json.loads(path.read_text()) for path in paths]
    count = sum(len(r["requests"]) if r["type"] == "subagent" else 1 for s in told for r in s["requests"])
    assert len(trace) == count
    assert (trace.prefix_ids.lengths == trace.num_prompt_tokens // 64).all()
    assert int(trace.num_prompt_tokens.sum()) == sum(
        q["in"] for s in told for r in s["requests"] for q in (r["requests"] if r["type"] == "subagent" else [r])
    )
    assert len(np.unique(trace.session)) == len(paths)
    assert describe(trace).sharing.ideal_hit_ratio == pytest.approx(0.9, abs=0.08)  # 96 % over all published ones


def test_real_sub_agents_start_after_a_turn_and_are_joined_by_the_next(real_traces: Path) -> None:
    trace = read([real_traces / "weka/trace_0291.json"])
    starts = [
        r for r in range(1, len(trace)) if trace.parent[r] < 0
    ]  # no context of the turn in front: a sub-agent
    assert len(starts) == 2
    assert {tuple(trace.after.row(r).tolist()) for r in starts} == {(15,)}
    joins = [r for r in range(len(trace)) if len(trace.after.row(r)) > 1]
    assert len(joins) == 1
    assert (trace.starts[1:] == STARTS["think"]).all()


def test_real_sessions_share_nothing_with_one_another(real_traces: Path) -> None:
    paths = sorted((real_traces / "weka").glob("*.json"))
    together, alone = read(paths), [read([path]) for path in paths]
    assert int(ideal_hits(together).sum()) == sum(int(ideal_hits(trace).sum()) for trace in alone)
