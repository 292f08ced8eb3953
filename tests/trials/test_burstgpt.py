"""Columns by name, failures left out, and sessions where a file has them."""

from pathlib import Path

import pytest

from trials.formats.burstgpt import read
from trials.trace import Trace, TraceError

OLD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
NEW = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def _read(folder: Path, header: str, *rows: str) -> Trace:
    path = folder / "b.csv"
    path.write_text("\n".join([header, *rows]))
    return read([path])


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    old = _read(tmp_path, OLD, "5,ChatGPT,472,18,490,Conversation log", "5,GPT-4,30,7,37,API log")
    turned = _read(tmp_path, "Response tokens,Timestamp,Request tokens", "18,5,472", "7,5,30")
    for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens"):
        assert getattr(old, name).tolist() == getattr(turned, name).tolist()
    assert old.num_prompt_tokens.tolist() == [472, 30]


def test_failures_of_any_prompt_are_left_out_and_listed(tmp_path: Path) -> None:
    trace = _read(tmp_path, OLD, "5,ChatGPT,0,0,0,x", "6,ChatGPT,9,3,12,x", "7,ChatGPT,9,0,9,x")
    assert len(trace) == 1
    assert any("2 rows with 0 output tokens left out" in n and "lines 2, 4" in n for n in trace.meta.notes)


def test_turns_of_a_session_follow_the_one_before_it_ended(tmp_path: Path) -> None:
    trace = _read(
        tmp_path, NEW, "7,a,2.5,m,310,42,352,x", "8,,,m,12,3,15,x", "9,b,1,m,12,3,15,x", "30,a,4,m,420,11,431,x"
    )
    assert trace.session.tolist() == [0, -1, 1, 0]
    assert [trace.after.row(r).tolist() for r in range(4)] == [[], [], [], [0]]
    assert trace.think_ns.tolist() == [0, 0, 0, 20_500_000_000]
    assert trace.inherited_tokens.tolist() == [0, 0, 0, 0]
    assert any("they share nothing" in note for note in trace.meta.notes)


def test_without_elapsed_time_the_think_time_is_the_gap_and_that_is_told(tmp_path: Path) -> None:
    trace = _read(tmp_path, "Timestamp,Session ID,Request tokens,Response tokens", "7,a,31,4", "10,a,42,11")
    assert trace.think_ns.tolist() == [0, 3 * 10**9]
    assert any("without Elapsed time" in note for note in trace.meta.notes)


@pytest.mark.parametrize("header", ["Timestamp,Model,Response tokens", "a,b", "Timestamp,Timestamp,Request tokens"])
def test_a_header_without_the_columns_is_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(TraceError, match="line 1: "):
        _read(tmp_path, header, "1,2,3")
